"""A model that was trained several times: one subject, whose numbers are means over seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from gduq.errors import InputError
from gduq.metrics import Interval
from gduq.report.scores import difference, measured, pool, sampling
from gduq.report.subject import Subject

__all__ = ["calibrated", "change", "number", "pooled", "runs_of", "spread"]


def pooled(subjects: Iterable[Subject]) -> Subject:
    """One subject from runs of one model that differ in their seed; a single one stays as it is.

    Example:
        >>> import torch
        >>> from gduq.prediction import Prediction
        >>> p = Prediction(torch.eye(2).repeat(20, 1), target=torch.tensor([0, 1] * 20))
        >>> runs = [Subject("mine", {"id_test": p}, config={"seed": i}) for i in range(3)]
        >>> both = pooled(runs)
        >>> both.name, both.first.name, number("accuracy", both, "id_test").value
        ('mine (3 seeds)', 'mine, seed 0', 1.0)
    """
    runs = list(subjects)
    if not runs:
        raise InputError("at least one run", "none")
    if len(runs) == 1:
        return runs[0]
    first, seeds = runs[0], [_seed(run, i) for i, run in enumerate(runs)]
    named = [replace(r, name=f"{r.name}, seed {s}") for r, s in zip(runs, seeds, strict=True)]
    config = None if first.config is None else {**first.config, "seed": seeds}
    shown = replace(first, cost=_mean_costs(runs), config=config, runs=tuple(named))
    return replace(shown, name=f"{first.name} ({len(runs)} seeds)")


def _seed(run: Subject, i: int) -> Any:
    return (run.config or {}).get("seed", i)


def _mean_costs(runs: Sequence[Subject]) -> dict[str, float] | None:
    costs = [run.cost or {} for run in runs]
    shared = [key for key in costs[0] if all(key in cost for cost in costs)]
    return {key: statistics.fmean(cost[key] for cost in costs) for key in shared} or None


def runs_of(subject: Subject) -> tuple[Subject, ...]:
    """The runs of a subject: itself, if there is one only."""
    return subject.runs or (subject,)


# -- numbers -------------------------------------------------------------------------------------


def number(name: str, subject: Subject, split: str, calibrator: str = "none") -> Interval:
    """A measure of `gduq.report.scores` on a split; NaN where it cannot be had."""
    options = sampling(subject.result)
    known = [calibrated(run, split, calibrator) for run in runs_of(subject)]
    found = [measured(name, p, options) for p in known if p is not None]
    return pool(found, options["level"], name)


def spread(values: Iterable[float]) -> float:
    """The standard deviation over runs; NaN for fewer than two.

    Example:
        >>> spread([1.0, 3.0]) == 2**0.5, spread([1.0])
        (True, nan)
    """
    known = [v for v in values if not math.isnan(v)]
    return statistics.stdev(known) if len(known) > 1 else math.nan


def change(name: str, first: Subject, other: Subject, split: str) -> Interval | None:
    """Other minus first on the same rows, paired by seed; ``None`` if the rows are not the same."""
    options = sampling(first.result)
    found = []
    for one, two in _pairs(first, other):
        p, q = one.labelled(split), two.labelled(split)
        differs = None if p is None or q is None else difference(name, p, q, options)
        if differs is None:
            return None
        found.append(differs)
    return pool(found, options["level"])


def _pairs(first: Subject, other: Subject) -> list[tuple[Subject, Subject]]:
    """Runs of equal seeds; without such, one after the other, and a single run with all."""
    one, two = runs_of(first), runs_of(other)
    if min(len(one), len(two)) == 1:
        return list(product(one, two))
    mine = {_seed(run, i): run for i, run in enumerate(one)}
    common = [(mine[s], run) for i, run in enumerate(two) if (s := _seed(run, i)) in mine]
    return common if len(common) > 1 else list(zip(one, two, strict=False))


def calibrated(run: Subject, split: str, calibrator: str = "none") -> Any:
    """The labelled predictions of one run, through a calibrator of its evaluation."""
    p = run.labelled(split)
    if p is None or calibrator == "none":
        return p
    if run.whole is not None:  # calibrated before it was taken apart
        subject, t = run.whole
        mapped = calibrated(subject, split, calibrator)
        return None if mapped is None else mapped.column(t)
    fitted = run.calibrator(calibrator)
    try:
        return None if fitted is None else fitted(p)
    except InputError:  # calibrators that need the whole graph cannot map a part
        return None
