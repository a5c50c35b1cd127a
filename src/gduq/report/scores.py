r"""Numbers of the report that need the rows: the confidence gap, and differences of two subjects.

All come from the same resamples of rows, so a difference is paired: what is hard for both cancels.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from gduq.errors import InputError
from gduq.evaluation import Evaluation
from gduq.metrics import Interval, binned, read, scores
from gduq.metrics.resampling import Block, interval, resample_counts, share_interval
from gduq.prediction import Prediction

__all__ = ["MEASURES", "clear", "difference", "measured", "pool", "sampling"]


def _gap(block: Block, bins: int) -> Tensor:
    return block.mean(block.rows.confidence.double() - block.rows.correct)


def _ece(block: Block, bins: int) -> Tensor:
    sums = block.bin_sums(block.rows.confidence, block.rows.correct, bins)
    return binned.bin_error(*sums, "l1", False)


MEASURES: dict[str, Callable[[Block, int], Tensor]] = {
    "accuracy": lambda block, bins: block.mean(block.rows.correct),
    "gap": _gap,
    "distance": lambda block, bins: _gap(block, bins).abs(),  # from a gap of 0
    "ece": _ece,
    "nll": lambda block, bins: block.mean(scores.row_nll(block.rows)),
    "brier": lambda block, bins: block.mean(scores.row_brier(block.rows)),
    "aurc": lambda block, bins: block.risks.mean(dim=-1),
}


_SHARES = ("accuracy", "ece", "ece100", "adaptive_ece", "classwise_ece", "aurc", "auroc", "fpr95")


def sampling(evaluation: Evaluation) -> dict[str, Any]:
    """Bins, resamples, level and seed an evaluation was made with."""
    default: Mapping[str, Any] = {"bins": 15, "resamples": 1000, "level": 0.95, "seed": 0}
    return {key: evaluation.settings.get(key, value) for key, value in default.items()}


def measured(name: str, p: Prediction, options: Mapping[str, Any]) -> Interval:
    r"""A measure with its interval: Wilson's for accuracy, else from resampling.

    The gap is :math:`\frac1m \sum_i (\text{confidence}_i - [\text{label}_i = y_i])`: positive for
    an over-confident model.

    Example:
        >>> p = Prediction(torch.zeros(40, 2), target=torch.zeros(40).long())
        >>> measured("gap", p, {"bins": 15, "resamples": 20, "level": 0.95, "seed": 0})
        Interval(value=-0.5, low=-0.5, high=-0.5)
    """
    value = _value(name, p, options)
    if name == "accuracy":
        return share_interval(value, len(p), options["level"])
    return interval(value, _draws(name, p, options), options["level"])


def difference(
    name: str, p: Prediction, other: Prediction, options: Mapping[str, Any]
) -> Interval | None:
    """Other minus first on the same rows; ``None`` if they were not judged on the same rows.

    The interval also holds the plain percentiles of the resamples: where two subjects differ in a
    row or two, a resample without those rows shows no difference, and none is claimed.
    """
    first, second = read(p).labels, read(other).labels
    if first.shape != second.shape or not torch.equal(first.cpu(), second.cpu()):
        return None
    value = _value(name, other, options) - _value(name, p, options)
    draws = _draws(name, other, options) - _draws(name, p, options)
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

    values = [f.value for f in known]
    mean = statistics.fmean(values)
    size = len(values)
    seeds = t.ppf((1 + level) / 2, size - 1) * statistics.stdev(values) / math.sqrt(size)
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


def _value(name: str, p: Prediction, options: Mapping[str, Any]) -> float:
    rows = read(p)
    once = torch.ones(1, len(rows), dtype=torch.float64, device=rows.logits.device)
    return float(_measure(name)(Block(rows, once), options["bins"]))


# A subject is met in the verdict and in every scorecard; its resamples are measured once.
_DRAWN: WeakKeyDictionary[Prediction, dict[tuple[object, ...], Tensor]] = WeakKeyDictionary()


def _draws(name: str, p: Prediction, options: Mapping[str, Any]) -> Tensor:
    kept = _DRAWN.setdefault(p, {})
    key = (name, options["bins"], options["resamples"], options["seed"])
    if key not in kept:
        rows, measure = read(p), _measure(name)
        counts = resample_counts(len(rows), options["resamples"], options["seed"])
        blocks = (Block(rows, count.to(rows.logits.device)) for count in counts)
        kept[key] = torch.cat([measure(block, options["bins"]).cpu() for block in blocks])
    return kept[key]


def _measure(name: str) -> Callable[[Block, int], Tensor]:
    if name not in MEASURES:
        raise InputError(f"a measure from {', '.join(MEASURES)}", repr(name))
    return MEASURES[name]
