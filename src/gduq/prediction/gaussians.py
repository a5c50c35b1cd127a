"""Mixtures of Gaussians: quantiles, moments up to an end, and lines that levels are mapped by."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gduq.errors import InputError
from gduq.prediction.mixture import weighted_mean

__all__ = ["checked_levels", "interpolated", "moments_below", "quantile", "slopes", "surprise"]

_ROUNDS = 100  # in search of a quantile; nearly always less than ten


def surprise(squares: Tensor, logs: Tensor) -> Tensor:
    """Minus the log-density of Gaussians: of squared distances to the mean, and log-variances."""
    return 0.5 * (squares * (-logs).exp() + logs + math.log(2 * math.pi))


def quantile(means: Tensor, spread: Tensor, q: Tensor, weights: Tensor | None) -> Tensor:
    """The quantiles ``[m, T]`` at levels ``[T]`` of K Gaussians ``[K, m, T]``.

    By Newton's method within an interval that holds them, which is halved where that leads out of
    it or is slow. ``spread`` are deviations; all is float64.

    Example:
        >>> one = torch.ones(1, 1, 1).double()
        >>> quantile(5 * one, 2 * one, torch.tensor([0.5]).double(), None)
        tensor([[5.]], dtype=torch.float64)
    """
    ends: Tensor = means + torch.special.ndtri(q) * spread
    low, high, scale = ends.amin(dim=0), ends.amax(dim=0), spread.amax(dim=0)
    at, before = (low + high) / 2, high - low
    for _ in range(_ROUNDS):
        z = (at - means) / spread
        gap = weighted_mean(torch.special.ndtr(z), weights) - q
        bell = (-0.5 * z.square()).exp() / (spread * math.sqrt(2 * math.pi))
        low, high = torch.where(gap < 0, at, low), torch.where(gap < 0, high, at)
        step = -gap / weighted_mean(bell, weights).clamp_min(1e-300)
        there = step.abs() <= 1e-12 * (scale + at.abs())
        good = (at + step > low) & (at + step < high) & (step.abs() < before / 2)
        step = torch.where(there | good, step, (low + high) / 2 - at)
        at, before = at + step, step.abs()
        if bool((there | (before <= 1e-12 * (scale + at.abs()))).all()):
            break
    return at


def moments_below(
    end: Tensor, means: Tensor, spread: Tensor, weights: Tensor | None
) -> tuple[Tensor, Tensor]:
    """First and second moment of the mixture below ``end`` ``[m, T]``."""
    z = (end - means) / spread
    share = torch.special.ndtr(z)
    bell = (-0.5 * z.square()).exp() * spread / math.sqrt(2 * math.pi)
    first = means * share - bell
    second = (means.square() + spread.square()) * share - bell * (means + end)
    return weighted_mean(first, weights), weighted_mean(second, weights)


def checked_levels(levels: Tensor, values: int) -> Tensor:
    """Points ``[n, 2]``, or ``[T, n, 2]`` where there are several values."""
    points = torch.as_tensor(levels).detach().double()
    shape = list(points.shape)
    if points.dim() == 3 and values == 1 and len(points) == 1:
        points = points[0]
    good = points.dim() == 2 or (points.dim() == 3 and len(points) == values)
    good = good and points.size(-1) == 2 and points.size(-2) >= 2
    good = good and bool((points.diff(dim=-2) > 0).all())
    if not good or bool((points[..., 0, :] != 0).any()) or bool((points[..., -1, :] != 1).any()):
        raise InputError("levels [n, 2] or [T, n, 2] that rise from (0, 0) to (1, 1)", shape)
    return points


def _pieces(x: Tensor, lines: Tensor) -> tuple[Tensor, Tensor]:
    """The ends ``[m, T, 2]`` of the pieces of the lines ``[T, n, 2]`` that ``x`` lies on."""
    levels = lines[..., 0].contiguous()
    place = torch.searchsorted(levels, x.t().contiguous()).clamp(1, lines.size(1) - 1).t()
    value = torch.arange(lines.size(0), device=x.device)
    return lines[value, place - 1], lines[value, place]


def interpolated(x: Tensor, lines: Tensor) -> Tensor:
    """The lines ``[T, n, 2]`` at ``x`` ``[m, T]`` from 0 to 1."""
    left, right = _pieces(x, lines)
    share = (x - left[..., 0]) / (right[..., 0] - left[..., 0])
    return left[..., 1] + share * (right[..., 1] - left[..., 1])


def slopes(x: Tensor, lines: Tensor) -> Tensor:
    """The slopes of the lines ``[T, n, 2]`` at ``x`` ``[m, T]`` from 0 to 1."""
    left, right = _pieces(x, lines)
    return (right - left)[..., 1] / (right - left)[..., 0]
