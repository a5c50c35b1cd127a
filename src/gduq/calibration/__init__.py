"""Post-hoc calibration: ``cal = TemperatureScaling().fit(p_val); q = cal(p_test)``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from torch import Tensor

from gduq.calibration.base import CalibrationSet, Calibrator, ClassCalibrator
from gduq.calibration.graph import GATS, CaGCN
from gduq.calibration.labels_values import DeviationScaling, PerLabel
from gduq.calibration.monotone import (
    IsotonicCalibration,
    OrderInvariantCalibration,
    SplineCalibration,
)
from gduq.calibration.scaling import (
    DirichletCalibration,
    EnsembleTemperatureScaling,
    Fixed,
    TemperatureScaling,
    VectorScaling,
)
from gduq.errors import InputError, did_you_mean
from gduq.graphs import Graph
from gduq.prediction import Prediction
from gduq.prediction.base import RowChoice

METHODS: dict[str, type[Calibrator]] = {
    "temperature": TemperatureScaling,
    "ensemble_temperature": EnsembleTemperatureScaling,
    "vector": VectorScaling,
    "dirichlet": DirichletCalibration,
    "isotonic": IsotonicCalibration,
    "spline": SplineCalibration,
    "order_invariant": OrderInvariantCalibration,
    "cagcn": CaGCN,
    "gats": GATS,
    "deviation": DeviationScaling,
    "per_label": PerLabel,
}
"""All calibrators by their short names, for loops and the command line."""

FIXED = ("t2", "mean_logits", "rescaled_paper", "rescaled_released")
"""Maps of classes for which nothing is learnt, see `Fixed`."""

__all__ = [
    "FIXED", "GATS", "METHODS", "CaGCN", "CalibrationSet", "Calibrator", "ClassCalibrator",
    "DeviationScaling", "DirichletCalibration", "EnsembleTemperatureScaling", "Fixed",
    "IsotonicCalibration", "OrderInvariantCalibration", "PerLabel", "SplineCalibration",
    "TemperatureScaling", "VectorScaling",
    "make", "methods_for", "parse_name", "restore",
]  # fmt: skip


def methods_for(kind: str) -> dict[str, type[Calibrator]]:
    """The part of `METHODS` for one kind of prediction: ``"classes"``, ``"values"``, ``"labels"``.

    Example:
        >>> list(methods_for("values"))
        ['deviation']
    """
    found = {name: cls for name, cls in METHODS.items() if cls.kind == kind}
    if not found:
        kinds = dict.fromkeys(cls.kind for cls in METHODS.values())
        raise InputError(f"a kind from {', '.join(kinds)}", repr(kind))
    return found


def parse_name(given: str) -> tuple[str, bool]:
    """The name in `METHODS` or `FIXED` of a calibrator, and whether it learns from copies too.

    It may be called by its class, in any case; ``+corrupted`` behind it asks for the copies.

    Example:
        >>> parse_name("deviationscaling"), parse_name("Vector+corrupted")
        (('deviation', False), ('vector', True))
    """
    name, plus, rest = given.partition("+")
    classes = {cls.__name__.lower(): short for short, cls in METHODS.items()}
    found = classes.get(name.lower(), name.lower())
    learns = found in METHODS and not METHODS[found].needs_graph
    if found not in (*METHODS, *FIXED) or (plus and (rest != "corrupted" or not learns)):
        copying = [f"{n}+corrupted" for n, cls in METHODS.items() if not cls.needs_graph]
        do = did_you_mean(given, [*METHODS, *copying, *FIXED])
        raise InputError("the name of a calibrator", repr(given), do)
    return found, bool(plus)


def make(
    name: str,
    p: Prediction | None = None,
    graph: Graph | None = None,
    train_rows: RowChoice | None = None,
) -> Calibrator:
    """A calibrator by name, with or without ``+corrupted``; classes without rows stay as they are.

    Args:
        name: As `parse_name` reads it.
        p: Predictions like those it is for: one of `FIXED` is ready for such.
        graph: Of a node task, for the calibrators that read it.
        train_rows: The nodes of it that the model was trained on.

    Example:
        >>> make("vector+corrupted")
        VectorScaling(penalty=None, missing='keep')
    """
    method, _ = parse_name(name)
    if method in FIXED:
        fixed = Fixed(method)
        return fixed if p is None else fixed.neutral(p.samples.size(2), p.num_samples)
    cls = METHODS[method]
    known = {"missing": "keep", "graph": graph, "train_rows": train_rows}
    return cls(**{f.name: known[f.name] for f in fields(cls) if f.name in known})


def restore(name: str, config: Mapping[str, Any], state: Mapping[str, Tensor]) -> Calibrator:
    """A fitted calibrator from its class name, ``config()`` and ``state()``.

    `CaGCN` and `GATS` come back without their graph; bind it with ``.on(graph)``.

    Example:
        >>> import torch
        >>> from gduq.prediction import ClassPrediction
        >>> p = ClassPrediction(torch.tensor([[4.0, 0.0]] * 4), target=torch.tensor([0, 0, 0, 1]))
        >>> cal = TemperatureScaling().fit(p)
        >>> same = restore(type(cal).__name__, cal.config(), cal.state())
        >>> torch.equal(same(p).samples, cal(p).samples)
        True
    """
    for cls in METHODS.values():
        if cls.__name__ == name:
            return cls.restore(config, state)
    names = ", ".join(c.__name__ for c in METHODS.values())
    raise InputError(
        f"one of {names}", repr(name), "Was the file written by a newer version of gduq?"
    )
