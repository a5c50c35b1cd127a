"""Bins of probabilities, what is summed in them, and the calibration error of the sums."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from gduq._checks import check_int
from gduq.errors import InputError
from gduq.metrics.crps import folded_mean
from gduq.metrics.rows import Rows
from gduq.metrics.weighted import WeightedRows

__all__ = ["bin_error", "check_bins", "class_sums", "confidence_sums", "mass_cuts", "mass_sums"]

Sums = tuple[Tensor, Tensor, Tensor]  # count, sum of probabilities, sum of hits: [..., B] each


def check_bins(rows: WeightedRows, bins: int, strict: bool = True) -> None:
    """Raise for a number of bins these rows cannot fill."""
    bins = check_int("bins", bins, least=1)
    if strict and len(rows) < bins:
        do = f"Pass bins={len(rows)} or fewer."
        raise InputError(f"at least as many rows as bins ({bins})", f"{len(rows)} rows", do)


def check_choice(name: str, given: str, allowed: Sequence[str]) -> None:
    """Raise for a word that is none of those allowed."""
    if given not in allowed:
        raise InputError(f"{name} from {', '.join(map(repr, allowed))}", repr(given))


def _bin_index(probs: Tensor, bins: int) -> Tensor:
    # edges as NumPy's linspace rounds them, so values on an edge go where other libraries put them
    edges = torch.arange(1, bins, dtype=torch.float64, device=probs.device) * (1.0 / bins)
    return torch.bucketize(probs.double().contiguous(), edges, right=True)


def confidence_sums(rows: Rows, bins: int, binning: str = "width") -> Sums:
    """Count, sum of confidence and of hits in bins of equal width or mass, ``[R, B]`` each."""
    if binning == "mass":
        return mass_sums(*rows.by_confidence(), bins)
    index, parts = _bin_index(rows.confidence, bins), (rows.confidence, rows.correct)
    prob, hit = (rows.sums(index, bins, part) for part in parts)
    return rows.sums(index, bins), prob, hit


def class_sums(rows: Rows, bins: int) -> Sums:
    """As `confidence_sums`, for the probability of every class, ``[R, C, B]`` each."""

    def make() -> Sums:
        count, prob = [], []
        for column in rows.probs.unbind(dim=1):
            index = _bin_index(column, bins)
            count.append(rows.sums(index, bins))
            prob.append(rows.sums(index, bins, column))
        # a row is a hit for its true class only: m places to count, not m x C
        place = _bin_index(rows.true(rows.probs), bins) + rows.labels * bins
        hit = rows.sums(place, rows.num_classes * bins)
        shape = (-1, rows.num_classes, bins)
        return torch.stack(count, dim=1), torch.stack(prob, dim=1), hit.view(shape)

    return rows.kept(("classes", bins), make)


def mass_cuts(rows: int, bins: int) -> Tensor:
    """Where ``bins`` parts of almost equal size begin and end, ``[B + 1]``; larger parts first."""
    size, rest = divmod(rows, bins)
    number = torch.arange(bins + 1)
    return number * size + number.clamp_max(rest)


def mass_sums(confidence: Tensor, correct: Tensor, bins: int) -> Sums:
    """Count and sums, equally full bins of values sorted along the last axis ``[..., m]``."""
    cuts = mass_cuts(confidence.size(-1), bins).to(confidence.device)
    upto = (F.pad(v.double().cumsum(dim=-1), (1, 0)) for v in (confidence, correct))
    prob, hit = (total[..., cuts].diff(dim=-1) for total in upto)
    return cuts.diff().double().expand_as(prob), prob, hit


def bin_error(count: Tensor, prob: Tensor, hit: Tensor, norm: str, debias: bool) -> Tensor:
    """The calibration error ``[...]`` of bin sums ``[..., B]``."""
    filled = count.clamp_min(1.0)
    gap = (hit - prob).abs() / filled
    if norm == "max":
        return gap.amax(dim=-1)
    share = count / count.sum(dim=-1, keepdim=True)
    if norm == "l2":
        rate = (hit / filled).clamp(0.0, 1.0)  # sums of shared ties may round beyond
        noise = rate * (1.0 - rate) / (count - 1.0).clamp_min(1.0) * float(debias)
        return (share * (gap.square() - noise)).sum(dim=-1).clamp_min(0.0).sqrt()
    if debias:  # what is likely noise, given a calibrated bin's variance
        mean = (prob / filled).clamp(0.0, 1.0)
        variance = mean * (1.0 - mean) / filled
        clean = (gap.square() - variance).clamp_min(0.0).sqrt()
        gap = gap - (folded_mean(clean, variance.sqrt()) - clean)
    return (share * gap).sum(dim=-1).clamp_min(0.0)
