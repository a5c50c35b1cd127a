"""Numbers of several runs as one, and differences of two subjects on the same rows.

Both subjects are resampled alike, so a difference is paired: what is hard for both cancels.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from gduq import metrics
from gduq.errors import InputError
from gduq.metrics import Interval
from gduq.metrics.resampling import interval, resample_counts, resampled
from gduq.metrics.rows import ABOUT, read_any
from gduq.prediction import Prediction

if TYPE_CHECKING:
    from gduq.report.subject import Subject

__all__ = ["UNKNOWN", "change", "difference", "is_clear", "mean_over_runs", "seed_of"]

_SHARES = ("accuracy", "balanced_accuracy", "roc_auc", "average_precision", "ece", "ece100",
           "adaptive_ece", "classwise_ece", "aurc", "auroc", "fpr95", "coverage_90")  # fmt: skip
UNKNOWN = Interval(math.nan, math.nan, math.nan)
# A subject is met in the verdict and in every scorecard; it is resampled once.
_DRAWS: WeakKeyDictionary[Prediction, dict[tuple[object, ...], Tensor]] = WeakKeyDictionary()


def is_clear(found: Interval | None) -> bool:
    """Whether an interval leaves out 0."""
    return found is not None and (found.low > 0 or found.high < 0)


def mean_over_runs(found: Iterable[Interval], level: float = 0.95, measure: str = "") -> Interval:
    r"""The mean of a number over n training runs, judged on the same rows.

    Two things make it uncertain: which rows there were, and which seeds. Half-widths of the
    intervals over rows are averaged (the rows are the same in all runs, so averaging runs removes
    none of their noise); with :math:`t\,s/\sqrt n` of the runs' values they add as independent
    errors do, in squares. No interval leaves the range of the measure; the gap and differences
    (``""``) have none.

    Example:
        >>> mean_over_runs([Interval(0.2, 0.1, 0.3), Interval(0.2, 0.1, 0.3)])
        Interval(value=0.2, low=0.1, high=0.3)
    """
    known = [f for f in found if not math.isnan(f.value)]
    if len(known) < 2:
        return known[0] if known else UNKNOWN
    from scipy.stats import t

    numbers, size = [f.value for f in known], len(known)
    mean = statistics.fmean(numbers)
    seeds = t.ppf((1 + level) / 2, size - 1) * statistics.stdev(numbers) / math.sqrt(size)
    low = mean - math.hypot(statistics.fmean(f.value - f.low for f in known), seeds)
    high = mean + math.hypot(statistics.fmean(f.high - f.value for f in known), seeds)
    if measure not in ("", "gap"):
        low = max(low, min(0.0, *(f.low for f in known)))
    if measure in _SHARES:
        high = min(high, max(1.0, *(f.high for f in known)))
    return Interval(mean, low, high)


def seed_of(run: Subject, i: int) -> Any:
    """The seed a run was made with; without one its number."""
    return (run.config or {}).get("seed", i)


def _pairs(first: Subject, other: Subject) -> Sequence[tuple[Subject, Subject]]:
    """Runs of equal seeds; without such, one after the other, and a single run with all."""
    one, two = first.each_run, other.each_run
    if min(len(one), len(two)) == 1:
        return list(product(one, two))
    mine = {seed_of(run, i): run for i, run in enumerate(one)}
    common = [(mine[s], run) for i, run in enumerate(two) if (s := seed_of(run, i)) in mine]
    return common if len(common) > 1 else list(zip(one, two, strict=False))


def change(name: str, first: Subject, other: Subject, split: str) -> Interval | None:
    """Other minus first on the same rows, paired by seed; ``None`` if the rows are not the same."""
    options, found = first.sampling, []
    for one, two in _pairs(first, other):
        p, q = one.labelled(split), two.labelled(split)
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
    once = torch.ones(1, len(p), dtype=torch.float64)
    value = float(_measured(name, other, once, bins) - _measured(name, p, once, bins))
    draws = _draws(name, other, bins, resamples, seed) - _draws(name, p, bins, resamples, seed)
    draws = draws[~draws.isnan()]
    if math.isnan(value) or not draws.numel():
        return UNKNOWN
    _, low, high = interval(value, draws, level)
    ends = torch.quantile(draws, draws.new_tensor([(1 - level) / 2, (1 + level) / 2])).tolist()
    return Interval(value, min(low, ends[0]), max(high, ends[1]))


def _draws(name: str, p: Prediction, bins: int, resamples: int, seed: int) -> Tensor:
    kept, key = _DRAWS.setdefault(p, {}), (name, bins, resamples, seed)
    if key not in kept:
        counts = resample_counts(len(p), resamples, seed)
        kept[key] = torch.cat([_measured(name, p, block, bins) for block in counts])
    return kept[key]


def _measured(name: str, p: Prediction, counts: Tensor, bins: int) -> Tensor:
    """A measure in each resample ``[R]``; of several values their mean."""
    if name == "distance":
        return _measured("gap", p, counts, bins).abs()
    columns = list(p.parts().values()) if p.kind == "values" else [p]
    metric: Any = getattr(metrics, name, None)
    if p.kind not in ABOUT.get(metric, {}):
        raise InputError(f"a measure of {p.kind}", repr(name))
    metric = partial(metric, bins=bins) if name == "ece" else metric
    found = [resampled(metric, read_any(one).weighted(counts)) for one in columns]
    return torch.stack(found).mean(dim=0).cpu()
