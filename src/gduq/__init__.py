"""gduq: uncertainty people can trust for graph neural networks, from one trained network."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gduq import (
        abstention,
        anchoring,
        bundle,
        calibration,
        conformal,
        data,
        generalization,
        metrics,
        nn,
        novelty,
        plots,
        report,
        shifts,
        targets,
    )
    from gduq.anchoring import Anchored, Recipe, anchor, cut_points
    from gduq.anchoring.linear import AnchoredLinear
    from gduq.baselines import (
        Ensemble,
        HeadEnsemble,
        LastLayerLaplace,
        MCDropout,
        Neighbours,
        Network,
        Stack,
    )
    from gduq.bundle import export, load, save
    from gduq.errors import BundleError, InputError, NotFittedError
    from gduq.evaluation import Evaluation, evaluate
    from gduq.prediction import LabelPrediction, Prediction, ValuePrediction, predict
    from gduq.training import choose, fit

__version__ = "0.1.0"

# Everything is imported on first use, so that the command line answers at once.
_HOMES = {
    "anchoring": ("Anchored", "Recipe", "anchor", "cut_points"),
    "anchoring.linear": ("AnchoredLinear",),
    "baselines": (
        *("Ensemble", "HeadEnsemble", "LastLayerLaplace", "MCDropout"),
        *("Neighbours", "Network", "Stack"),
    ),
    "bundle": ("export", "load", "save"),
    "errors": ("BundleError", "InputError", "NotFittedError"),
    "evaluation": ("Evaluation", "evaluate"),
    "prediction": ("LabelPrediction", "Prediction", "ValuePrediction", "predict"),
    "training": ("choose", "fit"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Anchored",
    "AnchoredLinear",
    "BundleError",
    "Ensemble",
    "Evaluation",
    "HeadEnsemble",
    "InputError",
    "LabelPrediction",
    "LastLayerLaplace",
    "MCDropout",
    "Neighbours",
    "Network",
    "NotFittedError",
    "Prediction",
    "Recipe",
    "Stack",
    "ValuePrediction",
    "abstention",
    "anchor",
    "anchoring",
    "bundle",
    "calibration",
    "choose",
    "conformal",
    "cut_points",
    "data",
    "evaluate",
    "export",
    "fit",
    "generalization",
    "load",
    "metrics",
    "nn",
    "novelty",
    "plots",
    "predict",
    "report",
    "save",
    "shifts",
    "targets",
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
