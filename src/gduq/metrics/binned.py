"""Calibration errors over bins, and the reliability curve."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from gduq.errors import InputError
from gduq.metrics.label_rows import over_labels
from gduq.metrics.rows import Rows, kind_of, read

__all__ = ["Binning", "Norm", "Reliability", "adaptive_ece", "classwise_ece", "ece", "reliability"]

Norm = Literal["l1", "l2", "max"]
Binning = Literal["width", "mass"]


def ece(
    p: Any,
    target: Tensor | None = None,
    *,
    bins: int = 15,
    norm: Norm = "l1",
    binning: Binning = "width",
    debias: bool = False,
    strict: bool = True,
) -> float:
    r"""Expected calibration error of the most likely class.

    With bin b holding :math:`n_b` of m rows, their accuracy :math:`a_b` and mean confidence
    :math:`\bar p_b`:

    .. math::
        \text{l1: } \sum_b \tfrac{n_b}{m} |a_b - \bar p_b| \qquad
        \text{l2: } \Big(\sum_b \tfrac{n_b}{m} (a_b - \bar p_b)^2\Big)^{1/2} \qquad
        \text{max: } \max_b |a_b - \bar p_b|

    Bins are :math:`[e_b, e_{b+1})`, the last one closed: a confidence of exactly 1 is in it.

    Even a perfectly calibrated model has a positive expected ECE, since :math:`a_b` is noisy:
    about :math:`\sqrt{B/m}` in size. ``debias`` subtracts an estimate of that: for l2 the variance
    :math:`a_b(1-a_b)/(n_b-1)` (Kumar, Liang and Ma, 2019). For l1, with the variance of a
    calibrated bin :math:`v_b = \bar p_b(1-\bar p_b)/n_b` and the gap without it
    :math:`g_b^2 = \max(0, (a_b - \bar p_b)^2 - v_b)`, it is what the mean of
    :math:`|\mathcal N(g_b, v_b)|` exceeds :math:`g_b` by. That is most of the bias of a calibrated
    model, not all, and nothing where the gap is clear.

    Of labels it is the mean over labels, each a task of two classes of the rows where it is known.

    Args:
        p: A `gduq.Prediction`, a `gduq.LabelPrediction` or logits ``[m, C]``.
        target: Labels ``[m]``, next to logits only.
        bins: Number of bins B.
        norm: ``"l1"``, ``"l2"`` or ``"max"``.
        binning: ``"width"``, or ``"mass"`` for bins with equally many rows.
        debias: Subtract that estimate of what noise adds, bin by bin; not for ``"max"``.
        strict: ``False`` allows fewer rows than bins (the paper's 100 bins on 70 nodes); the
            result then mostly measures noise.

    Example:
        >>> logits = torch.tensor([[0.0, 0.0], [0.0, 0.0]])
        >>> ece(logits, torch.tensor([0, 0]), bins=2)
        0.5
    """
    if kind_of(p) == "labels":
        options: dict[str, Any] = {"bins": bins, "norm": norm, "binning": binning}
        return over_labels(ece, p, target, **options, debias=debias, strict=strict)
    rows = read(p, target)
    check_bins(rows, bins, strict)
    check_norm(norm, debias)
    check_binning(binning)
    if binning == "width":
        sums = bin_sums(rows.confidence, rows.correct, bins)
    else:
        sums = mass_sums(*by_confidence(rows), bins)
    return float(bin_error(*sums, norm, debias))


def adaptive_ece(
    p: Any,
    target: Tensor | None = None,
    *,
    bins: int = 15,
    norm: Norm = "l1",
    debias: bool = False,
    strict: bool = True,
) -> float:
    """`ece` over bins with equally many rows (Nguyen and O'Connor, 2015).

    Rows of equal confidence that fall into two bins are shared between them evenly, so the order
    of the rows does not matter.

    Example:
        >>> logits = torch.tensor([[0.0, 0.0], [0.0, 9.0]], dtype=torch.float64)
        >>> round(adaptive_ece(logits, torch.tensor([0, 0]), bins=2), 3)
        0.75
    """
    return ece(p, target, bins=bins, norm=norm, binning="mass", debias=debias, strict=strict)


def classwise_ece(
    p: Any,
    target: Tensor | None = None,
    *,
    bins: int = 15,
    norm: Norm = "l1",
    debias: bool = False,
    strict: bool = True,
) -> float:
    r"""Calibration error of every class's probability, averaged over classes.

    :math:`\frac1C \sum_c \mathrm{ECE}(p_{\cdot c}, [y = c])` (Kull et al., 2019). Classes without
    a single row count too: their probability should be 0.

    Example:
        >>> logits = torch.tensor([[0.0, 0.0], [0.0, 0.0]])
        >>> classwise_ece(logits, torch.tensor([0, 0]), bins=2)
        0.5
    """
    rows = read(p, target)
    check_bins(rows, bins, strict)
    check_norm(norm, debias)
    return float(bin_error(*class_sums(rows, bins), norm, debias).mean())


class Reliability(NamedTuple):
    """A reliability curve over B bins; empty bins hold NaN."""

    edges: Tensor  # [B + 1]
    rows: Tensor  # [B], how many
    confidence: Tensor  # [B], mean in the bin
    accuracy: Tensor  # [B]
    low: Tensor  # [B], Wilson interval of the accuracy
    high: Tensor  # [B]


def reliability(
    p: Any,
    target: Tensor | None = None,
    *,
    bins: int = 15,
    binning: Binning = "width",
    level: float = 0.95,
    strict: bool = True,
) -> Reliability:
    """Accuracy against confidence, bin by bin, with Wilson intervals.

    Args:
        level: Coverage of the intervals.

    Example:
        >>> curve = reliability(torch.tensor([[0.0, 0.0]] * 4), torch.tensor([0, 0, 0, 1]), bins=2)
        >>> curve.rows, curve.accuracy
        (tensor([0., 4.], dtype=torch.float64), tensor([ nan, 0.7500], dtype=torch.float64))
    """
    rows = read(p, target)
    check_bins(rows, bins, strict)
    check_binning(binning)
    if not 0 < level < 1:
        raise InputError("level between 0 and 1", level)
    if binning == "width":
        edges = torch.arange(bins + 1, dtype=torch.float64) / bins
        sums = bin_sums(rows.confidence, rows.correct, bins)
    else:
        confidence, correct = by_confidence(rows)
        sums = mass_sums(confidence, correct, bins)
        cuts = _cuts(len(rows), bins).clamp_max(len(rows) - 1)  # bins beyond the rows are empty
        edges = torch.cat([confidence[cuts[:-1]], confidence[-1:]]).double()
    count, prob, hit = sums
    rate = hit / count
    return Reliability(edges, count, prob / count, rate, *wilson(rate, count, level))


def wilson(rate: Tensor, count: Tensor, level: float) -> tuple[Tensor, Tensor]:
    """The Wilson interval of a share ``rate`` of ``count`` rows; NaN where there are none."""
    z = math.sqrt(2.0) * float(torch.erfinv(torch.tensor(level, dtype=torch.float64)))
    centre = (rate + z * z / (2 * count)) / (1 + z * z / count)
    half = (rate * (1 - rate) / count + (z / (2 * count)).square()).sqrt() * z
    half = half / (1 + z * z / count)
    return (centre - half).clamp_min(0.0), (centre + half).clamp_max(1.0)


# -- bins: sums of count, probability and hits, [..., B] each ------------------------------------


def check_bins(rows: Rows, bins: int, strict: bool) -> None:
    """Raise for a number of bins these rows cannot fill."""
    if not isinstance(bins, int) or bins < 1:
        raise InputError("bins >= 1", bins)
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


def bin_sums(probs: Tensor, hits: Tensor, bins: int) -> tuple[Tensor, Tensor, Tensor]:
    """Count, sum of ``probs`` and of ``hits`` in equal-width bins, ``[B]`` each."""
    index = bin_index(probs, bins)
    count = torch.bincount(index, minlength=bins).double()
    prob = torch.bincount(index, weights=probs.double(), minlength=bins)
    hit = torch.bincount(index, weights=hits.double(), minlength=bins)
    return count, prob, hit


def class_sums(rows: Rows, bins: int) -> tuple[Tensor, Tensor, Tensor]:
    """As `bin_sums`, for the probability of every class, ``[C, B]`` each."""
    count, prob = [], []
    for column in rows.probs.unbind(dim=1):
        column = column.double().contiguous()
        index = bin_index(column, bins)
        count.append(torch.bincount(index, minlength=bins).double())
        prob.append(torch.bincount(index, weights=column, minlength=bins))
    # a row is a hit for its true class only: m places to count, not m x C
    own = rows.probs.gather(1, rows.labels.unsqueeze(1)).squeeze(1)
    place = bin_index(own, bins) + rows.labels * bins
    hit = torch.bincount(place, minlength=rows.num_classes * bins).double()
    return torch.stack(count), torch.stack(prob), hit.view(rows.num_classes, bins)


def by_confidence(rows: Rows) -> tuple[Tensor, Tensor]:
    """Confidence, ascending, and correctness in that order, equal among equal confidences."""
    return ordered(rows.confidence, rows.correct)


def ordered(scores: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Scores, ascending, and values in that order, equal among equal scores."""
    scores, order = scores.sort()
    return scores, tie_means(scores, values[order])


def tie_means(sorted_scores: Tensor, values: Tensor) -> Tensor:
    """Replace values by their mean over equal scores: no arbitrary order among ties."""
    _, group, size = torch.unique_consecutive(
        sorted_scores, return_inverse=True, return_counts=True
    )
    if size.numel() == values.numel():
        return values
    sums = torch.zeros(size.numel(), dtype=values.dtype, device=values.device)
    means: Tensor = (sums.index_add_(0, group, values) / size)[group]
    return means


def _cuts(rows: int, bins: int) -> Tensor:
    """Where ``bins`` parts of almost equal size begin and end, ``[B + 1]``; larger parts first."""
    size, rest = divmod(rows, bins)
    number = torch.arange(bins + 1)
    return number * size + number.clamp_max(rest)


def mass_sums(confidence: Tensor, correct: Tensor, bins: int) -> tuple[Tensor, Tensor, Tensor]:
    """As `bin_sums`, over equally full bins of values sorted along the last axis ``[..., m]``."""
    cuts = _cuts(confidence.size(-1), bins).to(confidence.device)
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
