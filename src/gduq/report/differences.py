"""Differences of two subjects on the same rows.

Both are resampled alike, so a difference is paired: what is hard for both cancels.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from gduq import metrics
from gduq.errors import InputError
from gduq.evaluation.gap import gap_of_draws
from gduq.metrics import Interval
from gduq.metrics.metric import ABOUT
from gduq.metrics.resampling import interval, resample_counts, resampled
from gduq.metrics.rows import read_any
from gduq.prediction import Hypotheses
from gduq.report.seeds import pairs, pool

__all__ = ["change", "clear", "difference"]

# A subject is met in the verdict and in every scorecard; it is resampled once.
_DRAWN: WeakKeyDictionary[Hypotheses, dict[tuple[object, ...], Tensor]] = WeakKeyDictionary()


def clear(found: Interval | None) -> bool:
    """Whether an interval leaves out 0."""
    return found is not None and (found.low > 0 or found.high < 0)


def change(name: str, first: Any, other: Any, split: str) -> Interval | None:
    """Other minus first on the same rows, paired by seed; ``None`` if the rows are not the same."""
    options, found = first.sampling, []
    for one, two in pairs(first, other):
        p, q = one.labelled(split), two.labelled(split)
        differs = None if p is None or q is None else difference(name, p, q, **options)
        if differs is None:
            return None
        found.append(differs)
    return pool(found, options["level"])


def difference(
    name: str,
    p: Any,
    other: Any,
    *,
    bins: int = 15,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Interval | None:
    """Other minus first on the same rows; ``None`` if they were not judged on the same rows.

    The interval also holds the plain percentiles of the resamples: where two subjects differ in a
    row or two, a resample without those rows shows no difference, and none is claimed.

    Measured are a metric of classes, labels or values, the ``"gap"``, or its size, the
    ``"distance"``.
    """
    first, second = (q.require_target().cpu().nan_to_num(-1.0) for q in (p, other))
    if first.shape != second.shape or not torch.allclose(first.double(), second.double()):
        return None
    once = torch.ones(1, len(p), dtype=torch.float64)
    value = float(_measured(name, other, once, bins) - _measured(name, p, once, bins))
    draws = _draws(name, other, bins, resamples, seed) - _draws(name, p, bins, resamples, seed)
    draws = draws[~draws.isnan()]
    if math.isnan(value) or not draws.numel():
        return Interval(math.nan, math.nan, math.nan)
    _, low, high = interval(value, draws, level)
    ends = torch.quantile(draws, draws.new_tensor([(1 - level) / 2, (1 + level) / 2])).tolist()
    return Interval(value, min(low, ends[0]), max(high, ends[1]))


def _draws(name: str, p: Any, bins: int, resamples: int, seed: int) -> Tensor:
    kept, key = _DRAWN.setdefault(p, {}), (name, bins, resamples, seed)
    if key not in kept:
        counts = resample_counts(len(p), resamples, seed)
        kept[key] = torch.cat([_measured(name, p, block, bins) for block in counts])
    return kept[key]


def _measured(name: str, p: Any, counts: Tensor, bins: int) -> Tensor:
    """A measure in each resample ``[R]``; of several values their mean."""
    if name == "distance":
        return _measured("gap", p, counts, bins).abs()
    columns = [p.column(t) for t in range(p.num_values)] if p.kind == "values" else [p]
    if name == "gap":
        found = [gap_of_draws(column, counts) for column in columns]
    else:
        metric: Any = getattr(metrics, name, None)
        if p.kind not in ABOUT.get(metric, {}):
            raise InputError(f"a measure of {p.kind}", repr(name))
        metric = partial(metric, bins=bins) if name == "ece" else metric
        found = [resampled(metric, read_any(column).weighted(counts)) for column in columns]
    return torch.stack(found).mean(dim=0).cpu()
