"""Which metrics a kind has; metrics of groups of rows and of every label; thresholds of labels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np
import torch
from torch import Tensor

from gduq._checks import check_int, one_of
from gduq.errors import InputError
from gduq.metrics import classes, values
from gduq.metrics.resampling import Metric, bootstrap_all
from gduq.metrics.rows import LabelRows, Predicted, read
from gduq.prediction import LabelPrediction, Prediction

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["label_table", "label_thresholds", "measures", "subgroups"]

Array: TypeAlias = np.ndarray[Any, Any]
Column: TypeAlias = Tensor | Sequence[Any] | Array  # one entry per row
_OPTIONS: dict[str, tuple[Metric, dict[str, Any]]] = {  # measures that are metrics with options
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
        and ``_high``. What is no finite number is a group of its own, "missing".

    Example:
        >>> logits, y = torch.tensor([[0.0, 1.0]] * 4), torch.tensor([0, 0, 1, 1])
        >>> table = subgroups(logits, ["a", "a", "b", "b"], y, resamples=0)
        >>> table[["group", "rows", "accuracy"]].values.tolist()
        [['a', 2, 0.0], ['b', 2, 1.0]]
    """
    import pandas as pd

    source: Prediction = read(p, target).p
    source.require_target()
    metrics = metrics or measures(source.kind, 10, source.summary)
    settings: dict[str, Any] = {"resamples": resamples, "level": level, "seed": seed}
    records = []
    for name, column in (by if isinstance(by, Mapping) else {"group": by}).items():
        entries = np.asarray(column.cpu() if isinstance(column, Tensor) else column)
        if entries.shape != (len(source),):
            wanted = f"{len(source)} values in column {name!r}, one per row"
            raise InputError(wanted, list(entries.shape))
        labels, group = _groups(entries, check_int("groups", groups, least=1))
        for number, label in enumerate(labels):
            part = source[torch.from_numpy(np.flatnonzero(group == number))]
            record: dict[str, object] = {"column": name, "group": label, "rows": len(part)}
            if resamples == 0:
                record |= {measure: metric(part) for measure, metric in metrics.items()}
            else:
                for measure, found in bootstrap_all(metrics, part, **settings).items():
                    ends = (measure, f"{measure}_low", f"{measure}_high")
                    record |= dict(zip(ends, found, strict=True))
            records.append(record)
    return pd.DataFrame(records)


def _groups(entries: Array, groups: int) -> tuple[list[str], Array]:
    """Names of groups, and the number of each row's: by name, by value or between quantiles."""
    if entries.dtype.kind not in "fiu":
        known, number = np.unique(entries.astype(str), return_inverse=True)
        return known.tolist(), number
    finite = np.isfinite(entries)
    numbers = entries[finite].astype(np.float64)
    edges = distinct = np.unique(numbers)
    names = [f"{value:g}" for value in distinct]
    if len(distinct) > groups:
        steps = np.linspace(0, 1, groups + 1)
        edges = np.unique(np.quantile(numbers, steps, method="higher"))
        names = [f"{low:g} to <{high:g}" for low, high in pairwise(edges)]
        names[-1] = names[-1].replace("<", "")
    number = np.full(len(entries), len(names))
    within = np.searchsorted(edges, numbers, side="right") - 1
    number[finite] = within.clip(max=len(names) - 1)
    return names + ["missing"] * (not finite.all()), number


def _labels(p: Predicted) -> LabelPrediction:
    rows = read(p)
    if not isinstance(rows, LabelRows):
        raise InputError("a prediction about labels", f"one about {rows.p.kind}")
    rows.p.require_target()
    return rows.p


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

    labels = _labels(p)
    wanted = measures("labels", names=("accuracy", "majority", "balanced_accuracy", "roc_auc",
                                       "average_precision", "ece", "nll", "brier"))  # fmt: skip
    table: list[dict[str, object]] = []
    for t, name in enumerate(labels.names or map(str, range(labels.num_labels))):
        part = labels.column(t)
        truth = part.require_target()
        line = {"label": name, "rows": len(part), "positives": int(truth.sum())}
        if len(part):
            line |= {"base_rate": float(truth.double().mean())}
            line |= {measure: metric(part) for measure, metric in wanted.items()}
        table.append(line)
    return pd.DataFrame(table, columns=["label", "rows", "positives", "base_rate", *wanted])


Measure = Literal["balanced_accuracy", "f1"]


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
    one_of("a measure", measure, get_args(Measure))
    p = _labels(p_val)
    found = torch.full((p.num_labels,), 0.5, dtype=p.probs.dtype, device=p.probs.device)
    for t in range(p.num_labels):
        part = p.column(t)
        probs, truth = p.probs[p.known[:, t], t], part.require_target() == 1
        if not truth.any() or truth.all():
            continue
        ends = torch.unique(probs)  # a cut in every gap between probabilities, and below the lowest
        low = torch.cat([torch.zeros_like(ends[:1]), ends[:-1]])
        middle = low + (ends - low) / 2
        middle = torch.where(middle < ends, middle, low)  # neighbours have no number in between
        cuts = torch.cat([middle.new_tensor([0.5]), middle])
        yes, false = (
            (len(s) - torch.searchsorted(s.sort().values, cuts, right=True)).double()
            for s in (probs[truth], probs[~truth])
        )
        if measure == "f1":
            value = 2 * yes / (yes + false + truth.sum())
        else:
            value = yes / truth.sum() - false / (~truth).sum()
        best = cuts[value >= value.max() - 1e-12]
        found[t] = best[(best - 0.5).abs().argmin()]
    return found
