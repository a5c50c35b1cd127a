"""Post-hoc calibration: ``cal = TemperatureScaling().fit(p_val); q = cal(p_test)``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from gduq.calibration.affine import DirichletCalibration, MatrixScaling, VectorScaling
from gduq.calibration.base import Calibrator
from gduq.calibration.graph import GATS, CaGCN
from gduq.calibration.labels import PerLabel, PerLabelIsotonic
from gduq.calibration.order_invariant import OrderInvariantCalibration
from gduq.calibration.probabilities import HistogramBinning, IsotonicCalibration, SplineCalibration
from gduq.calibration.temperatures import (
    AnchorAwareTemperature,
    DensityAwareCalibration,
    EnsembleTemperatureScaling,
    TemperatureScaling,
)
from gduq.calibration.values import DeviationScaling, IsotonicRecalibration
from gduq.errors import InputError

METHODS: dict[str, type[Calibrator]] = {
    "temperature": TemperatureScaling,
    "ensemble_temperature": EnsembleTemperatureScaling,
    "vector": VectorScaling,
    "matrix": MatrixScaling,
    "dirichlet": DirichletCalibration,
    "isotonic": IsotonicCalibration,
    "histogram": HistogramBinning,
    "spline": SplineCalibration,
    "order_invariant": OrderInvariantCalibration,
    "density": DensityAwareCalibration,
    "anchor_aware": AnchorAwareTemperature,
    "cagcn": CaGCN,
    "gats": GATS,
    "deviation": DeviationScaling,
    "isotonic_levels": IsotonicRecalibration,
    "per_label": PerLabel,
    "per_label_isotonic": PerLabelIsotonic,
}
"""All calibrators by their short names, for loops and the command line."""

__all__ = [
    "GATS", "METHODS", "AnchorAwareTemperature", "CaGCN", "Calibrator", "DensityAwareCalibration",
    "DeviationScaling", "DirichletCalibration", "EnsembleTemperatureScaling", "HistogramBinning",
    "IsotonicCalibration", "IsotonicRecalibration", "MatrixScaling", "OrderInvariantCalibration",
    "PerLabel", "PerLabelIsotonic", "SplineCalibration", "TemperatureScaling", "VectorScaling",
    "method_name", "methods_for", "restore",
]  # fmt: skip


def methods_for(kind: str) -> dict[str, type[Calibrator]]:
    """The part of `METHODS` for one kind of prediction: ``"classes"``, ``"values"``, ``"labels"``.

    Example:
        >>> list(methods_for("values"))
        ['deviation', 'isotonic_levels']
    """
    found = {name: cls for name, cls in METHODS.items() if cls.kind == kind}
    if not found:
        kinds = dict.fromkeys(cls.kind for cls in METHODS.values())
        raise InputError(f"a kind from {', '.join(kinds)}", repr(kind))
    return found


def method_name(given: str) -> str:
    """The name in `METHODS` of a calibrator that may be called by its class, in any case.

    What is none of them stays as it is, and so does ``+corrupted`` behind a name.

    Example:
        >>> method_name("deviationscaling"), method_name("Vector+corrupted"), method_name("mine")
        ('deviation', 'vector+corrupted', 'mine')
    """
    name, plus, rest = given.partition("+")
    classes = {cls.__name__.lower(): short for short, cls in METHODS.items()}
    found = (classes | {short: short for short in METHODS}).get(name.lower())
    return given if found is None else f"{found}{plus}{rest}"


def restore(name: str, config: Mapping[str, Any], state: Mapping[str, Tensor]) -> Calibrator:
    """A fitted calibrator from its class name, ``config()`` and ``state()``.

    `CaGCN` and `GATS` come back without their graph; bind it with ``.on(graph)``.

    Example:
        >>> import torch
        >>> from gduq.prediction import Prediction
        >>> p = Prediction(torch.tensor([[4.0, 0.0]] * 4), target=torch.tensor([0, 0, 0, 1]))
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
