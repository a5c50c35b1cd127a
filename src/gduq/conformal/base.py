"""What all conformal predictors share: the accepted misses and the alarm under shift."""

from __future__ import annotations

from typing import Any

from gduq.conformal.shift import Columns, ShiftTest, columns_of, compare
from gduq.errors import InputError, NotFittedError, warn_user

__all__ = ["Conformal", "ShiftWarning"]


class ShiftWarning(UserWarning):
    """The data differ from those a conformal predictor was fitted on: no guarantee holds."""


class Conformal:
    """A predictor of sets or intervals with a chosen share of misses.

    Args:
        alpha: Accepted share of misses, in (0, 1).
        shift_level: Significance of the shift test; 0 leaves it out.
        seed: Seed of everything random.
    """

    def __init__(self, alpha: float, *, shift_level: float = 0.01, seed: int = 0) -> None:
        if not 0 < alpha < 1:
            raise InputError("alpha between 0 and 1", alpha, "alpha=0.1 means 90 % coverage.")
        if not 0 <= shift_level < 1:
            raise InputError("shift_level from 0 to below 1", shift_level)
        self.alpha, self.shift_level, self.seed = alpha, shift_level, seed
        self._seen: Columns | None = None

    def _note(self, p_val: Any) -> None:
        """Keep what later rows are compared with."""
        self._seen = columns_of(p_val, self.seed) if self.shift_level > 0 else None

    def _shift(self, p: Any) -> ShiftTest | None:
        """Compare rows with those of fitting; warn if they differ."""
        if self._seen is None:
            return None
        shift = compare(self._seen, columns_of(p, self.seed))
        if shift.pvalue < self.shift_level:
            warn_user(_message(shift, self.alpha), ShiftWarning)
        return shift

    def _check(self, fitted: bool) -> None:
        if not fitted:
            raise NotFittedError(
                f"a fitted {type(self).__name__}", "one without fit", "Call fit(p_val) first."
            )

    def _check_kind(self, p: Any, kind: str, instead: str) -> None:
        given = getattr(p, "kind", "classes")
        if given != kind:
            what = f"predictions about {kind} for {type(self).__name__}"
            raise InputError(what, f"some about {given}", instead)


def _message(shift: ShiftTest, alpha: float) -> str:
    return (
        f"these rows differ from the validation rows (two-sample test, p = {shift.pvalue:.1g}): "
        f"a coverage of {1 - alpha:.0%} is not guaranteed here"
    )
