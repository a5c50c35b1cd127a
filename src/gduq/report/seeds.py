"""A model that was trained several times: one subject, whose numbers are means over seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

from gduq.errors import InputError
from gduq.metrics import Interval

if TYPE_CHECKING:
    from gduq.report.subject import Subject

__all__ = ["pairs", "pool", "pooled", "spread"]

_SHARES = ("accuracy", "balanced_accuracy", "roc_auc", "average_precision", "ece", "ece100",
           "adaptive_ece", "classwise_ece", "aurc", "auroc", "fpr95", "coverage_90")  # fmt: skip


def pooled(subjects: Iterable[Subject]) -> Subject:
    """One subject from runs of one model that differ in their seed; a single one stays as it is.

    Example:
        >>> import torch
        >>> from gduq.prediction import Prediction
        >>> from gduq.report import Subject
        >>> p = Prediction(torch.eye(2).repeat(20, 1), target=torch.tensor([0, 1] * 20))
        >>> runs = [Subject("mine", {"id_test": p}, config={"seed": i}) for i in range(3)]
        >>> both = pooled(runs)
        >>> both.name, both.first.name, both.number("accuracy", "id_test").value
        ('mine (3 seeds)', 'mine, seed 0', 1.0)
    """
    runs = list(subjects)
    if not runs:
        raise InputError("at least one run", "none")
    if len(runs) == 1:
        return runs[0]
    first, seeds = runs[0], [_seed(run, i) for i, run in enumerate(runs)]
    named = [replace(r, name=f"{r.name}, seed {s}") for r, s in zip(runs, seeds, strict=True)]
    costs = [run.cost or {} for run in runs]
    shared = [key for key in costs[0] if all(key in cost for cost in costs)]
    return replace(
        first,
        name=f"{first.name} ({len(runs)} seeds)",
        cost={k: statistics.fmean(cost[k] for cost in costs) for k in shared} or None,
        config=None if first.config is None else {**first.config, "seed": seeds},
        runs=tuple(named),
    )


def _seed(run: Subject, i: int) -> Any:
    return (run.config or {}).get("seed", i)


def pairs(first: Subject, other: Subject) -> list[tuple[Subject, Subject]]:
    """Runs of equal seeds; without such, one after the other, and a single run with all."""
    one, two = first.each_run, other.each_run
    if min(len(one), len(two)) == 1:
        return list(product(one, two))
    mine = {_seed(run, i): run for i, run in enumerate(one)}
    common = [(mine[s], run) for i, run in enumerate(two) if (s := _seed(run, i)) in mine]
    return common if len(common) > 1 else list(zip(one, two, strict=False))


# -- numbers over seeds --------------------------------------------------------------------------


def spread(values: Iterable[float]) -> float:
    """The standard deviation over runs; NaN for fewer than two."""
    known = [v for v in values if not math.isnan(v)]
    return statistics.stdev(known) if len(known) > 1 else math.nan


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
