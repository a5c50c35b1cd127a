"""Conformal prediction: sets of classes that hold the true one with a chosen probability."""

from gduq.conformal.adaptive import APS, RAPS
from gduq.conformal.graph import DAPS
from gduq.conformal.shift import ShiftTest, shift_test
from gduq.conformal.split import PredictionSets, ShiftWarning, SplitConformal, conformal_quantile

__all__ = [
    "APS",
    "DAPS",
    "METHODS",
    "RAPS",
    "PredictionSets",
    "ShiftTest",
    "ShiftWarning",
    "SplitConformal",
    "conformal_quantile",
    "shift_test",
]

METHODS: dict[str, type[SplitConformal]] = {
    "lac": SplitConformal,
    "aps": APS,
    "raps": RAPS,
    "daps": DAPS,
}
