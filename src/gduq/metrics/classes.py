"""Metrics of classes and labels: right answers, likelihood, Brier score, ranking, base rates."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from gduq.metrics.ranking import Curve
from gduq.metrics.rows import (
    ANY,
    POSITIVE,
    UNIT,
    LabelRows,
    Predicted,
    Rows,
    metric,
    read,
    read_any,
    read_ranked,
)

__all__ = [
    "Majority",
    "accuracy",
    "average_precision",
    "balanced_accuracy",
    "brier",
    "gap",
    "majority",
    "nll",
    "roc_auc",
    "sharpness",
]


@metric(classes=UNIT)
def accuracy(p: Predicted, target: Tensor | None = None) -> float:
    r"""Share of rows whose answer is right: the most likely class, unless a threshold decides.

    Of labels this and every other metric is the mean over labels, of the rows where each is known.

    Args:
        p: A `gduq.ClassPrediction`, a `gduq.LabelPrediction` or logits ``[m, C]``.
        target: Labels ``[m]``, next to logits only.

    Example:
        >>> accuracy(torch.tensor([[2.0, 0.0], [0.0, 3.0]]), torch.tensor([0, 0]))
        0.5
    """
    rows = read(p, target)
    return rows.out(rows.mean(rows.right))


@metric(classes=POSITIVE, values=ANY)
def nll(p: Predicted, target: Tensor | None = None) -> float:
    r"""Negative log-likelihood :math:`-\frac1m \sum_i \log p_{i, y_i}`, in nats.

    Of values minus the mean log-density of the truth, which may be negative.

    Example:
        >>> round(nll(torch.tensor([[0.0, 0.0]]), torch.tensor([1])), 4)
        0.6931
    """
    rows = read_ranked(p, target)
    return rows.out(rows.mean(rows.nll))


@metric(classes=(0.0, 2.0))
def brier(p: Predicted, target: Tensor | None = None) -> float:
    r"""Brier score :math:`\frac1m \sum_i \sum_c (p_{ic} - [y_i = c])^2`, from 0 to 2.

    Example:
        >>> brier(torch.tensor([[0.0, 0.0]]), torch.tensor([1]))
        0.5
    """
    rows = read(p, target)
    picked = rows.true(rows.probs).double()
    return rows.out(rows.mean(rows.probs.square().sum(dim=-1).double() - 2.0 * picked + 1.0))


@metric(classes=UNIT, values=POSITIVE)
def sharpness(p: Predicted, target: Tensor | None = None) -> float:
    r"""How far from uniform predictions are: :math:`1 - \frac1m\sum_i H(p_i) / \log C`; no labels.

    Of values the root of the mean variance, in their unit: there the smaller one is sharper.

    Example:
        >>> round(sharpness(torch.tensor([[0.0, 3.0]])), 3)
        0.725
    """
    rows = read_ranked(p, target, labelled=False)
    return rows.out(rows.sharpness)


@metric(classes=(-1.0, 1.0), values=(-1.0, 1.0))
def gap(p: Predicted, target: Tensor | None = None) -> float:
    r"""What predictions promise minus what they hold.

    Of classes :math:`\frac1m \sum_i (\text{confidence}_i - [\text{label}_i = y_i])`, of labels the
    mean of that over labels, of a value 0.9 minus the share of the truth in the 90 % intervals.
    `bootstrap` gives a value, and rows that are all right or all wrong, Wilson's interval of the
    share: no resample of such rows has an error in it.

    Example:
        >>> gap(torch.zeros(40, 2), torch.zeros(40).long())
        -0.5
    """
    rows = read_ranked(p, target)
    return rows.out(rows.gap)


@metric(classes=UNIT)
def roc_auc(p: Predicted, target: Tensor | None = None) -> float:
    """Area under the ROC curve of the probability of "yes", the second of two classes.

    Of more classes it is the mean over classes, each against the rest. Classes and labels with one
    kind of row only are left out; if none is left, it is NaN.

    Example:
        >>> roc_auc(torch.tensor([0.1, -2.0, 3.0, -1.0]), torch.tensor([0, 0, 1, 1]))
        0.75
    """
    rows = read(p, target)
    return rows.out(_over_classes(rows, Curve.auroc))


@metric(classes=UNIT)
def average_precision(p: Predicted, target: Tensor | None = None) -> float:
    r"""Average precision of the probability of "yes", :math:`\sum_t (R_t - R_{t-1}) P_t`.

    A probability without information gets the share of "yes". Classes are treated as in `roc_auc`.

    Example:
        >>> average_precision(torch.tensor([0.1, -2.0, 3.0, 2.0]), torch.tensor([0, 0, 1, 1]))
        1.0
    """
    rows = read(p, target)
    return rows.out(_over_classes(rows, Curve.average_precision))


@metric(classes=UNIT)
def balanced_accuracy(p: Predicted, target: Tensor | None = None) -> float:
    """Share of right answers within each class that has rows, averaged over classes.

    Example:
        >>> balanced_accuracy(torch.tensor([[2.0, 0.0]] * 10), torch.tensor([0] * 9 + [1]))
        0.5
    """
    rows = read(p, target)
    hits = rows.sums(rows.labels, rows.num_classes, rows.right)
    return rows.out((hits / rows.sums(rows.labels, rows.num_classes)).nanmean(dim=1))


class Majority(NamedTuple):
    """What can be had without looking at a row."""

    accuracy: float
    brier: float
    nll: float


def majority(p: Predicted, target: Tensor | None = None) -> Majority:
    """Accuracy of always giving the most common answer; Brier score and NLL of the base rates.

    The shares of the classes are those of the same rows, so no constant answer does better.

    Example:
        >>> majority(torch.zeros(10, 2), torch.tensor([0] * 9 + [1])).accuracy
        0.9
    """
    rows = read_any(p, target)
    if isinstance(rows, LabelRows):
        parts = [majority(part) for _, part in rows.parts.values()]
        if not parts:
            return Majority(math.nan, math.nan, math.nan)
        return Majority(*(sum(column) / len(parts) for column in zip(*parts, strict=True)))
    labels = read(rows).labels
    share = labels.bincount().double() / len(labels)
    brier, nll = 1.0 - share.square().sum(), torch.special.entr(share).sum()
    return Majority(float(share.max()), float(brier), float(nll))


def _over_classes(rows: Rows, measure: Callable[[Curve], Tensor]) -> Tensor:
    """The mean over classes, each against the rest; of two classes the second alone ``[R]``."""
    first, counts = (1 if rows.num_classes == 2 else 0), rows.weights
    found, logits = [], rows.logits.double()
    for c in range(first, rows.num_classes):
        inside, score = rows.labels == c, _log_odds(logits, c)
        curve = Curve(score[~inside], score[inside])
        curve = curve.drawn(counts[:, ~inside], counts[:, inside])
        some = (curve.total_n.squeeze(1) > 0) & (curve.total_k.squeeze(1) > 0)
        found.append(measure(curve).masked_fill(~some, math.nan))
    return torch.stack(found).nanmean(dim=0)


def _log_odds(logits: Tensor, c: int) -> Tensor:
    """Of class ``c`` ``[m]``: ranks rows as its probability does, which may round to 1."""
    rest = torch.cat([logits[:, :c], logits[:, c + 1 :]], dim=1)
    return logits[:, c] - rest.logsumexp(dim=1)
