"""Metrics of predictions about values: errors, proper scores, intervals, calibration."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gduq.errors import InputError
from gduq.metrics import scores, selective, value_forms
from gduq.metrics.binned import wilson
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

    Example:
        >>> from gduq.prediction import ValuePrediction
        >>> p = ValuePrediction(torch.zeros(4, 2), torch.tensor([-2.0, -1.0, 0.0, 3.0]))  # N(0, 1)
        >>> round(rmse(p), 4)
        1.8708
    """
    return _once(value_forms.rmse, read_values(p))


def mae(p: Any) -> float:
    r"""Mean absolute error of the mean, :math:`\frac1m \sum_i |y_i - \mu_i|`."""
    return _once(value_forms.mae, read_values(p))


def r2(p: Any) -> float:
    r"""Coefficient of determination, the share of the variance of the truth that is explained.

    :math:`1 - \sum_i (y_i - \mu_i)^2 / \sum_i (y_i - \bar y)^2`: 1 is perfect, 0 is what
    the mean of these rows reaches; NaN if all true values are equal.
    """
    return _once(value_forms.r2, read_values(p))


def crps(p: Any) -> float:
    r"""Continuous ranked probability score, in the units of the values; smaller is better.

    .. math::
        \int (F(x) - [y \le x])^2 dx = E|X - y| - \tfrac12 E|X - X'|

    for X and X' drawn from the predicted distribution F. Of a mixture of Gaussians it is exact
    (Grimit et al., 2006): every difference is Gaussian, and the mean of its absolute value is
    known. Recalibrated distributions (``p.levels``) are integrated on a grid, to about a thousandth
    of their deviation. Of one certain value it is the absolute error.

    Args:
        p: A `gduq.ValuePrediction` of one value per row.

    Example:
        >>> from gduq.prediction import ValuePrediction
        >>> round(crps(ValuePrediction(torch.zeros(1, 2), torch.tensor([0.0]))), 4)
        0.2337
    """
    return _once(value_forms.crps, read_values(p))


def coverage(p: Any, level: float = 0.9) -> float:
    """Share of rows whose central interval of that level holds the truth; should be ``level``.

    Args:
        p: A `gduq.ValuePrediction` of one value per row.
        level: Level of the intervals.

    Example:
        >>> from gduq.prediction import ValuePrediction
        >>> p = ValuePrediction(torch.zeros(4, 2), torch.tensor([-2.0, -1.0, 0.0, 3.0]))  # N(0, 1)
        >>> coverage(p, 0.8)
        0.5
    """
    return _once(value_forms.coverage, read_values(p), level=_checked(level))


def width(p: Any, level: float = 0.9) -> float:
    """Mean length of the central intervals of that level, in the units of the values.

    It needs no truth. Of two models with the same `coverage` the one with less width is better.
    """
    return _once(value_forms.width, read_values(p, labelled=False), level=_checked(level))


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
    rows, grid = read_values(p), value_forms.levels(points)
    share = value_forms.shares(_whole(rows), points).squeeze(0).cpu()
    ends = wilson(share, torch.full_like(share, len(rows)), _checked(level))
    return CalibrationCurve(grid, share, *ends)


def miscalibration_area(p: Any, *, points: int = 100) -> float:
    """Area between `calibration_curve` and the diagonal, from 0 to one half.

    It is small for every calibrated model, useful or not: look at `crps` or `width` too.

    Args:
        p: A `gduq.ValuePrediction` of one value per row.
        points: How many levels; between them the curve is a straight line.
    """
    value_forms.levels(points)
    return _once(value_forms.area, read_values(p), points=points)


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
    return _once(value_forms.ence, rows, bins=bins)


def spearman(p: Any) -> float:
    """Rank correlation of ``std`` and absolute error: are uncertain rows the wrong ones?

    Even a perfect ``std`` is far from 1, since errors are random around it. NaN if all rows have
    the same ``std`` or the same error.
    """
    return _once(value_forms.spearman, read_values(p))


def _checked(level: float) -> float:
    if not 0 < level < 1:
        raise InputError("level between 0 and 1", level)
    return level


def _whole(rows: ValueRows) -> ValueBlock:
    """Every row once."""
    device = rows.source.samples.device
    return ValueBlock(rows, torch.ones(1, len(rows), dtype=torch.float64, device=device))


def _once(form: Form, rows: ValueRows, **options: Any) -> float:
    return float(form(_whole(rows), **options))


# What bootstrap resamples, and what each metric can be.
FORMS: dict[Callable[..., float], Form] = {
    rmse: value_forms.rmse,
    mae: value_forms.mae,
    r2: value_forms.r2,
    crps: value_forms.crps,
    coverage: value_forms.coverage,
    width: value_forms.width,
    miscalibration_area: value_forms.area,
    ence: value_forms.ence,
    spearman: value_forms.spearman,
    scores.nll: lambda block: block.mean(block.rows.nll),
    scores.sharpness: value_forms.sharpness,
    selective.aurc: lambda block: block.aurc,
    selective.excess_aurc: lambda block: block.aurc - block.best_aurc,
}
LIMITS: dict[Callable[..., float], tuple[float, float]] = {
    scores.nll: (-math.inf, math.inf),
    r2: (-math.inf, 1.0),
    spearman: (-1.0, 1.0),
    miscalibration_area: (0.0, 0.5),
}
