"""Which metrics a kind has; metrics of groups of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from gduq.errors import InputError, check_int
from gduq.metrics import classes, values
from gduq.metrics.resampling import Metric, bootstrap_all
from gduq.prediction import Prediction

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import ArrayLike

__all__ = ["measures", "subgroups"]

_OPTIONS: dict[str, tuple[Metric, dict[str, object]]] = {  # measures that are metrics with options
    "ece_debiased": (classes.ece, {"debias": True}),
    **{f"{f.__name__}_{q}": (f, {"level": q / 100})
       for f in (values.coverage, values.width) for q in (50, 80, 90, 95)},
}  # fmt: skip


def measures(kind: str, bins: int = 15, names: Iterable[str] | None = None) -> dict[str, Metric]:
    """The metrics that `gduq.evaluate` measures of a kind of predictions, by name.

    Args:
        kind: ``"classes"``, ``"labels"`` or ``"values"``.
        bins: Of calibration errors; `ence` has 10, or as many as there are rows.
        names: Some of `Prediction.metrics`; all by default.

    Example:
        >>> list(measures("values", names=["rmse", "coverage_90"]))
        ['rmse', 'coverage_90']
    """
    every: dict[str, Metric] = {**vars(classes), **vars(values)}
    found: dict[str, Metric] = {}
    for name in Prediction.of_kind(kind).metrics if names is None else names:
        metric, options = _OPTIONS.get(name, (every.get(name, classes.ece), {}))
        if name == "ece100":
            options = {"bins": 100, "strict": False}
        elif "ece" in name:
            options = options | {"bins": bins, "strict": False}
        elif name == "ence":
            options = {"strict": False}
        found[name] = partial(metric, **options) if options else metric
    return found


def subgroups(
    p: Prediction,
    by: Mapping[str, Tensor | ArrayLike],
    *,
    groups: int = 4,
    metrics: Mapping[str, Callable[..., float]] | None = None,
    resamples: int = 200,
    level: float = 0.95,
    seed: int = 0,
) -> pd.DataFrame:
    """Metrics for each group of rows, with bootstrap intervals.

    Args:
        p: A prediction of any kind, with targets.
        by: Columns of m values, numbers or names.
        groups: Numbers with more distinct values than this are cut at their quantiles.
        metrics: Functions by name; by default `Prediction.summary` of the kind.
        resamples, level, seed: As in `bootstrap`.

    Returns:
        One line per group: ``column``, ``group``, ``rows``, and for each metric its value, ``_low``
        and ``_high``. What is no finite number is a group of its own, "missing".

    Example:
        >>> import torch
        >>> from gduq.prediction import ClassPrediction
        >>> p = ClassPrediction(torch.tensor([[0.0, 1.0]] * 4), torch.tensor([0, 0, 1, 1]))
        >>> table = subgroups(p, {"letter": ["a", "a", "b", "b"]})
        >>> table[["group", "rows", "accuracy"]].values.tolist()
        [['a', 2, 0.0], ['b', 2, 1.0]]
    """
    import pandas as pd

    p.require_target()
    check_int("groups", groups, least=1)
    metrics = metrics or measures(p.kind, 10, p.summary)
    records = []
    for name, entries in by.items():
        column = pd.Series(np.asarray(entries))
        if len(column) != len(p):
            raise InputError(f"{len(p)} values in column {name!r}, one per row", len(column))
        if column.dtype.kind in "fiu":
            column = column.where(np.isfinite(column))
            if column.nunique() > groups:
                column = pd.qcut(column, groups, duplicates="drop")
        for group, part in column.groupby(column, observed=True, dropna=False):
            rows = p[part.index.tolist()]
            record: dict[str, object] = {"column": name, "group": _named(group), "rows": len(rows)}
            found = bootstrap_all(metrics, rows, resamples=resamples, level=level, seed=seed)
            for measure, (value, low, high) in found.items():
                record |= {measure: value, f"{measure}_low": low, f"{measure}_high": high}
            records.append(record)
    return pd.DataFrame(records)


def _named(group: Any) -> str:
    """A group by its value, or by the quantiles it lies between."""
    if hasattr(group, "left"):
        return f"{group.left:g} to {group.right:g}"
    if isinstance(group, float):
        return "missing" if np.isnan(group) else f"{group:g}"
    return str(group)
