"""What pages call methods, measures and levels of calibration, and the keys of the summary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Found = Mapping[str, Any]  # the summary
Key = tuple[str, str]  # a method and its level of calibration

MAIN: dict[Key, str] = {  # what people call it
    ("plain", "none"): "the network as it is",
    ("T = 2", "none"): "its logits halved (T = 2)",
    ("plain", "validation"): "temperature scaling",
    ("plain", "copies"): "temperature from shifted copies too",
    ("density", "copies"): "density-aware calibration",
    ("mc dropout", "copies"): "MC dropout",
    ("laplace", "copies"): "last-layer Laplace",
    ("neighbours", "copies"): "nearest training rows",
    ("head ensemble", "copies"): "ten heads",
    ("head ensemble, masked", "copies"): "ten heads, masked, no anchors",
    ("anchored head", "copies"): "gduq.anchor(net)",
    ("choose 1.2", "copies"): "gduq.choose(budget=1.2)",
    ("choose 1.5", "copies"): "gduq.choose(budget=1.5)",
    ("choose 2.5", "copies"): "gduq.choose(budget=2.5)",
    ("choose 1.2, tempered", "copies"): "gduq.choose(budget=1.2), one more temperature",
    ("choose 2.5, tempered", "copies"): "gduq.choose(budget=2.5), one more temperature",
    ("ensemble of 3", "copies"): "ensemble of three",
}
METHODS = {method: name for (method, _), name in MAIN.items()} | {
    "plain": "the network itself",
    "choose 1.5, tempered": "gduq.choose(budget=1.5), one more temperature",
}
README_ROWS: tuple[Key, ...] = (
    ("plain", "none"),
    ("T = 2", "none"),
    ("plain", "validation"),
    ("plain", "copies"),
    ("ensemble of 3", "copies"),
    ("anchored head", "copies"),
    ("choose 1.2", "copies"),
    ("choose 2.5", "copies"),
)
MEASURED = {
    "nll": "NLL",
    "brier": "Brier",
    "ece": "ECE",
    "ece_debiased": "ECE, debiased",
    "aurc": "AURC",
    "accuracy": "accuracy",
    "errors": "AUROC of disagreement for OOD errors",
    "msp": "AUROC of ID against OOD rows",
}
HIGHER = ("accuracy", "errors", "msp")  # is better
FEW = ("nll", "ece", "accuracy")  # of the paper's networks, cell by cell
CALIBRATED = {
    "none": "as it comes",
    "validation": "temperature scaling",
    "copies": "shifted copies",
}
ANCHORED = ("NFA", "L1", "L2", "readout", "pretrained")  # what the paper trains
CONTROLS = ("plain", "ensemble of 3")
NETWORKS = {
    "plain": "plain network",
    "T = 2": "plain, logits halved (T = 2)",
    "ensemble of 3": "ensemble of three",
    "NFA": "NFA",
    "L1": "layer 1",
    "L2": "layer 2",
    "readout": "READOUT",
    "pretrained": "frozen READOUT",
}
READINGS = {  # of the hypotheses
    "": "mean of probabilities",
    ", mean logits": "mean of logits",
    ", paper rule": "paper's rule",
    ", released rule": "released rule",
}
LAST = ", last epoch"
SPLITS = {"ood_test": "OOD test rows", "id_test": "ID test rows"}


def joined(method: str, level: str) -> str:
    """The key of a method at a level of calibration."""
    return f"{method}|{level}"


def cost_of(found: Found, method: str) -> float:
    """Training of a method, in trainings of the plain network."""
    return float(found["costs"].get(method.removesuffix(", tempered"), 1.0))


def counted(seeds: int) -> str:
    """How many seeds."""
    return f"{seeds} seed{'s' * (seeds != 1)}"
