"""gduq: uncertainty people can trust for graph neural networks, from one trained network."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gduq import (
        abstention,
        anchors,
        bundle,
        calibration,
        conformal,
        data,
        functional,
        generalization,
        metrics,
        nn,
        ood,
        plots,
        report,
        shifts,
    )
    from gduq.anchored import Anchored
    from gduq.anchored_linear import AnchoredLinear
    from gduq.anchoring import anchor
    from gduq.auto import AutoAnchored
    from gduq.baselines import Ensemble, MCDropout
    from gduq.bundle import load, save
    from gduq.errors import BundleError, InputError, NotFittedError
    from gduq.evaluation import Evaluation, evaluate
    from gduq.nn.points import cut_points
    from gduq.prediction import Prediction, predict
    from gduq.training import fit

__version__ = "0.1.0"

# Everything is imported on first use, so that the command line answers at once.
_HOME = {
    "Anchored": "anchored",
    "AnchoredLinear": "anchored_linear",
    "AutoAnchored": "auto",
    "BundleError": "errors",
    "Ensemble": "baselines",
    "Evaluation": "evaluation",
    "InputError": "errors",
    "MCDropout": "baselines",
    "NotFittedError": "errors",
    "Prediction": "prediction",
    "anchor": "anchoring",
    "cut_points": "nn.points",
    "evaluate": "evaluation",
    "fit": "training",
    "load": "bundle",
    "predict": "prediction",
    "save": "bundle",
}

__all__ = [
    "Anchored",
    "AnchoredLinear",
    "AutoAnchored",
    "BundleError",
    "Ensemble",
    "Evaluation",
    "InputError",
    "MCDropout",
    "NotFittedError",
    "Prediction",
    "abstention",
    "anchor",
    "anchors",
    "bundle",
    "calibration",
    "conformal",
    "cut_points",
    "data",
    "evaluate",
    "fit",
    "functional",
    "generalization",
    "load",
    "metrics",
    "nn",
    "ood",
    "plots",
    "predict",
    "report",
    "save",
    "shifts",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(import_module(f"gduq.{_HOME[name]}"), name)
    elif name in __all__:
        value = import_module(f"gduq.{name}")
    else:
        raise AttributeError(f"module 'gduq' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
