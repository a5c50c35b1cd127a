"""How unlike the training data a row is, and what follows: scores, abstention, accuracy to expect.

`Novelty` and the other scores of detection; `Abstention` answers only when sure enough;
`predict_accuracy` says what to expect on data without labels. `Trust` is the probability that an
answer is right, `Monitor` watches a stream of rows.
"""

from gduq.ood.abstention import Abstention, Decision
from gduq.ood.generalization import predict_accuracy
from gduq.ood.monitor import Monitor, RiskMonitor
from gduq.ood.nearest import Novelty
from gduq.ood.ood_scores import FITTED, Mahalanobis, Score, auroc, score
from gduq.ood.trust import Trust

__all__ = [
    "FITTED",
    "Abstention",
    "Decision",
    "Mahalanobis",
    "Monitor",
    "Novelty",
    "RiskMonitor",
    "Score",
    "Trust",
    "auroc",
    "predict_accuracy",
    "score",
]
