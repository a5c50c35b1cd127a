"""Above which probability a label should count as "yes", found on validation rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from gduq.errors import InputError
from gduq.metrics.label_rows import read_labels

__all__ = ["label_thresholds"]

Measure = Literal["balanced_accuracy", "f1"]
_HALF = 0.5


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
    if measure not in _MEASURES:
        raise InputError(f"a measure from {', '.join(get_args(Measure))}", repr(measure))
    p = read_labels(p_val).source
    found = torch.full((p.num_labels,), _HALF, dtype=p.probs.dtype, device=p.probs.device)
    for t in range(p.num_labels):
        known = p.known[:, t]
        found[t] = _best(p.probs[known, t], p.target[known, t] == 1, _MEASURES[measure])
    return found


def _balanced(yes: Tensor, false: Tensor, positives: int, negatives: int) -> Tensor:
    return (yes / positives + (negatives - false) / negatives) / 2


def _f1(yes: Tensor, false: Tensor, positives: int, negatives: int) -> Tensor:
    return 2 * yes / (yes + false + positives)


_MEASURES: dict[str, Callable[[Tensor, Tensor, int, int], Tensor]] = {
    "balanced_accuracy": _balanced,
    "f1": _f1,
}


def _best(probs: Tensor, truth: Tensor, measure: Callable[..., Tensor]) -> Tensor | float:
    """The threshold of one label; ``probs`` and ``truth`` are those of the rows that know it."""
    positives = int(truth.sum())
    negatives = len(truth) - positives
    if not positives or not negatives:
        return _HALF
    cuts = _cuts(probs)
    above = [len(part) - torch.searchsorted(part, cuts, right=True)
             for part in (probs[truth].sort().values, probs[~truth].sort().values)]  # fmt: skip
    value = measure(*(count.double() for count in above), positives, negatives)
    best = cuts[value >= value.max() - 1e-12]
    return best[(best - _HALF).abs().argmin()]


def _cuts(probs: Tensor) -> Tensor:
    """One half, and a threshold in every gap between probabilities and below the lowest."""
    ends = torch.unique(probs)
    low = torch.cat([torch.zeros_like(ends[:1]), ends[:-1]])
    middle = low + (ends - low) / 2
    middle = torch.where(middle < ends, middle, low)  # neighbours have no number in between
    return torch.cat([middle.new_tensor([_HALF]), middle])
