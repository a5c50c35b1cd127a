"""One call that judges a model on all splits: `evaluate` gives an `Evaluation`."""

from gduq.evaluation.calibrated import corrupted_predictions
from gduq.evaluation.evaluation import Evaluation
from gduq.evaluation.judging import evaluate

__all__ = ["Evaluation", "corrupted_predictions", "evaluate"]
