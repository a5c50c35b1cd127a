"""How risk falls when the least certain rows are left out."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gduq.metrics.rows import POSITIVE, UNIT, Predicted, metric, read_ranked

__all__ = ["RiskCoverage", "aurc", "risk_coverage"]


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
    return rows.out(_running_mean(rows.ranked()[1]).mean(dim=-1))


def _running_mean(values: Tensor) -> Tensor:
    size = torch.arange(1, values.size(-1) + 1, dtype=values.dtype, device=values.device)
    return values.cumsum(dim=-1) / size
