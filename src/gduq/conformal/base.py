"""`ConformalPredictor`: what all methods share, and the sets and intervals they answer with."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from gduq.conformal.shift import Columns, ShiftTest, ShiftWarning, columns_of, compare
from gduq.errors import InputError, NotFittedError, warn_user
from gduq.prediction import Prediction
from gduq.prediction.checks import RowChoice, row_index

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["ConformalPredictor", "Intervals", "PredictionSets", "conformal_quantile"]


@dataclass(frozen=True, eq=False)
class PredictionSets:
    """One set per row of classes, or one per row and label of "no" and "yes"."""

    size_name: ClassVar[str] = "set_size"

    mask: Tensor  # what is in [m, C], of labels [m, T, 2]
    target: Tensor | None = None  # the truth [m] or, NaN where unknown, [m, T]
    shift: ShiftTest | None = None  # against the validation data

    def __len__(self) -> int:
        return self.mask.size(0)

    @property
    def size(self) -> Tensor:
        """How many each set holds; small sets say more."""
        return self.mask.sum(dim=-1)

    @property
    def covered(self) -> Tensor:
        """1.0 where a set holds the truth, else 0.0; NaN where that is unknown."""
        target = _known(self.target)
        unknown = target.isnan()
        place = target.masked_fill(unknown, 0).long().unsqueeze(-1)
        return self.mask.gather(-1, place).squeeze(-1).double().masked_fill(unknown, torch.nan)

    @property
    def coverage(self) -> float:
        """Share of sets that hold the truth, of those whose truth is known."""
        return float(self.covered.nanmean())

    def column(self, t: int) -> PredictionSets:
        """The sets of label number ``t``; with targets, of the rows that know it."""
        if self.target is None:
            return PredictionSets(self.mask[:, t], None, self.shift)
        known = ~self.target[:, t].isnan()
        return PredictionSets(self.mask[known, t], self.target[known, t].long(), self.shift)


@dataclass(frozen=True, eq=False)
class Intervals:
    """One interval per row and value."""

    size_name: ClassVar[str] = "width"

    low: Tensor  # [m], for several values [m, T]
    high: Tensor
    target: Tensor | None = None  # the true values
    shift: ShiftTest | None = None  # against the validation data

    def __len__(self) -> int:
        return self.low.size(0)

    @property
    def size(self) -> Tensor:
        """Their lengths, in the units of the values; short intervals say more."""
        return self.high - self.low

    @property
    def covered(self) -> Tensor:
        """1.0 where an interval holds the true value, else 0.0."""
        target = _known(self.target)
        return ((self.low <= target) & (target <= self.high)).double()

    @property
    def coverage(self) -> float:
        """Share of intervals that do."""
        return float(self.covered.mean())

    def column(self, t: int) -> Intervals:
        """The intervals of value number ``t`` alone."""
        if self.low.dim() == 1:
            return self
        target = None if self.target is None else self.target[:, t]
        return Intervals(self.low[:, t], self.high[:, t], target, self.shift)


Answer = TypeVar("Answer", PredictionSets, Intervals)


def _known(target: Tensor | None) -> Tensor:
    if target is None:
        raise InputError("predictions with targets", "none", "Predict on labelled data.")
    return target


class ConformalPredictor(ABC, Generic[Answer]):
    """A predictor of sets or intervals, fitted on labelled rows that were not trained on.

    Args:
        alpha: Accepted share of misses, in (0, 1).
        shift_level: Significance of the `shift_test` of other rows against those of fitting, which
            raises a `ShiftWarning`; 0 leaves it out.
        seed: Seed of everything random.
    """

    kind: ClassVar[str]  # of its predictions

    def __init__(self, alpha: float = 0.1, *, shift_level: float = 0.01, seed: int = 0) -> None:
        if not 0 < alpha < 1:
            raise InputError("alpha between 0 and 1", alpha, "alpha=0.1 means 90 % coverage.")
        if not 0 <= shift_level < 1:
            raise InputError("shift_level from 0 to below 1", shift_level)
        self.alpha, self.shift_level, self.seed = alpha, shift_level, seed
        self._size: str | None = None  # of the predictions it was fitted on: "3 classes"
        self._columns: Columns | None = None

    def fit(self, p_val: Prediction, rows: RowChoice | None = None) -> Self:
        """Find the thresholds on labelled rows, or on those that ``rows`` chooses."""
        self._check_kind(p_val)
        index, part = _chosen(p_val, rows)
        if part.require_target().isnan().all():
            raise InputError("at least one row with a known truth", "none")
        self._learn(p_val, index)
        self._size = p_val.size
        self._columns = columns_of(part, self.seed) if self.shift_level > 0 else None
        return self

    def __call__(self, p: Prediction, rows: RowChoice | None = None) -> Answer:
        """The sets or intervals of other rows, or of those that ``rows`` chooses."""
        if self._size is None:
            name = type(self).__name__
            raise NotFittedError(f"a fitted {name}", "one without fit", "Call fit(p_val) first.")
        self._check_kind(p)
        if p.size != self._size:
            raise InputError(f"predictions of {self._size}, as fitted", p.size)
        index, part = _chosen(p, rows)
        shift = None
        if self._columns is not None:
            shift = compare(self._columns, columns_of(part, self.seed))
            if shift.pvalue < self.shift_level:
                warn_user(
                    "these rows differ from the validation rows (two-sample test, p = "
                    f"{shift.pvalue:.1g}): a coverage of {1 - self.alpha:.0%} is not guaranteed",
                    ShiftWarning,
                )
        return replace(self._predict(p, index), shift=shift)

    @abstractmethod
    def _learn(self, p: Any, rows: Tensor) -> None:
        """Find the thresholds on rows of these numbers."""

    @abstractmethod
    def _predict(self, p: Any, rows: Tensor) -> Answer:
        """The sets or intervals of rows of these numbers."""

    def _check_kind(self, p: Prediction) -> None:
        if p.kind != self.kind:
            wanted = f"predictions about {self.kind} for {type(self).__name__}"
            raise InputError(wanted, f"some about {p.kind}", "gduq.conformal.make(p) fits them.")


def _chosen(p: Prediction, rows: RowChoice | None) -> tuple[Tensor, Prediction]:
    """Which rows, as numbers, and these rows; an error where that is none."""
    device = p.samples.device
    numbers = torch.arange(len(p))[row_index(rows, len(p))].to(device)
    if not len(numbers):
        raise InputError("at least one row", "none", "Leave empty splits out.")
    return numbers, p if rows is None else p[numbers]


def conformal_quantile(scores: Tensor, alpha: float) -> float:
    r"""The :math:`\lceil (n+1)(1-\alpha)\rceil`-th smallest score, or infinity.

    Example:
        >>> conformal_quantile(torch.arange(1.0, 10.0), alpha=0.1), conformal_quantile(
        ...     torch.arange(1.0, 9.0), alpha=0.1)
        (9.0, inf)
    """
    place = math.ceil((scores.numel() + 1) * (1 - alpha) - 1e-9)
    return math.inf if place > scores.numel() else float(scores.kthvalue(max(place, 1)).values)
