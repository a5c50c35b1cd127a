"""Confidence intervals for any metric, by resampling rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from gduq.errors import InputError
from gduq.metrics.rows import ANY, METRICS, OfTasks, Task, over_tasks, read
from gduq.prediction import Prediction

__all__ = ["Interval", "bootstrap", "bootstrap_all"]

Metric = Callable[..., float]
_CHUNK = 4_000_000  # entries of a block of resamples: bounds memory at about 100 MB
_CACHED = 10_000_000  # draws that are kept for the next call: 20 MB each
_SHARES = ("accuracy", "coverage")  # of rows, but not means over labels: Wilson's interval
_RANKINGS = ("roc_auc", "average_precision")


class Interval(NamedTuple):
    """A metric's value and where it would mostly fall on other samples of the same size."""

    value: float
    low: float
    high: float


def bootstrap(
    metric: Metric,
    p: Prediction,
    *,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    **options: object,
) -> Interval:
    """A metric with its interval, by the bootstrap.

    Rows are drawn with replacement, m of m. Around the value lies the middle ``level`` of the
    resamples' deviations from their own mean; where that mean is off the value, as noise inflates a
    calibration error, the end on the other side moves out by as much. Accuracy and the coverage of
    intervals get their Wilson interval; rankings with fewer than 5 rows of a class get none (NaN).

    Args:
        metric: A function of this package, or any ``f(p) -> float``; one number each.
        p: A prediction of any kind, with targets.
        resamples, level, seed: How many resamples, coverage of the interval, seed of the draws.
        **options: Passed to the metric.

    Example:
        >>> from gduq.metrics import accuracy
        >>> from gduq.prediction import ClassPrediction
        >>> p = ClassPrediction(torch.eye(2).repeat(50, 1), torch.ones(100).long())
        >>> value, low, high = bootstrap(accuracy, p)
        >>> value, low < 0.45, high > 0.55
        (0.5, True, True)
    """
    named = {"": partial(metric, **options)}
    return bootstrap_all(named, p, resamples=resamples, level=level, seed=seed)[""]


