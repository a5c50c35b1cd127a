"""Metrics of predictions about values: errors, proper scores, intervals, calibration."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from gduq.metrics.resampling import check_level, wilson
from gduq.metrics.rows import POSITIVE, ValueRows, equal_bins, metric, read_one
from gduq.prediction import ValuePrediction

__all__ = ["CalibrationCurve", "calibration_curve", "coverage", "crps", "ence", "mae",
           "miscalibration_area", "r2", "rmse", "spearman", "width"]  # fmt: skip

_LEVELS = torch.linspace(0, 1, 100, dtype=torch.float64)


@metric(values=POSITIVE)
def rmse(p: ValueRows) -> Tensor:
    r"""Root mean squared error of the mean, :math:`\big(\frac1m \sum_i (y_i - \mu_i)^2\big)^{1/2}`.

    Args:
        p: A `gduq.ValuePrediction` of one value per row; of several, pass ``p.column(t)``.

    Example:
        >>> p = ValuePrediction(torch.zeros(4, 2), torch.tensor([-2.0, -1.0, 0.0, 3.0]))  # N(0, 1)
        >>> round(rmse(p), 4)
        1.8708
    """
    return p.mean(p.loss).sqrt()


@metric(values=POSITIVE)
def mae(p: ValueRows) -> Tensor:
    r"""Mean absolute error of the mean, :math:`\frac1m \sum_i |y_i - \mu_i|`."""
    return p.mean(p.error.abs())


@metric(values=(-math.inf, 1.0))
def r2(p: ValueRows) -> Tensor:
    r"""Coefficient of determination, the share of the variance of the truth that is explained.

    :math:`1 - \sum_i (y_i - \mu_i)^2 / \sum_i (y_i - \bar y)^2`: 1 is perfect, 0 is what
    the mean of these rows reaches; NaN if all true values are equal.
    """
    truth = p.p.require_target().double()
    centred = truth - truth.mean()
    spread = p.mean(centred.square()) - p.mean(centred).square()
    spread = spread.masked_fill(spread <= 1e-14 * centred.square().max(), math.nan)
    return 1.0 - p.mean(p.loss) / spread


@metric(values=POSITIVE)
def crps(p: ValueRows) -> Tensor:
    r"""Continuous ranked probability score, in the units of the values; smaller is better.

    .. math::
        \int (F(x) - [y \le x])^2 dx = E|X - y| - \tfrac12 E|X - X'|

    for X and X' drawn from the predicted distribution F; exact for Gaussian mixtures (Grimit et
    al., 2006).

    Example:
        >>> round(crps(ValuePrediction(torch.zeros(1, 2), torch.tensor([0.0]))), 4)
        0.2337
    """
    return p.mean(p.crps)


@metric(values=POSITIVE)
def coverage(p: ValueRows, level: float = 0.9) -> Tensor:
    """Share of rows whose central interval of that level holds the truth; should be ``level``.

    Example:
        >>> p = ValuePrediction(torch.zeros(4, 2), torch.tensor([-2.0, -1.0, 0.0, 3.0]))  # N(0, 1)
        >>> coverage(p, 0.8)
        0.5
    """
    return p.mean(p.depth <= check_level(level))


@metric(values=POSITIVE)
def width(p: ValueRows, level: float = 0.9) -> Tensor:
    """Mean length of the central intervals of that level, in the units of the values; no truth."""
    return p.mean(p.width(check_level(level)))


class CalibrationCurve(NamedTuple):
    """Which share of the truth lies in intervals of every level."""

    level: Tensor  # [n], from 0 to 1
    share: Tensor  # [n], of rows whose central interval of that level holds the truth
    low: Tensor  # [n], 95 % Wilson interval of the share
    high: Tensor  # [n]


def calibration_curve(p: ValuePrediction) -> CalibrationCurve:
    """`coverage` at 100 levels, 0 and 1 among them; below the diagonal intervals are too narrow."""
    rows = read_one(p, ValueRows)
    share = _shares(rows).squeeze(0)
    ends = wilson(share, torch.full_like(share, len(rows)), 0.95)
    return CalibrationCurve(_LEVELS, share, *ends)


@metric(values=(0.0, 0.5))
def miscalibration_area(p: ValueRows) -> Tensor:
    """Area between `calibration_curve` and the diagonal, from 0 to one half."""
    gap = _shares(p) - _LEVELS
    left, right = gap[:, :-1], gap[:, 1:]
    ends = left.abs() + right.abs()
    crossed = (left.square() + right.square()) / ends.clamp_min(1e-300)  # two triangles
    total = torch.where(left * right < 0, crossed, ends).sum(dim=1)
    return total / (2 * (len(_LEVELS) - 1))


@metric(values=POSITIVE)
def ence(p: ValueRows, *, bins: int = 10, strict: bool = True) -> Tensor:
    r"""Expected normalised calibration error: does ``std`` say how large errors are, everywhere?

    Rows are sorted by ``std`` into B bins of equally many. With the root mean variance
    :math:`v_b` and the root mean squared error :math:`e_b` of a bin it is
    :math:`\frac1B \sum_b |v_b - e_b| / v_b` (Levi et al., 2022). ``strict=False`` takes as many
    bins as there are rows where there are fewer.
    """
    count, variance, loss = equal_bins(p, p.variance, [p.variance, p.loss], bins, strict)
    deviation, error = (variance / count).sqrt(), (loss / count).sqrt()
    return ((deviation - error).abs() / deviation).mean(dim=-1)


@metric(values=(-1.0, 1.0))
def spearman(p: ValueRows) -> Tensor:
    """Rank correlation of ``std`` and absolute error; NaN if all rows have the same of either."""
    weights = p.weights
    one, two = (_ranks(v, weights) for v in (p.variance, p.error.abs()))

    def product(a: Tensor, b: Tensor) -> Tensor:
        return torch.einsum("rm,rm,rm->r", weights, a, b) / weights.sum(dim=1)

    scale = (product(one, one) * product(two, two)).sqrt()
    return product(one, two) / scale.masked_fill(scale == 0, math.nan)


def _shares(rows: ValueRows) -> Tensor:
    """Which share of the truth lies in central intervals of each level ``[R, 100]``."""
    inside = (rows.depth.unsqueeze(1) <= _LEVELS).double()
    return rows.weights @ inside / rows.weights.sum(dim=1, keepdim=True)


def _ranks(values: Tensor, counts: Tensor) -> Tensor:
    """Ranks of each row in each resample ``[R, m]``, equal for equal values, with mean 0."""
    _, group = torch.unique(values, return_inverse=True)
    size = counts.new_zeros(len(counts), int(group.max()) + 1).index_add_(1, group, counts)
    upto = size.cumsum(dim=1)
    middle = upto - (size + upto[:, -1:]) / 2  # ranks average (m + 1) / 2
    return middle[:, group]
