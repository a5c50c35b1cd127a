"""Calibration errors, over bins and without, and the reliability curve."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from gduq.errors import InputError
from gduq.metrics.bins import (
    bin_error,
    check_bins,
    check_choice,
    class_sums,
    confidence_sums,
    mass_cuts,
)
from gduq.metrics.metric import UNIT, metric
from gduq.metrics.resampling import check_level, wilson
from gduq.metrics.rows import read

__all__ = [
    "Binning",
    "Norm",
    "Reliability",
    "adaptive_ece",
    "classwise_ece",
    "ece",
    "reliability",
    "smooth_ece",
]

Norm = Literal["l1", "l2", "max"]
Binning = Literal["width", "mass"]
_CELLS = 512  # finer than any bandwidth the fixed point returns on real sample sizes


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


@metric(classes=UNIT, labels=UNIT)
def adaptive_ece(p: Any, target: Tensor | None = None, **options: Any) -> float:
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
    p: Any, target: Tensor | None = None, *, bins: int = 15, strict: bool = True
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


@metric(classes=UNIT)
def smooth_ece(p: Any, target: Tensor | None = None) -> float:
    r"""Smooth calibration error: residuals averaged by a kernel, then in absolute value.

    .. math::
        \mathrm{smECE}_\sigma = \int_0^1 \Big| \tfrac1m \sum_i K_\sigma(t, f_i)(a_i - f_i) \Big| dt

    with confidence :math:`f_i`, correctness :math:`a_i` and a Gaussian kernel reflected at 0 and 1,
    at the :math:`\sigma` with :math:`\mathrm{smECE}_\sigma = \sigma` (Błasiok and Nakkiran, 2024).

    Example:
        >>> round(smooth_ece(torch.zeros(4, 2), torch.tensor([0, 0, 0, 0])), 3)
        0.5
    """
    rows = read(p, target)
    cell = (rows.confidence.double() * _CELLS).long().clamp_max_(_CELLS - 1)
    cells = rows.sums(cell, _CELLS, rows.correct - rows.confidence.double())
    return rows.out(_smooth_error(cells / rows.weights.sum(dim=1, keepdim=True)))


def _smooth_error(cells: Tensor) -> Tensor:
    """The smooth calibration error ``[...]`` of mean residuals per cell ``[..., cells]``."""
    # reflection at both ends makes the signal even and periodic: a product in frequency
    spectrum = torch.fft.rfft(torch.cat([cells, cells.flip(-1)], dim=-1))
    frequency = math.pi * torch.arange(spectrum.size(-1), dtype=cells.dtype, device=cells.device)

    def at(sigma: Tensor) -> Tensor:
        window = (-0.5 * (sigma.unsqueeze(-1) * frequency).square()).exp()
        smooth = torch.fft.irfft(spectrum * window, n=2 * cells.size(-1))
        total: Tensor = smooth[..., : cells.size(-1)].abs().sum(dim=-1)
        return total

    return _crossing(at, cells[..., 0])


def _crossing(error: Callable[[Tensor], Tensor], like: Tensor) -> Tensor:
    """Where ``error(x) = x`` in [0, 1], for an error that falls: false position (Illinois)."""
    low, high = torch.zeros_like(like), torch.ones_like(like)
    above, below = error(low) - low, error(high) - high
    for _ in range(10):
        x = low + (high - low) * (above / (above - below).clamp_min(1e-30)).clamp(0.0, 1.0)
        gap = error(x) - x
        up = gap > 0
        # the end that stays counts half, or it would stay for ever
        above, below = torch.where(up, gap, above / 2), torch.where(up, below / 2, gap)
        low, high = torch.where(up, x, low), torch.where(up, high, x)
    return x


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
