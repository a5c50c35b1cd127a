"""Metrics of parts of the rows and of every label by itself; and thresholds of labels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np
import torch
from torch import Tensor

from gduq.errors import InputError
from gduq.metrics import calibration_errors, classes, values
from gduq.metrics.calibration_errors import check_choice, ece
from gduq.metrics.classes import (
    accuracy,
    average_precision,
    balanced_accuracy,
    brier,
    majority,
    nll,
    roc_auc,
)
from gduq.metrics.resampling import bootstrap_all
from gduq.metrics.rows import LabelRows, Predicted, Rows, read_any, read_as
from gduq.metrics.selective import aurc
from gduq.prediction import Prediction

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["label_table", "label_thresholds", "measures", "subgroups"]

Metric = Callable[..., float]
Array: TypeAlias = np.ndarray[Any, Any]
Column: TypeAlias = Tensor | Sequence[Any] | Array  # one entry per row
_OPTIONS: dict[str, tuple[Metric, dict[str, Any]]] = {  # measures that are metrics with options
    "ece_debiased": (calibration_errors.ece, {"debias": True}),
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
    every: dict[str, Any] = {**vars(classes), **vars(calibration_errors), **vars(values)}
    every["aurc"] = aurc
    found: dict[str, Metric] = {}
    for name in Prediction.of_kind(kind).metrics if names is None else names:
        metric, options = _OPTIONS.get(name, (every.get(name, ece), {}))
        if name == "ece100":
            metric, options = calibration_errors.ece, {"bins": 100, "strict": False}
        elif "ece" in name:
            options = options | {"bins": bins, "strict": False}
        elif name == "ence":
            options = {"strict": False}
        found[name] = partial(metric, **options) if options else metric
    return found


def subgroups(
    p: Predicted,
    by: Mapping[str, Column] | Column,
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
        by: A column of m values (numbers or names), or several by name.
        target: Labels ``[m]``, next to logits only.
        groups: Numbers with more distinct values than this are cut at their quantiles.
        metrics: Functions by name; by default `Prediction.summary` of the kind.
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
    source = p if isinstance(p, Prediction) and target is None else rows
    metrics = metrics or measures(rows.kind, 10, Prediction.of_kind(rows.kind).summary)
    settings: dict[str, Any] = {"resamples": resamples, "level": level, "seed": seed}
    if groups < 1:
        raise InputError("groups >= 1", groups)
    records = []
    for name, column in columns.items():
        for group, index in _split(name, column, len(rows), groups):
            part = source[index]
            record: dict[str, object] = {"column": name, "group": group, "rows": len(part)}
            if resamples == 0:
                record |= {measure: metric(part) for measure, metric in metrics.items()}
            else:
                for measure, found in bootstrap_all(metrics, part, **settings).items():
                    ends = (measure, f"{measure}_low", f"{measure}_high")
                    record |= dict(zip(ends, found, strict=True))
            records.append(record)
    return pd.DataFrame(records)


def _split(name: str, column: Column, rows: int, groups: int) -> Iterator[tuple[str, Tensor]]:
    """Names and row numbers of the groups of a column that are not empty."""
    entries = np.asarray(column.cpu() if isinstance(column, Tensor) else column)
    if entries.shape != (rows,):
        raise InputError(f"{rows} values in column {name!r}, one per row", list(entries.shape))
    if entries.dtype.kind not in "fiu":
        for value in sorted({str(v) for v in entries}):
            yield value, torch.from_numpy(np.flatnonzero(entries.astype(str) == value))
        return
    entries = entries.astype(np.float64)
    beyond = [("unreachable", np.isinf(entries)), ("missing", np.isnan(entries))]
    for label, inside in [*_intervals(entries, groups), *beyond]:
        if inside.any():
            yield label, torch.from_numpy(np.flatnonzero(inside))


def _intervals(
    column: np.ndarray[Any, Any], groups: int
) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    finite = np.isfinite(column)
    distinct = np.unique(column[finite])
    if len(distinct) <= groups:
        for value in distinct:
            yield f"{value:g}", column == value
        return
    edges = np.unique(np.quantile(column[finite], np.linspace(0, 1, groups + 1), method="higher"))
    for i, (low, high) in enumerate(pairwise(edges)):
        last = i == len(edges) - 2
        inside = finite & (column >= low) & ((column <= high) if last else (column < high))
        yield f"{low:g} to {high:g}" if last else f"{low:g} to <{high:g}", inside


Measure = Literal["balanced_accuracy", "f1"]
_COLUMNS: dict[str, Callable[[Rows], float]] = {
    "rows": len,
    "positives": lambda rows: int(rows.labels.sum()),
    "base_rate": lambda rows: int(rows.labels.sum()) / len(rows),
    "accuracy": accuracy,
    "majority": lambda rows: majority(rows).accuracy,
    "balanced_accuracy": balanced_accuracy,
    "roc_auc": roc_auc,
    "average_precision": average_precision,
    "ece": partial(ece, strict=False),
    "nll": nll,
    "brier": brier,
}


def label_table(p: Predicted) -> pd.DataFrame:
    """Every label of a `gduq.LabelPrediction` by itself.

    Returns:
        One line per label: ``label``, how many ``rows`` know it, ``positives`` among them and their
        ``base_rate``, ``majority`` (the accuracy of the most common answer), and metrics; NaN where
        one is not defined. Their means over labels are the metrics of ``p``.

    Example:
        >>> from gduq.prediction import LabelPrediction
        >>> target = torch.tensor([[1.0, 0.0], [0.0, float("nan")]])
        >>> table = label_table(LabelPrediction(torch.tensor([[2.0, 1.0], [0.0, 1.0]]), target))
        >>> table[["label", "rows", "positives", "roc_auc"]].values.tolist()
        [['0', 2, 1, 1.0], ['1', 1, 0, nan]]
    """
    import pandas as pd

    rows = read_as(LabelRows, p)
    names = rows.source.names or tuple(str(t) for t in range(rows.source.num_labels))
    table: list[dict[str, Any]] = []
    for t, name in enumerate(names):
        known = rows.parts.get(t)
        found = (
            {n: f(known[1]) for n, f in _COLUMNS.items()} if known else {"rows": 0, "positives": 0}
        )
        table.append({"label": name} | found)
    return pd.DataFrame(table, columns=["label", *_COLUMNS])


def label_thresholds(p_val: Predicted, measure: Measure = "balanced_accuracy") -> Tensor:
    """Thresholds that make a measure of each label as large as it gets on validation rows.

    One half stays where no threshold does better, and for labels that are not known to be both
    "yes" and "no". Of equally good ones the nearest to one half is taken.

    Args:
        p_val: A `gduq.LabelPrediction` with targets, of rows the model was not trained on.
        measure: ``"balanced_accuracy"``, or ``"f1"`` of "yes".

    Returns:
        ``[T]``, for `gduq.LabelPrediction.with_thresholds`.

    Example:
        >>> from gduq.prediction import LabelPrediction
        >>> logits = torch.tensor([[-4.0], [-3.0], [-2.0], [-1.0]])
        >>> p = LabelPrediction(logits, torch.tensor([[0.0], [0.0], [1.0], [1.0]]))
        >>> p.with_thresholds(label_thresholds(p)).label.flatten()
        tensor([False, False,  True,  True])
    """
    check_choice("a measure", measure, get_args(Measure))
    p = read_as(LabelRows, p_val).source
    found = torch.full((p.num_labels,), 0.5, dtype=p.probs.dtype, device=p.probs.device)
    for t in range(p.num_labels):
        known = p.known[:, t]
        found[t] = _best(p.probs[known, t], p.require_target()[known, t] == 1, measure)
    return found


def _best(probs: Tensor, truth: Tensor, measure: Measure) -> Tensor | float:
    """The threshold of one label; ``probs`` and ``truth`` are those of the rows that know it."""
    positives = int(truth.sum())
    negatives = len(truth) - positives
    if not positives or not negatives:
        return 0.5
    cuts = _cuts(probs)
    yes, false = (
        (len(part) - torch.searchsorted(part.sort().values, cuts, right=True)).double()
        for part in (probs[truth], probs[~truth])
    )
    if measure == "f1":
        value = 2 * yes / (yes + false + positives)
    else:
        value = (yes / positives + (negatives - false) / negatives) / 2
    best = cuts[value >= value.max() - 1e-12]
    return best[(best - 0.5).abs().argmin()]


def _cuts(probs: Tensor) -> Tensor:
    """One half, and a threshold in every gap between probabilities and below the lowest."""
    ends = torch.unique(probs)
    low = torch.cat([torch.zeros_like(ends[:1]), ends[:-1]])
    middle = low + (ends - low) / 2
    middle = torch.where(middle < ends, middle, low)  # neighbours have no number in between
    return torch.cat([middle.new_tensor([0.5]), middle])
