"""The figures of a method: calibrated in several ways, measured by one code for everybody.

A row has a ``method``, a ``calibration``, a ``split`` and measures. Beside test splits there are
three more: ``detection`` (how well a score, named in place of the calibration, tells OOD from ID
test rows), ``estimation`` (the error of a predicted accuracy) and ``training`` (what it cost).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

import gduq
from gduq import ClassPrediction, InputError, Prediction, ValuePrediction, metrics, ood
from gduq.calibration import METHODS as CALIBRATORS
from gduq.calibration import Calibrator, DeviationScaling, TemperatureScaling
from gduq.conformal import ConformalIntervals, SplitConformal
from gduq.data import View
from gduq_reproduction.methods import LAST, SCRATCH, Answers, Work, answers_of
from gduq_reproduction.rivals import GEBM, DensityAware, gnnsafe

__all__ = ["DETECTORS", "ESTIMATORS", "HIGHER", "LEVELS", "POST_HOC", "READINGS", "work_rows"]

LEVELS = ("none", "validation", "copies")  # what one number, a temperature, was fitted on
# what the paper's tables of nodes calibrate with beside a temperature; the last two read the graph
POST_HOC = ("dirichlet", "ensemble_temperature", "isotonic", "order_invariant", "spline", "vector",
            "cagcn", "gats")  # fmt: skip
READINGS: dict[str, Callable[[ClassPrediction], ClassPrediction]] = {
    ", mean logits": ClassPrediction.mean_logits,
    ", paper rule": lambda p: p.rescaled("paper"),
    ", released rule": lambda p: p.rescaled("released"),
}
DETECTORS = ("msp", "energy", "epistemic", "entropy", "novelty")
ESTIMATORS = ("threshold", "confidence_difference", "average_confidence", "disagreement")
Measures = Mapping[str, Callable[[Any], float]]
OF_CLASSES: Measures = {
    "nll": metrics.nll,
    "brier": metrics.brier,
    "ece": lambda p: metrics.ece(p, strict=False),
    "ece_debiased": lambda p: metrics.ece(p, debias=True, strict=False),
    "ece100": lambda p: metrics.ece(p.mean_logits(), bins=100, strict=False),  # as the paper has it
    "aurc": metrics.aurc,
    "accuracy": metrics.accuracy,
    "errors": lambda p: _errors(p, p.epistemic),
}
OF_VALUES: Measures = {
    "rmse": metrics.rmse,
    "nll": metrics.nll,
    "crps": metrics.crps,
    "miscalibration": metrics.miscalibration_area,
    "coverage90": lambda p: metrics.coverage(p, 0.9),
    "width90": lambda p: metrics.width(p, 0.9),
    "spearman": metrics.spearman,
}
HIGHER = ("accuracy", "errors", "auroc", "auroc_val", "msp", "spearman", "roc_auc")  # is better

Row = dict[str, Any]


def work_rows(work: Work, job: str, calibrations: Sequence[str] = LEVELS) -> Iterator[Row]:
    """All rows of one method, or of ``"novelty"`` and the energies that rival it."""
    if job == "novelty":
        yield from _novelty(work)
        return
    method = job.removesuffix(LAST)
    end = job[len(method) :]
    found = answers_of(work, method)
    for row in _rows(work, method, found, calibrations):
        yield {**row, "method": row["method"] + end}


def _rows(work: Work, method: str, found: Answers, calibrations: Sequence[str]) -> Iterator[Row]:
    if method.startswith("choose "):  # its members are calibrated, on copies
        yield from _measured(method, "copies", found.parts)
        yield from _calibrated(work, f"{method}, tempered", found, ("copies",))
    else:
        yield from _calibrated(work, method, found, calibrations)
    notes = json.dumps(dict(found.notes)) if found.notes else None
    row: Row = {"method": method, "split": "training", "cost": found.cost, "weights": notes}
    yield {**row, "seconds": found.seconds}
    if isinstance(found.parts["id_test"], ValuePrediction):
        return
    yield from _detection(method, found)
    yield from _estimation(method, found)
    if method == "plain":
        yield from _measured("T = 2", "none", found.mapped(_halved).parts)
        train = gduq.predict(work.plain, work.splits.train, features=True, novelty=False)
        val: Any = found.parts["id_val"]
        for level, copies in (("validation", ()), ("copies", found.copies)):
            density = DensityAware(train).fit(val, copies)
            yield from _measured("density", level, found.mapped(density).parts)
    if method in (*SCRATCH, "pretrained"):
        for reading, change in READINGS.items():
            levels = [level for level in calibrations if level in LEVELS]
            yield from _calibrated(work, f"{method}{reading}", found.mapped(change), levels)


def _measured(method: str, calibration: str, parts: Mapping[str, Prediction]) -> Iterator[Row]:
    for split, p in parts.items():
        if split == "id_val":
            continue
        measures = OF_VALUES if isinstance(p, ValuePrediction) else OF_CLASSES
        numbers = {name: measure(p) for name, measure in measures.items()}
        if isinstance(p, ClassPrediction) and p.num_classes == 2:
            numbers["roc_auc"] = metrics.roc_auc(p)
        numbers["conformal90"] = _conformal(parts["id_val"], p)
        yield {"method": method, "calibration": calibration, "split": split, **numbers}


def _calibrated(
    work: Work, method: str, found: Answers, calibrations: Sequence[str]
) -> Iterator[Row]:
    for name in calibrations:
        with suppress(InputError):  # classes without validation rows, a calibrator of nodes
            yield from _measured(method, name, _under(work, name, found))


def _under(work: Work, name: str, found: Answers) -> Mapping[str, Prediction]:
    """Predictions under a calibration, fitted on ``id_val``."""
    val = found.parts["id_val"]
    if name == "none":
        return found.parts
    if name in LEVELS:
        kind = DeviationScaling if isinstance(val, ValuePrediction) else TemperatureScaling
        cal: Calibrator = kind().fit(val, corrupted=found.copies if name == "copies" else ())
        return {split: cal(p) for split, p in found.parts.items()}
    chosen: Any = CALIBRATORS[name]
    keep = {"missing": "keep"} if "missing" in {f.name for f in fields(chosen)} else {}
    if not chosen.needs_graph:
        cal = chosen(**keep).fit(val)
        return {split: cal(p) for split, p in found.parts.items()}
    if work.cell.task != "node" or found.model is None:
        raise InputError(f"a node task for {name!r}", work.cell.data)
    graph = work.like
    everything = gduq.predict(found.model, View(graph, torch.ones(graph.num_nodes).bool()))
    options = {"train_rows": work.splits.train.rows} if name == "gats" else {}
    cal = chosen(graph, **options).fit(everything, rows=work.views["id_val"].rows)
    mapped = cal(everything)
    return {split: mapped[work.views[split].rows] for split in found.parts}


def _halved(p: ClassPrediction) -> ClassPrediction:
    return ClassPrediction(p.samples / 2, p.target, weights=p.weights)


def _conformal(val: Prediction, test: Prediction) -> float:
    """Share of test rows in sets or intervals that validation rows make for 90 %."""
    kind: Any = ConformalIntervals if isinstance(val, ValuePrediction) else SplitConformal
    return float(kind(0.1, shift_level=0).fit(val)(test).coverage)


def _errors(p: Prediction, score: Tensor) -> float:
    """AUROC of a score for the rows that are answered wrongly; chance where all or none are."""
    assert isinstance(p, ClassPrediction)
    wrong = p.label != p.require_target()
    if bool(wrong.all()) or not bool(wrong.any()):
        return 0.5
    return metrics.auroc(score[~wrong], score[wrong])


def _detection(method: str, found: Answers) -> Iterator[Row]:
    """``auroc`` against ID test rows, ``auroc_val`` against validation rows as in the paper."""
    val, near, far = (found.parts[split] for split in ("id_val", "id_test", "ood_test"))
    for score in DETECTORS:
        if score == "novelty" and any(p.novelty is None for p in (val, near, far)):
            continue
        row: Row = {"method": method, "calibration": score, "split": "detection"}
        row |= {"auroc": ood.auroc(near, far, score), "auroc_val": ood.auroc(val, far, score)}
        yield {**row, "errors": _errors(far, ood.score(far, score))}


def _estimation(method: str, found: Answers) -> Iterator[Row]:
    """Errors of the OOD accuracies that every estimator predicts, as far as it can."""
    val, far = found.parts["id_val"], found.parts["ood_test"]
    for name in ESTIMATORS:
        with suppress(InputError):  # one hypothesis does not disagree
            error = abs(ood.predict_accuracy(val, far, name) - metrics.accuracy(far))
            row: Row = {"method": method, "calibration": name, "split": "estimation"}
            yield {**row, "gep_error": error}


def _novelty(work: Work) -> Iterator[Row]:
    """How well the trained network's novelty and, for nodes, energies tell OOD from ID rows."""
    found = answers_of(work, "plain").parts
    scores: dict[str, list[Any]] = {
        "novelty": [found[split].novelty for split in ("id_test", "ood_test")]
    }
    for name, energy in _energies(work).items() if work.cell.task == "node" else ():
        scores[name] = [energy[work.views[split].rows] for split in ("id_test", "ood_test")]
    for name, (near, far) in scores.items():
        level = "novelty" if name == "novelty" else "energy"
        row: Row = {"method": name, "calibration": level, "split": "detection"}
        yield {**row, "auroc": metrics.auroc(near, far)}


def _energies(work: Work) -> dict[str, Tensor]:
    """Of all nodes. Edges are left out for ``gebm``, which reads nodes alone and brings the graph
    in by itself, as published."""
    graph, model = work.like, gduq.Network(work.plain)
    alone = graph.clone()
    alone.edge_index = graph.edge_index[:, :0]
    every = torch.ones(graph.num_nodes).bool()
    linked, single = (
        gduq.predict(model, View(g, every), features=True, novelty=False) for g in (graph, alone)
    )
    train = work.splits.train.rows
    fitted = GEBM.fit(linked.logits[train], linked.features[train], graph.y[train])
    return {
        "gnnsafe": gnnsafe(linked.logits, graph.edge_index),
        "gebm": fitted(single.logits, single.features, graph.edge_index),
        "gebm, with edges": fitted(linked.logits, linked.features, graph.edge_index),
    }
