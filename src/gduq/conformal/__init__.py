"""Conformal prediction: sets and intervals that hold the truth with a chosen probability.

`METHODS` are those for classes that `gduq.evaluate` compares; values have `ConformalIntervals`,
labels `ConformalLabels`, nodes also `NAPS`.
"""

from gduq.conformal.adaptive import APS, RAPS
from gduq.conformal.labels import ConformalLabels, LabelSets
from gduq.conformal.nodes import DAPS, NAPS
from gduq.conformal.shift import ShiftTest, ShiftWarning, shift_test
from gduq.conformal.split import (
    ClassConditional,
    PredictionSets,
    SplitConformal,
    conformal_quantile,
)
from gduq.conformal.values import ConformalIntervals, Intervals

__all__ = [
    "APS",
    "DAPS",
    "METHODS",
    "NAPS",
    "RAPS",
    "ClassConditional",
    "ConformalIntervals",
    "ConformalLabels",
    "Intervals",
    "LabelSets",
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
    "class_conditional": ClassConditional,
    "daps": DAPS,
}
