"""Confidence intervals for any metric, by resampling rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from gduq.errors import InputError
from gduq.metrics.rows import ANY, METRICS, AnyRows, ClassRows, LabelRows, Limits, ValueRows, read
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
    **options: Any,
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
    rows = read(p)
    ours = {name: _limits(metric, rows) for name, metric in metrics.items()}
    point = {n: float(metric(rows if ours[n] else rows.p)) for n, metric in metrics.items()}
    draws: dict[str, list[Tensor]] = {name: [] for name in metrics}
    for counts in resample_counts(len(rows), resamples, seed):
        drawn = rows.weighted(counts)
        for n, metric in metrics.items():
            one_by_one = ours[n] is None
            each = _one_by_one(metric, counts, rows.p) if one_by_one else resampled(metric, drawn)
            draws[n].append(each)
    found = {}
    for n, metric in metrics.items():
        name = _unwrap(metric).__name__ if ours[n] else ""
        if name in _SHARES and not isinstance(rows, LabelRows):
            found[n] = share_interval(point[n], len(rows), level)
        elif name in _RANKINGS and cast(ClassRows | LabelRows, rows).has_rare_class:
            found[n] = Interval(point[n], math.nan, math.nan)
        else:
            found[n] = interval(point[n], torch.cat(draws[n]), level, *ours[n] or ANY)
        if name == "gap" and not isinstance(rows, LabelRows):
            found[n] = _gap_interval(found[n], rows, level)
    return found


def _gap_interval(found: Interval, rows: ClassRows | ValueRows, level: float) -> Interval:
    """With the interval of the share of rows that hold, where resamples cannot tell it."""
    held = float(rows.held.mean())
    if not rows.fixed_promise and held not in (0.0, 1.0):
        return found
    value, promise = found.value, found.value + held
    _, low, high = share_interval(held, len(rows), level)
    low, high = promise - high, promise - low
    if rows.fixed_promise:
        return Interval(value, low, high)
    return Interval(value, min(found.low, low), max(found.high, high))


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
    block = max(1, _CHUNK // (rows + beside))
    if rows * resamples <= _CACHED:
        return (part.double() for part in _cached(rows, resamples, seed).split(block))
    return (part.double() for part in _drawn(rows, resamples, seed, block))


def resampled_pairs(
    first: int, second: int, resamples: int, seed: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """`resample_counts` of two sets at once, each at its own size."""
    one = resample_counts(first, resamples, seed, beside=second)
    return zip(one, resample_counts(second, resamples, seed + 1, beside=first), strict=True)


@lru_cache(maxsize=8)
def _cached(rows: int, resamples: int, seed: int) -> Tensor:
    """All counts ``[R, m]``; many metrics ask for the same."""
    blocks = _drawn(rows, resamples, seed, max(1, _CHUNK // rows))
    return torch.cat([block.short() for block in blocks])


def _drawn(rows: int, resamples: int, seed: int, block: int) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    for start in range(0, resamples, block):
        size = min(block, resamples - start)
        drawn = torch.randint(rows, (size, rows), generator=generator)
        drawn += torch.arange(size).unsqueeze(1) * rows
        yield torch.bincount(drawn.flatten(), minlength=size * rows).view(size, rows)


def resampled(metric: Metric, rows: AnyRows) -> Tensor:
    """One of our metrics in each resample ``[R]`` of weighted rows."""
    return cast(Tensor, metric(rows))


def _one_by_one(metric: Metric, counts: Tensor, p: Prediction) -> Tensor:
    """A user's metric on each resample ``[R]``."""
    numbers = torch.arange(counts.size(1))
    drawn = (numbers.repeat_interleave(count) for count in counts.long())
    return torch.tensor([float(metric(p[rows])) for rows in drawn], dtype=torch.float64)


def _unwrap(metric: Metric) -> Metric:
    while isinstance(metric, partial) and not metric.args:
        metric = metric.func
    return metric


def _limits(metric: Metric, rows: AnyRows) -> Limits | None:
    """What one of our metrics can be; ``None`` for a user's own, which go resample by resample."""
    return METRICS.get(_unwrap(metric), {}).get(rows.p.kind)
