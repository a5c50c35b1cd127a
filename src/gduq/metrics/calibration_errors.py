"""Calibration errors, over bins and without, and the reliability curve."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from gduq.errors import InputError
from gduq.metrics.resampling import check_level, wilson
from gduq.metrics.rows import UNIT, Predicted, Rows, folded_mean, metric, read
from gduq.metrics.values import Sums, check_bins, mass_cuts, mass_sums

__all__ = [
    "Binning",
    "Norm",
    "Reliability",
    "adaptive_ece",
    "classwise_ece",
    "ece",
    "reliability",
]

Norm = Literal["l1", "l2", "max"]
Binning = Literal["width", "mass"]


@metric(classes=UNIT)
def ece(
    p: Predicted,
    target: Tensor | None = None,
    *,
    bins: int = 15,
    norm: Norm = "l1",
    binning: Binning = "width",
    debias: bool = False,
    strict: bool = True,
) -> float:
    r"""Expected calibration error of the most likely class; of labels the mean over labels.

    With bin b, :math:`[e_b, e_{b+1})`, the last one closed, holding :math:`n_b` of m rows, their
    accuracy :math:`a_b` and mean confidence :math:`\bar p_b`:

    .. math::
        \text{l1: } \sum_b \tfrac{n_b}{m} |a_b - \bar p_b| \qquad
        \text{l2: } \Big(\sum_b \tfrac{n_b}{m} (a_b - \bar p_b)^2\Big)^{1/2} \qquad
        \text{max: } \max_b |a_b - \bar p_b|

    Noise makes it positive even for a calibrated model: by about :math:`\sqrt{B/m}`.

    Args:
        p: A `gduq.ClassPrediction`, a `gduq.LabelPrediction` or logits ``[m, C]``.
        target: Labels ``[m]``, next to logits only.
        bins: Number of bins B.
        norm: ``"l1"``, ``"l2"`` or ``"max"``.
        binning: ``"width"``, or ``"mass"`` for bins with equally many rows.
        debias: Subtract most of what noise adds: for l2 the variance of :math:`a_b` (Kumar et al.,
            2019), for l1 the mean of :math:`|a_b - \bar p_b|` beyond a gap without noise.
        strict: ``False`` allows fewer rows than bins; the result then mostly measures noise.

    Example:
        >>> logits = torch.tensor([[0.0, 0.0], [0.0, 0.0]])
        >>> ece(logits, torch.tensor([0, 0]), bins=2)
        0.5
    """
    rows = read(p, target)
    check_bins(rows, bins, strict)
    check_choice("a norm", norm, get_args(Norm))
    check_choice("binning", binning, get_args(Binning))
    if debias and norm == "max":
        raise InputError("norm 'l1' or 'l2' with debias=True", "'max'")
    return rows.out(bin_error(*confidence_sums(rows, bins, binning), norm, debias))


@metric(classes=UNIT)
def adaptive_ece(p: Predicted, target: Tensor | None = None, **options: Any) -> float:
    """`ece` over bins with equally many rows (Nguyen and O'Connor, 2015).

    Rows of equal confidence that fall into two bins are shared between them evenly.

    Example:
        >>> logits = torch.tensor([[0.0, 0.0], [0.0, 9.0]], dtype=torch.float64)
        >>> round(adaptive_ece(logits, torch.tensor([0, 0]), bins=2), 3)
        0.75
    """
    return ece(p, target, binning="mass", **options)


@metric(classes=UNIT)
def classwise_ece(
    p: Predicted, target: Tensor | None = None, *, bins: int = 15, strict: bool = True
) -> float:
    r"""Mean over classes :math:`\frac1C \sum_c \mathrm{ECE}(p_{\cdot c}, [y = c])` (Kull, 2019).

    Example:
        >>> logits = torch.tensor([[0.0, 0.0], [0.0, 0.0]])
        >>> classwise_ece(logits, torch.tensor([0, 0]), bins=2)
        0.5
    """
    rows = read(p, target)
    check_bins(rows, bins, strict)
    return rows.out(bin_error(*class_sums(rows, bins), "l1", False).mean(dim=-1))


class Reliability(NamedTuple):
    """A reliability curve over B bins; empty bins hold NaN."""

    edges: Tensor  # [B + 1]
    rows: Tensor  # [B], how many
    confidence: Tensor  # [B], mean in the bin
    accuracy: Tensor  # [B]
    low: Tensor  # [B], Wilson interval of the accuracy
    high: Tensor  # [B]


def reliability(
    p: Predicted,
    target: Tensor | None = None,
    *,
    bins: int = 15,
    binning: Binning = "width",
    level: float = 0.95,
    strict: bool = True,
) -> Reliability:
    """Accuracy against confidence, bin by bin, with Wilson intervals of that ``level``.

    Example:
        >>> curve = reliability(torch.tensor([[0.0, 0.0]] * 4), torch.tensor([0, 0, 0, 1]), bins=2)
        >>> curve.rows, curve.accuracy
        (tensor([0., 4.], dtype=torch.float64), tensor([ nan, 0.7500], dtype=torch.float64))
    """
    rows = read(p, target)
    check_bins(rows, bins, strict)
    check_choice("binning", binning, get_args(Binning))
    check_level(level)
    if binning == "width":
        edges = torch.arange(bins + 1, dtype=torch.float64) / bins
    else:
        confidence = rows.by_confidence()[0][0]
        cuts = mass_cuts(len(rows), bins).clamp_max(len(rows) - 1)  # bins beyond them are empty
        edges = torch.cat([confidence[cuts[:-1]], confidence[-1:]]).double()
    count, prob, hit = (part[0] for part in confidence_sums(rows, bins, binning))
    rate = hit / count
    return Reliability(edges, count, prob / count, rate, *wilson(rate, count, level))


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
