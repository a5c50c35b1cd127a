"""Every label by itself: a table of metrics, and above which probability it should be "yes"."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor

from gduq.metrics import classes as c
from gduq.metrics.bins import check_choice
from gduq.metrics.calibration_errors import ece
from gduq.metrics.rows import LabelRows, Rows, read_as

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["label_table", "label_thresholds"]

Measure = Literal["balanced_accuracy", "f1"]
_COLUMNS: dict[str, Callable[[Rows], float]] = {
    "rows": len,
    "positives": lambda rows: int(rows.labels.sum()),
    "base_rate": lambda rows: int(rows.labels.sum()) / len(rows),
    "accuracy": c.accuracy,
    "majority": lambda rows: c.majority(rows).accuracy,
    "balanced_accuracy": c.balanced_accuracy,
    "roc_auc": c.roc_auc,
    "average_precision": c.average_precision,
    "ece": partial(ece, strict=False),
    "nll": c.nll,
    "brier": c.brier,
}


def label_table(p: Any) -> pd.DataFrame:
    """Every label of a `gduq.LabelPrediction` by itself.

    Returns:
        One line per label: ``label``, how many ``rows`` know it, ``positives`` among them and their
        ``base_rate``, ``majority`` (the accuracy of the most common answer), and metrics; NaN where
        one is not defined. Their means over labels are the metrics of ``p``.

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
    table: list[dict[str, Any]] = []
    for t, name in enumerate(names):
        known = rows.parts.get(t)
        found = (
            {n: f(known[1]) for n, f in _COLUMNS.items()} if known else {"rows": 0, "positives": 0}
        )
        table.append({"label": name} | found)
    return pd.DataFrame(table, columns=["label", *_COLUMNS])


def label_thresholds(p_val: Any, measure: Measure = "balanced_accuracy") -> Tensor:
    """Thresholds that make a measure of each label as large as it gets on validation rows.

    One half stays where no threshold does better, and for labels that are not known to be both
    "yes" and "no". Of equally good ones the nearest to one half is taken.

    Args:
        p_val: A `gduq.LabelPrediction` with targets, of rows the model was not trained on.
        measure: ``"balanced_accuracy"``, or ``"f1"`` of "yes".

    Returns:
        ``[T]``, for `gduq.LabelPrediction.with_thresholds`.

    Example:
        >>> from gduq.prediction import LabelPrediction
        >>> logits = torch.tensor([[-4.0], [-3.0], [-2.0], [-1.0]])
        >>> p = LabelPrediction(logits, torch.tensor([[0.0], [0.0], [1.0], [1.0]]))
        >>> p.with_thresholds(label_thresholds(p)).label.flatten()
        tensor([False, False,  True,  True])
    """
    check_choice("a measure", measure, get_args(Measure))
    p = read_as(LabelRows, p_val).source
    found = torch.full((p.num_labels,), 0.5, dtype=p.probs.dtype, device=p.probs.device)
    for t in range(p.num_labels):
        known = p.known[:, t]
        found[t] = _best(p.probs[known, t], p.target[known, t] == 1, measure)
    return found


def _best(probs: Tensor, truth: Tensor, measure: Measure) -> Tensor | float:
    """The threshold of one label; ``probs`` and ``truth`` are those of the rows that know it."""
    positives = int(truth.sum())
    negatives = len(truth) - positives
    if not positives or not negatives:
        return 0.5
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
    return best[(best - 0.5).abs().argmin()]


def _cuts(probs: Tensor) -> Tensor:
    """One half, and a threshold in every gap between probabilities and below the lowest."""
    ends = torch.unique(probs)
    low = torch.cat([torch.zeros_like(ends[:1]), ends[:-1]])
    middle = low + (ends - low) / 2
    middle = torch.where(middle < ends, middle, low)  # neighbours have no number in between
    return torch.cat([middle.new_tensor([0.5]), middle])
