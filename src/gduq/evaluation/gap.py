"""The gap: what is promised minus what is held."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from gduq import metrics
from gduq.metrics import Interval
from gduq.metrics.forms import LabelBlock
from gduq.metrics.label_rows import LabelRows
from gduq.metrics.resampling import (
    blocked,
    interval,
    read_any,
    resample_counts,
    share_interval,
)

__all__ = ["PROMISED", "gap", "gap_of_draws"]

PROMISED = 0.9  # of the truth is what intervals of values are to hold


def gap(p: Any, *, resamples: int = 1000, level: float = 0.95, seed: int = 0) -> Interval:
    r"""What predictions promise minus what they hold, with its interval.

    Of classes :math:`\frac1m \sum_i (\text{confidence}_i - [\text{label}_i = y_i])`, of labels the
    mean of that over labels, of a value 0.9 minus the share of the truth in the 90 % intervals. It
    is positive for an over-confident model.

    The interval is that of the bootstrap. Of a value, and where all rows are right or all wrong, it
    is that of the share itself (Wilson's): no resample of such rows has an error in it.

    Example:
        >>> from gduq.prediction import Prediction
        >>> p = Prediction(torch.zeros(40, 2), target=torch.zeros(40).long())
        >>> gap(p)
        Interval(value=-0.5, low=-0.5, high=-0.412...)
    """
    if p.kind == "values":
        held = metrics.coverage(p, PROMISED)
        return _below(PROMISED, share_interval(held, len(p), level))
    once = torch.ones(1, len(p), dtype=torch.float64)
    value = float(gap_of_draws(p, once))
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
    rows = read_any(p)
    if isinstance(rows, LabelRows):
        return LabelBlock(rows, counts).macro(_of_classes).cpu()
    block = blocked(rows, counts)
    if p.kind == "values":
        return PROMISED - block.mean((block.rows.depth <= PROMISED).double()).cpu()  # type: ignore[union-attr]
    return _of_classes(block).cpu()


def _of_classes(block: Any) -> Tensor:
    found: Tensor = block.mean(block.rows.confidence.double() - block.rows.correct)
    return found
