"""gduq: uncertainty people can trust for graph neural networks, from one trained network."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gduq import (
        anchoring,
        bundle,
        calibration,
        conformal,
        data,
        metrics,
        nn,
        ood,
        prediction,
        report,
        shifts,
    )  # fmt: skip
    from gduq.anchoring import Anchored, Recipe, anchor, cut_points
    from gduq.anchoring.anchors import AnchoredLinear
    from gduq.bundle import export, load, save
    from gduq.errors import BundleError, InputError, NotFittedError
    from gduq.evaluation import Evaluation, evaluate
    from gduq.models import (
        Ensemble,
        HeadEnsemble,
        LastLayerLaplace,
        MCDropout,
        Neighbours,
        Network,
        Stack,
    )  # fmt: skip
    from gduq.prediction import (
        ClassPrediction,
        LabelPrediction,
        Prediction,
        ValuePrediction,
        predict,
    )  # fmt: skip
    from gduq.training import choose, fit

__version__ = "0.1.0"


def lazy_names(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package whose names are imported on first use, so that
    the command line answers at once. ``homes`` maps modules to the names that live there; names of
    its ``__all__`` without a home are modules themselves."""
    home = {name: module for module, names in homes.items() for name in names.split()}
    namespace = vars(import_module(package))

    def __getattr__(name: str) -> object:
        if name not in namespace["__all__"]:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = import_module(home.get(name, f"{package}.{name}"))
        namespace[name] = getattr(found, name) if name in home else found
        return namespace[name]

    return __getattr__, lambda: sorted(namespace["__all__"])


__all__ = [
    "Anchored", "AnchoredLinear", "BundleError", "ClassPrediction", "Ensemble", "Evaluation",
    "HeadEnsemble", "InputError", "LabelPrediction", "LastLayerLaplace", "MCDropout",
    "Neighbours", "Network", "NotFittedError", "Prediction", "Recipe", "Stack", "ValuePrediction",
    "anchor", "anchoring", "bundle", "calibration", "choose", "conformal", "cut_points", "data",
    "evaluate", "export", "fit", "load", "metrics", "nn", "ood", "predict", "prediction",
    "report", "save", "shifts",
]  # fmt: skip


__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "gduq.anchoring": "Anchored Recipe anchor cut_points",
        "gduq.anchoring.anchors": "AnchoredLinear",
        "gduq.bundle": "export load save",
        "gduq.errors": "BundleError InputError NotFittedError",
        "gduq.evaluation": "Evaluation evaluate",
        "gduq.models": "Ensemble HeadEnsemble LastLayerLaplace MCDropout Neighbours Network Stack",
        "gduq.prediction": "ClassPrediction LabelPrediction Prediction ValuePrediction predict",
        "gduq.training": "choose fit",
    },
)
