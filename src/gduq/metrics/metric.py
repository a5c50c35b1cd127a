"""What makes a function a metric: the kinds it is for, its range, and its mean over labels."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from gduq.metrics.rows import LabelRows, Rows, kind_of, read_as
from gduq.metrics.weighted import Uneven

__all__ = ["ABOUT", "ANY", "POSITIVE", "UNIT", "Limits", "metric"]

Limits = tuple[float, float]
UNIT, POSITIVE, ANY = (0.0, 1.0), (0.0, math.inf), (-math.inf, math.inf)
ABOUT: dict[Callable[..., float], dict[str, Limits]] = {}  # metrics on weighted rows, by kind

Found = TypeVar("Found", bound=Callable[..., float])


def metric(**limits: Limits) -> Callable[[Found], Found]:
    """Mark a function as a metric that `bootstrap` computes on all resamples at once.

    ``limits`` says what it can be, per kind of prediction: ``classes``, ``labels``, ``values``. Of
    labels it becomes the mean over those for which it is defined.
    """

    def mark(function: Found) -> Found:
        @wraps(function)
        def measured(p: Any, *args: Any, **options: Any) -> float:
            if "labels" in limits and kind_of(p) == "labels":
                return _over_labels(function, p, *args, **options)
            return function(p, *args, **options)

        ABOUT[measured] = limits
        return cast(Found, measured)

    return mark


def _over_labels(
    function: Callable[..., float], p: Any, target: Tensor | None = None, **options: Any
) -> float:
    """The mean over the labels for which a metric is defined; NaN if that is none."""
    rows = read_as(LabelRows, p, target, labelled=False)
    found = [_each(function, part, options) for _, part in rows.parts.values()]
    if rows.counts is None:
        defined = [value for value in found if not math.isnan(value)]
        return sum(defined) / len(defined) if defined else math.nan
    return rows.out(torch.stack(cast("list[Tensor]", found)).nanmean(dim=0))


def _each(function: Callable[..., float], rows: Rows, options: dict[str, Any]) -> float:
    """The metric of one label; resamples that differ in size go one by one, where order counts."""
    try:
        return function(rows, **options)
    except Uneven:
        alone = [rows.weighted(count.unsqueeze(0)) for count in rows.weights]
        return cast(float, torch.cat([cast(Tensor, function(r, **options)) for r in alone]))
