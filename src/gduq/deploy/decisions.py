"""What labelled rows allow to be decided about others: conformal sets, intervals, abstention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gduq.abstention import Abstention
from gduq.conformal import ClassConditional, ConformalIntervals, ConformalLabels, SplitConformal
from gduq.deploy.settings import Settings
from gduq.errors import InputError

__all__ = ["REASONS", "Decisions", "Settings", "too_few", "unlike"]

REASONS = ("unlike training data", "hypotheses disagree", "ambiguous")  # the first that applies
_ANSWER = len(REASONS)
_NAMED = 6  # classes in a sentence


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
        self._conformal = _conformal(settings, known.kind).fit(known)
        self._rules = [_Rule(settings, part) for part in _parts(known)]

    def columns(self, p: Any, class_names: Sequence[str] | None = None) -> dict[str, list[Any]]:
        """What is decided about each row; ``abstain`` holds the reason or ``None``."""
        p = replace(p, target=None)
        found, ends = self._held(p, class_names), _endings(p)
        reasons = torch.stack([r(part) for r, part in zip(self._rules, _parts(p), strict=True)])
        if len(ends) > 1:
            found |= {f"abstain{e}": _words(r) for e, r in zip(ends, reasons, strict=True)}
        whole = torch.where((reasons < _ANSWER).all(0), reasons.amin(0), _ANSWER)
        return found | {"abstain": _words(whole)}

    def _held(self, p: Any, class_names: Sequence[str] | None) -> dict[str, list[Any]]:
        """Sets or intervals that hold the truth."""
        held, ends = self._conformal(p), _endings(p)
        if p.kind == "classes":
            return {"conformal_set": _sets(held.mask, class_names)}
        if p.kind == "labels":
            return {f"conformal_set{e}": _sets(held.mask[:, t]) for t, e in enumerate(ends)}
        columns: dict[str, list[Any]] = {}
        for t, end in enumerate(ends):
            one = held.column(t)
            columns |= {f"conformal_low{end}": one.low.tolist()}
            columns |= {f"conformal_high{end}": one.high.tolist()}
        return columns


def _conformal(settings: Settings, kind: str) -> Any:
    """The sets or intervals for a kind of prediction, not yet fitted."""
    options: dict[str, Any] = {"alpha": settings.alpha, "shift_level": 0}
    if kind == "values":
        if settings.per_class:
            raise InputError("a model of classes or labels with --per-class", "one of values")
        return ConformalIntervals(**options)
    if kind == "labels":
        return ConformalLabels(
            method="class_conditional" if settings.per_class else "lac", **options
        )
    return (ClassConditional if settings.per_class else SplitConformal)(**options)


class _Rule:
    """Whether one label or value is answered; without ``sure``, nobody knows how sure to be."""

    def __init__(self, settings: Settings, known: Any) -> None:
        self.settings, self.most_epistemic = settings, math.inf
        if settings.max_epistemic < 1 and known.num_samples > 1 and len(known):
            spread, share = known.epistemic.double(), settings.max_epistemic
            self.most_epistemic = float(spread.quantile(share, interpolation="higher"))
        rest = known[self._alarms(known) == _ANSWER]
        self.sure: Abstention | None = None
        if settings.accuracy is not None and len(rest):
            self.sure = Abstention(accuracy=settings.accuracy).fit(rest)
        elif len(rest):
            wished = settings.coverage / (len(rest) / len(known))
            self.sure = Abstention(coverage=min(1.0, wished)).fit(rest)

    def __call__(self, p: Any) -> Tensor:
        """Per row the number of the reason, or that of an answer ``[m]``."""
        found = self._alarms(p)
        kept = torch.zeros(len(p), dtype=torch.bool) if self.sure is None else self.sure(p).kept
        return torch.where(kept, found, found.clamp_max(REASONS.index("ambiguous")))

    def _alarms(self, p: Any) -> Tensor:
        found = torch.where(p.epistemic.double() > self.most_epistemic, 1, _ANSWER)
        return _unlike(self.settings, p, found)


def unlike(settings: Settings, p: Any) -> dict[str, list[Any]]:
    """What can be decided without labelled rows: which ones are unlike the training data."""
    answers = torch.full((len(p),), _ANSWER)
    return {} if p.novelty is None else {"abstain": _words(_unlike(settings, p, answers))}


def _unlike(settings: Settings, p: Any, found: Tensor) -> Tensor:
    return found if p.novelty is None else found.masked_fill(p.novelty > settings.max_novelty, 0)


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
    rare = list[str]()
    for part, end in zip(_parts(known), _endings(known), strict=True):
        words = [f"no of {end[1:]}", f"yes of {end[1:]}"] if end else class_names
        for number, count in enumerate(part.target.long().bincount(minlength=2).tolist()):
            if count < least:
                rare.append(f"{words[number] if words else f'class {number}'} has {count}")
    if not rare:
        return []
    more = f" and {len(rare) - _NAMED} more are below it" if len(rare) > _NAMED else ""
    needed = f"--per-class needs {least} rows of a class with --alpha {settings.alpha:g}"
    return [f"{needed}, {', '.join(rare[:_NAMED])}{more}: every set holds it."]


def _endings(p: Any) -> list[str]:
    """What the names of columns end in, per label or value: as in ``p.to_pandas()``."""
    if p.kind == "classes" or (p.kind == "values" and p.num_values == 1):
        return [""]
    count = p.num_labels if p.kind == "labels" else p.num_values
    return [f"_{name}" for name in p.names or range(count)]


def _parts(p: Any) -> list[Any]:
    """Predictions about one thing each."""
    return [p] if p.kind == "classes" else [p.column(t) for t in range(len(_endings(p)))]


def _words(reasons: Tensor) -> list[Any]:
    return [(*REASONS, None)[number] for number in reasons.tolist()]


def _sets(mask: Tensor, names: Sequence[str] | None = None) -> list[list[Any]]:
    sets: list[list[Any]] = [row.nonzero().flatten().tolist() for row in mask]
    return sets if names is None else [[names[c] for c in members] for members in sets]
