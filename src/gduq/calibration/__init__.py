"""Post-hoc calibration: ``cal = TemperatureScaling().fit(p_val); q = cal(p_test)``."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from gduq.calibration.base import CalibrationSet, Calibrator, ClassCalibrator
from gduq.calibration.graph import GATS, CaGCN
from gduq.calibration.monotone import (
    IsotonicCalibration,
    OrderInvariantCalibration,
    SplineCalibration,
)
from gduq.calibration.scaling import (
    DeviationScaling,
    DirichletCalibration,
    EnsembleTemperatureScaling,
    PerLabel,
    TemperatureScaling,
    VectorScaling,
)
from gduq.errors import InputError, did_you_mean
from gduq.graphs import Graph
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

__all__ = [
    "GATS", "METHODS", "CaGCN", "CalibrationSet", "Calibrator", "ClassCalibrator",
    "DeviationScaling", "DirichletCalibration", "EnsembleTemperatureScaling",
    "IsotonicCalibration", "OrderInvariantCalibration", "PerLabel", "SplineCalibration",
    "TemperatureScaling", "VectorScaling",
    "make", "methods_for", "parse_name", "restore",
]  # fmt: skip


def methods_for(kind: str) -> dict[str, type[Calibrator]]:
    """The part of `METHODS` for ``"classes"``, ``"values"`` or ``"labels"``."""
    return {name: cls for name, cls in METHODS.items() if cls.kind == kind}


def parse_name(given: str) -> tuple[str, bool]:
    """The name in `METHODS` of a calibrator, and whether it learns from corrupted copies too.

    It may be called by its class, in any case; ``+corrupted`` behind it asks for the copies.

    Example:
        >>> parse_name("deviationscaling"), parse_name("Vector+corrupted")
        (('deviation', False), ('vector', True))
    """
    name, plus, rest = given.partition("+")
    classes = {cls.__name__.lower(): short for short, cls in METHODS.items()}
    found = classes.get(name.lower(), name.lower())
    copying = [f"{n}+corrupted" for n, cls in METHODS.items() if not cls.needs_graph]
    if f"{found}{plus}{rest}" not in (*METHODS, *copying):
        do = did_you_mean(given, [*METHODS, *copying])
        raise InputError("the name of a calibrator", repr(given), do)
    return found, bool(plus)


def make(name: str, graph: Graph | None = None, train_rows: RowChoice | None = None) -> Calibrator:
    """A calibrator by name, as `parse_name` reads it, not yet fitted.

    Those that read the graph of a node task get it, and the nodes that were trained on.
    """
    return METHODS[parse_name(name)[0]]().on(graph, train_rows)


def restore(name: str, state: Mapping[str, Tensor]) -> Calibrator:
    """A fitted calibrator from its class name and ``state()``.

    `CaGCN` and `GATS` come back without their graph; bind it with ``.on(graph)``.
    """
    known = {cls.__name__: cls for cls in METHODS.values()}
    if name not in known:
        do = "Was the file written by a newer version of gduq?"
        raise InputError(f"one of {', '.join(known)}", repr(name), do)
    return known[name].restore(state)
