"""Metrics of classes and labels: right answers, likelihood, Brier score, ranking, base rates."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gduq.metrics.bins import check_bins, check_choice, class_sums
from gduq.metrics.metric import ANY, POSITIVE, UNIT, metric
from gduq.metrics.ranking import Curve
from gduq.metrics.rows import LabelRows, Rows, kind_of, read, read_as, read_ranked

__all__ = [
    "BrierDecomposition",
    "Majority",
    "accuracy",
    "average_precision",
    "balanced_accuracy",
    "brier",
    "brier_decomposition",
    "brier_term",
    "majority",
    "nll",
    "roc_auc",
    "sharpness",
]


@metric(classes=UNIT, labels=UNIT)
def accuracy(p: Any, target: Tensor | None = None) -> float:
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


@metric(classes=POSITIVE, labels=POSITIVE, values=ANY)
def nll(p: Any, target: Tensor | None = None) -> float:
    r"""Negative log-likelihood :math:`-\frac1m \sum_i \log p_{i, y_i}`, in nats.

    Of values minus the mean log-density of the truth, which may be negative.

    Example:
        >>> round(nll(torch.tensor([[0.0, 0.0]]), torch.tensor([1])), 4)
        0.6931
    """
    rows = read_ranked(p, target)
    return rows.out(rows.mean(rows.nll))


@metric(classes=(0.0, 2.0), labels=(0.0, 2.0))
def brier(p: Any, target: Tensor | None = None) -> float:
    r"""Brier score :math:`\frac1m \sum_i \sum_c (p_{ic} - [y_i = c])^2`, from 0 to 2.

    Example:
        >>> brier(torch.tensor([[0.0, 0.0]]), torch.tensor([1]))
        0.5
    """
    rows = read(p, target)
    return rows.out(rows.mean(rows.brier))


@metric(classes=UNIT, labels=UNIT, values=POSITIVE)
def sharpness(p: Any, target: Tensor | None = None) -> float:
    r"""How far from uniform predictions are: :math:`1 - \frac1m\sum_i H(p_i) / \log C`; no labels.

    Of values the root of the mean variance, in their unit: there the smaller one is sharper.

    Example:
        >>> round(sharpness(torch.tensor([[0.0, 3.0]])), 3)
        0.725
    """
    rows = read_ranked(p, target, labelled=False)
    if isinstance(rows, Rows):
        entropy = torch.special.entr(rows.probs).sum(dim=-1).double()
        return rows.out(rows.mean(1.0 - entropy / math.log(rows.num_classes)))
    return rows.out(rows.mean(rows.variance).sqrt())


@metric(classes=UNIT, labels=UNIT)
def roc_auc(p: Any, target: Tensor | None = None) -> float:
    """Area under the ROC curve of the probability of "yes", the second of two classes.

    Of more classes it is the mean over classes, each against the rest. Classes and labels with one
    kind of row only are left out; if none is left, it is NaN.

    Example:
        >>> roc_auc(torch.tensor([0.1, -2.0, 3.0, -1.0]), torch.tensor([0, 0, 1, 1]))
        0.75
    """
    rows = read(p, target)
    return rows.out(_over_classes(rows, Curve.auroc))


@metric(classes=UNIT, labels=UNIT)
def average_precision(p: Any, target: Tensor | None = None) -> float:
    r"""Average precision of the probability of "yes", :math:`\sum_t (R_t - R_{t-1}) P_t`.

    A probability without information gets the share of "yes". Classes are treated as in `roc_auc`.

    Example:
        >>> average_precision(torch.tensor([0.1, -2.0, 3.0, 2.0]), torch.tensor([0, 0, 1, 1]))
        1.0
    """
    rows = read(p, target)
    return rows.out(_over_classes(rows, Curve.average_precision))


@metric(classes=UNIT, labels=UNIT)
def balanced_accuracy(p: Any, target: Tensor | None = None) -> float:
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


def majority(p: Any, target: Tensor | None = None) -> Majority:
    """Accuracy of always giving the most common answer; Brier score and NLL of the base rates.

    The shares of the classes are those of the same rows, so no constant answer does better.

    Example:
        >>> majority(torch.zeros(10, 2), torch.tensor([0] * 9 + [1])).accuracy
        0.9
    """
    if kind_of(p) == "labels":
        parts = [majority(rows) for _, rows in read_as(LabelRows, p, target).parts.values()]
        if not parts:
            return Majority(math.nan, math.nan, math.nan)
        return Majority(*(sum(column) / len(parts) for column in zip(*parts, strict=True)))
    labels = read(p, target).labels
    share = labels.bincount().double() / len(labels)
    brier, nll = 1.0 - share.square().sum(), torch.special.entr(share).sum()
    return Majority(float(share.max()), float(brier), float(nll))


class BrierDecomposition(NamedTuple):
    """``brier = reliability - resolution + uncertainty + within_bin``, exactly."""

    reliability: float
    resolution: float
    uncertainty: float
    within_bin: float


def brier_decomposition(
    p: Any, target: Tensor | None = None, *, bins: int = 15, strict: bool = True
) -> BrierDecomposition:
    r"""Murphy's decomposition of the Brier score, class by class over equal-width bins.

    With :math:`n_b` rows in bin b of class c, their mean probability :math:`\bar p_b` and share
    of class c :math:`\bar y_b`, and the class's share :math:`\bar y` of all rows, summed over c:

    .. math::
        \text{reliability} = \sum_b \tfrac{n_b}{m} (\bar p_b - \bar y_b)^2, \quad
        \text{resolution} = \sum_b \tfrac{n_b}{m} (\bar y_b - \bar y)^2, \quad
        \text{uncertainty} = \bar y (1 - \bar y)

    ``within_bin`` is what probabilities of one bin differ among themselves (Stephenson, 2008).

    Example:
        >>> logits, y = torch.tensor([[0.0, 0.0]] * 4), torch.tensor([0, 0, 0, 1])
        >>> brier_decomposition(logits, y, bins=4)
        BrierDecomposition(reliability=0.125, resolution=0.0, uncertainty=0.375, within_bin=0.0)
    """
    return BrierDecomposition(*map(float, _terms(read(p, target), bins, strict)))


@metric(classes=(0.0, 2.0))
def brier_term(
    p: Any,
    target: Tensor | None = None,
    *,
    term: str = "reliability",
    bins: int = 15,
    strict: bool = True,
) -> float:
    """One term of `brier_decomposition`, named as there, for intervals by `bootstrap`.

    Example:
        >>> logits, y = torch.tensor([[0.0, 0.0]] * 4), torch.tensor([0, 0, 0, 1])
        >>> brier_term(logits, y, term="uncertainty", bins=4)
        0.375
    """
    check_choice("a term", term, BrierDecomposition._fields)
    rows = read(p, target)
    return rows.out(_terms(rows, bins, strict)[BrierDecomposition._fields.index(term)])


def _terms(rows: Rows, bins: int, strict: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    check_bins(rows, bins, strict)
    (count, prob, hit), brier = class_sums(rows, bins), rows.mean(rows.brier)
    size = count.sum(dim=-1, keepdim=True)
    share, filled = count / size, count.clamp_min(1)
    rate = hit.sum(dim=-1, keepdim=True) / size
    reliability = (share * ((prob - hit) / filled).square()).sum(dim=(-2, -1))
    resolution = (share * (hit / filled - rate).square()).sum(dim=(-2, -1))
    uncertainty = (rate * (1 - rate)).sum(dim=(-2, -1))
    within = brier - (reliability - resolution + uncertainty)
    return reliability, resolution, uncertainty, within


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
