"""Conformal prediction: sets and intervals that hold the truth with a chosen probability."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from gduq.conformal.predictors import (
    APS,
    DAPS,
    ClassConditional,
    ConformalIntervals,
    ConformalPredictor,
    Intervals,
    PredictionSets,
    SplitConformal,
    conformal_quantile,
)  # fmt: skip
from gduq.conformal.shift import ShiftTest, ShiftWarning, shift_test
from gduq.errors import InputError
from gduq.prediction import Prediction

__all__ = [
    "APS", "DAPS", "METHODS", "ClassConditional", "ConformalIntervals",
    "ConformalPredictor", "Intervals", "PredictionSets", "ShiftTest", "ShiftWarning",
    "SplitConformal", "conformal_quantile", "make", "shift_test",
]  # fmt: skip

METHODS: dict[str, dict[str, Callable[..., ConformalPredictor[Any]]]] = {
    "classes": {
        "lac": SplitConformal,
        "aps": APS,
        "class_conditional": ClassConditional,
        "daps": DAPS,
    },
    "labels": {"lac": SplitConformal, "class_conditional": ClassConditional},
    "values": {name: partial(ConformalIntervals, score=name) for name in ConformalIntervals.scores},
}
"""By kind of prediction and name; `Prediction.conformal` names the default of each kind."""


def make(p: Prediction, name: str | None = None, **options: Any) -> ConformalPredictor[Any]:
    """The method of that name for such predictions, or their default one, not yet fitted.

    Example:
        >>> import torch
        >>> from gduq.prediction import ClassPrediction
        >>> make(ClassPrediction(torch.zeros(1, 2)), "aps", alpha=0.2).alpha
        0.2
    """
    known, name = METHODS[p.kind], name or p.conformal
    if name not in known:
        raise InputError(f"a method for {p.kind} from {', '.join(known)}", repr(name))
    return known[name](**options)
