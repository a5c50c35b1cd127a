"""What labelled rows allow to be decided about others: conformal sets, intervals, abstention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gduq import ood
from gduq.abstention import Abstention
from gduq.conformal import ConformalIntervals, ConformalLabels, SplitConformal
from gduq.errors import InputError

__all__ = ["NEEDS_FEATURES", "Decisions", "Settings", "endings"]

NEEDS_FEATURES = ("mahalanobis", "knn")  # scores of representations
_CONFORMAL: dict[str, Any] = {
    "classes": SplitConformal,
    "labels": ConformalLabels,
    "values": ConformalIntervals,
}


@dataclass(frozen=True)
class Settings:
    """How predictions become decisions.

    Attributes:
        alpha: Accepted share of misses of conformal sets and intervals.
        coverage: Share of rows like the reference that should be answered; or
        accuracy: the accuracy that answers should have; then ``coverage`` is not used.
        score: OOD score: a name of `gduq.ood.SCORES`, ``"mahalanobis"`` or ``"knn"``. ``None``:
            ``"novelty"`` where the model knows its training data, else ``"energy"`` for classes,
            ``"entropy"`` for labels, ``"std"`` for values.
    """

    alpha: float = 0.1
    coverage: float = 0.9
    accuracy: float | None = None
    score: str | None = None

    def __post_init__(self) -> None:
        if self.score not in (None, *ood.SCORES, *NEEDS_FEATURES):
            names = ", ".join([*ood.SCORES, *NEEDS_FEATURES])
            raise InputError(f"an OOD score from {names}", repr(self.score))

    def abstention(self) -> Abstention:
        """The rule for answering, not yet fitted."""
        if self.accuracy is not None:
            return Abstention(accuracy=self.accuracy)
        return Abstention(coverage=self.coverage)


class Decisions:
    """Conformal sets or intervals, and a rule for abstaining, for any kind of prediction.

    Several labels or values are decided one by one; a row is abstained from as a whole where all
    of them are.

    Args:
        settings: How to decide.
        known: Calibrated predictions of labelled rows the model was not trained on.

    Example:
        >>> from gduq.prediction import ValuePrediction
        >>> known = ValuePrediction(torch.zeros(1, 40, 2), target=torch.linspace(-2, 2, 40))
        >>> list(Decisions(Settings(), known).columns(known[:3]))
        ['conformal_low', 'conformal_high', 'abstain']
    """

    def __init__(self, settings: Settings, known: Any) -> None:
        known.require_target()
        self._conformal = _CONFORMAL[known.kind](settings.alpha, shift_level=0).fit(known)
        self._rules = [_rule(settings, part) for part in _parts(known)]

    def columns(self, p: Any, class_names: Sequence[str] | None = None) -> dict[str, list[Any]]:
        """What is decided about each row."""
        found = self._held(p, class_names)
        ends, p = endings(p), replace(p, target=None)
        kept = [
            torch.zeros(len(p), dtype=torch.bool) if rule is None else rule(part).kept
            for rule, part in zip(self._rules, _parts(p), strict=True)
        ]
        if len(kept) > 1:
            found |= {f"abstain{e}": (~k).tolist() for e, k in zip(ends, kept, strict=True)}
        found["abstain"] = (~torch.stack(kept).any(0)).tolist()
        return found

    def _held(self, p: Any, class_names: Sequence[str] | None) -> dict[str, list[Any]]:
        """Sets or intervals that hold the truth."""
        held = self._conformal(replace(p, target=None))
        if p.kind == "classes":
            return {"conformal_set": _sets(held.mask, class_names)}
        ends = endings(p)
        if p.kind == "labels":
            return {f"conformal_set{e}": _sets(held.mask[:, t]) for t, e in enumerate(ends)}
        columns: dict[str, list[Any]] = {}
        for t, end in enumerate(ends):
            one = held.column(t)
            columns[f"conformal_low{end}"] = one.low.tolist()
            columns[f"conformal_high{end}"] = one.high.tolist()
        return columns


def endings(p: Any) -> list[str]:
    """What the names of columns end in, per label or value: as in ``p.to_dataframe()``."""
    if p.kind == "classes" or (p.kind == "values" and p.num_values == 1):
        return [""]
    count = p.num_labels if p.kind == "labels" else p.num_values
    return [f"_{name}" for name in p.names or range(count)]


def _parts(p: Any) -> list[Any]:
    """Predictions about one thing each."""
    if p.kind == "classes":
        return [p]
    return [p.column(t) for t in range(len(endings(p)))]


def _rule(settings: Settings, known: Any) -> Abstention | None:
    """The rule for one label or value; ``None`` where no row of the reference knows it."""
    return settings.abstention().fit(known) if len(known) else None


def _sets(mask: Tensor, names: Sequence[str] | None = None) -> list[list[Any]]:
    sets: list[list[Any]] = [row.nonzero().flatten().tolist() for row in mask]
    return sets if names is None else [[names[c] for c in members] for members in sets]
