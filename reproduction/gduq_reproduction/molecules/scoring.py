"""The numbers of a method on one split: calibrated alike, measured by one code for everybody."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gduq import metrics
from gduq.calibration import Calibrator, DeviationScaling, TemperatureScaling
from gduq.conformal import ConformalIntervals, SplitConformal
from gduq.prediction import Hypotheses, ValuePrediction
from gduq_reproduction.molecules.answers import COPY, StoredAnswers

__all__ = ["HIGHER", "LEVELS", "MEASURES", "Scores", "likelihood", "score"]

LEVELS = ("none", "validation", "copies")  # what a temperature or a scale was fitted on
Measure = Callable[[Any], float]
Scores = dict[str, dict[str, dict[str, float]]]  # level, split, measure
MEASURES: dict[str, dict[str, Measure]] = {
    "values": {
        "rmse": metrics.rmse,
        "nll": metrics.nll,
        "crps": metrics.crps,
        "miscalibration": metrics.miscalibration_area,
        "coverage90": lambda p: metrics.coverage(p, 0.9),
        "width90": lambda p: metrics.width(p, 0.9),
        "spearman": metrics.spearman,
    },
    "classes": {
        "roc_auc": metrics.roc_auc,
        "average_precision": metrics.average_precision,
        "nll": metrics.nll,
        "brier": metrics.brier,
        "ece": lambda p: metrics.ece(p, strict=False),
    },
}
HIGHER = ("roc_auc", "average_precision", "spearman")  # is better
ALPHA = 0.1
_JUDGED = ("id_test", "ood_test")


def score(answers: StoredAnswers, like: StoredAnswers | None = None) -> Scores:
    """All measures by level of calibration and split.

    ``conformal90`` is the share of test rows in sets or intervals that validation rows make for
    90 %.

    Args:
        answers: What the method said.
        like: A method whose kinds of shifted copies are used; the peer has all there are.
    """
    found: Scores = {}
    for level in LEVELS:
        parts = _calibrated(answers, level, like)
        found[level] = {}
        for split in _JUDGED:
            measures = MEASURES[parts[split].kind].items()
            numbers = {name: measure(parts[split]) for name, measure in measures}
            numbers["conformal90"] = _conformal(parts["id_val"], parts[split])
            found[level][split] = numbers
    return found


def likelihood(answers: StoredAnswers) -> float:
    """Mean NLL of validation rows and of their copies, half and half: what recipes are chosen by.

    Each is calibrated on both first, as a user of `gduq.fit` has it.
    """
    calibrate = _calibrator(answers, "copies", answers)
    rows = metrics.nll(calibrate(answers.parts["id_val"]))
    copies = [metrics.nll(calibrate(copy)) for copy in answers.copies]
    return 0.5 * (rows + sum(copies) / len(copies)) if copies else rows


def _calibrated(
    answers: StoredAnswers, level: str, like: StoredAnswers | None
) -> Mapping[str, Hypotheses]:
    names = ("id_val", *_JUDGED)
    if level == "none":
        return {name: answers.parts[name] for name in names}
    calibrate = _calibrator(answers, level, like or answers)
    return {name: calibrate(answers.parts[name]) for name in names}


def _calibrator(answers: StoredAnswers, level: str, like: StoredAnswers) -> Calibrator:
    rows = answers.parts["id_val"]
    made = DeviationScaling() if rows.kind == "values" else TemperatureScaling()
    names = [name for name in like.parts if name.startswith(COPY) and name in answers.parts]
    copies = [answers.parts[name] for name in names] if level == "copies" else []
    return made.fit(rows, corrupted=copies)


def _conformal(rows: Hypotheses, test: Hypotheses) -> float:
    if isinstance(rows, ValuePrediction) and isinstance(test, ValuePrediction):
        return ConformalIntervals(ALPHA, shift_level=0).fit(rows)(test).coverage
    return SplitConformal(ALPHA, shift_level=0).fit(rows)(test).coverage
