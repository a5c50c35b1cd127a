"""Several seeds as one subject; and differences of two subjects, paired by seed and by row.

Both are resampled alike, so a difference is paired: what is hard for both cancels.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gduq import metrics
from gduq.metrics import Interval
from gduq.metrics.resampling import interval, resample_counts, resampled
from gduq.metrics.rows import read
from gduq.prediction import Prediction
from gduq.report.subject import KEYS, UNKNOWN, Subject

__all__ = ["change", "difference", "is_clear", "mean_over_runs", "pooled"]

_SHARES = ("accuracy", "balanced_accuracy", "roc_auc", "average_precision", "ece", "ece100",
           "adaptive_ece", "classwise_ece", "aurc", "auroc", "fpr95", "coverage_90")  # fmt: skip


def is_clear(found: Interval | None) -> bool:
    """Whether an interval leaves out 0."""
    return found is not None and (found.low > 0 or found.high < 0)


def mean_over_runs(found: Iterable[Interval], level: float = 0.95, measure: str = "") -> Interval:
    r"""The mean of a number over n training runs, judged on the same rows.

    Half-widths of the intervals over rows are averaged (averaging runs removes none of the noise of
    the rows); with :math:`t\,s/\sqrt n` of the runs' values they add as independent errors do, in
    squares. No interval leaves the range of its measure, where that has one.

    Example:
        >>> mean_over_runs([Interval(0.2, 0.1, 0.3), Interval(0.2, 0.1, 0.3)])
        Interval(value=0.2, low=0.1, high=0.3)
    """
    known = [f for f in found if not math.isnan(f.value)]
    if len(known) < 2:
        return known[0] if known else UNKNOWN
    from scipy.stats import t

    every, size = np.array(known), len(known)
    mean, low, high = every.mean(axis=0).tolist()
    seeds = t.ppf((1 + level) / 2, size - 1) * every[:, 0].std(ddof=1) / math.sqrt(size)
    low, high = mean - math.hypot(mean - low, seeds), mean + math.hypot(high - mean, seeds)
    if measure not in ("", "gap"):
        low = max(low, min(0.0, *every[:, 1].tolist()))
    if measure in _SHARES:
        high = min(high, max(1.0, *every[:, 2].tolist()))
    return Interval(mean, low, high)


def pooled(subjects: Iterable[Subject]) -> Subject:
    """One subject from runs of one model that differ in their seed; a single one stays as it is.

    Example:
        >>> from gduq.prediction import ClassPrediction
        >>> p = ClassPrediction(torch.eye(2).repeat(20, 1), target=torch.tensor([0, 1] * 20))
        >>> both = pooled([Subject("mine", {"id_test": p}, config={"seed": i}) for i in range(3)])
        >>> both.name, both.runs[0].name, both.value("id_test", "accuracy").value
        ('mine (3 seeds)', 'mine, seed 0', 1.0)
    """
    import pandas as pd

    runs = list(subjects)
    if len(runs) == 1:
        return runs[0]
    first, seeds = runs[0], [_seed(run) for run in runs]
    table, level = first.result.table.drop_duplicates(KEYS), first.sampling["level"]
    means = [mean_over_runs([run.numbers[key] for run in runs if key in run.numbers], level, key[1])
             for key in first.numbers]  # fmt: skip
    ends = dict(zip(Interval._fields, zip(*means, strict=True), strict=True))
    costs = pd.DataFrame([run.cost or {} for run in runs]).dropna(axis=1).mean().to_dict()
    return replace(
        first,
        name=f"{first.name} ({len(runs)} seeds)",
        cost=costs or None,
        config=None if first.config is None else {**first.config, "seed": seeds},
        evaluation=replace(first.result, table=table.reset_index(drop=True).assign(**ends)),
        runs=tuple(replace(r, name=f"{r.name}, seed {seeds[i]}") for i, r in enumerate(runs)),
    )


def _seed(run: Subject) -> object:
    return (run.config or {}).get("seed")


def _pairs(first: Subject, other: Subject) -> Sequence[tuple[Subject, Subject]]:
    """Runs of equal seeds; without such, one after the other, and a single run with all."""
    one, two = first.each_run, other.each_run
    if min(len(one), len(two)) == 1:
        return list(product(one, two))
    common = [(a, b) for a, b in product(one, two) if _seed(a) == _seed(b)]
    return common if len(common) > 1 else list(zip(one, two, strict=False))


def change(
    name: str, first: Subject, other: Subject, split: str, part: str | None = None
) -> Interval | None:
    """Other minus first on the same rows, paired by seed; ``None`` if the rows are not the same."""
    options, found = first.sampling, []
    for one, two in _pairs(first, other):
        p, q = one.labelled(split, part), two.labelled(split, part)
        differs = None if p is None or q is None else difference(name, p, q, **options)
        if differs is None:
            return None
        found.append(differs)
    return mean_over_runs(found, options["level"])


def difference(
    name: str, p: Prediction, other: Prediction, *, bins: int, resamples: int, level: float,
    seed: int,
) -> Interval | None:  # fmt: skip
    """Other minus first on the same rows; ``None`` if they were not judged on the same rows.

    Measured are a metric, the ``"gap"``, or its size, the ``"distance"``. The interval also holds
    the plain percentiles of the resamples: where two subjects differ in a row or two, a resample
    without those rows shows no difference, and none is claimed.
    """
    first, second = (q.require_target().cpu().nan_to_num(-1.0) for q in (p, other))
    if first.shape != second.shape or not torch.allclose(first.double(), second.double()):
        return None
    one, two = (_draws(name, q, bins, resamples, seed) for q in (p, other))
    value, draws = float(two[0] - one[0]), two[1:] - one[1:]
    draws = draws[~draws.isnan()]
    if math.isnan(value) or not draws.numel():
        return UNKNOWN
    _, low, high = interval(value, draws, level)
    ends = torch.quantile(draws, draws.new_tensor([(1 - level) / 2, (1 + level) / 2])).tolist()
    return Interval(value, min(low, ends[0]), max(high, ends[1]))


@lru_cache(maxsize=256)  # the first subject is met in the verdict and in every scorecard
def _draws(name: str, p: Prediction, bins: int, resamples: int, seed: int) -> Tensor:
    """A measure ``[1 + R]``: of all rows, and in each resample; of several values their mean."""
    if name == "distance":
        return _draws("gap", p, bins, resamples, seed).abs()
    metric: Any = partial(metrics.ece, bins=bins) if name == "ece" else getattr(metrics, name)
    rows = [read(q) for q in ([p] if p.mean_of_parts else p.parts().values())]
    every = torch.ones(1, len(p), dtype=torch.float64)
    blocks = (every, *resample_counts(len(p), resamples, seed))
    return torch.stack(
        [torch.cat([resampled(metric, one.weighted(block)) for block in blocks]) for one in rows]
    ).mean(dim=0)
