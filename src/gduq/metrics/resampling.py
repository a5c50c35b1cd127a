"""Confidence intervals for any metric, by resampling rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gduq.errors import InputError
from gduq.metrics import binned, kernel, scores, selective
from gduq.metrics.rows import Rows, read

__all__ = ["Interval", "bootstrap", "bootstrap_all"]

Metric = Callable[..., float]
_CHUNK = 4_000_000  # entries of a block of resamples: bounds memory at about 100 MB
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
    the truth mostly too; ``benchmarks/interval_evidence.py`` counts how often. Accuracy, a share of
    rows, gets its Wilson interval: no resample of rows that are all right has an error in it.

    Rows of one graph depend on each other; intervals for node tasks are rather too narrow.

    Args:
        metric: A function of this package, or any ``f(p) -> float``; one number each.
        p: A `gduq.Prediction` or logits ``[m, C]``.
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
    rows = read(p, target, labelled=False)
    source = p if target is None and hasattr(p, "logits") else rows
    values = {name: _number(metric, source) for name, metric in metrics.items()}
    draws: dict[str, list[Tensor]] = {name: [] for name in metrics}
    for counts in resample_counts(len(rows), resamples, seed):
        block = Block(rows, counts.to(rows.logits.device))
        for name, metric in metrics.items():
            draws[name].append(_resampled(metric, block, source))
    found = {
        name: interval(values[name], torch.cat(draws[name]), level, *_limits(metric))
        for name, metric in metrics.items()
    }
    shares = (name for name, metric in metrics.items() if _unwrap(metric)[0] is scores.accuracy)
    return found | {name: share_interval(values[name], len(rows), level) for name in shares}


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
    """The interval around a value from its resamples ``[R]``, within what the metric can be."""
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


def _resampled(metric: Metric, block: Block, source: Any) -> Tensor:
    """The metric on each resample ``[R]``: all at once for ours, one by one for a user's."""
    base, options = _unwrap(metric)
    fast = _BATCHED.get(base)
    if fast is not None:
        return fast(block, **options).cpu()
    numbers = torch.arange(len(block.rows), device=block.counts.device)
    results = [
        float(metric(take(source, numbers.repeat_interleave(count))))
        for count in block.counts.long()
    ]
    return torch.tensor(results, dtype=torch.float64)


def take(source: Any, index: Tensor) -> Any:
    """Some rows of a prediction or of `Rows`."""
    if isinstance(source, Rows):
        target = None if source.target is None else source.target[index]
        return Rows(source.logits[index], target)
    return source[index]


def _unwrap(metric: Metric) -> tuple[Metric, dict[str, Any]]:
    options: dict[str, Any] = {}
    while isinstance(metric, partial) and not metric.args:
        options = {**metric.keywords, **options}
        metric = metric.func
    return metric, options


def _limits(metric: Metric) -> tuple[float, float]:
    base = _unwrap(metric)[0]
    if base not in _BATCHED:
        return -math.inf, math.inf
    if _unwrap(metric)[1].get("term") == "within_bin":
        return -math.inf, math.inf
    return 0.0, {scores.brier_term: 2.0, scores.nll: math.inf, scores.brier: 2.0}.get(base, 1.0)


# -- our metrics on a block of resamples at once: [R] each ---------------------------------------


