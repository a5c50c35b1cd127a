"""What outputs mean (`Target`) and what is known of rows (`Prediction`), of every kind."""

from typing import TYPE_CHECKING

from gduq import lazy_names
from gduq.prediction.base import Prediction
from gduq.prediction.classes import Classes, ClassPrediction, ClassWeights, LabelPrediction, Labels
from gduq.prediction.inference import infer_target, resolve_target
from gduq.prediction.target import Target, TargetSample, target_from
from gduq.prediction.values import ValuePrediction, Values

if TYPE_CHECKING:
    from gduq.prediction.predicting import predict

__all__ = [
    "ClassPrediction", "ClassWeights", "Classes", "LabelPrediction", "Labels", "Prediction",
    "Target", "TargetSample", "ValuePrediction", "Values", "infer_target", "predict",
    "resolve_target", "target_from",
]  # fmt: skip

# it stands on all models, which stand on what is here
__getattr__, __dir__ = lazy_names(__name__, {"gduq.prediction.predicting": "predict"})
