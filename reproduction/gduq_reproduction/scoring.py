"""The figures of a method: calibrated in several ways, measured by one code for everybody.

A row has a ``method``, a ``calibration``, a ``split`` and measures. Beside test splits there are
three more: ``detection`` (how well a score, named in place of the calibration, tells OOD from ID
test rows), ``estimation`` (the error of a predicted accuracy) and ``training`` (what it cost).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

import gduq
from gduq import ClassPrediction, InputError, Prediction, ValuePrediction, conformal, metrics, ood
from gduq.calibration import METHODS as CALIBRATORS
from gduq.data import View
from gduq_reproduction.methods import LAST, SCRATCH, Answers, Work, answers_of
from gduq_reproduction.rivals import GEBM, DensityAware, gnnsafe

__all__ = ["DETECTORS", "HIGHER", "LEVELS", "MEASURES", "POST_HOC", "READINGS",
           "work_rows"]  # fmt: skip

LEVELS = ("none", "validation", "copies")  # what one number, a temperature, was fitted on
# what the paper's tables of nodes calibrate with beside a temperature; the last two read the graph
POST_HOC = ("dirichlet", "ensemble_temperature", "isotonic", "order_invariant", "spline", "vector",
            "cagcn", "gats")  # fmt: skip
# without the priors that gduq's have: the paper's tables show both
PUBLISHED = tuple(f"{name}, published" for name in POST_HOC
                  if hasattr(CALIBRATORS[name], "penalty"))  # fmt: skip
PAPER = ", paper rule"
READINGS: dict[str, Callable[[ClassPrediction], ClassPrediction]] = {
    ", mean logits": ClassPrediction.mean_logits,
    PAPER: lambda p: p.rescaled("paper"),
    ", literal rule": lambda p: p.mean_logits().with_samples(
        p.logits * (1 - p.samples.std(dim=0))  # of outputs, as the equation has it
    ),
    ", released rule": lambda p: p.rescaled("released"),
}
DETECTORS = ("msp", "energy", "epistemic", "entropy", "novelty")
# of `gduq.evaluate`, as far as a kind of predictions has them
MEASURES = ("nll", "brier", "ece", "ece_debiased", "aurc", "accuracy", "roc_auc", "rmse", "crps",
            "miscalibration_area", "coverage_90", "width_90", "spearman")  # fmt: skip
HIGHER = ("accuracy", "errors", "auroc", "auroc_val", "msp", "msp_errors", "msp_val",
          "spearman", "roc_auc")  # is better  # fmt: skip

Row = dict[str, Any]


def work_rows(work: Work, job: str, calibrations: Sequence[str] = LEVELS) -> Iterator[Row]:
    """All rows of one method, or of ``"novelty"`` and the energies that rival it."""
    if job == "novelty":
        yield from _novelty(work)
        return
    method = job.removesuffix(LAST)
    for row in _rows(work, method, answers_of(work, method), calibrations):
        yield {**row, "method": row["method"] + job[len(method) :]}


def _rows(work: Work, method: str, found: Answers, calibrations: Sequence[str]) -> Iterator[Row]:
    if method.startswith("choose "):  # its members are calibrated, on copies
        yield from _measured(method, "copies", found.parts)
        yield from _calibrated(work, f"{method}, tempered", found, ("copies",))
    else:
        yield from _calibrated(work, method, found, calibrations)
    cost = {"cost": found.cost, "seconds": found.seconds}
    yield {"method": method, "split": "training", **cost}
    if isinstance(found.parts["id_test"], ValuePrediction):
        return
    yield from _detection(method, found)
    if method == "plain":
        halved = found.mapped(lambda p: ClassPrediction(p.samples / 2, p.target, weights=p.weights))
        yield from _measured("T = 2", "none", halved.parts)
        train = gduq.predict(work.plain, work.splits.train, features=True, novelty=False)
        val: Any = found.parts["id_val"]
        for level, copies in (("validation", ()), ("copies", found.copies)):
            density = DensityAware(train).fit(val, copies)
            yield from _measured("density", level, found.mapped(density).parts)
    if method in (*SCRATCH, "pretrained"):
        for reading, change in READINGS.items():
            shown = reading == PAPER and work.cell.bank != "train"  # in the paper's tables
            levels = [level for level in calibrations if level in LEVELS or shown]
            name, own = f"{method}{reading}", found.mapped(change)
            yield from _calibrated(work, name, own, levels)
            yield from _detection(name, own) if shown else ()


def _measured(method: str, calibration: str, parts: Mapping[str, Prediction]) -> Iterator[Row]:
    for split, p in parts.items():
        if split != "id_val":
            key = {"method": method, "calibration": calibration, "split": split}
            sets = conformal.make(p, alpha=0.1, shift_level=0).fit(parts["id_val"])(p)
            yield {**key, **_numbers(p), "conformal90": float(sets.coverage)}


def _numbers(p: Prediction) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, measure in metrics.measures(
        p.kind, 15, [m for m in MEASURES if m in p.metrics]
    ).items():
        with suppress(InputError):  # ROC-AUC of one class
            found[name] = measure(p)
    if isinstance(p, ClassPrediction):
        found["errors"] = _errors(p, p.epistemic)
        found["ece100"] = metrics.ece(p.mean_logits(), bins=100, strict=False)  # the paper's
    return found


def _calibrated(
    work: Work, method: str, found: Answers, calibrations: Sequence[str]
) -> Iterator[Row]:
    for name in calibrations:
        if name == "copies" and not found.copies:
            continue  # of Chemprop: it reads tables
        with suppress(InputError):  # classes without validation rows, a calibrator of nodes
            yield from _measured(method, name, _under(work, name, found))


def _under(work: Work, name: str, found: Answers) -> Mapping[str, Prediction]:
    """Predictions under a calibration, fitted on ``id_val``."""
    val = found.parts["id_val"]
    if name == "none":
        return found.parts
    level, free = name in LEVELS, {"penalty": 0} if name in PUBLISHED else {}
    chosen: Any = CALIBRATORS[val.calibrator if level else name.partition(",")[0]]
    if not chosen.needs_graph:
        copies = {"corrupted": found.copies} if name == "copies" else {}
        cal = chosen().fit(val, **copies) if level else chosen(**free).fit(val)
        return {split: cal(p) for split, p in found.parts.items()}
    if work.cell.task != "node" or found.model is None:
        raise InputError(f"a node task for {name!r}", work.cell.data)
    graph = work.like
    every = gduq.predict(found.model, View(graph, torch.ones(graph.num_nodes).bool()))
    everything = found.reading(every)
    options = {"train_rows": work.splits.train.rows} if name.startswith("gats") else {}
    cal = chosen(graph, **options, **free).fit(everything, rows=work.views["id_val"].rows)
    mapped = cal(everything)
    return {split: mapped[work.views[split].rows] for split in found.parts}


def _errors(p: Prediction, score: Tensor) -> float:
    """AUROC of a score for the rows that are answered wrongly; chance where all or none are."""
    assert isinstance(p, ClassPrediction)
    wrong = p.label != p.require_target()
    if bool(wrong.all()) or not bool(wrong.any()):
        return 0.5
    return metrics.auroc(score[~wrong], score[wrong])


def _detection(method: str, found: Answers) -> Iterator[Row]:
    """``auroc`` against ID test rows, ``auroc_val`` against validation rows as in the paper; and
    the error of the accuracy that a threshold on confidence predicts."""
    parts: Any = found.parts
    val, near, far = (parts[split] for split in ("id_val", "id_test", "ood_test"))
    error = abs(ood.predict_accuracy(val, far) - metrics.accuracy(far))
    yield {"method": method, "calibration": "threshold", "split": "estimation", "gep_error": error}
    for score in DETECTORS:
        if score == "novelty" and any(p.novelty is None for p in (val, near, far)):
            continue
        row: Row = {"method": method, "calibration": score, "split": "detection"}
        row |= {"auroc": ood.auroc(near, far, score), "auroc_val": ood.auroc(val, far, score)}
        yield {**row, "errors": _errors(far, ood.score(far, score))}


def _novelty(work: Work) -> Iterator[Row]:
    """How well the trained network's novelty and, for nodes, energies tell OOD from ID rows."""
    found = answers_of(work, "plain").parts
    scores: dict[str, dict[str, Any]]
    scores = {"novelty": {split: p.novelty for split, p in found.items()}}
    for name, energy in _energies(work).items() if work.cell.task == "node" else ():
        scores[name] = {split: energy[view.rows] for split, view in work.views.items()}
    for name, of in scores.items():
        level = "novelty" if name == "novelty" else "energy"
        row: Row = {"method": name, "calibration": level, "split": "detection"}
        yield {**row, "auroc": metrics.auroc(of["id_test"], of["ood_test"])}


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
    fitted = GEBM(linked.logits[train], linked.features[train], graph.y[train])
    return {
        "gnnsafe": gnnsafe(linked.logits, graph.edge_index),
        "gebm": fitted(single.logits, single.features, graph.edge_index),
    }
