"""Guessing the accuracy on new data without its labels: of classes, or of one label at a time."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gduq.metrics.resampling import Interval, check_sampling, interval, resampled_pairs
from gduq.metrics.rows import ClassRows, read_one
from gduq.ood.ood_scores import Score, score
from gduq.prediction import Prediction

__all__ = ["estimate_interval", "predict_accuracy"]


def predict_accuracy(p_val: Prediction, p_target: Prediction, by: str | Score = "msp") -> float:
    r"""Predict the accuracy on unlabelled data from labelled validation data.

    ATC (Garg et al., 2022), as in the paper: the share of target rows whose score is below
    :math:`\tau`, where on validation that share is the accuracy. For a calibrated model
    ``p_target.trust.mean()`` is another guess.

    Args:
        p_val: Labelled predictions, from the training distribution.
        p_target: Predictions on the data in question; its labels are not looked at.
        by: The uncertainty that is cut, as in `gduq.ood.score`.

    Example:
        >>> from gduq.prediction import ClassPrediction
        >>> p_val = ClassPrediction(torch.tensor([[4.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1]))
        >>> p_new = ClassPrediction(torch.tensor([[5.0, 0.0], [0.0, 0.0], [0.0, 0.1], [0.2, 0.0]]))
        >>> predict_accuracy(p_val, p_new)
        0.25
    """
    return float(_predicted(_drawn(p_val, by), _drawn(p_target, by)))


def estimate_interval(
    p_val: Prediction,
    p_target: Prediction,
    by: str | Score = "msp",
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
        val, target = _drawn(p_val, by, n), _drawn(p_target, by, k)
        predicted.append(_predicted(val, target))
        if p_target.target is not None:
            errors.append((predicted[-1] - target.rows.mean(target.rows.held)).abs())
    found = [
        interval(float(value), torch.cat(draws), level, 0.0, 1.0)
        for value, *draws in (predicted, errors)[: 1 + bool(errors)]
    ]
    return found[0], found[1] if errors else None


class _Drawn(NamedTuple):
    """Rows, counted as often as each of R resamples draws them, and their scores."""

    rows: ClassRows
    scores: Tensor


def _drawn(p: Prediction, by: str | Score, counts: Tensor | None = None) -> _Drawn:
    rows = read_one(p, ClassRows)
    rows = rows if counts is None else rows.weighted(counts)
    return _Drawn(rows, score(rows.p, by).double())


def _thresholds(val: _Drawn) -> Tensor:
    """In each resample the score up to which the share of rows is the accuracy ``[R]``.

    Of equally good ones the largest; minus infinity where no row is right.
    """
    distinct, group = torch.unique(val.scores, return_inverse=True)
    below = val.rows.sums(group + 1, len(distinct) + 1)[0].cumsum(dim=1)  # [R, G + 1], from -inf
    gap = (below - (val.rows.weights @ val.rows.held).unsqueeze(1)).abs()
    best = gap.size(1) - 1 - (gap == gap.amin(dim=1, keepdim=True)).flip(1).int().argmax(dim=1)
    reached = below.gather(1, best.unsqueeze(1))
    first = (below >= reached).int().argmax(dim=1)  # the drawn row, not an undrawn one above it
    return torch.cat([distinct.new_tensor([-torch.inf]), distinct])[first]


def _predicted(val: _Drawn, target: _Drawn) -> Tensor:
    """The accuracy on the target in each resample ``[R]``."""
    scores, order = target.scores.sort()
    below = torch.nn.functional.pad(target.rows.weights[:, order].cumsum(dim=1), (1, 0))
    place = torch.searchsorted(scores, _thresholds(val).to(scores), right=True)
    return below.gather(1, place.unsqueeze(1)).squeeze(1) / len(scores)
