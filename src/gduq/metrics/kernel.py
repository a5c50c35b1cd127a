"""Calibration error without bins: a kernel instead."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gduq.errors import InputError
from gduq.metrics.rows import read
from gduq.metrics.weighted import UNIT, metric

__all__ = ["smooth_ece"]

_CELLS = 512  # finer than any bandwidth the fixed point returns on real sample sizes


@metric(classes=UNIT)
def smooth_ece(p: Any, target: Tensor | None = None, *, bandwidth: float | None = None) -> float:
    r"""Smooth calibration error: residuals averaged by a kernel, then in absolute value.

    With confidence :math:`f_i`, correctness :math:`a_i` and a Gaussian kernel reflected at 0 and 1:

    .. math::
        \mathrm{smECE}_\sigma = \int_0^1 \Big| \tfrac1m \sum_i K_\sigma(t, f_i)(a_i - f_i) \Big| dt

    Without ``bandwidth``, :math:`\sigma` is the one with :math:`\mathrm{smECE}_\sigma = \sigma`
    (Błasiok and Nakkiran, 2024): no bins to choose and no jumps when a confidence moves a little.

    Args:
        p: A `gduq.Prediction` or logits ``[m, C]``.
        target: Labels ``[m]``, next to logits only.
        bandwidth: A fixed :math:`\sigma > 0`: the kernel calibration error at that scale.

    Example:
        >>> logits = torch.tensor([[0.0, 0.0]] * 4)
        >>> round(smooth_ece(logits, torch.tensor([0, 0, 0, 0]), bandwidth=0.05), 3)
        0.5
    """
    rows = read(p, target)
    if bandwidth is not None and not bandwidth > 0:
        raise InputError("bandwidth > 0", bandwidth)
    residual = rows.correct - rows.confidence.double()
    cells = rows.sums(_cell(rows.confidence), _CELLS, residual)
    size = rows.weights.sum(dim=1, keepdim=True)
    return rows.out(_smooth_error(cells / size, bandwidth))


def _cell(confidence: Tensor) -> Tensor:
    """The cell of a fine grid over [0, 1] that each confidence lies in."""
    return (confidence.double() * _CELLS).long().clamp_max_(_CELLS - 1)


def _smooth_error(cells: Tensor, bandwidth: float | None) -> Tensor:
    """The smooth calibration error ``[...]`` of mean residuals per cell ``[..., cells]``."""
    # reflection at both ends makes the signal even and periodic: a product in frequency
    spectrum = torch.fft.rfft(torch.cat([cells, cells.flip(-1)], dim=-1))
    frequency = math.pi * torch.arange(spectrum.size(-1), dtype=cells.dtype, device=cells.device)

    def at(sigma: Tensor) -> Tensor:
        window = (-0.5 * (sigma.unsqueeze(-1) * frequency).square()).exp()
        smooth = torch.fft.irfft(spectrum * window, n=2 * cells.size(-1))
        total: Tensor = smooth[..., : cells.size(-1)].abs().sum(dim=-1)
        return total

    if bandwidth is not None:
        return at(torch.full_like(cells[..., 0], bandwidth))
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
