"""Confidence intervals for any metric, by resampling rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from gduq.errors import InputError
from gduq.metrics.rows import (
    ABOUT,
    ANY,
    PROMISED,
    AnyRows,
    LabelRows,
    Limits,
    Predicted,
    Rows,
    ValueRows,
    read_any,
)
from gduq.prediction import Prediction

__all__ = ["Interval", "bootstrap", "bootstrap_all"]

Metric = Callable[..., float]
FEWEST = 5  # rows of a class below which a ranking has no interval
_CHUNK = 4_000_000  # entries of a block of resamples: bounds memory at about 100 MB
_KEPT = 10_000_000  # draws that are kept for the next call: 20 MB each
_SHARES = {("accuracy", Rows.kind), ("coverage", ValueRows.kind)}  # of rows: Wilson's interval
_RANKINGS = ("roc_auc", "average_precision")


class Interval(NamedTuple):
    """A metric's value and where it would mostly fall on other samples of the same size."""

    value: float
    low: float
    high: float


def bootstrap(
    metric: Metric,
    p: Predicted,
    target: Tensor | None = None,
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
        p: A prediction of any kind, or logits ``[m, C]``.
        target: Labels ``[m]``, next to logits only.
        resamples, level, seed: How many resamples, coverage of the interval, seed of the draws.
        **options: Passed to the metric.

    Example:
        >>> from gduq.metrics import accuracy
        >>> logits = torch.tensor([[0.0, 1.0]] * 50 + [[1.0, 0.0]] * 50)
        >>> value, low, high = bootstrap(accuracy, logits, torch.ones(100).long())
        >>> value, low < 0.45, high > 0.55
        (0.5, True, True)
    """
    named = {"": partial(metric, **options)}
    return bootstrap_all(named, p, target, resamples=resamples, level=level, seed=seed)[""]


def bootstrap_all(
    metrics: Mapping[str, Metric],
    p: Predicted,
    target: Tensor | None = None,
    *,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> dict[str, Interval]:
    """`bootstrap` for several metrics on the same resamples; options by `functools.partial`."""
    check_sampling(resamples, level)
    rows = read_any(p, target, labelled=False)
    source = p if isinstance(p, Prediction) and target is None else rows
    ours = {name: _limits(metric, rows.kind) for name, metric in metrics.items()}
    point = {n: _number(metric, rows if ours[n] else source) for n, metric in metrics.items()}
    draws: dict[str, list[Tensor]] = {name: [] for name in metrics}
    for counts in resample_counts(len(rows), resamples, seed):
        drawn = rows.weighted(counts)  # shared, so that what several metrics need is made once
        for n, metric in metrics.items():
            part = resampled(metric, drawn) if ours[n] else _one_by_one(metric, counts, source)
            draws[n].append(part)
    found = {}
    for n, metric in metrics.items():
        called = _unwrap(metric).__name__ if ours[n] else ""
        if (called, rows.kind) in _SHARES:
            found[n] = share_interval(point[n], len(rows), level)
        elif called in _RANKINGS and _few(rows):
            found[n] = Interval(point[n], math.nan, math.nan)
        else:
            found[n] = interval(point[n], torch.cat(draws[n]), level, *ours[n] or ANY)
            if called == "gap":
                found[n] = _with_share(found[n], rows, level)
    return found


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


def _with_share(found: Interval, rows: AnyRows, level: float) -> Interval:
    """The gap with the interval of the share in it, where resamples cannot tell it."""
    if isinstance(rows, ValueRows):
        promised, held = PROMISED, PROMISED - found.value
    elif isinstance(rows, Rows) and (held := float(rows.right.mean())) in (0.0, 1.0):
        promised = found.value + held
    else:
        return found
    _, low, high = share_interval(held, len(rows), level)
    if isinstance(rows, ValueRows):
        return Interval(found.value, promised - high, promised - low)
    return Interval(found.value, min(found.low, promised - high), max(found.high, promised - low))


def _number(metric: Metric, source: Prediction | AnyRows) -> float:
    value: Any = metric(source)
    try:
        return float(value)
    except (TypeError, ValueError):
        do = "Choose one: lambda p: metric(p).field."
        raise InputError("a metric that gives one number", type(value).__name__, do) from None


def wilson(rate: Tensor, count: Tensor, level: float) -> tuple[Tensor, Tensor]:
    """The Wilson interval of a share ``rate`` of ``count`` rows; NaN where there are none."""
    z = math.sqrt(2.0) * float(torch.erfinv(torch.tensor(level, dtype=torch.float64)))
    centre = (rate + z * z / (2 * count)) / (1 + z * z / count)
    half = (rate * (1 - rate) / count + (z / (2 * count)).square()).sqrt() * z
    half = half / (1 + z * z / count)
    return (centre - half).clamp_min(0.0), (centre + half).clamp_max(1.0)


def share_interval(share: float, rows: int, level: float) -> Interval:
    """A share of rows with its Wilson interval."""
    rate, count = (torch.tensor(float(v), dtype=torch.float64) for v in (share, rows))
    low, high = (float(end) for end in wilson(rate, count, level))
    return Interval(share, min(low, share), max(high, share))


def interval(
    value: float, draws: Tensor, level: float, least: float = -math.inf, most: float = math.inf
) -> Interval:
    """The interval around a value from its resamples ``[R]`` but NaN, within what it can be."""
    draws = draws[~draws.isnan()]
    if math.isnan(value) or draws.numel() == 0:
        return Interval(value, math.nan, math.nan)
    low, high = (float(end) for end in ends_around(draws.new_tensor(value), draws, level))
    return Interval(value, max(min(low, value), least), min(max(high, value), most))


def ends_around(value: Tensor, draws: Tensor, level: float) -> tuple[Tensor, Tensor]:
    """Both ends around values from resamples ``[R, ...]``, as `bootstrap` describes them."""
    tail = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=draws.dtype)
    mean = draws.mean(dim=0)
    down, up = draws.quantile(tail, dim=0) - mean
    shift = mean - value
    return value + down - shift.clamp_min(0), value + up - shift.clamp_max(0)


def resample_counts(rows: int, resamples: int, seed: int, beside: int = 0) -> Iterator[Tensor]:
    """Blocks ``[R, m]`` of how often each row is drawn, float64; R sums to ``resamples``.

    ``beside`` counts further rows that are resampled at the same time, for equal blocks.
    """
    block = max(1, _CHUNK // (rows + beside))
    many = rows * resamples > _KEPT
    draw = (
        _drawn(rows, resamples, seed, block) if many else _kept(rows, resamples, seed).split(block)
    )
    return (part.double() for part in draw)


def resampled_pairs(
    first: int, second: int, resamples: int, seed: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """`resample_counts` of two sets at once, each at its own size."""
    one = resample_counts(first, resamples, seed, beside=second)
    return zip(one, resample_counts(second, resamples, seed + 1, beside=first), strict=True)


@lru_cache(maxsize=8)
def _kept(rows: int, resamples: int, seed: int) -> Tensor:
    """All counts ``[R, m]``; many metrics ask for the same."""
    return torch.cat([b.short() for b in _drawn(rows, resamples, seed, max(1, _CHUNK // rows))])


def _drawn(rows: int, resamples: int, seed: int, block: int) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    for start in range(0, resamples, block):
        size = min(block, resamples - start)
        drawn = torch.randint(rows, (size, rows), generator=generator)
        drawn += torch.arange(size).unsqueeze(1) * rows
        yield torch.bincount(drawn.flatten(), minlength=size * rows).view(size, rows)


def resampled(metric: Metric, rows: AnyRows) -> Tensor:
    """One of our metrics in each resample ``[R]`` of weighted rows."""
    return cast(Tensor, metric(rows)).cpu()


def _one_by_one(metric: Metric, counts: Tensor, source: Prediction | AnyRows) -> Tensor:
    """A user's metric on each resample ``[R]``."""
    numbers = torch.arange(counts.size(1))
    drawn = (numbers.repeat_interleave(count) for count in counts.long())
    return torch.tensor([float(metric(source[rows])) for rows in drawn], dtype=torch.float64)


def _unwrap(metric: Metric) -> Metric:
    while isinstance(metric, partial) and not metric.args:
        metric = metric.func
    return metric


def _limits(metric: Metric, kind: str) -> Limits | None:
    """What one of our metrics can be; ``None`` for a user's own, which go resample by resample."""
    return ABOUT.get(_unwrap(metric), {}).get(kind)


def _few(rows: AnyRows) -> bool:
    """Whether a class that counts in a ranking, or the rest of the rows, is too small for it."""
    if isinstance(rows, LabelRows):
        return any(_few(part) for _, part in rows.parts.values())
    rows = cast(Rows, rows)  # only classes and labels have rankings
    size = rows.labels.bincount(minlength=rows.num_classes)
    fewest = torch.minimum(size, len(rows) - size)
    return bool(((fewest > 0) & (fewest < FEWEST)).any())
