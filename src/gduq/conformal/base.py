"""What all conformal predictors share: checks, the alarm under shift, and the face of answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from gduq.conformal.shift import Columns, ShiftTest, columns_of, compare, size_of
from gduq.errors import InputError, NotFittedError, warn_user
from gduq.metrics.rows import kind_of, known_target

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Answers", "Conformal", "ShiftWarning"]

_BY_KIND = {
    "classes": "SplitConformal",
    "values": "ConformalIntervals",
    "labels": "ConformalLabels",
}


class ShiftWarning(UserWarning):
    """The data differ from those a conformal predictor was fitted on: no guarantee holds."""


class Answers(ABC):
    """Sets or intervals, and how often they hold the truth."""

    target: Tensor | None
    shift: ShiftTest | None

    @property
    @abstractmethod
    def covered(self) -> Tensor:
        """Whether each answer holds the truth; NaN where that is unknown."""

    @property
    def coverage(self) -> float:
        """Share of answers that do, of those whose truth is known."""
        return float(self.covered.double().nanmean())

    def require_target(self) -> Tensor:
        """The truth, or an error that says it is missing."""
        return known_target(self.target)


class Conformal(ABC):
    """A predictor of sets or intervals with a chosen share of misses.

    Args:
        alpha: Accepted share of misses, in (0, 1).
        shift_level: Significance of the shift test; 0 leaves it out.
        seed: Seed of everything random.
    """

    kind: ClassVar[str]

    def __init__(self, alpha: float, *, shift_level: float = 0.01, seed: int = 0) -> None:
        if not 0 < alpha < 1:
            raise InputError("alpha between 0 and 1", alpha, "alpha=0.1 means 90 % coverage.")
        if not 0 <= shift_level < 1:
            raise InputError("shift_level from 0 to below 1", shift_level)
        self.alpha, self.shift_level, self.seed = alpha, shift_level, seed
        self._size: str | None = None  # of the predictions it was fitted on: "3 classes"
        self._seen: Columns | None = None

    def _fitted(self, p_val: Any) -> Self:
        """Keep what later rows are compared with."""
        self._size = size_of(p_val)
        self._seen = columns_of(p_val, self.seed) if self.shift_level > 0 else None
        return self

    def _shift(self, p: Any) -> ShiftTest | None:
        """Compare rows with those of fitting; warn if they differ."""
        if self._seen is None:
            return None
        shift = compare(self._seen, columns_of(p, self.seed))
        if shift.pvalue < self.shift_level:
            warn_user(
                "these rows differ from the validation rows (two-sample test, p = "
                f"{shift.pvalue:.1g}): a coverage of {1 - self.alpha:.0%} is not guaranteed here",
                ShiftWarning,
            )
        return shift

    def _check_kind(self, p: Any) -> None:
        if (given := kind_of(p)) != self.kind:
            raise InputError(
                f"predictions about {self.kind} for {type(self).__name__}",
                f"some about {given}",
                f"For {given} there is {_BY_KIND[given]}.",
            )

    def _check_call(self, p: Any) -> None:
        if self._size is None:
            raise NotFittedError(
                f"a fitted {type(self).__name__}", "one without fit", "Call fit(p_val) first."
            )
        self._check_kind(p)
        if size_of(p) != self._size:
            raise InputError(f"predictions of {self._size}, as fitted", size_of(p))
