"""What labelled rows allow to be decided about others: conformal sets, intervals, abstention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gduq.abstention import Abstention
from gduq.conformal import ClassConditional, ConformalIntervals, ConformalLabels, SplitConformal
from gduq.errors import InputError
from gduq.novelty import SCORES

__all__ = ["NEEDS_FEATURES", "REASONS", "Decisions", "Settings", "endings", "too_few", "unlike"]

REASONS = ("unlike training data", "hypotheses disagree", "ambiguous")  # the first that applies
NEEDS_FEATURES = ("mahalanobis", "knn")  # scores of representations
_NAMED = 6  # classes in a sentence


@dataclass(frozen=True)
class Settings:
    """How predictions become decisions.

    Attributes:
        alpha: Accepted share of misses of conformal sets and intervals.
        coverage: Share of rows like the reference that should be answered, all reasons to abstain
            taken together; or
        accuracy: the accuracy that answers should have; then ``coverage`` is not used.
        ood_score: A name of `gduq.novelty.SCORES`, ``"mahalanobis"`` or ``"knn"``. ``None``:
            ``"novelty"`` where the model knows its training data, else ``"energy"`` for classes,
            ``"entropy"`` for labels, ``"std"`` for values.
        per_class: Whether sets hold every class, and yes and no of every label, as often as that:
            over all rows, sets may miss a rare class altogether. It makes no difference to values.
        max_novelty: A row with a larger novelty is unlike the training data; 1 for no limit.
        max_epistemic: Where the epistemic uncertainty is above this quantile of the reference,
            the hypotheses disagree; 1 for no limit.
    """

    alpha: float = 0.1
    coverage: float = 0.9
    accuracy: float | None = None
    ood_score: str | None = None
    per_class: bool = False
    max_novelty: float = 0.99
    max_epistemic: float = 0.99

    def __post_init__(self) -> None:
        if not 0 < self.alpha < 1:
            raise InputError("alpha between 0 and 1", self.alpha)
        for name, share in (("coverage", self.coverage), ("accuracy", self.accuracy)):
            if share is not None and not 0 < share <= 1:
                raise InputError(f"{name} above 0 and at most 1", share)
        for name in ("max_novelty", "max_epistemic"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"{name} from 0 to 1", getattr(self, name))
        if self.ood_score not in (None, *SCORES, *NEEDS_FEATURES):
            names = ", ".join([*SCORES, *NEEDS_FEATURES])
            raise InputError(f"an OOD score from {names}", repr(self.ood_score))

    def conformal(self, kind: str) -> Any:
        """The sets or intervals for a kind of prediction, not yet fitted."""
        options: dict[str, Any] = {"alpha": self.alpha, "shift_level": 0}
        if kind == "values":
            if self.per_class:
                raise InputError("a model of classes or labels with --per-class", "one of values")
            return ConformalIntervals(**options)
        if kind == "labels":
            return ConformalLabels(
                method="class_conditional" if self.per_class else "lac", **options
            )
        return (ClassConditional if self.per_class else SplitConformal)(**options)

    def abstention(self, share: float = 1.0) -> Abstention:
        """The rule for answering a share of all rows, not yet fitted."""
        if self.accuracy is not None:
            return Abstention(accuracy=self.accuracy)
        return Abstention(coverage=min(1.0, self.coverage / share))


class Decisions:
    """Conformal sets or intervals, and reasons to abstain, for any kind of prediction.

    A row is not answered where it is unlike the training data, where the hypotheses disagree, or
    where the answer is ambiguous: not sure enough for the wished coverage or accuracy. Several
    labels or values are decided one by one; a row is abstained from as a whole where all of them
    are.

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
        self._conformal = settings.conformal(known.kind).fit(known)
        self._rules = [_Rule.fitted(settings, part) for part in _parts(known)]

    def columns(self, p: Any, class_names: Sequence[str] | None = None) -> dict[str, list[Any]]:
        """What is decided about each row; ``abstain`` holds the reason, ``None`` where there is
        none."""
        found = self._held(p, class_names)
        ends, parts = endings(p), _parts(replace(p, target=None))
        reasons = torch.stack([r(part) for r, part in zip(self._rules, parts, strict=True)])
        if len(ends) > 1:
            found |= {f"abstain{e}": _words(r) for e, r in zip(ends, reasons, strict=True)}
        whole = torch.where((reasons < _ANSWER).all(0), reasons.amin(0), _ANSWER)
        return found | {"abstain": _words(whole)}

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


