"""What labelled rows allow to be decided about others: conformal sets, intervals, abstention."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import singledispatchmethod
from typing import Any

import torch
from torch import Tensor

from gduq.conformal import (
    ClassConditional,
    ConformalIntervals,
    Intervals,
    PredictionSets,
    SplitConformal,
)
from gduq.errors import InputError
from gduq.ood import Abstention
from gduq.prediction import ClassPrediction, Prediction, ValuePrediction
from gduq.serve.settings import Settings

__all__ = ["REASONS", "Decisions", "too_few", "unlike"]

REASONS = ("unlike training data", "hypotheses disagree", "ambiguous")  # the first that applies
_ANSWER = len(REASONS)
_NAMED = 6  # classes in a sentence


class Decisions:
    """Conformal sets or intervals, and reasons to abstain, for any kind of prediction.

    A row is not answered where it is unlike the training data, where the hypotheses disagree, or
    where the answer is ambiguous: not sure enough for the wished coverage or accuracy. Several
    labels or values are decided one by one; a row is abstained from where all of them are.

    Args:
        settings: How to decide.
        known: Calibrated predictions of labelled rows the model was not trained on.

    Example:
        >>> from gduq.prediction import ValuePrediction
        >>> known = ValuePrediction(torch.zeros(1, 40, 2), target=torch.linspace(-2, 2, 40))
        >>> list(Decisions(Settings(), known).columns(known[:3]))
        ['conformal_low', 'conformal_high', 'abstain']
    """

    def __init__(self, settings: Settings, known: Prediction) -> None:
        known.require_target()
        self._rules = {name: _Rule(settings, part) for name, part in known.parts().items()}

    def columns(self, p: Prediction) -> dict[str, list[Any]]:
        """What is decided about each row; ``abstain`` holds the reason or ``None``."""
        parts = replace(p, target=None).parts()
        found: dict[str, list[Any]] = {}
        for name, rule in self._rules.items():
            held = rule.held(parts[name])
            found |= {f"{column}_{name}" if name else column: v for column, v in held.items()}
        reasons = {name: rule.reasons(parts[name]) for name, rule in self._rules.items()}
        if len(reasons) > 1:
            found |= {f"abstain_{name}": _in_words(r) for name, r in reasons.items()}
        every = torch.stack(list(reasons.values()))
        row = torch.where((every < _ANSWER).all(0), every.amin(0), _ANSWER)
        return found | {"abstain": _in_words(row)}


class _Rule:
    """What is decided about one thing: a class, a label or a value."""

    def __init__(self, settings: Settings, known: Prediction) -> None:
        self.settings, self.most_epistemic = settings, math.inf
        self.conformal = self._conformal(known).fit(known) if len(known) else None
        if settings.max_epistemic < 1 and known.num_samples > 1 and len(known):
            spread, share = known.epistemic.double(), settings.max_epistemic
            self.most_epistemic = float(spread.quantile(share, interpolation="higher"))
        rest = known[self._alarms(known) == _ANSWER]
        self.sure: Abstention | None = None  # without rows nobody knows how sure to be
        if settings.accuracy is not None and len(rest):
            self.sure = Abstention(accuracy=settings.accuracy).fit(rest)
        elif len(rest):
            wished = settings.coverage / (len(rest) / len(known))
            self.sure = Abstention(coverage=min(1.0, wished)).fit(rest)

    @singledispatchmethod
    def _conformal(self, known: Prediction) -> Any:
        raise NotImplementedError

    @_conformal.register
    def _(self, known: ClassPrediction) -> Any:
        kind = ClassConditional if self.settings.per_class else SplitConformal
        return kind(alpha=self.settings.alpha, shift_level=0)

    @_conformal.register
    def _(self, known: ValuePrediction) -> Any:
        if self.settings.per_class:
            raise InputError("a model of classes or labels with --per-class", "one of values")
        return ConformalIntervals(alpha=self.settings.alpha, shift_level=0)

    def held(self, p: Prediction) -> dict[str, list[Any]]:
        """Sets or intervals that hold the truth; all classes where nothing is known."""
        if self.conformal is None:
            return {"conformal_set": [[0, 1]] * len(p)}
        held: PredictionSets | Intervals = self.conformal(p)
        if isinstance(held, Intervals):
            return {"conformal_low": held.low.tolist(), "conformal_high": held.high.tolist()}
        return {"conformal_set": [row.nonzero().flatten().tolist() for row in held.mask]}

    def reasons(self, p: Prediction) -> Tensor:
        """Per row the number of the reason, or that of an answer ``[m]``."""
        found = self._alarms(p)
        kept = torch.zeros(len(p), dtype=torch.bool) if self.sure is None else self.sure(p).kept
        return torch.where(kept, found, found.clamp_max(REASONS.index("ambiguous")))

    def _alarms(self, p: Prediction) -> Tensor:
        found = torch.where(p.epistemic.double() > self.most_epistemic, 1, _ANSWER)
        return _mark_novel(self.settings, p, found)


def unlike(settings: Settings, p: Prediction) -> dict[str, list[Any]]:
    """What can be decided without labelled rows: which ones are unlike the training data."""
    answers = torch.full((len(p),), _ANSWER)
    return {} if p.novelty is None else {"abstain": _in_words(_mark_novel(settings, p, answers))}


def _mark_novel(settings: Settings, p: Prediction, found: Tensor) -> Tensor:
    return found if p.novelty is None else found.masked_fill(p.novelty > settings.max_novelty, 0)


def _in_words(reasons: Tensor) -> list[Any]:
    return [(*REASONS, None)[number] for number in reasons.tolist()]


def too_few(settings: Settings, known: Prediction) -> list[str]:
    """Which classes, or answers about labels, have too few labelled rows for sets of their own.

    Example:
        >>> known = ClassPrediction(
        ...     torch.zeros(30, 2), target=torch.tensor([0] * 27 + [1] * 3), names=("no", "yes")
        ... )
        >>> too_few(Settings(per_class=True, alpha=0.2), known)
        ['--per-class needs 4 rows of a class with --alpha 0.2, yes has 3: every set holds it.']
    """
    if not settings.per_class:
        return []
    least = math.ceil(1 / settings.alpha - 1 - 1e-9)
    rare = list[str]()
    for part in known.parts().values():
        names = part.names or [f"class {number}" for number in range(part.width)]
        counts = part.require_target().long().bincount(minlength=len(names)).tolist()
        rare += [
            f"{n} has {count}" for n, count in zip(names, counts, strict=True) if count < least
        ]
    if not rare:
        return []
    more = f" and {len(rare) - _NAMED} more are below it" if len(rare) > _NAMED else ""
    needed = f"--per-class needs {least} rows of a class with --alpha {settings.alpha:g}"
    return [f"{needed}, {', '.join(rare[:_NAMED])}{more}: every set holds it."]
