"""Guessing the accuracy on new data without its labels: of classes, or of one label at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from gduq.errors import InputError
from gduq.metrics.resampling import Interval, check_sampling, interval, resampled_pairs
from gduq.metrics.rows import ClassRows, rows_of
from gduq.ood.ood_scores import Score
from gduq.ood.ood_scores import score as score_of
from gduq.prediction import ClassPrediction, Prediction
from gduq.prediction.mixture import weights_of

__all__ = ["METHODS", "estimate_interval", "predict_accuracy"]


def predict_accuracy(
    p_val: Prediction,
    p_target: Prediction,
    method: str = "threshold",
    score: str | Score = "msp",
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
        score: For ``threshold``, the uncertainty that is cut, as in `gduq.ood.score`.

    Example:
        >>> p_val = ClassPrediction(torch.tensor([[4.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1]))
        >>> p_new = ClassPrediction(torch.tensor([[5.0, 0.0], [0.0, 0.0], [0.0, 0.1], [0.2, 0.0]]))
        >>> predict_accuracy(p_val, p_new)
        0.25
    """
    return float(_predicted(_drawn(p_val), _drawn(p_target), method, score))


def estimate_interval(
    p_val: Prediction,
    p_target: Prediction,
    method: str = "threshold",
    score: str | Score = "msp",
    *,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> tuple[Interval, Interval | None]:
    """`predict_accuracy` and, with labels, its absolute error, with bootstrap intervals.

    Validation and target rows are resampled, each set at its own size.
    """
    check_sampling(resamples, level)
    predicted, errors = [], []
    pairs = resampled_pairs(len(p_val), len(p_target), resamples, seed)
    for n, k in [(None, None), *pairs]:  # the first is the value itself
        val, target = _drawn(p_val, n), _drawn(p_target, k)
        predicted.append(_predicted(val, target, method, score))
        if p_target.target is not None:
            errors.append((predicted[-1] - target.rows.mean(target.rows.held)).abs())
    found = [
        interval(float(value), torch.cat(draws), level, 0.0, 1.0)
        for value, *draws in (predicted, errors)[: 1 + bool(errors)]
    ]
    return found[0], found[1] if errors else None


class _Drawn(NamedTuple):
    """Predictions and their rows, counted as often as each of R resamples draws them."""

    p: ClassPrediction
    rows: ClassRows

    def scores(self, score: str | Score) -> Tensor:
        return score_of(self.p, score).double()


def _drawn(p: Prediction, counts: Tensor | None = None) -> _Drawn:
    rows = rows_of(p, ClassRows, labelled=False)
    return _Drawn(rows.p, rows.weighted(rows.weights if counts is None else counts))


def _predicted(val: _Drawn, target: _Drawn, method: str, score: str | Score) -> Tensor:
    """The accuracy on the target in each resample ``[R]``."""
    if method not in METHODS:
        raise InputError(f"a method from {', '.join(METHODS)}", repr(method))
    return METHODS[method](val, target, score).clamp(0.0, 1.0)


def _thresholds(val: _Drawn, score: str | Score) -> Tensor:
    """In each resample the score up to which the share of rows is the accuracy ``[R]``.

    Of equally good ones the largest; minus infinity where no row is right.
    """
    distinct, group = torch.unique(val.scores(score), return_inverse=True)
    below = val.rows.sums(group + 1, len(distinct) + 1)[0].cumsum(dim=1)  # [R, G + 1], from -inf
    gap = (below - (val.rows.weights @ val.rows.held).unsqueeze(1)).abs()
    best = gap.size(1) - 1 - (gap == gap.amin(dim=1, keepdim=True)).flip(1).int().argmax(dim=1)
    reached = below.gather(1, best.unsqueeze(1))
    first = (below >= reached).int().argmax(dim=1)  # the drawn row, not an undrawn one above it
    return torch.cat([distinct.new_tensor([-torch.inf]), distinct])[first]


def _threshold(val: _Drawn, target: _Drawn, score: str | Score) -> Tensor:
    scores, order = target.scores(score).sort()
    below = torch.nn.functional.pad(target.rows.weights[:, order].cumsum(dim=1), (1, 0))
    place = torch.searchsorted(scores, _thresholds(val, score).to(scores), right=True)
    return below.gather(1, place.unsqueeze(1)).squeeze(1) / len(scores)


def _confidence_difference(val: _Drawn, target: _Drawn, _: str | Score) -> Tensor:
    gap = _average_confidence(val, target, _) - val.rows.mean(val.p.confidence)
    return val.rows.mean(val.rows.held) + gap


def _average_confidence(_: _Drawn, target: _Drawn, __: str | Score) -> Tensor:
    return target.rows.mean(target.p.confidence)


def _disagreement(_: _Drawn, target: _Drawn, __: str | Score) -> Tensor:
    samples, k = target.p.samples, target.p.num_samples
    if k < 2:
        do = "Use an anchored model, an ensemble or another method."
        raise InputError("predictions with K >= 2 samples for 'disagreement'", f"K = {k}", do)
    votes = torch.nn.functional.one_hot(samples.argmax(dim=-1), samples.size(2))  # [K, m, C]
    share = weights_of(samples, target.p.weights)
    alone = float(share.square().sum())  # how often two draws are the same hypothesis
    agree = torch.einsum("k,kmc->mc", share, votes.double()).square().sum(dim=-1)
    return target.rows.mean((agree - alone) / max(1.0 - alone, 1e-12))


METHODS: dict[str, Callable[[_Drawn, _Drawn, str | Score], Tensor]] = {
    "threshold": _threshold,
    "confidence_difference": _confidence_difference,
    "average_confidence": _average_confidence,
    "disagreement": _disagreement,
}
