"""All calibrators by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from gduq.calibration.affine import DirichletCalibration, MatrixScaling, VectorScaling
from gduq.calibration.anchor_aware import AnchorAwareTemperature
from gduq.calibration.base import Calibrator
from gduq.calibration.binning import HistogramBinning
from gduq.calibration.density import DensityAwareCalibration
from gduq.calibration.gats import GATS
from gduq.calibration.graph import CaGCN
from gduq.calibration.isotonic import IsotonicCalibration
from gduq.calibration.labels import PerLabel, PerLabelIsotonic
from gduq.calibration.order_invariant import OrderInvariantCalibration
from gduq.calibration.scaling import EnsembleTemperatureScaling, TemperatureScaling
from gduq.calibration.spline import SplineCalibration
from gduq.calibration.values import DeviationScaling, IsotonicRecalibration
from gduq.errors import InputError

__all__ = ["METHODS", "method_name", "methods_for", "restore"]

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


def methods_for(kind: str) -> dict[str, type[Calibrator]]:
    """The part of `METHODS` that is for predictions of one kind.

    Args:
        kind: ``"classes"``, ``"values"`` or ``"labels"``, as ``p.kind`` says.

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
    known = classes | {short: short for short in METHODS}
    found = known.get(name.lower())
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
    raise InputError(
        f"one of {', '.join(c.__name__ for c in METHODS.values())}",
        repr(name),
        "Was the file written by a newer version of gduq?",
    )
