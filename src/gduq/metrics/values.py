"""Metrics of predictions about values: errors, proper scores, intervals, calibration."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gduq.errors import InputError
from gduq.metrics import scores, selective
from gduq.metrics.binned import mass_sums, wilson
from gduq.metrics.draws import ValueBlock
from gduq.metrics.value_rows import ValueRows, read_values

__all__ = [
    "CalibrationCurve",
    "calibration_curve",
    "coverage",
    "crps",
    "ence",
    "mae",
    "miscalibration_area",
    "r2",
    "rmse",
    "spearman",
    "width",
]

Form = Callable[..., Tensor]


def rmse(p: Any) -> float:
    r"""Root mean squared error of the mean, :math:`\big(\frac1m \sum_i (y_i - \mu_i)^2\big)^{1/2}`.

    Args:
        p: A `gduq.ValuePrediction` of one value per row; of several, pass ``p.column(t)``.
    """
    return _once(_rmse, read_values(p))


def mae(p: Any) -> float:
    r"""Mean absolute error of the mean, :math:`\frac1m \sum_i |y_i - \mu_i|`."""
    return _once(_mae, read_values(p))


def r2(p: Any) -> float:
    r"""Coefficient of determination, the share of the variance of the truth that is explained.

    :math:`1 - \sum_i (y_i - \mu_i)^2 / \sum_i (y_i - \bar y)^2`: 1 is perfect, 0 is what
    the mean of these rows reaches; NaN if all true values are equal.
    """
    return _once(_r2, read_values(p))


def crps(p: Any) -> float:
    r"""Continuous ranked probability score, in the units of the values; smaller is better.

    .. math::
        \int (F(x) - [y \le x])^2 dx = E|X - y| - \tfrac12 E|X - X'|

    for X and X' drawn from the predicted distribution F. Of a mixture of Gaussians it is exact
    (Grimit et al., 2006): every difference is Gaussian, and the mean of its absolute value is
    known. Recalibrated distributions (``p.levels``) are integrated on a grid, to about a thousandth
    of their deviation. Of one certain value it is the absolute error.
    """
    return _once(_crps, read_values(p))


def coverage(p: Any, level: float = 0.9) -> float:
    """Share of rows whose central interval of that level holds the truth; should be ``level``.

    Args:
        p: A `gduq.ValuePrediction` of one value per row.
        level: Level of the intervals.
    """
    return _once(_coverage, read_values(p), level=_checked(level))


def width(p: Any, level: float = 0.9) -> float:
    """Mean length of the central intervals of that level, in the units of the values.

    It needs no truth. Of two models with the same `coverage` the one with less width is better.
    """
    return _once(_width, read_values(p, labelled=False), level=_checked(level))


class CalibrationCurve(NamedTuple):
    """Which share of the truth lies in intervals of every level."""

    level: Tensor  # [n], from 0 to 1
    share: Tensor  # [n], of rows whose central interval of that level holds the truth
    low: Tensor  # [n], Wilson interval of the share
    high: Tensor  # [n]


def calibration_curve(p: Any, *, points: int = 100, level: float = 0.95) -> CalibrationCurve:
    """`coverage` at evenly spread levels; a calibrated model is on the diagonal.

    Below it intervals are too narrow (over-confident), above it too wide.

    Args:
        p: A `gduq.ValuePrediction` of one value per row.
        points: How many levels, 0 and 1 among them.
        level: Coverage of the Wilson intervals around the shares.
    """
    rows, grid = read_values(p), _levels(points)
    share = _shares(_whole(rows), points).squeeze(0).cpu()
    ends = wilson(share, torch.full_like(share, len(rows)), _checked(level))
    return CalibrationCurve(grid, share, *ends)


def miscalibration_area(p: Any, *, points: int = 100) -> float:
    """Area between `calibration_curve` and the diagonal, from 0 to one half.

    It is small for every calibrated model, useful or not: look at `crps` or `width` too.

    Args:
        p: A `gduq.ValuePrediction` of one value per row.
        points: How many levels; between them the curve is a straight line.
    """
    _levels(points)
    return _once(_area, read_values(p), points=points)


def ence(p: Any, *, bins: int = 10) -> float:
    r"""Expected normalised calibration error: does ``std`` say how large errors are, everywhere?

    Rows are sorted by ``std`` into B bins of equally many. With the root mean variance
    :math:`v_b` and the root mean squared error :math:`e_b` of a bin it is
    :math:`\frac1B \sum_b |v_b - e_b| / v_b` (Levi et al., 2022).

    Args:
        p: A `gduq.ValuePrediction` of one value per row.
        bins: Number of bins B; at least as many rows.
    """
    rows = read_values(p)
    if bins < 1:
        raise InputError("bins >= 1", bins)
    if len(rows) < bins:
        raise InputError(
            f"at least as many rows as bins ({bins})",
            f"{len(rows)} rows",
            f"Pass bins={len(rows)} or fewer.",
        )
    return _once(_ence, rows, bins=bins)


def spearman(p: Any) -> float:
    """Rank correlation of ``std`` and absolute error: are uncertain rows the wrong ones?

    Even a perfect ``std`` is far from 1, since errors are random around it. NaN if all rows have
    the same ``std`` or the same error.
    """
    return _once(_spearman, read_values(p))


def _checked(level: float) -> float:
    if not 0 < level < 1:
        raise InputError("level between 0 and 1", level)
    return level


def _levels(points: int) -> Tensor:
    if points < 2:
        raise InputError("points >= 2", points)
    return torch.linspace(0, 1, points, dtype=torch.float64)


# -- on R resamples at once, [R] each --------------------------------------------------------------


def _whole(rows: ValueRows) -> ValueBlock:
    """Every row once."""
    device = rows.source.samples.device
    return ValueBlock(rows, torch.ones(1, len(rows), dtype=torch.float64, device=device))


def _once(form: Form, rows: ValueRows, **options: Any) -> float:
    return float(form(_whole(rows), **options))


def _rmse(block: ValueBlock) -> Tensor:
    return block.mean(block.rows.loss).sqrt()


def _mae(block: ValueBlock) -> Tensor:
    return block.mean(block.rows.error.abs())


def _r2(block: ValueBlock) -> Tensor:
    centred = block.rows.target - block.rows.target.mean()
    spread = block.mean(centred.square()) - block.mean(centred).square()
    spread = spread.masked_fill(spread <= 1e-14 * centred.square().max(), math.nan)
    return 1.0 - block.mean(block.rows.loss) / spread


def _crps(block: ValueBlock) -> Tensor:
    return block.mean(block.rows.crps)


def _coverage(block: ValueBlock, level: float = 0.9) -> Tensor:
    return block.mean(block.rows.depth <= level)


def _width(block: ValueBlock, level: float = 0.9) -> Tensor:
    return block.mean(block.rows.width(level))


def _shares(block: ValueBlock, points: int) -> Tensor:
    """The calibration curve ``[R, points]``."""
    depth = block.rows.depth.unsqueeze(1)
    inside = (depth <= _levels(points).to(depth.device)).to(block.counts.dtype)
    return block.counts @ inside / block.counts.sum(dim=1, keepdim=True)


def _area(block: ValueBlock, points: int = 100) -> Tensor:
    gap = _shares(block, points) - _levels(points).to(block.counts.device)
    left, right = gap[:, :-1], gap[:, 1:]
    ends = left.abs() + right.abs()
    crossed = (left.square() + right.square()) / ends.clamp_min(1e-300)  # two triangles
    return torch.where(left * right < 0, crossed, ends).sum(dim=1) / (2 * (points - 1))


def _ence(block: ValueBlock, bins: int = 10) -> Tensor:
    count, variance, loss = mass_sums(*block.by(block.rows.variance, block.rows.loss), bins)
    deviation, error = (variance / count).sqrt(), (loss / count).sqrt()
    return ((deviation - error).abs() / deviation).mean(dim=-1)


def _sharpness(block: ValueBlock) -> Tensor:
    return block.mean(block.rows.variance).sqrt()


def _spearman(block: ValueBlock) -> Tensor:
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


# What bootstrap resamples, and what each metric can be.
FORMS: dict[Callable[..., float], Form] = {
    rmse: _rmse,
    mae: _mae,
    r2: _r2,
    crps: _crps,
    coverage: _coverage,
    width: _width,
    miscalibration_area: _area,
    ence: _ence,
    spearman: _spearman,
    scores.nll: lambda block: block.mean(block.rows.nll),
    scores.sharpness: _sharpness,
    selective.aurc: lambda block: block.aurc,
    selective.excess_aurc: lambda block: block.aurc - block.best_aurc,
}
LIMITS: dict[Callable[..., float], tuple[float, float]] = {
    scores.nll: (-math.inf, math.inf),
    r2: (-math.inf, 1.0),
    spearman: (-1.0, 1.0),
    miscalibration_area: (0.0, 0.5),
}
