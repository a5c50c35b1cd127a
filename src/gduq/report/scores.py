r"""Numbers of the report that need the rows: the gap, and differences of two subjects.

All come from the same resamples of rows, so a difference is paired: what is hard for both cancels.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from gduq import metrics
from gduq.errors import InputError
from gduq.evaluation import Evaluation
from gduq.metrics import Interval, values
from gduq.metrics.forms import BATCHED, LabelBlock
from gduq.metrics.label_rows import LabelRows
from gduq.metrics.resampling import blocked, interval, read_any, resample_counts, share_interval
from gduq.prediction import Hypotheses

__all__ = ["PROMISED", "clear", "columns_of", "difference", "measured", "pool", "sampling"]

PROMISED = 0.9  # of the truth is what intervals of values are to hold

Measure = Callable[..., Tensor]
_CLASSES: dict[str, Measure] = {
    "accuracy": BATCHED[metrics.accuracy],
    "balanced_accuracy": BATCHED[metrics.balanced_accuracy],
    "roc_auc": BATCHED[metrics.roc_auc],
    "average_precision": BATCHED[metrics.average_precision],
    "gap": lambda block: block.mean(block.rows.confidence.double() - block.rows.correct),
    "ece": BATCHED[metrics.ece],
    "nll": BATCHED[metrics.nll],
    "brier": BATCHED[metrics.brier],
    "aurc": BATCHED[metrics.aurc],
}
_VALUES: dict[str, Measure] = {
    "rmse": values.FORMS[metrics.rmse],
    "r2": values.FORMS[metrics.r2],
    "gap": lambda block: PROMISED - block.mean((block.rows.depth <= PROMISED).double()),
    "nll": values.FORMS[metrics.nll],
    "crps": values.FORMS[metrics.crps],
    "miscalibration_area": values.FORMS[metrics.miscalibration_area],
}
_MEASURES = {"classes": _CLASSES, "labels": _CLASSES, "values": _VALUES}
_SHARES = ("accuracy", "balanced_accuracy", "roc_auc", "average_precision", "ece", "ece100",
           "adaptive_ece", "classwise_ece", "aurc", "auroc", "fpr95", "coverage_90")  # fmt: skip


def sampling(evaluation: Evaluation) -> dict[str, Any]:
    """Bins, resamples, level and seed an evaluation was made with."""
    default: Mapping[str, Any] = {"bins": 15, "resamples": 1000, "level": 0.95, "seed": 0}
    return {key: evaluation.settings.get(key, value) for key, value in default.items()}


def measured(name: str, p: Hypotheses, options: Mapping[str, Any]) -> Interval:
    r"""A measure with its interval: Wilson's for accuracy, else from resampling.

    The gap is what is promised minus what is held: of classes
    :math:`\frac1m \sum_i (\text{confidence}_i - [\text{label}_i = y_i])`, of labels the mean of
    that over labels, of values 0.9 minus the share of the truth in the 90 % intervals (of several
    values their mean). It is positive for an over-confident model. The distance is its size.

    Example:
        >>> from gduq.prediction import Prediction
        >>> p = Prediction(torch.zeros(40, 2), target=torch.zeros(40).long())
        >>> measured("gap", p, {"bins": 15, "resamples": 20, "level": 0.95, "seed": 0})
        Interval(value=-0.5, low=-0.5, high=-0.5)
    """
    value = _value(name, p, options)
    if name == "accuracy" and p.kind == "classes":
        return share_interval(value, len(p), options["level"])
    return interval(value, _draws(name, p, options), options["level"])


def difference(
    name: str, p: Hypotheses, other: Hypotheses, options: Mapping[str, Any]
) -> Interval | None:
    """Other minus first on the same rows; ``None`` if they were not judged on the same rows.

    The interval also holds the plain percentiles of the resamples: where two subjects differ in a
    row or two, a resample without those rows shows no difference, and none is claimed.
    """
    first, second = (q.require_target().cpu().nan_to_num(-1.0) for q in (p, other))
    if first.shape != second.shape or not torch.allclose(first.double(), second.double()):
        return None
    value = _value(name, other, options) - _value(name, p, options)
    draws = _draws(name, other, options) - _draws(name, p, options)
    draws = draws[~draws.isnan()]
    if math.isnan(value) or not draws.numel():
        return Interval(math.nan, math.nan, math.nan)
    _, low, high = interval(value, draws, options["level"])
    tail = (1 - options["level"]) / 2
    ends = torch.quantile(draws, draws.new_tensor([tail, 1 - tail])).tolist()
    return Interval(value, min(low, ends[0]), max(high, ends[1]))


def pool(found: Sequence[Interval], level: float = 0.95, measure: str = "") -> Interval:
    r"""The mean of a number over n training runs, judged on the same rows.

    Two things make it uncertain: which rows there were, and which seeds. Half-widths of the
    intervals over rows are averaged (the rows are the same in all runs, so averaging runs removes
    none of their noise); with :math:`t\,s/\sqrt n` of the runs' values they add as independent
    errors do, in squares. A single run is left as it is.

    Args:
        found: The number and its interval over rows, run by run; NaN is left out.
        level: Coverage of the interval.
        measure: What is measured; an interval ends where the measure does. The gap and differences
            (``""``) have no ends.

    Example:
        >>> pool([Interval(0.2, 0.1, 0.3), Interval(0.2, 0.1, 0.3)])
        Interval(value=0.2, low=0.1, high=0.3)
        >>> runs = [Interval(0.1, 0.1, 0.1), Interval(0.3, 0.3, 0.3)]
        >>> pool(runs).low < 0, pool(runs, measure="ece").low
        (True, 0.0)
    """
    known = [f for f in found if not math.isnan(f.value)]
    if len(known) < 2:
        return known[0] if known else Interval(math.nan, math.nan, math.nan)
    from scipy.stats import t

    numbers = [f.value for f in known]
    mean = statistics.fmean(numbers)
    size = len(numbers)
    seeds = t.ppf((1 + level) / 2, size - 1) * statistics.stdev(numbers) / math.sqrt(size)
    below = statistics.fmean(f.value - f.low for f in known)
    above = statistics.fmean(f.high - f.value for f in known)
    low, high = mean - math.hypot(below, seeds), mean + math.hypot(above, seeds)
    if measure not in ("", "gap"):
        low = max(low, min(0.0, *(f.low for f in known)))
    if measure in _SHARES:
        high = min(high, max(1.0, *(f.high for f in known)))
    return Interval(mean, low, high)


def clear(found: Interval | None) -> bool:
    """Whether an interval leaves out 0."""
    return found is not None and (found.low > 0 or found.high < 0)


def columns_of(p: Any) -> list[Any]:
    """Several values one by one; anything else as it is."""
    if p.kind == "values" and p.num_values > 1:
        return [p.column(t) for t in range(p.num_values)]
    return [p]


# A subject is met in the verdict and in every scorecard; it is read and resampled once.
_READ: WeakKeyDictionary[Hypotheses, list[Any]] = WeakKeyDictionary()
_DRAWN: WeakKeyDictionary[Hypotheses, dict[tuple[object, ...], Tensor]] = WeakKeyDictionary()


def _value(name: str, p: Hypotheses, options: Mapping[str, Any]) -> float:
    once = torch.ones(1, len(p), dtype=torch.float64)
    return float(_measured(name, p, once, options["bins"]))


def _draws(name: str, p: Hypotheses, options: Mapping[str, Any]) -> Tensor:
    kept = _DRAWN.setdefault(p, {})
    key = (name, options["bins"], options["resamples"], options["seed"])
    if key not in kept:
        counts = resample_counts(len(p), options["resamples"], options["seed"])
        kept[key] = torch.cat([_measured(name, p, block, options["bins"]) for block in counts])
    return kept[key]


def _measured(name: str, p: Hypotheses, counts: Tensor, bins: int) -> Tensor:
    """A measure in each resample ``[R]``; of several values their mean."""
    if name == "distance":  # from a gap of 0
        return _measured("gap", p, counts, bins).abs()
    known = _MEASURES[p.kind]
    if name not in known:
        raise InputError(f"a measure from {', '.join(known)}", repr(name))
    if p not in _READ:
        _READ[p] = [read_any(column) for column in columns_of(p)]
    form = partial(known[name], bins=bins) if name == "ece" else known[name]
    found = [LabelBlock(rows, counts).macro(form) if isinstance(rows, LabelRows)
             else form(blocked(rows, counts)) for rows in _READ[p]]  # fmt: skip
    return torch.stack(found).mean(dim=0).cpu()
