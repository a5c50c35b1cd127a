"""The few numbers that tables are made of: no intervals, and thresholds as the paper puts them."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gduq import generalization
from gduq.disk import locked, write_json
from gduq.errors import InputError
from gduq.evaluation.measures import class_measures
from gduq.novelty import ood_scores as ood
from gduq.prediction import Prediction
from gduq.runs.calibrated import CalibratedRun
from gduq.runs.folder import RunFolder

__all__ = [
    "CORRUPTED",
    "DETECTORS",
    "ESTIMATORS",
    "HIGHER",
    "MEASURES",
    "add_scores",
    "known_in",
    "measure",
    "scores_in",
]

_ON_OUTPUTS = ("novelty", "entropy", "energy", "epistemic", "spread")
_ON_FEATURES = ("mahalanobis", "knn")
DETECTORS = (*_ON_OUTPUTS, *_ON_FEATURES)  # next to maximum softmax probability
ESTIMATORS = ("confidence_difference", "average_confidence", "disagreement")  # next to a threshold
CORRUPTED = "corrupted"  # stands for a split: shifted copies of the validation rows
_MEASURED = ("accuracy", "ece", "ece100", "nll", "brier", "aurc")
MEASURES = (
    *_MEASURED,
    "auroc",
    *(f"auroc_{score}" for score in DETECTORS),
    "gep_error",
    *(f"gep_error_{method}" for method in ESTIMATORS),
)
HIGHER = ("accuracy", "auroc", *(f"auroc_{score}" for score in DETECTORS))  # is better


def scores_in(path: Path) -> dict[str, Any]:
    """Numbers of a run by calibrator, split and measure; ``"skipped"`` has reasons for gaps."""
    file = path / "scores.json"
    if not file.is_file():
        return {"skipped": {}}
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def known_in(path: Path) -> set[str]:
    """Calibrators whose numbers a run has, or that cannot be fitted there."""
    scores = scores_in(path)
    return {*scores, *scores["skipped"]}


def add_scores(folder: RunFolder, calibrators: Iterable[str]) -> None:
    """Write the numbers that are not there yet into the folder of a finished run."""
    with locked(folder.path):
        missing = [n for n in ("none", *calibrators) if n not in known_in(folder.path)]
        if not missing:
            return
        scores, calibrated = scores_in(folder.path), CalibratedRun(folder)
        for name in missing:
            try:
                found = calibrated.predictions(name)
                copies = _copies(calibrated) if name == "none" else []
                scores[name] = measure(found, copies=copies, detect=name == "none")
            except InputError as error:
                scores["skipped"][name] = str(error)
        write_json(folder.path / "scores.json", scores)


def _copies(calibrated: CalibratedRun) -> list[Prediction]:
    """Of one network, and where there is something to corrupt; an ensemble's would take long."""
    if calibrated.folder.config.method.kind in ("ensemble", "mcdropout"):
        return []
    with contextlib.suppress(InputError):
        return calibrated.copies
    return []


def measure(
    predictions: Mapping[str, Prediction],
    fit_on: str = "id_val",
    negatives: str = "id_val",
    *,
    copies: Sequence[Prediction] = (),
    detect: bool = True,
) -> dict[str, dict[str, float]]:
    """Scores by split: `MEASURES`, as far as they apply.

    ``auroc`` tells the split from ``negatives`` by maximum softmax probability, ``auroc_<score>``
    by one of `DETECTORS` (left out unless ``detect``); ``gep_error`` is the error of the accuracy
    predicted by a threshold on confidence, ``gep_error_<method>`` of one of `ESTIMATORS`. As in the
    paper, all take ``id_val``. With shifted ``copies`` of those rows, `CORRUPTED` has the means
    over the copies: what validation data has to say about shift.

    """
    found: dict[str, dict[str, float]] = {}
    for split, p in predictions.items():
        if p.target is not None:
            found[split] = _of_split(split, p, predictions, (fit_on, negatives), detect)
    shifted = [_of_split(CORRUPTED, p, predictions, (fit_on, negatives), detect) for p in copies]
    if shifted:
        common = [m for m in shifted[0] if all(m in s for s in shifted)]
        found[CORRUPTED] = {m: math.fsum(s[m] for s in shifted) / len(shifted) for m in common}
    return found


def _of_split(
    split: str,
    p: Prediction,
    predictions: Mapping[str, Prediction],
    on: tuple[str, str],
    detect: bool,
) -> dict[str, float]:
    fit_on, negatives = on
    known = class_measures(bins=15)
    scores = {name: float(known[name](p)) for name in _MEASURED}
    if split not in ("train", negatives) and negatives in predictions:
        scores["auroc"] = ood.auroc(predictions[negatives], p)
        if detect:
            scores |= _detected(predictions[negatives], p, predictions.get("train"))
    if split not in ("train", fit_on) and fit_on in predictions:
        scores |= _estimated(predictions[fit_on], p)
    return scores


def _estimated(val: Prediction, p: Prediction) -> dict[str, float]:
    """Errors of the accuracies that every method predicts, as far as it can."""
    found = {}
    for method in ("threshold", *ESTIMATORS):
        with contextlib.suppress(InputError):  # one hypothesis does not disagree
            error = generalization.estimate(val, p, method).error
            name = "gep_error" if method == "threshold" else f"gep_error_{method}"
            found[name] = float("nan") if error is None else error
    return found


def _detected(p_id: Prediction, p_ood: Prediction, train: Prediction | None) -> dict[str, float]:
    """AUROC of every score that these predictions have; scores on features need training rows."""
    known = p_id.novelty is not None and p_ood.novelty is not None
    outputs = _ON_OUTPUTS if known else _ON_OUTPUTS[1:]
    found = {f"auroc_{name}": ood.auroc(p_id, p_ood, score=name) for name in outputs}
    if train is None or any(p.features is None for p in (p_id, p_ood, train)):
        return found
    for name in _ON_FEATURES:
        with contextlib.suppress(InputError):  # fewer training rows than the score needs
            found[f"auroc_{name}"] = ood.auroc(p_id, p_ood, score=name, train=train)
    return found