def bootstrap_all(
    metrics: Mapping[str, Metric],
    p: Prediction,
    *,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> dict[str, Interval]:
    """`bootstrap` for several metrics on the same resamples; options by `functools.partial`."""
    check_sampling(resamples, level)
    tasks = read(p)
    draws = resampled(metrics, p, tasks, resamples, seed)
    return {n: _interval_of(metric, draws[n], p, tasks, level) for n, metric in metrics.items()}


def resampled(
    metrics: Mapping[str, Metric], p: Prediction, tasks: list[Task], resamples: int, seed: int
) -> dict[str, Tensor]:
    """Every metric ``[1 + R]``: of all rows of ``p``, read as ``tasks``, and in each resample."""
    every = torch.ones(1, len(p), dtype=torch.float64)
    draws: dict[str, list[Tensor]] = {name: [] for name in metrics}
    for counts in chain([every], resample_counts(len(p), resamples, seed)):
        drawn = tasks if counts is every else [rows.weighted(counts) for rows in tasks]
        for name, metric in metrics.items():
            if (ours := _ours(metric, p)) is None:
                draws[name].append(_one_by_one(metric, p, counts))
            else:
                options = metric.keywords if isinstance(metric, partial) else {}
                draws[name].append(over_tasks(ours.function, drawn, **options))
    return {name: torch.cat(each) for name, each in draws.items()}


def _interval_of(
    metric: Metric, found: Tensor, p: Prediction, tasks: list[Task], level: float
) -> Interval:
    """The interval of a metric from what `resampled` found of it."""
    value, ours, alone = float(found[0]), _ours(metric, p), len(tasks) == 1
    name = "" if ours is None else ours.function.__name__
    if name in _SHARES and alone:
        return share_interval(value, len(tasks[0]), level)
    if name in _RANKINGS and any(rows.has_rare_class for rows in tasks):
        return Interval(value, math.nan, math.nan)
    limits = ANY if ours is None else ours.limits[p.kind]
    drawn = interval(value, found[1:], level, *limits)
    return _gap_interval(drawn, tasks[0], level) if name == "gap" and alone else drawn


def _gap_interval(found: Interval, rows: Task, level: float) -> Interval:
    """With the interval of the share of rows that hold, where resamples cannot tell it."""
    held = float(rows.held.mean())
    if rows.promise.dim() and held not in (0.0, 1.0):
        return found
    _, low, high = share_interval(held, len(rows), level)
    low, high = found.value + held - high, found.value + held - low
    if rows.promise.dim():
        low, high = min(found.low, low), max(found.high, high)
    return Interval(found.value, low, high)


def _ours(metric: Metric, p: Prediction) -> OfTasks | None:
    """What one of our metrics is made from; ``None`` for others, which go resample by resample."""
    plain = metric.func if isinstance(metric, partial) and not metric.args else metric
    found = METRICS.get(plain)
    fits = found is not None and p.kind in found.limits and (p.width == 1 or p.mean_of_parts)
    return found if fits else None


def _one_by_one(metric: Metric, p: Prediction, counts: Tensor) -> Tensor:
    """A user's metric on each resample ``[R]``."""
    numbers = torch.arange(len(p))
    drawn = (numbers.repeat_interleave(count) for count in counts.long())
    return torch.tensor([float(metric(p[rows])) for rows in drawn], dtype=torch.float64)


def check_sampling(resamples: int, level: float) -> None:
    """Raise for too few resamples or an impossible coverage."""
    if resamples < 2:
        raise InputError("resamples >= 2", resamples)
    check_level(level)


def check_level(level: float) -> float:
    """The level, or an error if no interval has it."""
    if not 0 < level < 1:
        raise InputError("level between 0 and 1", level)
    return level


def wilson(rate: Tensor, count: Tensor, level: float) -> tuple[Tensor, Tensor]:
    """The Wilson interval of a share ``rate`` of ``count`` rows; NaN where there are none."""
    z = float(torch.special.ndtri(torch.tensor((1 + level) / 2, dtype=torch.float64)))
    centre = (rate + z * z / (2 * count)) / (1 + z * z / count)
    half = (rate * (1 - rate) / count + (z / (2 * count)).square()).sqrt() * z
    half = half / (1 + z * z / count)
    return (centre - half).clamp_min(0.0), (centre + half).clamp_max(1.0)


def share_interval(share: float, rows: int, level: float) -> Interval:
    """A share of rows with its Wilson interval."""
    rate, count = torch.tensor([share, rows], dtype=torch.float64)
    low, high = (float(end) for end in wilson(rate, count, level))
    return Interval(share, min(low, share), max(high, share))


def interval(
    value: float, draws: Tensor, level: float, least: float = -math.inf, most: float = math.inf
) -> Interval:
    """The interval around a value from its resamples ``[R]`` but NaN, within what it can be."""
    draws = draws[~draws.isnan()]
    if math.isnan(value) or draws.numel() == 0:
        return Interval(value, math.nan, math.nan)
    mean = draws.mean()
    tails = draws.new_tensor([(1 - level) / 2, (1 + level) / 2])
    down, up = (draws.quantile(tails) - mean).tolist()
    shift = float(mean) - value
    low, high = value + down - max(shift, 0.0), value + up - min(shift, 0.0)
    return Interval(value, max(min(low, value), least), min(max(high, value), most))


def resample_counts(rows: int, resamples: int, seed: int, beside: int = 0) -> Iterator[Tensor]:
    """Blocks ``[R, m]`` of how often each row is drawn, float64; R sums to ``resamples``.

    ``beside`` counts further rows that are resampled at the same time, for equal blocks.
    """
    draw = _cached if rows * resamples <= _CACHED else _drawn
    return map(torch.Tensor.double, draw(rows, resamples, seed, max(1, _CHUNK // (rows + beside))))


def resampled_pairs(
    first: int, second: int, resamples: int, seed: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """`resample_counts` of two sets at once, each at its own size."""
    one = resample_counts(first, resamples, seed, beside=second)
    return zip(one, resample_counts(second, resamples, seed + 1, beside=first), strict=True)


@lru_cache(maxsize=8)
def _cached(*key: int) -> list[Tensor]:
    """All blocks at once; many metrics ask for the same."""
    return list(_drawn(*key))


def _drawn(rows: int, resamples: int, seed: int, block: int) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    for start in range(0, resamples, block):
        size = min(block, resamples - start)
        drawn = torch.randint(rows, (size, rows), generator=generator)
        drawn += torch.arange(size).unsqueeze(1) * rows
        yield torch.bincount(drawn.flatten(), minlength=size * rows).view(size, rows).short()
