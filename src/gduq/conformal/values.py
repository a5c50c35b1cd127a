"""Intervals that hold the true value with a chosen probability."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor

from gduq.conformal.shift import ShiftTest
from gduq.conformal.split import Answers, Conformal, conformal_quantile
from gduq.errors import InputError
from gduq.metrics.rows import check_some
from gduq.prediction import ValuePrediction

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["SCORES", "ConformalIntervals", "Intervals"]

Score = Literal["absolute", "normalised", "cqr"]
SCORES: tuple[Score, ...] = ("absolute", "normalised", "cqr")


@dataclass(frozen=True, eq=False)
class Intervals(Answers):
    """One interval per row and value."""

    low: Tensor  # [m], for several values [m, T]
    high: Tensor
    target: Tensor | None = None  # the true values
    shift: ShiftTest | None = None  # against the validation data

    def __len__(self) -> int:
        return self.low.size(0)

    @property
    def width(self) -> Tensor:
        """Their lengths, in the units of the values."""
        return self.high - self.low

    @property
    def mean_width(self) -> float:
        """Their mean: shorter intervals say more."""
        return float(self.width.mean())

    @property
    def covered(self) -> Tensor:
        """Whether each interval holds the true value; an error without true values."""
        target = self.require_target()
        return (self.low <= target) & (target <= self.high)

    def column(self, t: int) -> Intervals:
        """The intervals of value number ``t`` alone."""
        if self.low.dim() == 1:
            return self
        target = None if self.target is None else self.target[:, t]
        return Intervals(self.low[:, t], self.high[:, t], target, self.shift)


class ConformalIntervals(Conformal):
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
        shift_level: Significance of the shift test; 0 leaves it out.
        seed: Seed of the rows that the shift test looks at.

    Example:
        >>> p_val = ValuePrediction(torch.zeros(1, 9, 2), target=torch.arange(9.0) - 4)
        >>> found = ConformalIntervals(alpha=0.2).fit(p_val)(p_val)
        >>> found.low[0], found.high[0], found.coverage
        (tensor(-4., dtype=torch.float64), tensor(4., dtype=torch.float64), 1.0)
    """

    kind: ClassVar[str] = "values"

    def __init__(
        self,
        alpha: float = 0.1,
        score: Score = "normalised",
        *,
        shift_level: float = 0.01,
        seed: int = 0,
    ) -> None:
        super().__init__(alpha, shift_level=shift_level, seed=seed)
        if score not in SCORES:
            raise InputError(f"a score from {', '.join(SCORES)}", repr(score))
        self.score = score
        self.quantile = torch.empty(0)  # one per value

    def fit(self, p_val: ValuePrediction) -> Self:
        """Find the thresholds on rows with true values that the model was not trained on."""
        self._check_kind(p_val)
        truth = _columns(p_val, p_val.require_target())
        check_some(truth)
        low, high, unit = self._parts(p_val)
        scores = torch.maximum(low - truth, truth - high) / unit
        found = [conformal_quantile(column, self.alpha) for column in scores.T]
        self.quantile = scores.new_tensor(found)
        return self._fitted(p_val)

    def __call__(self, p: ValuePrediction) -> Intervals:
        """The intervals of other rows."""
        self._check_call(p)
        low, high, unit = self._parts(p)
        reach = self.quantile.to(unit.device) * unit
        middle = (low + high) / 2  # what a negative reach leaves at least
        ends = torch.minimum(low - reach, middle), torch.maximum(high + reach, middle)
        target = None if p.target is None else p.target.double()
        shaped = [end.squeeze(1) if p.num_values == 1 else end for end in ends]
        return Intervals(shaped[0], shaped[1], target, self._shift(p))

    def _parts(self, p: ValuePrediction) -> tuple[Tensor, Tensor, Tensor]:
        """The interval that is widened or narrowed, and the unit of that, ``[m, T]`` float64."""
        if self.score == "cqr":
            low, high = (_columns(p, p.quantile(q)) for q in (self.alpha / 2, 1 - self.alpha / 2))
            return low, high, torch.ones_like(low)
        mean = _columns(p, p.mean)
        if self.score == "absolute":
            return mean, mean, torch.ones_like(mean)
        return mean, mean, _columns(p, p.std).clamp_min(1e-300)


def _columns(p: ValuePrediction, values: Tensor) -> Tensor:
    return values.double().view(len(p), p.num_values)
