"""gduq: uncertainty people can trust for graph neural networks, from one trained network."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gduq import anchors, data, functional, nn
    from gduq.anchored import Anchored, anchor
    from gduq.anchored_linear import AnchoredLinear
    from gduq.baselines import Ensemble, MCDropout
    from gduq.errors import BundleError, InputError, NotFittedError
    from gduq.nn.points import cut_points
    from gduq.prediction import Prediction, predict
    from gduq.training import fit

__version__ = "0.1.0"

# Everything is imported on first use, so that the command line answers at once.
_HOME = {
    "Anchored": "anchored",
    "AnchoredLinear": "anchored_linear",
    "BundleError": "errors",
    "Ensemble": "baselines",
    "InputError": "errors",
    "MCDropout": "baselines",
    "NotFittedError": "errors",
    "Prediction": "prediction",
    "anchor": "anchored",
    "cut_points": "nn.points",
    "fit": "training",
    "predict": "prediction",
}

__all__ = [
    "Anchored",
    "AnchoredLinear",
    "BundleError",
    "Ensemble",
    "InputError",
    "MCDropout",
    "NotFittedError",
    "Prediction",
    "anchor",
    "anchors",
    "cut_points",
    "data",
    "fit",
    "functional",
    "nn",
    "predict",
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
