"""A risk-coverage curve with intervals, by resampling rows."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from gduq.errors import InputError
from gduq.metrics.binned import wilson
from gduq.metrics.resampling import blocked, check_sampling, resample_counts
from gduq.metrics.rows import Rows
from gduq.metrics.selective import ranked_rows, risk_coverage

__all__ = ["RiskBand", "risk_band"]


class RiskBand(NamedTuple):
    """Points of a risk-coverage curve, each with its interval."""

    coverage: Tensor  # [n]
    risk: Tensor  # [n]
    low: Tensor  # [n]
    high: Tensor  # [n]


def risk_band(
    p: Any,
    target: Tensor | None = None,
    *,
    points: int = 200,
    resamples: int = 200,
    level: float = 0.95,
    seed: int = 0,
) -> RiskBand:
    """`risk_coverage` at evenly spread coverages, with bootstrap intervals.

    As in `bootstrap`, the middle ``level`` of the resamples' deviations from their mean lies around
    each risk. But certain rows are often all right and have no error to resample, so no interval is
    narrower than the Wilson interval of so many rows; of values, whose risk is no share but a mean
    squared error, the bootstrap has to do. Each interval is for its coverage alone: a
    curve may well leave the band somewhere.

    Args:
        p: As in `risk_coverage`.
        target: Labels ``[m]``, next to logits only.
        points: At most so many coverages; the last one is 1.
        resamples: How many resamples.
        level: Coverage of the intervals.
        seed: Seed of the resampling.

    Example:
        >>> logits = torch.linspace(0.1, 3, 50).double()[:, None] * torch.tensor([1.0, 0.0])
        >>> band = risk_band(logits, torch.zeros(50).long())  # all right, which proves little
        >>> bool(band.risk.max() == 0), round(float(band.high[-1]), 3)
        (True, 0.071)
    """
    check_sampling(resamples, level)
    if points < 1:
        raise InputError("points >= 1", points)
    rows = ranked_rows(p, target)
    curve, m = risk_coverage(rows), len(rows)
    at = torch.linspace(0, m - 1, min(points, m), dtype=torch.float64).round().long().unique()
    blocks = (blocked(rows, counts) for counts in resample_counts(m, resamples, seed))
    draws = torch.cat([block.risks[:, at].cpu() for block in blocks])  # [R, n]
    coverage, risk = curve.coverage[at].cpu(), curve.risk[at].cpu()
    tail = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=draws.dtype)
    down, up = draws.quantile(tail, dim=0) - draws.mean(dim=0)
    shift = draws.mean(dim=0) - risk
    low, high = risk + down - shift.clamp_min(0), risk + up - shift.clamp_max(0)
    if isinstance(rows, Rows):
        least, most = wilson(risk, at + 1.0, level)
        low, high = low.minimum(least), high.maximum(most).clamp_max(1)
    return RiskBand(coverage, risk, low.clamp_min(0), high)
