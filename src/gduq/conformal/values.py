"""Intervals that hold the true value with a chosen probability."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from gduq.conformal.base import ConformalPredictor, Intervals, conformal_quantile
from gduq.errors import InputError
from gduq.prediction import ValuePrediction

__all__ = ["ConformalIntervals"]


class ConformalIntervals(ConformalPredictor[Intervals]):
    r"""Split conformal intervals around what is predicted; every value by itself.

    With the score of a row and :math:`\hat q` the `conformal_quantile` of n validation rows:

    ================ ============================= ==================================
    ``score``        of a row                      interval
    ================ ============================= ==================================
    ``"absolute"``   :math:`|y - \mu|`             :math:`\mu \pm \hat q`
    ``"normalised"`` :math:`|y - \mu| / \sigma`    :math:`\mu \pm \hat q\sigma`
    ``"cqr"``        :math:`\max(l - y,\, y - h)`  :math:`[l - \hat q, h + \hat q]`
    ================ ============================= ==================================

    where :math:`\mu, \sigma` are ``mean`` and ``std``, and l, h the quantiles of the prediction at
    :math:`\alpha/2` and :math:`1 - \alpha/2` (Romano, Patterson and Candès, 2019). What is
    guaranteed, and the `ShiftWarning`, are as for `SplitConformal`.

    Args:
        alpha: Accepted share of misses, in (0, 1), per value.
        score: ``"absolute"``, ``"normalised"`` or ``"cqr"``.
        shift_level, seed: As in `ConformalPredictor`.

    Example:
        >>> p_val = ValuePrediction(torch.zeros(1, 9, 2), target=torch.arange(9.0) - 4)
        >>> found = ConformalIntervals(alpha=0.2).fit(p_val)(p_val)
        >>> found.low[0], found.high[0], found.coverage
        (tensor(-4., dtype=torch.float64), tensor(4., dtype=torch.float64), 1.0)
    """

    kind: ClassVar[str] = "values"
    scores: ClassVar[tuple[str, ...]] = ("absolute", "normalised", "cqr")

    def __init__(self, alpha: float = 0.1, score: str = "normalised", **options: Any) -> None:
        super().__init__(alpha, **options)
        if score not in self.scores:
            raise InputError(f"a score from {', '.join(self.scores)}", repr(score))
        self.score = score
        self.quantile = torch.empty(0)  # one per value

    def _learn(self, p: ValuePrediction, rows: Tensor) -> None:
        p = p[rows]
        truth = p.require_target().double().view(len(p), -1)
        low, high, unit = self._parts(p)
        scores = torch.maximum(low - truth, truth - high) / unit
        found = [conformal_quantile(column, self.alpha) for column in scores.T]
        self.quantile = scores.new_tensor(found)

    def _predict(self, p: ValuePrediction, rows: Tensor) -> Intervals:
        p = p[rows]
        low, high, unit = self._parts(p)
        reach = self.quantile.to(unit.device) * unit
        middle = (low + high) / 2  # what a negative reach leaves at least
        ends = torch.minimum(low - reach, middle), torch.maximum(high + reach, middle)
        target = None if p.target is None else p.target.double()
        shaped = [end.squeeze(1) if p.num_values == 1 else end for end in ends]
        return Intervals(shaped[0], shaped[1], target)

    def _parts(self, p: ValuePrediction) -> tuple[Tensor, Tensor, Tensor]:
        """The interval that is widened or narrowed, and the unit of that, ``[m, T]`` float64."""
        if self.score == "cqr":
            ends = p.quantile(self.alpha / 2), p.quantile(1 - self.alpha / 2)
        else:
            ends = p.mean, p.mean
        low, high = (end.double().view(len(p), -1) for end in ends)
        if self.score == "normalised":
            return low, high, p.std.double().view(len(p), -1).clamp_min(1e-300)
        return low, high, torch.ones_like(low)
