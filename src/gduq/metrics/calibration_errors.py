"""Calibration errors over bins, and the reliability curve."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from gduq.errors import InputError
from gduq.metrics.bins import (
    bin_error,
    bin_sums,
    check_binning,
    check_bins,
    check_norm,
    class_sums,
    mass_cuts,
    mass_sums,
    wilson,
)
from gduq.metrics.rows import read
from gduq.metrics.weighted import UNIT, metric

__all__ = ["Binning", "Norm", "Reliability", "adaptive_ece", "classwise_ece", "ece", "reliability"]

Norm = Literal["l1", "l2", "max"]
Binning = Literal["width", "mass"]


@metric(classes=UNIT, labels=UNIT)
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
    rows = read(p, target)
    check_bins(rows, bins, strict)
    check_norm(norm, debias)
    check_binning(binning)
    if binning == "width":
        sums = bin_sums(rows, rows.confidence, rows.correct, bins)
    else:
        sums = mass_sums(*rows.by_confidence(), bins)
    return rows.out(bin_error(*sums, norm, debias))


@metric(classes=UNIT, labels=UNIT)
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


@metric(classes=UNIT)
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
    return rows.out(bin_error(*class_sums(rows, bins), norm, debias).mean(dim=-1))


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
        sums = bin_sums(rows, rows.confidence, rows.correct, bins)
    else:
        confidence = rows.by_confidence()[0][0]
        sums = mass_sums(*rows.by_confidence(), bins)
        cuts = mass_cuts(len(rows), bins).clamp_max(len(rows) - 1)  # bins beyond them are empty
        edges = torch.cat([confidence[cuts[:-1]], confidence[-1:]]).double()
    count, prob, hit = (part[0] for part in sums)
    rate = hit / count
    return Reliability(edges, count, prob / count, rate, *wilson(rate, count, level))