def too_few(settings: Settings, known: Any, class_names: Sequence[str] | None) -> list[str]:
    """Which classes, or answers about labels, have too few labelled rows for sets of their own.

    Example:
        >>> from gduq.prediction import Prediction
        >>> known = Prediction(torch.zeros(30, 2), target=torch.tensor([0] * 27 + [1] * 3))
        >>> too_few(Settings(per_class=True, alpha=0.2), known, ["no", "yes"])
        ['--per-class needs 4 rows of a class with --alpha 0.2, yes has 3: every set holds it.']
    """
    if not settings.per_class:
        return []
    least = math.ceil(1 / settings.alpha - 1 - 1e-9)
    names, rare = class_names or (), list[str]()
    for part, end in zip(_parts(known), endings(known), strict=True):
        words = [f"{answer} of {end[1:]}" for answer in ("no", "yes")] if end else names
        for number, count in enumerate(part.target.long().bincount(minlength=2).tolist()):
            if count < least:
                rare.append(f"{words[number] if words else f'class {number}'} has {count}")
    if not rare:
        return []
    more = f" and {len(rare) - _NAMED} more are below it" if len(rare) > _NAMED else ""
    needed = f"--per-class needs {least} rows of a class with --alpha {settings.alpha:g}"
    return [f"{needed}, {', '.join(rare[:_NAMED])}{more}: every set holds it."]


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


_ANSWER = len(REASONS)


@dataclass(frozen=True, eq=False)
class _Rule:
    """Whether one label or value is answered; without ``sure``, nobody knows how sure to be."""

    settings: Settings
    most_epistemic: float
    sure: Abstention | None

    @classmethod
    def fitted(cls, settings: Settings, known: Any) -> _Rule:
        """Limits of the reference rows; the last one is fitted on those the others answer."""
        most = _quantile(known, settings.max_epistemic)
        if not len(known):
            return cls(settings, most, None)
        rest = known[cls(settings, most, None)._alarms(known) == _ANSWER]
        if not len(rest):
            return cls(settings, most, None)
        share = len(rest) / len(known)
        return cls(settings, most, settings.abstention(share).fit(rest))

    def __call__(self, p: Any) -> Tensor:
        """Per row the number of the reason, or that of an answer ``[m]``."""
        found = self._alarms(p)
        kept = torch.zeros(len(p), dtype=torch.bool) if self.sure is None else self.sure(p).kept
        return torch.where(kept, found, found.clamp_max(REASONS.index("ambiguous")))

    def _alarms(self, p: Any) -> Tensor:
        found = torch.where(p.epistemic.double() > self.most_epistemic, 1, _ANSWER)
        return torch.where(_novel(self.settings, p), 0, found)


def unlike(settings: Settings, p: Any) -> dict[str, list[Any]]:
    """What can be decided without labelled rows: which ones are unlike the training data."""
    if p.novelty is None:
        return {}
    return {"abstain": _words(torch.where(_novel(settings, p), 0, _ANSWER))}


def _novel(settings: Settings, p: Any) -> Tensor:
    if p.novelty is None:
        return torch.zeros(len(p), dtype=torch.bool)
    found: Tensor = p.novelty > settings.max_novelty
    return found


def _quantile(known: Any, share: float) -> float:
    if share == 1 or known.num_samples == 1 or not len(known):
        return math.inf
    return float(known.epistemic.double().quantile(share, interpolation="higher"))


def _words(reasons: Tensor) -> list[Any]:
    return [(*REASONS, None)[number] for number in reasons.tolist()]


def _sets(mask: Tensor, names: Sequence[str] | None = None) -> list[list[Any]]:
    sets: list[list[Any]] = [row.nonzero().flatten().tolist() for row in mask]
    return sets if names is None else [[names[c] for c in members] for members in sets]
