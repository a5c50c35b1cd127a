"""The same metrics for parts of the rows: where does a model fail?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from gduq.errors import InputError
from gduq.metrics import classes as c
from gduq.metrics import values as v
from gduq.metrics.calibration_errors import ece
from gduq.metrics.resampling import bootstrap_all
from gduq.metrics.rows import read_any

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["subgroups"]

_ECE = partial(ece, bins=10, strict=False)  # groups may be small
_DEFAULT: dict[str, dict[str, Callable[..., float]]] = {
    "classes": {"accuracy": c.accuracy, "ece": _ECE, "nll": c.nll, "brier": c.brier},
    "labels": {
        "roc_auc": c.roc_auc,
        "average_precision": c.average_precision,
        "balanced_accuracy": c.balanced_accuracy,
        "ece": _ECE,
        "nll": c.nll,
    },
    "values": {"rmse": v.rmse, "mae": v.mae, "nll": c.nll, "crps": v.crps, "coverage": v.coverage},
}


def subgroups(
    p: Any,
    by: Mapping[str, Any] | Any,
    target: Tensor | None = None,
    *,
    groups: int = 4,
    metrics: Mapping[str, Callable[..., float]] | None = None,
    resamples: int = 200,
    level: float = 0.95,
    seed: int = 0,
) -> pd.DataFrame:
    """Metrics for each group of rows, with bootstrap intervals.

    Args:
        p: A prediction of any kind, or logits ``[m, C]``.
        by: A column of m values (numbers or names), or several by name, as of `graph_columns`.
        target: Labels ``[m]``, next to logits only.
        groups: Numbers with more distinct values than this are cut at their quantiles.
        metrics: Functions by name; by default some that fit the kind of prediction.
        resamples, level, seed: As in `bootstrap`; ``resamples=0`` gives no intervals.

    Returns:
        One line per group: ``column``, ``group``, ``rows``, and for each metric its value, ``_low``
        and ``_high``. NaN in a column is a group of its own, "missing".

    Example:
        >>> logits, y = torch.tensor([[0.0, 1.0]] * 4), torch.tensor([0, 0, 1, 1])
        >>> table = subgroups(logits, ["a", "a", "b", "b"], y, resamples=0)
        >>> table[["group", "rows", "accuracy"]].values.tolist()
        [['a', 2, 0.0], ['b', 2, 1.0]]
    """
    import pandas as pd

    rows = read_any(p, target)
    columns = by if isinstance(by, Mapping) else {"group": by}
    source = p if target is None and hasattr(p, "samples") else rows
    settings: dict[str, Any] = {"resamples": resamples, "level": level, "seed": seed}
    if groups < 1:
        raise InputError("groups >= 1", groups)
    records = []
    for name, column in columns.items():
        for group, index in _split(name, column, len(rows), groups):
            part = source[index]
            record: dict[str, object] = {"column": name, "group": group, "rows": len(part)}
            records.append(record | _measured(part, metrics or _DEFAULT[rows.kind], **settings))
    return pd.DataFrame(records)


def _measured(
    part: Any, metrics: Mapping[str, Callable[..., float]], *, resamples: int, **settings: Any
) -> dict[str, float]:
    if resamples == 0:
        return {name: metric(part) for name, metric in metrics.items()}
    found = bootstrap_all(metrics, part, resamples=resamples, **settings)
    return {
        f"{name}{end}": value
        for name, three in found.items()
        for end, value in zip(("", "_low", "_high"), three, strict=True)
    }


def _split(name: str, column: Any, rows: int, groups: int) -> Iterator[tuple[str, Tensor]]:
    """Names and row numbers of the groups of a column that are not empty."""
    values = np.asarray(column.cpu() if isinstance(column, Tensor) else column)
    if values.shape != (rows,):
        raise InputError(f"{rows} values in column {name!r}, one per row", list(values.shape))
    if values.dtype.kind not in "fiu":
        for value in sorted({str(v) for v in values}):
            yield value, torch.from_numpy(np.flatnonzero(values.astype(str) == value))
        return
    values = values.astype(np.float64)
    beyond = [("unreachable", np.isinf(values)), ("missing", np.isnan(values))]
    for label, inside in [*_intervals(values, groups), *beyond]:
        if inside.any():
            yield label, torch.from_numpy(np.flatnonzero(inside))


def _intervals(values: Any, groups: int) -> Iterator[tuple[str, Any]]:
    finite = np.isfinite(values)
    distinct = np.unique(values[finite])
    if len(distinct) <= groups:
        for value in distinct:
            yield f"{value:g}", values == value
        return
    edges = np.unique(np.quantile(values[finite], np.linspace(0, 1, groups + 1), method="higher"))
    for i, (low, high) in enumerate(pairwise(edges)):
        last = i == len(edges) - 2
        inside = finite & (values >= low) & ((values <= high) if last else (values < high))
        yield f"{low:g} to {high:g}" if last else f"{low:g} to <{high:g}", inside
