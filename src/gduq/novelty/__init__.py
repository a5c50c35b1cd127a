"""How unlike the training data a row is: `Novelty`, and the other scores of detection."""

from gduq.novelty.nearest import Novelty
from gduq.novelty.ood_scores import (
    KNN,
    SCORES,
    Mahalanobis,
    Score,
    aupr,
    auroc,
    default_score,
    detection,
    fpr_at,
    score,
    scores_for,
)

__all__ = [
    "KNN",
    "SCORES",
    "Mahalanobis",
    "Novelty",
    "Score",
    "aupr",
    "auroc",
    "default_score",
    "detection",
    "fpr_at",
    "score",
    "scores_for",
]
