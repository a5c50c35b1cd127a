"""How risk falls when the least certain rows are left out."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gduq.errors import InputError
from gduq.metrics.resampling import check_sampling, ends_around, resample_counts, wilson
from gduq.metrics.rows import POSITIVE, UNIT, Predicted, Rows, ValueRows, metric, read_ranked

__all__ = ["RiskBand", "RiskCoverage", "aurc", "risk_band", "risk_coverage"]


class RiskCoverage(NamedTuple):
    """A risk-coverage curve, from the most certain row to all of them."""

    coverage: Tensor  # [m], i / m
    risk: Tensor  # [m], share of errors (values: mean squared error) of the i most certain rows
    threshold: Tensor  # [m], confidence (values: std) of the i-th


def risk_coverage(p: Predicted, target: Tensor | None = None) -> RiskCoverage:
    r"""Share of errors (of values mean squared error) among the i most certain rows, i = 1 ... m.

    Rows of equal confidence are counted as in a random order, on average.

    Args:
        p: A `gduq.ClassPrediction`, a `gduq.ValuePrediction` of one value, or logits ``[m, C]``.
        target: Labels ``[m]``, next to logits only.

    Example:
        >>> logits = torch.tensor([[0.0, 9.0], [0.0, 1.0]])
        >>> risk_coverage(logits, torch.tensor([1, 0])).risk
        tensor([0.0000, 0.5000], dtype=torch.float64)
    """
    rows = read_ranked(p, target)
    threshold, loss = (part[0] for part in rows.ranked())
    size = torch.arange(1, len(loss) + 1, dtype=torch.float64, device=loss.device)
    return RiskCoverage(size / len(loss), _running_mean(loss), threshold)


@metric(classes=UNIT, values=POSITIVE)
def aurc(p: Predicted, target: Tensor | None = None) -> float:
    r"""Area under the risk-coverage curve, :math:`\frac1m \sum_i r_i` (Geifman et al., 2019).

    It mixes accuracy with how well confidence ranks the errors last; smaller is better.

    Example:
        >>> aurc(torch.tensor([[0.0, 9.0], [0.0, 1.0]]), torch.tensor([1, 0]))
        0.25
    """
    rows = read_ranked(p, target)
    return rows.out(_risks(rows).mean(dim=-1))


class RiskBand(NamedTuple):
    """Points of a risk-coverage curve, each with its interval."""

    coverage: Tensor  # [n]
    risk: Tensor  # [n]
    low: Tensor  # [n]
    high: Tensor  # [n]


def risk_band(
    p: Predicted,
    target: Tensor | None = None,
    *,
    points: int = 200,
    resamples: int = 200,
    level: float = 0.95,
    seed: int = 0,
) -> RiskBand:
    """`risk_coverage` at evenly spread coverages, each with an interval as of `bootstrap`.

    No interval of a share is narrower than its Wilson interval.

    Args:
        p, target: As in `risk_coverage`.
        points: At most so many coverages; the last one is 1.
        resamples, level, seed: As in `bootstrap`.

    Example:
        >>> logits = torch.linspace(0.1, 3, 50).double()[:, None] * torch.tensor([1.0, 0.0])
        >>> band = risk_band(logits, torch.zeros(50).long())  # all right, which proves little
        >>> bool(band.risk.max() == 0), round(float(band.high[-1]), 3)
        (True, 0.071)
    """
    check_sampling(resamples, level)
    if points < 1:
        raise InputError("points >= 1", points)
    rows = read_ranked(p, target)
    curve, m = risk_coverage(rows), len(rows)
    at = torch.linspace(0, m - 1, min(points, m), dtype=torch.float64).round().long().unique()
    blocks = (rows.weighted(counts) for counts in resample_counts(m, resamples, seed))
    draws = torch.cat([_risks(block)[:, at].cpu() for block in blocks])  # [R, n]
    coverage, risk = curve.coverage[at].cpu(), curve.risk[at].cpu()
    low, high = ends_around(risk, draws, level)
    if isinstance(rows, Rows):
        least, most = wilson(risk, at + 1.0, level)
        low, high = low.minimum(least), high.maximum(most).clamp_max(1)
    return RiskBand(coverage, risk, low.clamp_min(0), high)


def _risks(rows: Rows | ValueRows) -> Tensor:
    """Mean loss of the i most certain rows, for every i ``[R, m]``."""
    return rows.kept("risks", lambda: _running_mean(rows.ranked()[1]))


def _running_mean(values: Tensor) -> Tensor:
    size = torch.arange(1, values.size(-1) + 1, dtype=values.dtype, device=values.device)
    return values.cumsum(dim=-1) / size
