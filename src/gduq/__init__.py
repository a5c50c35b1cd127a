"""gduq: uncertainty people can trust for graph neural networks, from one trained network."""

from gduq import anchors, functional, nn
from gduq.anchored import Anchored, anchor
from gduq.anchored_linear import AnchoredLinear
from gduq.baselines import Ensemble, MCDropout
from gduq.errors import BundleError, InputError, NotFittedError
from gduq.nn.cut import cut_points
from gduq.prediction import Prediction, predict

__version__ = "0.1.0"

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
    "functional",
    "nn",
    "predict",
]
