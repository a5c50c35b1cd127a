"""Out-of-distribution detection: scores that are larger for stranger rows, and how well they do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gduq.errors import InputError
from gduq.metrics import ranking
from gduq.metrics.rows import kind_of, read
from gduq.novelty.distances import KNN, Mahalanobis
from gduq.prediction.mixture import weighted_mean

__all__ = [
    "KNN",
    "SCORES",
    "Mahalanobis",
    "Score",
    "aupr",
    "auroc",
    "default_score",
    "detection",
    "fpr_at",
    "score",
    "scores_for",
]


Score = Callable[[Any], Tensor]  # gives each row of a prediction a number, larger = more OOD


def auroc(p_id: Any, p_ood: Any, score: str | Score | None = None, train: Any = None) -> float:
    """Area under the ROC curve of telling OOD rows (positive) from ID rows (negative).

    0.5 means the score has no information; it is exactly that for ``"epistemic"`` and ``"spread"``
    when there is only one sample (K = 1).

    Args:
        p_id: Predictions on ID rows. Take the ID test set; the paper took ID validation.
        p_ood: Predictions on OOD rows.
        score: A name of `SCORES`, ``"mahalanobis"``, ``"knn"``, or a function of a prediction; by
            default ``"msp"`` for classes, ``"entropy"`` for labels, ``"std"`` for values.
        train: Training predictions with features; only for ``"mahalanobis"`` and ``"knn"`` by name.

    Example:
        >>> from gduq.prediction import Prediction
        >>> sure, unsure = Prediction(torch.eye(3) * 9), Prediction(torch.eye(3))
        >>> auroc(sure, unsure, score="entropy")
        1.0
    """
    return ranking.auroc(*_scored(p_id, p_ood, score, train))


def aupr(p_id: Any, p_ood: Any, score: str | Score | None = None, train: Any = None) -> float:
    """Average precision with OOD rows as positives; their share is the chance level."""
    return ranking.aupr(*_scored(p_id, p_ood, score, train))


def fpr_at(
    p_id: Any, p_ood: Any, score: str | Score | None = None, train: Any = None, recall: float = 0.95
) -> float:
    """Share of ID rows flagged when ``recall`` of the OOD rows are found."""
    return ranking.false_positive_rate(*_scored(p_id, p_ood, score, train), recall=recall)


def detection(
    p_id: Any,
    p_ood: Any,
    score: str | Score | None = None,
    train: Any = None,
    *,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> ranking.Separation:
    """AUROC, AUPR and FPR at 95 % recall, with bootstrap intervals."""
    sets = _scored(p_id, p_ood, score, train)
    return ranking.separation(*sets, resamples=resamples, level=level, seed=seed)


def score(p: Any, score: str | Score | None = None, train: Any = None) -> Tensor:
    """The score of each row ``[m]``, larger = more OOD; by default that of `default_score`.

    Example:
        >>> from gduq.prediction import Prediction
        >>> score(Prediction(torch.tensor([[0.0, 0.0]])), "msp")
        tensor([0.5000])
    """
    return _resolve(p, score, train)(p)


def scores_for(kind: str) -> tuple[str, ...]:
    """Names of `SCORES` that fit a kind of prediction: classes, labels or values.

    Example:
        >>> scores_for("values")
        ('novelty', 'std', 'epistemic')
    """
    return _BY_KIND[kind]


def default_score(p: Any) -> str:
    """The uncertainty that is asked for when none is named."""
    return _DEFAULT[kind_of(p)]


def _scored(p_id: Any, p_ood: Any, score: str | Score | None, train: Any) -> tuple[Tensor, Tensor]:
    resolved = _resolve(p_id, score, train)
    return resolved(p_id), resolved(p_ood)


def _resolve(p: Any, score: str | Score | None, train: Any) -> Score:
    if score is None:
        score = default_score(p)
    if not isinstance(score, str):
        if not callable(score):
            raise InputError("the name of a score or a function", type(score).__name__)
        return score
    if score in scores_for(kind_of(p)):
        return SCORES[score]
    if score in _FITTED:
        if train is None:
            raise InputError(
                f"training predictions for the score {score!r}", "none", "Pass train=p_train."
            )
        return _FITTED[score]().fit(train)
    names = ", ".join([*scores_for(kind_of(p)), *_FITTED])
    about = f" for {kind_of(p)}" if score in SCORES else ""
    raise InputError(f"a score{about} from {names}", repr(score))


# -- from the prediction -----------------------------------------------------------------------


def _msp(p: Any) -> Tensor:
    """1 - max softmax, from the odds against it: no ties where the softmax rounds to 1."""
    logits = read(p, labelled=False).logits
    top, label = logits.max(dim=-1, keepdim=True)
    odds = (logits - top).exp_().scatter_(1, label, 0.0).sum(dim=-1)
    return odds / (1.0 + odds)


def _entropy(p: Any) -> Tensor:
    if kind_of(p) == "labels":
        return _of_rows(p, "entropy")
    probs = read(p, labelled=False).probs
    entropy: Tensor = torch.special.entr(probs).sum(dim=-1)
    return entropy


def _energy(p: Any) -> Tensor:
    """Of several hypotheses the mean of their energies: the mixture's logits carry none."""
    samples: Tensor | None = getattr(p, "samples", None)
    if samples is None or samples.size(1) == 0:
        return -read(p, labelled=False).logits.logsumexp(dim=-1)
    return -weighted_mean(samples.logsumexp(dim=-1), getattr(p, "weights", None))


def _novelty(p: Any) -> Tensor:
    novelty: Tensor | None = getattr(p, "novelty", None)
    if novelty is None:
        raise InputError(
            "predictions with novelty, which compares rows with the training data",
            "none",
            "Predict with a model that gduq.fit has trained, or choose another score.",
        )
    return novelty


def _of_rows(p: Any, name: str) -> Tensor:
    """One number per row: of labels or classes their mean; values have units of their own."""
    if not hasattr(p, name):
        raise InputError(f"a Prediction with {name!r}", type(p).__name__)
    found: Tensor = getattr(p, name)
    if found.dim() > 1 and kind_of(p) == "values":
        raise InputError(
            f"one value per row for {name!r}", p.size, "Take p.column(t), or the score 'novelty'."
        )
    return found if found.dim() == 1 else found.mean(dim=1)


SCORES: dict[str, Score] = {
    "novelty": _novelty,
    "msp": _msp,
    "entropy": _entropy,
    "energy": _energy,
    "epistemic": lambda p: _of_rows(p, "epistemic"),
    "spread": lambda p: _of_rows(p, "spread"),
    "std": lambda p: _of_rows(p, "std"),
}
_BY_KIND = {
    "classes": ("novelty", "msp", "entropy", "energy", "epistemic", "spread"),
    "labels": ("novelty", "entropy", "epistemic"),
    "values": ("novelty", "std", "epistemic"),
}
_DEFAULT = {"classes": "msp", "labels": "entropy", "values": "std"}
_FITTED: dict[str, Callable[[], Mahalanobis | KNN]] = {"mahalanobis": Mahalanobis, "knn": KNN}
