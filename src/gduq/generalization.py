"""Guessing the accuracy on new data without its labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from gduq.errors import InputError
from gduq.metrics.rows import read
from gduq.ood import Score
from gduq.ood import score as score_of

__all__ = ["METHODS", "Estimate", "Method", "estimate", "fit_threshold", "predict_accuracy"]

Method = Literal["threshold", "confidence_difference", "average_confidence", "disagreement"]


class Estimate(NamedTuple):
    """A predicted accuracy; with labels also the true one and the absolute error."""

    predicted: float
    actual: float | None
    error: float | None


def predict_accuracy(
    p_val: Any, p_target: Any, method: Method = "threshold", score: Any = "msp"
) -> float:
    r"""Predict the accuracy on unlabelled data from labelled validation data.

    ========================= ===================================================================
    ``threshold``             ATC (Garg et al., 2022), the paper's: share of target rows whose
                              score is below :math:`\tau`, where on validation that share is
                              the accuracy
    ``confidence_difference`` DoC (Guillory et al., 2021): validation accuracy plus the mean
                              confidence on the target minus that on validation
    ``average_confidence``    mean confidence on the target
    ``disagreement``          GDE (Jiang et al., 2022): share of pairs of hypotheses (anchors,
                              ensemble members) that agree, on the target; needs K >= 2
    ========================= ===================================================================

    Args:
        p_val: Labelled predictions, from the training distribution.
        p_target: Predictions on the data in question; its labels are not looked at.
        method: One of the above.
        score: For ``threshold``, the uncertainty that is cut: a name or function as in
            `gduq.ood.score`. ``"msp"`` is 1 - confidence.

    Returns:
        The predicted accuracy, from 0 to 1.

    Example:
        >>> from gduq.prediction import Prediction
        >>> p_val = Prediction(torch.tensor([[4.0, 0.0], [1.0, 0.0]]), target=torch.tensor([0, 1]))
        >>> p_new = Prediction(torch.tensor([[5.0, 0.0], [0.0, 0.0], [0.0, 0.1], [0.2, 0.0]]))
        >>> predict_accuracy(p_val, p_new)
        0.25
    """
    if method not in METHODS:
        raise InputError(f"a method from {', '.join(METHODS)}", repr(method))
    return min(max(METHODS[method](p_val, p_target, score), 0.0), 1.0)


def estimate(
    p_val: Any, p_target: Any, method: Method = "threshold", score: Any = "msp"
) -> Estimate:
    """`predict_accuracy`, held against the truth where the target has labels.

    Example:
        >>> from gduq.prediction import Prediction
        >>> p = Prediction(torch.tensor([[4.0, 0.0], [1.0, 0.0]]), target=torch.tensor([0, 1]))
        >>> estimate(p, p)
        Estimate(predicted=0.5, actual=0.5, error=0.0)
    """
    predicted = predict_accuracy(p_val, p_target, method, score)
    rows = read(p_target, labelled=False)
    if rows.target is None:
        return Estimate(predicted, None, None)
    actual = float(rows.correct.mean())
    return Estimate(predicted, actual, abs(predicted - actual))


def fit_threshold(p_val: Any, score: str | Score = "msp") -> float:
    r"""The :math:`\tau` for which the share of rows with a score of at most it is the accuracy.

    Taken among the validation scores and :math:`-\infty`, so it is exact up to ties; the largest
    of equally good ones.
    """
    rows, scores = read(p_val), score_of(p_val, score).double()
    distinct, counts = torch.unique(scores, return_counts=True)
    candidates = torch.cat([distinct.new_tensor([-torch.inf]), distinct])
    below = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    gap = (below - rows.correct.sum()).abs()
    return float(candidates[gap == gap.min()][-1])


def _threshold(p_val: Any, p_target: Any, score: Any) -> float:
    tau = fit_threshold(p_val, score)
    return float((score_of(p_target, score).double() <= tau).double().mean())


def _confidence_difference(p_val: Any, p_target: Any, _: Any) -> float:
    accuracy = float(read(p_val).correct.mean())
    return accuracy + _confidence(p_target) - _confidence(p_val)


def _average_confidence(_: Any, p_target: Any, __: Any) -> float:
    return _confidence(p_target)


def _confidence(p: Any) -> float:
    return float(read(p, labelled=False).confidence.double().mean())


def _disagreement(_: Any, p_target: Any, __: Any) -> float:
    samples: Tensor | None = getattr(p_target, "samples", None)
    k = 0 if samples is None else samples.size(0)
    if samples is None or k < 2:
        raise InputError(
            "predictions with K >= 2 samples for 'disagreement'",
            f"K = {k}",
            "Use an anchored model, an ensemble or another method.",
        )
    if samples.size(1) == 0:
        raise InputError("at least one row", "an empty prediction")
    votes = samples.argmax(dim=-1)  # [K, m]
    counts = torch.nn.functional.one_hot(votes, samples.size(2)).sum(dim=0).double()  # [m, C]
    pairs = (counts * (counts - 1)).sum(dim=-1) / (k * (k - 1))
    return float(pairs.mean())


METHODS: dict[str, Callable[[Any, Any, Any], float]] = {
    "threshold": _threshold,
    "confidence_difference": _confidence_difference,
    "average_confidence": _average_confidence,
    "disagreement": _disagreement,
}
