"""One call that judges a model on all splits: `evaluate` gives an `Evaluation`."""

from gduq.evaluation.copies import corrupted_predictions
from gduq.evaluation.result import Evaluation
from gduq.evaluation.run import evaluate

__all__ = ["Evaluation", "corrupted_predictions", "evaluate"]