@dataclass(frozen=True, eq=False)
class Block:
    """R resamples of m rows: how often each row is drawn, ``counts`` ``[R, m]``."""

    rows: Rows
    counts: Tensor
    _class_sums: dict[int, tuple[Tensor, Tensor, Tensor]] = field(default_factory=dict)

    def mean(self, values: Tensor) -> Tensor:
        """Mean of one value per row ``[m]`` in each resample ``[R]``."""
        return self.counts @ values.to(self.counts.dtype) / len(self.rows)

    @cached_property
    def by_confidence(self) -> tuple[Tensor, Tensor]:
        """Confidence, ascending, and tie-averaged correctness in each resample, ``[R, m]``."""
        confidence, order = self.rows.confidence.sort()
        counts, correct = self.counts[:, order], self.rows.correct[order].expand_as(self.counts)
        _, group = torch.unique_consecutive(confidence, return_inverse=True)
        groups = int(group[-1]) + 1
        if groups < len(self.rows):
            size = counts.new_zeros(counts.size(0), groups).index_add_(1, group, counts)
            hits = torch.zeros_like(size).index_add_(1, group, counts * correct)
            correct = (hits / size.clamp_min(1.0))[:, group]
        # row numbers repeated as often as drawn: sorted resamples without sorting any of them
        numbers = torch.arange(len(self.rows), device=counts.device).expand(counts.shape)
        drawn = torch.repeat_interleave(numbers.flatten(), counts.long().flatten())
        drawn = drawn.view(counts.shape)
        return confidence[drawn], correct.gather(1, drawn)

    @cached_property
    def risks(self) -> Tensor:
        """Risk at each coverage ``[R, m]``."""
        size = torch.arange(1, len(self.rows) + 1, dtype=torch.float64, device=self.counts.device)
        return (1.0 - self.by_confidence[1].flip(-1)).cumsum(dim=-1) / size

    def bin_sums(self, probs: Tensor, hits: Tensor, bins: int) -> tuple[Tensor, Tensor, Tensor]:
        """As `binned.bin_sums`, ``[R, B]`` each."""
        cell = torch.nn.functional.one_hot(binned.bin_index(probs, bins), bins).double()
        sums = [self.counts @ (cell * v.double().unsqueeze(1)) for v in (probs, hits)]
        return self.counts @ cell, sums[0], sums[1]

    def class_sums(self, bins: int) -> tuple[Tensor, Tensor, Tensor]:
        """As `binned.class_sums`, ``[R, C, B]`` each; kept, since several metrics want them."""
        if bins not in self._class_sums:
            rows = self.rows
            found = [
                self.bin_sums(rows.probs[:, c], rows.labels == c, bins)
                for c in range(rows.num_classes)
            ]
            count, prob, hit = (torch.stack(part, dim=1) for part in zip(*found, strict=True))
            self._class_sums[bins] = count, prob, hit
        return self._class_sums[bins]


def _mean_of(values: Callable[[Rows], Tensor]) -> Callable[..., Tensor]:
    return lambda block: block.mean(values(block.rows))


def _ece(
    block: Block,
    bins: int = 15,
    norm: str = "l1",
    binning: str = "width",
    debias: bool = False,
    strict: bool = True,
) -> Tensor:
    if binning == "mass":
        sums = binned.mass_sums(*block.by_confidence, bins)
    else:
        sums = block.bin_sums(block.rows.confidence, block.rows.correct, bins)
    return binned.bin_error(*sums, norm, debias)


def _adaptive_ece(block: Block, **options: Any) -> Tensor:
    return _ece(block, binning="mass", **options)


def _classwise_ece(
    block: Block, bins: int = 15, norm: str = "l1", debias: bool = False, strict: bool = True
) -> Tensor:
    return binned.bin_error(*block.class_sums(bins), norm, debias).mean(dim=-1)


def _brier_term(
    block: Block, term: str = "reliability", bins: int = 15, strict: bool = True
) -> Tensor:
    brier = block.mean(scores.row_brier(block.rows))
    return scores.terms(*block.class_sums(bins), brier)[term]


def _smooth_ece(block: Block, bandwidth: float | None = None) -> Tensor:
    rows, counts = block.rows, block.counts
    cell, residual = kernel.cell_index(rows.confidence), rows.correct - rows.confidence.double()
    used, place = torch.unique(cell, return_inverse=True)
    sums = counts.new_zeros(len(counts), int(used.numel()))
    sums.index_add_(1, place, counts * (residual / len(rows)))
    cells = counts.new_zeros(len(counts), kernel.CELLS)
    return kernel.smooth_error(cells.index_copy_(1, used, sums), bandwidth)


def _aurc(block: Block) -> Tensor:
    return block.risks.mean(dim=-1)


def _excess_aurc(block: Block) -> Tensor:
    errors = (block.risks[:, -1] * len(block.rows)).round()
    return block.risks.mean(dim=-1) - selective.best_aurc(errors, len(block.rows))


_BATCHED: dict[Metric, Callable[..., Tensor]] = {
    scores.accuracy: _mean_of(lambda rows: rows.correct),
    scores.nll: _mean_of(scores.row_nll),
    scores.brier: _mean_of(scores.row_brier),
    scores.brier_term: _brier_term,
    scores.sharpness: _mean_of(scores.row_sharpness),
    binned.ece: _ece,
    binned.adaptive_ece: _adaptive_ece,
    binned.classwise_ece: _classwise_ece,
    kernel.smooth_ece: _smooth_ece,
    selective.aurc: _aurc,
    selective.excess_aurc: _excess_aurc,
}
