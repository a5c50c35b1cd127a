"""How unlike the training data a row is, and what follows: scores, abstention, accuracy to expect.

`Novelty` and the other scores of detection; `Abstention` answers only when sure enough;
`predict_accuracy` says what to expect on data without labels.
"""

from gduq.ood.abstention import Abstention, Decision
from gduq.ood.generalization import predict_accuracy
from gduq.ood.nearest import Novelty
from gduq.ood.ood_scores import FITTED, KNN, Mahalanobis, Score, auroc, detection, score

__all__ = [
    "FITTED",
    "KNN",
    "Abstention",
    "Decision",
    "Mahalanobis",
    "Novelty",
    "Score",
    "auroc",
    "detection",
    "predict_accuracy",
    "score",
]
