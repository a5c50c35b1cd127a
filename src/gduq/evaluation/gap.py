"""The gap: what is promised minus what is held."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from gduq import metrics
from gduq.metrics import Interval
from gduq.metrics.metric import metric
from gduq.metrics.resampling import interval, resample_counts, resampled, share_interval
from gduq.metrics.rows import Rows, read_any, read_ranked

__all__ = ["PROMISED", "gap", "gap_of_draws"]

PROMISED = 0.9  # of the truth is what intervals of values are to hold


def gap(p: Any, *, resamples: int = 1000, level: float = 0.95, seed: int = 0) -> Interval:
    r"""What predictions promise minus what they hold, with its interval.

    Of classes :math:`\frac1m \sum_i (\text{confidence}_i - [\text{label}_i = y_i])`, of labels the
    mean of that over labels, of a value 0.9 minus the share of the truth in the 90 % intervals. The
    interval is that of the bootstrap; of a value, and where all rows are right or all wrong, that
    of the share itself (Wilson's): no resample of such rows has an error in it.

    Example:
        >>> from gduq.prediction import ClassPrediction
        >>> p = ClassPrediction(torch.zeros(40, 2), target=torch.zeros(40).long())
        >>> gap(p)
        Interval(value=-0.5, low=-0.5, high=-0.412...)
    """
    if p.kind == "values":
        return _below(PROMISED, share_interval(metrics.coverage(p, PROMISED), len(p), level))
    value = float(gap_of_draws(p, torch.ones(1, len(p), dtype=torch.float64)))
    if resamples == 0:
        return Interval(value, math.nan, math.nan)
    draws = [gap_of_draws(p, block) for block in resample_counts(len(p), resamples, seed)]
    found = interval(value, torch.cat(draws), level)
    right = metrics.accuracy(p)
    if p.kind == "classes" and right in (0.0, 1.0):
        share = _below(value + right, share_interval(right, len(p), level))
        found = Interval(value, min(found.low, share.low), max(found.high, share.high))
    return found


def _below(promised: float, held: Interval) -> Interval:
    return Interval(promised - held.value, promised - held.high, promised - held.low)


def gap_of_draws(p: Any, counts: Tensor) -> Tensor:
    """The gap in each resample ``[R]``, given how often each row is drawn ``[R, m]``."""
    return resampled(_gap, read_any(p).weighted(counts))


@metric(classes=(-1.0, 1.0), labels=(-1.0, 1.0), values=(-1.0, 1.0))
def _gap(p: Any, target: Tensor | None = None) -> float:
    rows = read_ranked(p, target)
    if isinstance(rows, Rows):
        return rows.out(rows.mean(rows.confidence.double() - rows.correct))
    return rows.out(PROMISED - rows.mean(rows.depth <= PROMISED))
