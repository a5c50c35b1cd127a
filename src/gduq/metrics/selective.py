"""How risk falls when the least certain rows are left out."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from gduq.metrics.binned import ordered
from gduq.metrics.draws import running_mean
from gduq.metrics.label_rows import over_labels
from gduq.metrics.rows import Rows, kind_of, read
from gduq.metrics.value_rows import ValueRows, read_values

__all__ = ["RiskCoverage", "aurc", "excess_aurc", "risk_coverage"]


class RiskCoverage(NamedTuple):
    """A risk-coverage curve, from the most certain row to all of them."""

    coverage: Tensor  # [m], i / m
    risk: Tensor  # [m], share of errors (values: mean squared error) of the i most certain rows
    threshold: Tensor  # [m], confidence (values: std) of the i-th


def risk_coverage(p: Any, target: Tensor | None = None) -> RiskCoverage:
    r"""Share of errors among the i most certain rows, for i = 1 ... m.

    Rows of equal confidence are counted as in a random order, on average. Of values it is the mean
    squared error of the i rows with the smallest ``std``.

    Args:
        p: A `gduq.Prediction`, a `gduq.ValuePrediction` of one value, or logits ``[m, C]``.
        target: Labels ``[m]``, next to logits only.

    Example:
        >>> logits = torch.tensor([[0.0, 9.0], [0.0, 1.0]])
        >>> risk_coverage(logits, torch.tensor([1, 0])).risk
        tensor([0.0000, 0.5000], dtype=torch.float64)
    """
    threshold, loss = _ranked(ranked_rows(p, target))
    size = torch.arange(1, len(loss) + 1, dtype=torch.float64, device=loss.device)
    return RiskCoverage(size / len(loss), running_mean(loss), threshold)


def aurc(p: Any, target: Tensor | None = None) -> float:
    r"""Area under the risk-coverage curve, :math:`\frac1m \sum_i r_i` (Geifman et al., 2019).

    Smaller is better. It mixes accuracy with how well confidence ranks the errors last. Of labels
    it is the mean over labels, of values the area under mean squared errors.

    Example:
        >>> aurc(torch.tensor([[0.0, 9.0], [0.0, 1.0]]), torch.tensor([1, 0]))
        0.25
    """
    if kind_of(p) == "labels":
        return over_labels(aurc, p, target)
    return float(risk_coverage(p, target).risk.mean())


def excess_aurc(p: Any, target: Tensor | None = None) -> float:
    """`aurc` minus that of the same errors ranked last: 0 means confidence ranks perfectly.

    Example:
        >>> excess_aurc(torch.tensor([[0.0, 9.0], [0.0, 1.0]]), torch.tensor([1, 0]))
        0.0
    """
    if kind_of(p) == "labels":
        return over_labels(excess_aurc, p, target)
    rows = ranked_rows(p, target)
    risk = risk_coverage(rows).risk
    if isinstance(rows, ValueRows):
        return float(risk.mean() - running_mean(rows.loss.sort().values).mean())
    errors = (risk[-1] * len(risk)).round()
    return float(risk.mean() - best_aurc(errors, len(risk)))


def ranked_rows(p: Any, target: Tensor | None) -> Rows | ValueRows:
    """Rows that have a certainty and a loss each."""
    return read_values(p, target) if kind_of(p) == "values" else read(p, target)


def _ranked(rows: Rows | ValueRows) -> tuple[Tensor, Tensor]:
    """Certainty's own measure and loss per row, from the most certain row to the least."""
    if isinstance(rows, ValueRows):
        return ordered(rows.std, rows.loss)
    confidence, right = ordered(rows.confidence, rows.right)
    return confidence.flip(0), 1.0 - right.flip(0)


def best_aurc(errors: Tensor, rows: int) -> Tensor:
    r"""The smallest `aurc` with that many errors ``[...]`` among ``rows``.

    All e errors last: :math:`\frac1m \sum_{i > m - e} \frac{i - (m - e)}{i}`, which is
    :math:`\frac1m \big(e - (m - e)(H_m - H_{m-e})\big)` with harmonic numbers H.
    """
    good = rows - errors.double()
    harmonic = torch.digamma(errors.new_tensor(rows + 1.0).double()) - torch.digamma(good + 1.0)
    return (errors - good * harmonic) / rows
