"""Rare classes and labels: ranking, balanced accuracy, what the most common answer reaches."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from gduq.metrics.calibration_errors import ece
from gduq.metrics.label_rows import read_labels
from gduq.metrics.ranking import Curve
from gduq.metrics.rows import Rows, kind_of, read
from gduq.metrics.scores import accuracy, brier, nll
from gduq.metrics.weighted import UNIT, metric

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "Majority",
    "average_precision",
    "balanced_accuracy",
    "label_table",
    "majority",
    "roc_auc",
]


@metric(classes=UNIT, labels=UNIT)
def roc_auc(p: Any, target: Tensor | None = None) -> float:
    """Area under the ROC curve of the probability of "yes", the second of two classes.

    How often a row of the class has a larger probability than a row that is not of it. Of more
    classes it is the mean over classes, each against the rest; of labels the mean over labels.
    Classes and labels with one kind of row only are left out; if none is left, it is NaN.

    Args:
        p: A `gduq.Prediction`, a `gduq.LabelPrediction` or logits ``[m, C]``.
        target: Labels ``[m]``, next to logits only.

    Example:
        >>> roc_auc(torch.tensor([0.1, -2.0, 3.0, -1.0]), torch.tensor([0, 0, 1, 1]))
        0.75
    """
    rows = read(p, target)
    return rows.out(_over_classes(rows, Curve.auroc))


@metric(classes=UNIT, labels=UNIT)
def average_precision(p: Any, target: Tensor | None = None) -> float:
    r"""Average precision of the probability of "yes", :math:`\sum_t (R_t - R_{t-1}) P_t`.

    Unlike `roc_auc` it depends on how rare the class is: its share of the rows is what a
    probability without information gets. More classes, labels and NaN are as there.

    Example:
        >>> average_precision(torch.tensor([0.1, -2.0, 3.0, 2.0]), torch.tensor([0, 0, 1, 1]))
        1.0
    """
    rows = read(p, target)
    return rows.out(_over_classes(rows, Curve.average_precision))


@metric(classes=UNIT, labels=UNIT)
def balanced_accuracy(p: Any, target: Tensor | None = None) -> float:
    """Share of right answers within each class, averaged over classes.

    A model that always gives the same answer gets 1 / C, however rare the other classes are.
    Classes without rows are left out. Of labels it is the mean over labels, and a label's threshold
    decides what the answer is.

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

    The shares of the classes are those of the same rows, so no constant answer does better. A model
    below this accuracy, or above these scores, is worse than none. Of labels it is the mean over
    labels.

    Example:
        >>> majority(torch.zeros(10, 2), torch.tensor([0] * 9 + [1])).accuracy
        0.9
    """
    if kind_of(p) == "labels":
        parts = [majority(rows) for _, rows in read_labels(p, target).parts.values()]
        if not parts:
            return Majority(math.nan, math.nan, math.nan)
        return Majority(*(sum(column) / len(parts) for column in zip(*parts, strict=True)))
    labels = read(p, target).labels
    share = labels.bincount().double() / len(labels)
    brier, nll = 1.0 - share.square().sum(), torch.special.entr(share).sum()
    return Majority(float(share.max()), float(brier), float(nll))


def label_table(p: Any) -> pd.DataFrame:
    """Every label of a `gduq.LabelPrediction` by itself.

    Returns:
        One line per label: ``label``, how many ``rows`` know it, ``positives`` among them and their
        ``base_rate``, then ``accuracy``, ``majority`` (what the most common answer reaches),
        ``balanced_accuracy``, ``roc_auc``, ``average_precision``, ``ece``, ``nll``, ``brier``. What
        is not defined for a label is NaN. The means over labels are the metrics of ``p`` itself.

    Example:
        >>> from gduq.prediction import LabelPrediction
        >>> target = torch.tensor([[1.0, 0.0], [0.0, float("nan")]])
        >>> table = label_table(LabelPrediction(torch.tensor([[2.0, 1.0], [0.0, 1.0]]), target))
        >>> table[["label", "rows", "positives", "roc_auc"]].values.tolist()
        [['0', 2, 1, 1.0], ['1', 1, 0, nan]]
    """
    import pandas as pd

    rows = read_labels(p)
    parts, p = rows.parts, rows.source
    names = p.names or tuple(str(t) for t in range(p.num_labels))
    table = [
        {"label": name, "rows": 0, "positives": 0} | (_measured(parts[t][1]) if t in parts else {})
        for t, name in enumerate(names)
    ]
    return pd.DataFrame(table, columns=["label", *_COLUMNS])


_COLUMNS = (
    *("rows", "positives", "base_rate", "accuracy", "majority", "balanced_accuracy"),
    *("roc_auc", "average_precision", "ece", "nll", "brier"),
)


def _measured(rows: Rows) -> dict[str, float]:
    positives = int(rows.labels.sum())
    values = (
        *(len(rows), positives, positives / len(rows), accuracy(rows), majority(rows).accuracy),
        *(balanced_accuracy(rows), roc_auc(rows), average_precision(rows)),
        *(ece(rows, strict=False), nll(rows), brier(rows)),
    )
    return dict(zip(_COLUMNS, values, strict=True))


def _over_classes(rows: Rows, measure: Callable[[Curve], Tensor]) -> Tensor:
    """The mean over classes, each against the rest, of those with two kinds of rows ``[R]``.

    Of two classes only the second is looked at.
    """
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
