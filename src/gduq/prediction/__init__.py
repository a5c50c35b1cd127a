"""`Prediction`, the only thing that leaves a model, and `predict`, which makes it."""

from typing import TYPE_CHECKING, Any

from gduq.prediction.result import RESCALING_RULES, Prediction, Rule

if TYPE_CHECKING:
    from gduq.prediction.predicting import predict

__all__ = ["RESCALING_RULES", "Prediction", "Rule", "predict"]


def __getattr__(name: str) -> Any:
    if name == "predict":  # it stands on all models, which stand on what is here
        from gduq.prediction.predicting import predict

        return predict
    raise AttributeError(f"module 'gduq.prediction' has no attribute {name!r}")
