"""Bins of probabilities, what is summed in them, and the calibration error of the sums."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gduq.errors import InputError
from gduq.metrics.rows import Rows
from gduq.metrics.weighted import WeightedRows
from gduq.whole import whole

__all__ = [
    "bin_error",
    "bin_index",
    "bin_sums",
    "check_binning",
    "check_bins",
    "check_norm",
    "class_sums",
    "folded_mean",
    "mass_cuts",
    "mass_sums",
    "wilson",
]

Sums = tuple[Tensor, Tensor, Tensor]  # count, sum of probabilities, sum of hits: [..., B] each


def wilson(rate: Tensor, count: Tensor, level: float) -> tuple[Tensor, Tensor]:
    """The Wilson interval of a share ``rate`` of ``count`` rows; NaN where there are none."""
    z = math.sqrt(2.0) * float(torch.erfinv(torch.tensor(level, dtype=torch.float64)))
    centre = (rate + z * z / (2 * count)) / (1 + z * z / count)
    half = (rate * (1 - rate) / count + (z / (2 * count)).square()).sqrt() * z
    half = half / (1 + z * z / count)
    return (centre - half).clamp_min(0.0), (centre + half).clamp_max(1.0)


def check_bins(rows: Rows, bins: int, strict: bool) -> None:
    """Raise for a number of bins these rows cannot fill."""
    bins = whole("bins", bins, least=1)
    if strict and len(rows) < bins:
        raise InputError(
            f"at least as many rows as bins ({bins})",
            f"{len(rows)} rows",
            f"Pass bins={len(rows)} or fewer, or strict=False to allow empty bins.",
        )


def check_norm(norm: str, debias: bool) -> None:
    """Raise for an unknown norm or one that cannot be debiased."""
    if norm not in ("l1", "l2", "max"):
        raise InputError("a norm from 'l1', 'l2', 'max'", repr(norm))
    if debias and norm == "max":
        raise InputError("norm 'l1' or 'l2' with debias=True", "'max'")


def check_binning(binning: str) -> None:
    """Raise for an unknown kind of bins."""
    if binning not in ("width", "mass"):
        raise InputError("binning from 'width', 'mass'", repr(binning))


def bin_index(probs: Tensor, bins: int) -> Tensor:
    """The equal-width bin of each probability, 0 to bins - 1."""
    # edges as NumPy's linspace rounds them, so values on an edge go where other libraries put them
    edges = torch.arange(1, bins, dtype=torch.float64, device=probs.device) * (1.0 / bins)
    return torch.bucketize(probs.double().contiguous(), edges, right=True)


def bin_sums(rows: WeightedRows, probs: Tensor, hits: Tensor, bins: int) -> Sums:
    """Count, sum of ``probs`` and of ``hits`` in equal-width bins, ``[R, B]`` each."""
    index = bin_index(probs, bins)
    return rows.sums(index, bins), rows.sums(index, bins, probs), rows.sums(index, bins, hits)


def class_sums(rows: Rows, bins: int) -> Sums:
    """As `bin_sums`, for the probability of every class, ``[R, C, B]`` each."""

    def make() -> Sums:
        count, prob = [], []
        for column in rows.probs.unbind(dim=1):
            index = bin_index(column, bins)
            count.append(rows.sums(index, bins))
            prob.append(rows.sums(index, bins, column))
        # a row is a hit for its true class only: m places to count, not m x C
        own = rows.probs.gather(1, rows.labels.unsqueeze(1)).squeeze(1)
        place = bin_index(own, bins) + rows.labels * bins
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
    """As `bin_sums`, over equally full bins of values sorted along the last axis ``[..., m]``."""
    cuts = mass_cuts(confidence.size(-1), bins).to(confidence.device)
    prob, hit = (_between(v.double(), cuts) for v in (confidence, correct))
    return cuts.diff().double().expand_as(prob), prob, hit


def _between(values: Tensor, cuts: Tensor) -> Tensor:
    total = torch.nn.functional.pad(values.cumsum(dim=-1), (1, 0))
    between: Tensor = total[..., cuts].diff(dim=-1)
    return between


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
    if debias:
        gap = gap - _noise(gap, (prob / filled).clamp(0.0, 1.0), filled)
    return (share * gap).sum(dim=-1).clamp_min(0.0)


def _noise(gap: Tensor, prob: Tensor, count: Tensor) -> Tensor:
    """How much of an absolute gap is likely noise, given a calibrated bin's variance."""
    variance = prob * (1.0 - prob) / count
    clean = (gap.square() - variance).clamp_min(0.0).sqrt()
    return folded_mean(clean, variance.sqrt()) - clean


def folded_mean(mean: Tensor, deviation: Tensor) -> Tensor:
    """E|x| of x ~ N(mean, deviation^2), for mean >= 0."""
    ratio = mean / deviation.clamp_min(1e-300)
    density = (-0.5 * ratio.square()).exp() * math.sqrt(2.0 / math.pi)
    return deviation * density + mean * torch.erf(ratio / math.sqrt(2.0))
