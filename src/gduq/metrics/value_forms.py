"""The metrics of values on many resamples at once: ``[R]`` each."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gduq.errors import InputError
from gduq.metrics.binned import mass_sums
from gduq.metrics.draws import ValueBlock

__all__ = [
    "area",
    "coverage",
    "crps",
    "ence",
    "levels",
    "mae",
    "r2",
    "rmse",
    "shares",
    "sharpness",
    "spearman",
    "width",
]


def levels(points: int) -> Tensor:
    """So many levels from 0 to 1, evenly spread."""
    if points < 2:
        raise InputError("points >= 2", points)
    return torch.linspace(0, 1, points, dtype=torch.float64)


def rmse(block: ValueBlock) -> Tensor:
    """`gduq.metrics.rmse`."""
    return block.mean(block.rows.loss).sqrt()


def mae(block: ValueBlock) -> Tensor:
    """`gduq.metrics.mae`."""
    return block.mean(block.rows.error.abs())


def r2(block: ValueBlock) -> Tensor:
    """`gduq.metrics.r2`; NaN where all true values are equal."""
    centred = block.rows.target - block.rows.target.mean()
    spread = block.mean(centred.square()) - block.mean(centred).square()
    spread = spread.masked_fill(spread <= 1e-14 * centred.square().max(), math.nan)
    return 1.0 - block.mean(block.rows.loss) / spread


def crps(block: ValueBlock) -> Tensor:
    """`gduq.metrics.crps`."""
    return block.mean(block.rows.crps)


def coverage(block: ValueBlock, level: float = 0.9) -> Tensor:
    """`gduq.metrics.coverage`."""
    return block.mean(block.rows.depth <= level)


def width(block: ValueBlock, level: float = 0.9) -> Tensor:
    """`gduq.metrics.width`."""
    return block.mean(block.rows.width(level))


def shares(block: ValueBlock, points: int) -> Tensor:
    """The calibration curve ``[R, points]``."""
    depth = block.rows.depth.unsqueeze(1)
    inside = (depth <= levels(points).to(depth.device)).to(block.counts.dtype)
    return block.counts @ inside / block.counts.sum(dim=1, keepdim=True)


def area(block: ValueBlock, points: int = 100) -> Tensor:
    """`gduq.metrics.miscalibration_area`."""
    gap = shares(block, points) - levels(points).to(block.counts.device)
    left, right = gap[:, :-1], gap[:, 1:]
    ends = left.abs() + right.abs()
    crossed = (left.square() + right.square()) / ends.clamp_min(1e-300)  # two triangles
    return torch.where(left * right < 0, crossed, ends).sum(dim=1) / (2 * (points - 1))


def ence(block: ValueBlock, bins: int = 10) -> Tensor:
    """`gduq.metrics.ence`."""
    count, variance, loss = mass_sums(*block.by(block.rows.variance, block.rows.loss), bins)
    deviation, error = (variance / count).sqrt(), (loss / count).sqrt()
    return ((deviation - error).abs() / deviation).mean(dim=-1)


def sharpness(block: ValueBlock) -> Tensor:
    """`gduq.metrics.sharpness`."""
    return block.mean(block.rows.variance).sqrt()


def spearman(block: ValueBlock) -> Tensor:
    """`gduq.metrics.spearman`; NaN where one side is constant."""
    one, two = (_ranks(v, block.counts) for v in (block.rows.variance, block.rows.error.abs()))
    size = block.counts.sum(dim=1)

    def product(a: Tensor, b: Tensor) -> Tensor:
        return torch.einsum("rm,rm,rm->r", block.counts, a, b) / size

    scale = (product(one, one) * product(two, two)).sqrt()
    return product(one, two) / scale.masked_fill(scale == 0, math.nan)


def _ranks(values: Tensor, counts: Tensor) -> Tensor:
    """Ranks of each row in each resample ``[R, m]``, equal for equal values, with mean 0."""
    _, group = torch.unique(values, return_inverse=True)
    size = counts.new_zeros(len(counts), int(group.max()) + 1).index_add_(1, group, counts)
    upto = size.cumsum(dim=1)
    middle = upto - (size + upto[:, -1:]) / 2  # ranks average (m + 1) / 2
    return middle[:, group]
