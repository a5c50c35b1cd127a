"""Confidence intervals for any metric, by resampling rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gduq.errors import InputError
from gduq.metrics import binned, labels, scores, values
from gduq.metrics.draws import ValueBlock
from gduq.metrics.forms import BATCHED, Block, LabelBlock, label_form
from gduq.metrics.label_rows import LabelRows, read_labels
from gduq.metrics.rows import Rows, kind_of, read
from gduq.metrics.value_rows import ValueRows, read_values

__all__ = ["Block", "Interval", "bootstrap", "bootstrap_all"]

Metric = Callable[..., float]
_CHUNK = 4_000_000  # entries of a block of resamples: bounds memory at about 100 MB
FEWEST = 5  # rows of a class below which a ranking has no interval
_KEPT = 10_000_000  # draws that are kept for the next call: 20 MB each


class Interval(NamedTuple):
    """A metric's value and where it would mostly fall on other samples of the same size."""

    value: float
    low: float
    high: float


def bootstrap(
    metric: Metric,
    p: Any,
    target: Tensor | None = None,
    *,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    **options: Any,
) -> Interval:
    """A metric with its interval, by the bootstrap.

    Rows are drawn with replacement, m of m, ``resamples`` times. Around the value lies the middle
    ``level`` of the resamples' deviations from their own mean; and where that mean is off the
    value, the end on the other side moves out by as much. So a calibration error, which noise
    inflates in the sample and once more in each resample, keeps its value inside the interval and
    the truth mostly too; ``benchmarks/interval_evidence.py`` counts how often. Accuracy and the
    coverage of intervals, shares of rows, get their Wilson interval: no resample of rows that are
    all right has an error in it.

    All labels, or values, of a row are drawn together. Resamples in which a metric is not defined
    (none has the only row of a class) are left out. Rows of one graph depend on each other;
    intervals for node tasks are rather too narrow. `roc_auc` and `average_precision` have no
    interval (NaN) where a class that counts, or the rest, has fewer than 5 rows: resamples of so
    few hardly differ.

    Args:
        metric: A function of this package, or any ``f(p) -> float``; one number each.
        p: A prediction of any kind, or logits ``[m, C]``.
        target: Labels ``[m]``, next to logits only.
        resamples: How many resamples.
        level: Coverage of the interval.
        seed: Seed of the resampling.
        **options: Passed to the metric.

    Example:
        >>> logits = torch.tensor([[0.0, 1.0]] * 50 + [[1.0, 0.0]] * 50)
        >>> value, low, high = bootstrap(scores.accuracy, logits, torch.ones(100).long())
        >>> value, low < 0.45, high > 0.55
        (0.5, True, True)
    """
    named = {"": partial(metric, **options)}
    intervals = bootstrap_all(named, p, target, resamples=resamples, level=level, seed=seed)
    return intervals[""]


def bootstrap_all(
    metrics: Mapping[str, Metric],
    p: Any,
    target: Tensor | None = None,
    *,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> dict[str, Interval]:
    """`bootstrap` for several metrics on the same resamples; options by `functools.partial`.

    Example:
        >>> logits, y = torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.tensor([1, 0])
        >>> bootstrap_all({"acc": scores.accuracy}, logits, y, resamples=10)
        {'acc': Interval(value=1.0, low=0.342..., high=1.0)}
    """
    check_sampling(resamples, level)
    rows, kind = read_any(p, target, labelled=False), kind_of(p)
    source = p if target is None and (hasattr(p, "logits") or kind != "classes") else rows
    forms = {name: _form(metric, kind) for name, metric in metrics.items()}
    point = {
        name: _number(metric, source if forms[name] is None else rows)
        for name, metric in metrics.items()
    }
    draws: dict[str, list[Tensor]] = {name: [] for name in metrics}
    for counts in resample_counts(len(rows), resamples, seed):
        block = LabelBlock(rows, counts) if isinstance(rows, LabelRows) else blocked(rows, counts)
        for name, form in forms.items():
            part = _one_by_one(metrics[name], counts, source) if form is None else form(block)
            draws[name].append(part.cpu())
    found = {
        name: interval(point[name], torch.cat(draws[name]), level, *_limits(metric, kind))
        for name, metric in metrics.items()
    }
    for name, metric in metrics.items():
        if _is_share(metric, kind):
            found[name] = share_interval(point[name], len(rows), level)
        if _unwrap(metric)[0] in _RANKINGS and _few(rows):
            found[name] = Interval(point[name], math.nan, math.nan)
    return found


def check_sampling(resamples: int, level: float) -> None:
    """Raise for too few resamples or an impossible coverage."""
    if resamples < 2:
        raise InputError("resamples >= 2", resamples)
    if not 0 < level < 1:
        raise InputError("level between 0 and 1", level)


def _number(metric: Metric, source: Any) -> float:
    value: Any = metric(source)
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InputError(
            "a metric that gives one number",
            type(value).__name__,
            "Choose one: lambda p: metric(p).field, or partial(brier_term, term=...).",
        ) from None


def share_interval(share: float, rows: int, level: float) -> Interval:
    """A share of rows with its Wilson interval."""
    rate, count = (torch.tensor(float(v), dtype=torch.float64) for v in (share, rows))
    low, high = (float(end) for end in binned.wilson(rate, count, level))
    return Interval(share, min(low, share), max(high, share))


def interval(
    value: float, draws: Tensor, level: float, least: float = -math.inf, most: float = math.inf
) -> Interval:
    """The interval around a value from its resamples ``[R]``, within what the metric can be.

    Resamples that are NaN, where the metric is not defined, are left out.
    """
    draws = draws[~draws.isnan()]
    if math.isnan(value) or draws.numel() == 0:
        return Interval(value, math.nan, math.nan)
    tail = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=draws.dtype)
    down, up = (torch.quantile(draws, tail) - draws.mean()).tolist()
    shift = float(draws.mean()) - value
    low, high = value + down - max(shift, 0.0), value + up - min(shift, 0.0)
    return Interval(value, max(min(low, value), least), min(max(high, value), most))


