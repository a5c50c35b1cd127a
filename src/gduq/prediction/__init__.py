"""What leaves a model, `Prediction` and its kinds for labels and values; `predict` makes it."""

from typing import TYPE_CHECKING, Any

from gduq.prediction.base import Hypotheses
from gduq.prediction.labels import LabelPrediction
from gduq.prediction.result import RESCALING_RULES, Prediction, Rule
from gduq.prediction.values import ValuePrediction

if TYPE_CHECKING:
    from gduq.prediction.predicting import predict

__all__ = [
    "RESCALING_RULES",
    "Hypotheses",
    "LabelPrediction",
    "Prediction",
    "Rule",
    "ValuePrediction",
    "predict",
]


def __getattr__(name: str) -> Any:
    if name == "predict":  # it stands on all models, which stand on what is here
        from gduq.prediction.predicting import predict

        return predict
    raise AttributeError(f"module 'gduq.prediction' has no attribute {name!r}")
