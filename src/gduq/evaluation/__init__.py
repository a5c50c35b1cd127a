"""One call that judges a model on all splits: `evaluate` gives an `Evaluation`."""

from gduq.evaluation.evaluation import Evaluation
from gduq.evaluation.judging import evaluate
from gduq.evaluation.shifted_copies import corrupted_predictions

__all__ = ["Evaluation", "corrupted_predictions", "evaluate"]