def resample_counts(rows: int, resamples: int, seed: int, beside: int = 0) -> Iterator[Tensor]:
    """Blocks ``[R, m]`` of how often each row is drawn, float64; R sums to ``resamples``.

    ``beside`` counts further rows that are resampled at the same time, for equal blocks.
    """
    block = max(1, _CHUNK // (rows + beside))
    if rows * resamples <= _KEPT:  # many metrics ask for the same draws
        yield from (part.double() for part in _kept_counts(rows, resamples, seed).split(block))
        return
    generator = torch.Generator().manual_seed(seed)
    for start in range(0, resamples, block):
        yield _drawn(rows, min(block, resamples - start), generator).double()


@lru_cache(maxsize=8)
def _kept_counts(rows: int, resamples: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    block = max(1, _CHUNK // rows)
    sizes = [min(block, resamples - start) for start in range(0, resamples, block)]
    return torch.cat([_drawn(rows, size, generator).short() for size in sizes])


def _drawn(rows: int, size: int, generator: torch.Generator) -> Tensor:
    drawn = torch.randint(rows, (size, rows), generator=generator)
    drawn += torch.arange(size).unsqueeze(1) * rows
    return torch.bincount(drawn.flatten(), minlength=size * rows).view(size, rows)


def read_any(
    p: Any, target: Tensor | None = None, *, labelled: bool = True
) -> Rows | ValueRows | LabelRows:
    """Check predictions of any kind, or logits, and hand them to metrics."""
    if kind_of(p) == "values":
        return read_values(p, target, labelled=labelled)
    if kind_of(p) == "labels":
        return read_labels(p, target, labelled=labelled)
    return read(p, target, labelled=labelled)


def blocked(rows: Rows | ValueRows, counts: Tensor) -> Block | ValueBlock:
    """Resamples of rows about classes or values, where the rows are."""
    if isinstance(rows, Rows):
        return Block(rows, counts.to(rows.logits.device))
    return ValueBlock(rows, counts.to(rows.source.samples.device))


def _form(metric: Metric, kind: str) -> Callable[[Any], Tensor] | None:
    """The metric on a block of resamples, if it is one of ours."""
    base, options = _unwrap(metric)
    if kind == "labels":
        return label_form(base, options)
    form = (values.FORMS if kind == "values" else BATCHED).get(base)
    return None if form is None else partial(form, **options)


def _one_by_one(metric: Metric, counts: Tensor, source: Any) -> Tensor:
    """A user's metric on each resample ``[R]``."""
    numbers = torch.arange(counts.size(1))
    results = [
        float(metric(take(source, numbers.repeat_interleave(count)))) for count in counts.long()
    ]
    return torch.tensor(results, dtype=torch.float64)


def take(source: Any, index: Tensor) -> Any:
    """Some rows of a prediction or of what metrics read."""
    if isinstance(source, Rows):
        columns = (source.logits, source.target, source.decided)
        return Rows(*(None if c is None else c[index.to(c.device)] for c in columns))  # type: ignore[arg-type]
    if isinstance(source, ValueRows | LabelRows):
        return type(source)(source.source[index])
    return source[index]


def _unwrap(metric: Metric) -> tuple[Metric, dict[str, Any]]:
    options: dict[str, Any] = {}
    while isinstance(metric, partial) and not metric.args:
        options = {**metric.keywords, **options}
        metric = metric.func
    return metric, options


def _limits(metric: Metric, kind: str) -> tuple[float, float]:
    base, options = _unwrap(metric)
    if _form(metric, kind) is None or options.get("term") == "within_bin":
        return -math.inf, math.inf
    if kind == "values":
        return values.LIMITS.get(base, (0.0, math.inf))
    return 0.0, {scores.brier_term: 2.0, scores.nll: math.inf, scores.brier: 2.0}.get(base, 1.0)


_RANKINGS = (labels.roc_auc, labels.average_precision)


def _few(rows: Rows | ValueRows | LabelRows) -> bool:
    """Whether a class that counts in a ranking, or the rest of the rows, is too small for it."""
    if isinstance(rows, LabelRows):
        return any(_few(part) for _, part in rows.parts.values())
    if not isinstance(rows, Rows) or rows.target is None:
        return False
    size = rows.target.bincount(minlength=rows.num_classes)
    fewest = torch.minimum(size, len(rows) - size)
    return bool(((fewest > 0) & (fewest < FEWEST)).any())


def _is_share(metric: Metric, kind: str) -> bool:
    return (_unwrap(metric)[0], kind) in (
        (scores.accuracy, "classes"),
        (values.coverage, "values"),
    )
