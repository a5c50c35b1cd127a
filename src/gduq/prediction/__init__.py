"""`Prediction`, the only thing that leaves a model, and `predict`, which makes it."""

from gduq.prediction.predicting import predict
from gduq.prediction.result import RESCALING_RULES, Prediction, Rule

__all__ = ["RESCALING_RULES", "Prediction", "Rule", "predict"]
