"""The continuous ranked probability score of each row."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

__all__ = ["folded_mean", "mixture_crps"]


def folded_mean(mean: Tensor, deviation: Tensor) -> Tensor:
    """E|x| of x ~ N(mean, deviation^2), for mean >= 0."""
    ratio = mean / deviation.clamp_min(1e-300)
    density = (-0.5 * ratio.square()).exp() * math.sqrt(2.0 / math.pi)
    return deviation * density + mean * torch.erf(ratio / math.sqrt(2.0))


def mixture_crps(p: Any, target: Tensor) -> Tensor:
    r"""Of a Gaussian mixture, :math:`E|X - y| - \frac12 E|X - X'|`; all these are Gaussian."""
    means, variances = p.means[..., 0].double(), p.variances[..., 0].double()  # [K, m]
    count = means.size(0)
    weights = means.new_full((count,), 1.0 / count) if p.weights is None else p.weights
    share = weights.to(means).unsqueeze(1)
    total: Tensor = (share * folded_mean((target - means).abs(), variances.sqrt())).sum(dim=0)
    for k in range(count):  # pairs (k, l) with l > k count twice, and once each for l = k
        apart = (means[k] - means[k:]).abs()
        spread = folded_mean(apart, (variances[k] + variances[k:]).sqrt())
        pairs = share[k] * share[k:]
        total -= (pairs * spread).sum(dim=0) - 0.5 * pairs[0] * spread[0]
    return total.clamp_min(0.0)  # rounding, where hypotheses are almost certain
