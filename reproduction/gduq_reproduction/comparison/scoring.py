"""The figures of a method: calibrated at three levels, measured by one code for everybody."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from gduq import metrics
from gduq.calibration import Calibrator, DensityAwareCalibration, TemperatureScaling
from gduq.evaluation.calibrated import Calibrated
from gduq.metrics import ranking
from gduq.novelty import ood_scores
from gduq.prediction import Prediction, predict
from gduq_reproduction.comparison.methods import (
    MethodAnswers,
    Work,
    energies,
    made,
    scores_of_novelty,
)

__all__ = ["CALIBRATORS", "LEVELS", "MEASURES", "rows_of"]

LEVELS = ("none", "validation", "copies")  # what a temperature was fitted on
# what the paper's tables of nodes calibrate with; at paper scale beside the levels
CALIBRATORS = (
    "cagcn",
    "dirichlet",
    "ensemble_temperature",
    "gats",
    "isotonic",
    "order_invariant",
    "spline",
    "vector",
)
JUDGED = ("id_test", "ood_test")
MEASURES: dict[str, Callable[[Prediction], float]] = {
    "nll": metrics.nll,
    "brier": metrics.brier,
    "ece": lambda p: metrics.ece(p, strict=False),
    "ece_debiased": lambda p: metrics.ece(p, debias=True, strict=False),
    "aurc": metrics.aurc,
    "accuracy": metrics.accuracy,
    "errors": lambda p: _errors(p, p.epistemic),
}
DETECTORS = ("msp", "energy", "epistemic")

Row = dict[str, Any]


def rows_of(work: Work, part: str) -> Iterator[Row]:
    """One row per method, level and split; and rows of detection and of cost."""
    if part == "novelty":
        yield from _novelty(work)
        return
    for method, found in made(work, part):
        if not found.copies:  # it is calibrated
            for row in _measured(method, LEVELS[-1], found.parts):
                yield {**row, "cost": found.cost}
            continue
        if method.startswith("choose "):  # its members are calibrated, on copies
            yield from _measured(method, LEVELS[-1], found.parts)
            yield from _scored(f"{method}, tempered", found, TemperatureScaling, LEVELS[-1:])
        else:
            yield from _scored(method, found, TemperatureScaling)
        yield {"method": method, "split": "training", "cost": found.cost, **found.notes}
        if method == "plain":
            yield from _measured("T = 2", LEVELS[0], found.mapped(_halved).parts)
            train = predict(work.plain, work.splits.train, features=True, novelty=False)
            yield from _scored("density", found, partial(DensityAwareCalibration, train))
        if part in ("controls", "paper") and "," not in method:
            yield from _calibrated(work, method, found)
        if "," not in method or part == "methods":  # other readings of one model tell no more
            yield from _detection(method, found)


def _scored(
    method: str,
    found: MethodAnswers,
    calibrator: Callable[[], Calibrator],
    levels: Sequence[str] = LEVELS,
) -> Iterator[Row]:
    for level in levels:
        parts = found.parts
        if level != "none":
            copies = found.copies if level == "copies" else ()
            change = calibrator().fit(parts["id_val"], corrupted=copies)
            parts = {split: change(parts[split]) for split in JUDGED}
        yield from _measured(method, level, parts)


def _calibrated(work: Work, method: str, found: MethodAnswers) -> Iterator[Row]:
    """Under every calibrator of the paper's tables of nodes, at paper scale."""
    if found.whole is None or not work.cell.calibrators:
        return
    calibrated = Calibrated(dict(found.parts), find_whole=lambda: found.whole)
    for name in CALIBRATORS:
        yield from _measured(method, name, calibrated.predictions(name))


def _measured(method: str, level: str, parts: Mapping[str, Prediction]) -> Iterator[Row]:
    for split in JUDGED:
        numbers = {name: measure(parts[split]) for name, measure in MEASURES.items()}
        yield {"method": method, "level": level, "split": split, **numbers}


def _halved(p: Prediction) -> Prediction:
    return Prediction(p.samples / 2, p.target, weights=p.weights)


def _errors(p: Prediction, score: Tensor) -> float:
    """AUROC of a score for the rows that are answered wrongly; chance where all or none are."""
    wrong = p.label != p.require_target()
    if bool(wrong.all()) or not bool(wrong.any()):
        return 0.5
    return ranking.auroc(score[~wrong], score[wrong])


def _detection(method: str, found: MethodAnswers) -> Iterator[Row]:
    """How well scores tell OOD test rows from ID test rows, and right rows from wrong ones."""
    home, away = (found.parts[split] for split in JUDGED)
    for name in DETECTORS:
        value = ood_scores.auroc(home, away, name)
        errors = _errors(away, ood_scores.score(away, name))
        row = {"method": method, "level": name, "split": "detection"}
        yield {**row, "auroc": value, "errors": errors}


def _novelty(work: Work) -> Iterator[Row]:
    """How well novelty tells OOD test rows from ID test rows, by what it reads; and, for nodes, the
    energies. It is that of the trained network, and so of every model that stands on it."""
    for name, (home, away) in scores_of_novelty(work).items():
        value = ranking.auroc(home, away)
        yield {"method": "novelty", "level": name, "split": "detection", "auroc": value}
    for name, by_split in energies(work).items() if work.cell.on_nodes else ():
        value = ranking.auroc(*(by_split[split] for split in JUDGED))
        yield {"method": name, "level": "energy", "split": "detection", "auroc": value}
