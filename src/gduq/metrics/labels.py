"""Every label by itself: a table of metrics, and above which probability it should be "yes"."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor

from gduq.metrics.bins import check_choice
from gduq.metrics.calibration_errors import ece
from gduq.metrics.classes import (
    accuracy,
    average_precision,
    balanced_accuracy,
    brier,
    majority,
    nll,
    roc_auc,
)
from gduq.metrics.rows import LabelRows, Rows, read_as

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["label_table", "label_thresholds"]

Measure = Literal["balanced_accuracy", "f1"]
_HALF = 0.5
_COLUMNS = (
    *("label", "rows", "positives", "base_rate", "accuracy", "majority", "balanced_accuracy"),
    *("roc_auc", "average_precision", "ece", "nll", "brier"),
)


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

    rows = read_as(LabelRows, p)
    names = rows.source.names or tuple(str(t) for t in range(rows.source.num_labels))
    table = [
        (name, *_measured(rows.parts[t][1])) if t in rows.parts else (name, 0, 0)
        for t, name in enumerate(names)
    ]
    return pd.DataFrame([dict(zip(_COLUMNS, line, strict=False)) for line in table], None, _COLUMNS)


def _measured(rows: Rows) -> tuple[float, ...]:
    positives = int(rows.labels.sum())
    return (
        *(len(rows), positives, positives / len(rows), accuracy(rows), majority(rows).accuracy),
        *(balanced_accuracy(rows), roc_auc(rows), average_precision(rows)),
        *(ece(rows, strict=False), nll(rows), brier(rows)),
    )


def label_thresholds(p_val: Any, measure: Measure = "balanced_accuracy") -> Tensor:
    """Thresholds that make a measure of each label as large as it gets on validation rows.

    Unknown entries do not count. One half stays where no threshold does better, and for labels that
    are not known to be both "yes" and "no". Of equally good ones the nearest to one half is taken.

    Args:
        p_val: A `gduq.LabelPrediction` with targets, of rows the model was not trained on.
        measure: ``"balanced_accuracy"``, or ``"f1"`` of "yes", which leaves out how many "no" are
            right.

    Returns:
        ``[T]``, for `gduq.LabelPrediction.with_thresholds`.

    Example:
        >>> from gduq.prediction import LabelPrediction
        >>> logits = torch.tensor([[-4.0], [-3.0], [-2.0], [-1.0]])
        >>> p = LabelPrediction(logits, torch.tensor([[0.0], [0.0], [1.0], [1.0]]))
        >>> p = p.with_thresholds(label_thresholds(p))
        >>> p.label.flatten()
        tensor([False, False,  True,  True])
    """
    check_choice("a measure", measure, get_args(Measure))
    p = read_as(LabelRows, p_val).source
    found = torch.full((p.num_labels,), _HALF, dtype=p.probs.dtype, device=p.probs.device)
    for t in range(p.num_labels):
        known = p.known[:, t]
        found[t] = _best(p.probs[known, t], p.target[known, t] == 1, measure)
    return found


def _best(probs: Tensor, truth: Tensor, measure: Measure) -> Tensor | float:
    """The threshold of one label; ``probs`` and ``truth`` are those of the rows that know it."""
    positives = int(truth.sum())
    negatives = len(truth) - positives
    if not positives or not negatives:
        return _HALF
    cuts = _cuts(probs)
    yes, false = (
        (len(part) - torch.searchsorted(part.sort().values, cuts, right=True)).double()
        for part in (probs[truth], probs[~truth])
    )
    if measure == "f1":
        value = 2 * yes / (yes + false + positives)
    else:
        value = (yes / positives + (negatives - false) / negatives) / 2
    best = cuts[value >= value.max() - 1e-12]
    return best[(best - _HALF).abs().argmin()]


def _cuts(probs: Tensor) -> Tensor:
    """One half, and a threshold in every gap between probabilities and below the lowest."""
    ends = torch.unique(probs)
    low = torch.cat([torch.zeros_like(ends[:1]), ends[:-1]])
    middle = low + (ends - low) / 2
    middle = torch.where(middle < ends, middle, low)  # neighbours have no number in between
    return torch.cat([middle.new_tensor([_HALF]), middle])
