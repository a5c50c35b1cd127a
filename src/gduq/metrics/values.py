"""Metrics of predictions about values: errors, proper scores, intervals, calibration."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from gduq._checks import check_int
from gduq.metrics.resampling import check_level, wilson
from gduq.metrics.rows import (
    POSITIVE,
    Predicted,
    ValueRows,
    check_bins,
    equal_bins,
    metric,
    value_rows,
)

__all__ = ["CalibrationCurve", "calibration_curve", "coverage", "crps", "ence", "mae",
           "miscalibration_area", "r2", "rmse", "spearman", "width"]  # fmt: skip


@metric(values=POSITIVE)
def rmse(p: Predicted) -> float:
    r"""Root mean squared error of the mean, :math:`\big(\frac1m \sum_i (y_i - \mu_i)^2\big)^{1/2}`.

    Args:
        p: A `gduq.ValuePrediction` of one value per row; of several, pass ``p.column(t)``.

    Example:
        >>> from gduq.prediction import ValuePrediction
        >>> p = ValuePrediction(torch.zeros(4, 2), torch.tensor([-2.0, -1.0, 0.0, 3.0]))  # N(0, 1)
        >>> round(rmse(p), 4)
        1.8708
    """
    rows = value_rows(p)
    return rows.out(rows.mean(rows.loss).sqrt())


@metric(values=POSITIVE)
def mae(p: Predicted) -> float:
    r"""Mean absolute error of the mean, :math:`\frac1m \sum_i |y_i - \mu_i|`."""
    rows = value_rows(p)
    return rows.out(rows.mean(rows.error.abs()))


@metric(values=(-math.inf, 1.0))
def r2(p: Predicted) -> float:
    r"""Coefficient of determination, the share of the variance of the truth that is explained.

    :math:`1 - \sum_i (y_i - \mu_i)^2 / \sum_i (y_i - \bar y)^2`: 1 is perfect, 0 is what
    the mean of these rows reaches; NaN if all true values are equal.
    """
    rows = value_rows(p)
    truth = rows.p.require_target().double()
    centred = truth - truth.mean()
    spread = rows.mean(centred.square()) - rows.mean(centred).square()
    spread = spread.masked_fill(spread <= 1e-14 * centred.square().max(), math.nan)
    return rows.out(1.0 - rows.mean(rows.loss) / spread)


@metric(values=POSITIVE)
def crps(p: Predicted) -> float:
    r"""Continuous ranked probability score, in the units of the values; smaller is better.

    .. math::
        \int (F(x) - [y \le x])^2 dx = E|X - y| - \tfrac12 E|X - X'|

    for X and X' drawn from the predicted distribution F; exact for Gaussian mixtures (Grimit et
    al., 2006).

    Example:
        >>> from gduq.prediction import ValuePrediction
        >>> round(crps(ValuePrediction(torch.zeros(1, 2), torch.tensor([0.0]))), 4)
        0.2337
    """
    rows = value_rows(p)
    return rows.out(rows.mean(rows.crps))


@metric(values=POSITIVE)
def coverage(p: Predicted, level: float = 0.9) -> float:
    """Share of rows whose central interval of that level holds the truth; should be ``level``.

    Example:
        >>> from gduq.prediction import ValuePrediction
        >>> p = ValuePrediction(torch.zeros(4, 2), torch.tensor([-2.0, -1.0, 0.0, 3.0]))  # N(0, 1)
        >>> coverage(p, 0.8)
        0.5
    """
    rows = value_rows(p)
    return rows.out(rows.mean(rows.depth <= check_level(level)))


@metric(values=POSITIVE)
def width(p: Predicted, level: float = 0.9) -> float:
    """Mean length of the central intervals of that level, in the units of the values; no truth."""
    rows = value_rows(p, labelled=False)
    return rows.out(rows.mean(rows.width(check_level(level))))


class CalibrationCurve(NamedTuple):
    """Which share of the truth lies in intervals of every level."""

    level: Tensor  # [n], from 0 to 1
    share: Tensor  # [n], of rows whose central interval of that level holds the truth
    low: Tensor  # [n], Wilson interval of the share
    high: Tensor  # [n]


def calibration_curve(p: Predicted, *, points: int = 100, level: float = 0.95) -> CalibrationCurve:
    """`coverage` at evenly spread levels; below the diagonal intervals are too narrow.

    Args:
        p: A `gduq.ValuePrediction` of one value per row.
        points: How many levels, 0 and 1 among them.
        level: Coverage of the Wilson intervals around the shares.
    """
    rows, grid = value_rows(p), _levels(points)
    share = _shares(rows, grid).squeeze(0)
    ends = wilson(share, torch.full_like(share, len(rows)), check_level(level))
    return CalibrationCurve(grid, share, *ends)


@metric(values=(0.0, 0.5))
def miscalibration_area(p: Predicted, *, points: int = 100) -> float:
    """Area between `calibration_curve` and the diagonal, from 0 to one half."""
    rows, grid = value_rows(p), _levels(points)
    gap = _shares(rows, grid) - grid
    left, right = gap[:, :-1], gap[:, 1:]
    ends = left.abs() + right.abs()
    crossed = (left.square() + right.square()) / ends.clamp_min(1e-300)  # two triangles
    total = torch.where(left * right < 0, crossed, ends).sum(dim=1)
    return rows.out(total / (2 * (points - 1)))


@metric(values=POSITIVE)
def ence(p: Predicted, *, bins: int = 10, strict: bool = True) -> float:
    r"""Expected normalised calibration error: does ``std`` say how large errors are, everywhere?

    Rows are sorted by ``std`` into B bins of equally many. With the root mean variance
    :math:`v_b` and the root mean squared error :math:`e_b` of a bin it is
    :math:`\frac1B \sum_b |v_b - e_b| / v_b` (Levi et al., 2022). ``strict=False`` takes as many
    bins as there are rows where there are fewer.
    """
    rows = value_rows(p)
    check_bins(rows, bins, strict)
    sums = rows.by(rows.variance, rows.variance, rows.loss)
    count, variance, loss = equal_bins(sums, min(bins, len(rows)))
    deviation, error = (variance / count).sqrt(), (loss / count).sqrt()
    return rows.out(((deviation - error).abs() / deviation).mean(dim=-1))


@metric(values=(-1.0, 1.0))
def spearman(p: Predicted) -> float:
    """Rank correlation of ``std`` and absolute error; NaN if all rows have the same of either."""
    rows = value_rows(p)
    weights = rows.weights
    one, two = (_ranks(v, weights) for v in (rows.variance, rows.error.abs()))

    def product(a: Tensor, b: Tensor) -> Tensor:
        return torch.einsum("rm,rm,rm->r", weights, a, b) / weights.sum(dim=1)

    scale = (product(one, one) * product(two, two)).sqrt()
    return rows.out(product(one, two) / scale.masked_fill(scale == 0, math.nan))


def _levels(points: int) -> Tensor:
    return torch.linspace(0, 1, check_int("points", points, least=2), dtype=torch.float64)


def _shares(rows: ValueRows, levels: Tensor) -> Tensor:
    """Which share of the truth lies in central intervals of each level ``[R, points]``."""
    inside = (rows.depth.unsqueeze(1) <= levels).double()
    return rows.weights @ inside / rows.weights.sum(dim=1, keepdim=True)


def _ranks(values: Tensor, counts: Tensor) -> Tensor:
    """Ranks of each row in each resample ``[R, m]``, equal for equal values, with mean 0."""
    _, group = torch.unique(values, return_inverse=True)
    size = counts.new_zeros(len(counts), int(group.max()) + 1).index_add_(1, group, counts)
    upto = size.cumsum(dim=1)
    middle = upto - (size + upto[:, -1:]) / 2  # ranks average (m + 1) / 2
    return middle[:, group]
