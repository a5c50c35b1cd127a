"""How risk falls when the least certain rows are left out."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from gduq.metrics.binned import by_confidence
from gduq.metrics.rows import read

__all__ = ["RiskCoverage", "aurc", "excess_aurc", "risk_coverage"]


class RiskCoverage(NamedTuple):
    """A risk-coverage curve, from the most certain row to all of them."""

    coverage: Tensor  # [m], i / m
    risk: Tensor  # [m], share of errors among the i most certain rows
    threshold: Tensor  # [m], confidence of the i-th


def risk_coverage(p: Any, target: Tensor | None = None) -> RiskCoverage:
    r"""Share of errors among the i most certain rows, for i = 1 ... m.

    Rows of equal confidence are counted as in a random order, on average.

    Example:
        >>> logits = torch.tensor([[0.0, 9.0], [0.0, 1.0]])
        >>> risk_coverage(logits, torch.tensor([1, 0])).risk
        tensor([0.0000, 0.5000], dtype=torch.float64)
    """
    confidence, correct = by_confidence(read(p, target))
    size = torch.arange(1, len(confidence) + 1, dtype=torch.float64, device=confidence.device)
    risk = (1.0 - correct.flip(0)).cumsum(0) / size
    return RiskCoverage(size / len(confidence), risk, confidence.flip(0))


def aurc(p: Any, target: Tensor | None = None) -> float:
    r"""Area under the risk-coverage curve, :math:`\frac1m \sum_i r_i` (Geifman et al., 2019).

    Smaller is better. It mixes accuracy with how well confidence ranks the errors last.

    Example:
        >>> aurc(torch.tensor([[0.0, 9.0], [0.0, 1.0]]), torch.tensor([1, 0]))
        0.25
    """
    return float(risk_coverage(p, target).risk.mean())


def excess_aurc(p: Any, target: Tensor | None = None) -> float:
    """`aurc` minus that of the same errors ranked last: 0 means confidence ranks perfectly.

    Example:
        >>> excess_aurc(torch.tensor([[0.0, 9.0], [0.0, 1.0]]), torch.tensor([1, 0]))
        0.0
    """
    risk = risk_coverage(p, target).risk
    errors = (risk[-1] * len(risk)).round()
    return float(risk.mean() - best_aurc(errors, len(risk)))


def best_aurc(errors: Tensor, rows: int) -> Tensor:
    r"""The smallest `aurc` with that many errors ``[...]`` among ``rows``.

    All e errors last: :math:`\frac1m \sum_{i > m - e} \frac{i - (m - e)}{i}`, which is
    :math:`\frac1m \big(e - (m - e)(H_m - H_{m-e})\big)` with harmonic numbers H.
    """
    good = rows - errors.double()
    harmonic = torch.digamma(errors.new_tensor(rows + 1.0).double()) - torch.digamma(good + 1.0)
    return (errors - good * harmonic) / rows
