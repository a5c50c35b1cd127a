"""Guessing the accuracy on new data without its labels: of classes, or of one label at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gduq.errors import InputError
from gduq.metrics.resampling import Interval, check_sampling, interval, resampled_pairs
from gduq.metrics.rows import Rows, kind_of, read
from gduq.novelty.ood_scores import Score
from gduq.novelty.ood_scores import score as score_of
from gduq.prediction.mixture import weights_of

__all__ = [
    "METHODS",
    "Estimate",
    "estimate",
    "estimate_interval",
    "fit_threshold",
    "predict_accuracy",
]


class Estimate(NamedTuple):
    """A predicted accuracy; with labels also the true one and the absolute error."""

    predicted: float
    actual: float | None
    error: float | None


def predict_accuracy(
    p_val: Any, p_target: Any, method: str = "threshold", score: Any = "msp"
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
                              ensemble members) that agree, on the target, drawn by weight; K >= 2
    ========================= ===================================================================

    Args:
        p_val: Labelled predictions, from the training distribution.
        p_target: Predictions on the data in question; its labels are not looked at.
        method: One of the above.
        score: For ``threshold``, the uncertainty that is cut: a name or function as in
            `gduq.novelty.score`. ``"msp"`` is 1 - confidence.

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
    val, target = _Weighted(p_val), _Weighted(p_target)
    return float(METHODS[method](val, target, score).clamp(0.0, 1.0))


def estimate(p_val: Any, p_target: Any, method: str = "threshold", score: Any = "msp") -> Estimate:
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
    actual = float(rows.right.mean())
    return Estimate(predicted, actual, abs(predicted - actual))


def fit_threshold(p_val: Any, score: str | Score = "msp") -> float:
    r"""The :math:`\tau` for which the share of rows with a score of at most it is the accuracy.

    Taken among the validation scores and :math:`-\infty`, so it is exact up to ties; the largest
    of equally good ones.
    """
    return float(_thresholds(_Weighted(p_val), score))


def estimate_interval(
    p_val: Any,
    p_target: Any,
    method: str = "threshold",
    score: Any = "msp",
    *,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> tuple[Interval, Interval | None]:
    """The predicted accuracy and, with labels, its error, with bootstrap intervals.

    Validation and target rows are resampled, each set at its own size.
    """
    check_sampling(resamples, level)
    found = estimate(p_val, p_target, method, score)
    sizes = len(read(p_val)), len(read(p_target, labelled=False))
    predicted, errors = [], []
    for n, k in resampled_pairs(*sizes, resamples, seed):
        val, target = _Weighted(p_val, n), _Weighted(p_target, k)
        predicted.append(METHODS[method](val, target, score).clamp(0.0, 1.0))
        if found.actual is not None:
            errors.append((predicted[-1] - target.mean(target.rows.right)).abs())
    value = interval(found.predicted, torch.cat(predicted), level, 0.0, 1.0)
    if found.error is None:
        return value, None
    return value, interval(found.error, torch.cat(errors), level, 0.0, 1.0)


@dataclass(frozen=True, eq=False)
class _Weighted:
    """Predictions whose rows count as often as ``counts`` ``[R, m]`` says; once by default."""

    p: Any
    given: Tensor | None = None

    def __post_init__(self) -> None:
        if kind_of(self.p) == "values":
            raise InputError(
                "predictions about classes, which are right or wrong",
                "values",
                "What a model expects of its errors is p.std.",
            )
        if kind_of(self.p) == "labels":
            raise InputError("one label at a time", self.p.size, "Pass p.column(t).")

    @cached_property
    def rows(self) -> Rows:
        return read(self.p, labelled=False)

    @cached_property
    def counts(self) -> Tensor:
        if self.given is None:
            return torch.ones(1, len(self.rows), dtype=torch.float64)
        return self.given

    def mean(self, values: Tensor) -> Tensor:
        """``[R]`` of one value per row ``[m]``."""
        return self.counts @ values.double().cpu() / len(self.rows)


def _thresholds(val: _Weighted, score: Any) -> Tensor:
    """The threshold of `fit_threshold` in each resample ``[R]``."""
    scores = score_of(val.p, score).double().cpu()
    distinct, group = torch.unique(scores, return_inverse=True)
    drawn = torch.zeros(len(val.counts), len(distinct) + 1, dtype=torch.float64)
    below = drawn.index_add_(1, group + 1, val.counts).cumsum(dim=1)  # [R, G + 1], from -inf up
    gap = (below - (val.counts @ val.rows.right.cpu()).unsqueeze(1)).abs()
    best = gap.size(1) - 1 - (gap == gap.amin(dim=1, keepdim=True)).flip(1).int().argmax(dim=1)
    reached = below.gather(1, best.unsqueeze(1))
    first = (below >= reached).int().argmax(dim=1)  # the drawn row, not an undrawn one above it
    return torch.cat([distinct.new_tensor([-torch.inf]), distinct])[first]


def _threshold(val: _Weighted, target: _Weighted, score: Any) -> Tensor:
    scores, order = score_of(target.p, score).double().cpu().sort()
    below = torch.nn.functional.pad(target.counts[:, order].cumsum(dim=1), (1, 0))
    place = torch.searchsorted(scores, _thresholds(val, score), right=True)
    return below.gather(1, place.unsqueeze(1)).squeeze(1) / len(scores)


def _confidence_difference(val: _Weighted, target: _Weighted, _: Any) -> Tensor:
    gap = target.mean(target.rows.confidence) - val.mean(val.rows.confidence)
    return val.mean(val.rows.right) + gap


def _average_confidence(_: _Weighted, target: _Weighted, __: Any) -> Tensor:
    return target.mean(target.rows.confidence)


def _disagreement(_: _Weighted, target: _Weighted, __: Any) -> Tensor:
    samples: Tensor | None = getattr(target.p, "samples", None)
    k = 0 if samples is None else samples.size(0)
    if samples is None or k < 2:
        raise InputError(
            "predictions with K >= 2 samples for 'disagreement'",
            f"K = {k}",
            "Use an anchored model, an ensemble or another method.",
        )
    votes = torch.nn.functional.one_hot(samples.argmax(dim=-1), samples.size(2))  # [K, m, C]
    share = weights_of(samples, getattr(target.p, "weights", None))
    alone = float(share.square().sum())  # how often two draws are the same hypothesis
    agree = torch.einsum("k,kmc->mc", share, votes.double()).square().sum(dim=-1)
    return target.mean((agree - alone) / max(1.0 - alone, 1e-12))


METHODS: dict[str, Callable[[_Weighted, _Weighted, Any], Tensor]] = {
    "threshold": _threshold,
    "confidence_difference": _confidence_difference,
    "average_confidence": _average_confidence,
    "disagreement": _disagreement,
}
