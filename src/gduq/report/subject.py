"""`Subject`: one model of a report, with all it said about every split."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import fmean
from typing import Any

from gduq.data.splits import Splits
from gduq.errors import InputError
from gduq.evaluation import Evaluation, evaluate
from gduq.metrics import Interval
from gduq.prediction import Hypotheses
from gduq.report.seeds import pool
from gduq.report.split_names import is_severity

__all__ = ["Subject", "checked"]


@dataclass(frozen=True, eq=False)
class Subject:
    """One model in a report.

    Args:
        name: What it is called; shown as it is.
        predictions: By split: ``id_val``, ``id_test``, ``ood_val``, ``ood_test``, severities such
            as ``"rotation=10"``, or any other name.
        cost: Such as ``train_seconds`` and ``predict_seconds``; shown as ratios to the first
            subject, so any unit will do.
        config: What it was made with; shown as JSON.
        splits: The data, for drawn graphs and subgroups.
        evaluation: What `gduq.evaluate` found; computed when missing.
        info: Versions and machine of the run; those of this process when missing.
        runs: The same model trained with several seeds, if it was; `gduq.report.seeds.pooled` makes
            such a subject. Numbers are then means over the runs, pictures show the first.
        facts: What it was made from, for the first lines of the page: file, target, model.
        folder: Its run folder, for commands that the page names.

    Example:
        >>> import torch
        >>> from gduq.prediction import Prediction
        >>> p = Prediction(torch.eye(2).repeat(20, 1), target=torch.tensor([0, 1] * 20))
        >>> Subject("vanilla", {"id_test": p}).result.value("id_test", "accuracy").value
        1.0
    """

    name: str
    predictions: Mapping[str, Any]
    cost: Mapping[str, float] | None = None
    config: Mapping[str, Any] | None = None
    splits: Splits | None = field(default=None, repr=False)
    evaluation: Evaluation | None = field(default=None, repr=False)
    info: Mapping[str, Any] | None = None
    runs: tuple[Subject, ...] = field(default=(), repr=False)
    facts: Mapping[str, str] = field(default_factory=dict)
    folder: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.predictions, Mapping) or not self.predictions:
            raise InputError("predictions by split name", f"{self.predictions!r:.60}")
        for split, p in self.predictions.items():
            if not isinstance(p, Hypotheses):
                raise InputError(f"a Prediction for {split!r}", type(p).__name__)
        if len(kinds := {p.kind for p in self.predictions.values()}) > 1:
            raise InputError("predictions of one kind", ", ".join(sorted(kinds)))
        for key, value in (self.cost or {}).items():
            if not value >= 0:
                raise InputError(f"a cost {key!r} of 0 or more", value)

    @cached_property
    def result(self) -> Evaluation:
        """The evaluation given, or made now."""
        if self.evaluation is not None:
            return self.evaluation
        shifted = [n for n in self.predictions if n.startswith("ood") or is_severity(n)]
        return evaluate(
            self.predictions, self.splits, ood=shifted, subgroups=self.splits is not None
        )

    @cached_property
    def _numbers(self) -> dict[tuple[str, ...], Interval]:
        """All numbers of the evaluation; looking each up in its table would take seconds."""
        table = self.result.table
        keys = zip(*(table[k] for k in ("split", "measure", "calibrator", "variant")), strict=True)
        values = zip(table["value"], table["low"], table["high"], strict=True)
        found: dict[tuple[str, ...], Interval] = {}
        for key, value in zip(keys, values, strict=True):
            found.setdefault(key, Interval(*map(float, value)))
        return found

    def value(
        self, split: str, measure: str, calibrator: str = "none", variant: str = ""
    ) -> Interval:
        """A number of the evaluation, or its mean over runs; NaN where it was not measured."""
        if self.runs:
            found = [run.value(split, measure, calibrator, variant) for run in self.runs]
            return pool(found, self.sampling["level"], measure)
        missing = Interval(math.nan, math.nan, math.nan)
        return self._numbers.get((split, measure, calibrator, variant), missing)

    def number(self, measure: str, split: str, calibrator: str = "none") -> Interval:
        """The same about all it predicts: of several values the mean over values.

        Its ends are then means too, as if the errors of all values went together.
        """
        if self.kind != "values":
            return self.value(split, measure, calibrator)
        found = [part.value(split, measure, calibrator) for part in self.parts]
        return Interval(*(fmean(ends) for ends in zip(*found, strict=True)))

    @property
    def sampling(self) -> dict[str, Any]:
        """Bins, resamples, level and seed its evaluation was made with."""
        default = {"bins": 15, "resamples": 1000, "level": 0.95, "seed": 0}
        return {key: self.result.settings.get(key, value) for key, value in default.items()}

    @property
    def each_run(self) -> tuple[Subject, ...]:
        """Its runs: itself, if there is one only."""
        return self.runs or (self,)

    @property
    def first(self) -> Subject:
        """The run that pictures are of: itself, or the first of several, which its name says."""
        return self.each_run[0]

    # -- what it is about ------------------------------------------------------------------------

    @property
    def kind(self) -> str:
        """What its predictions are about: classes, labels or values."""
        return str(next(iter(self.predictions.values())).kind)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """What its labels or values are called; of classes, and of one alone, an empty name."""
        p = next(iter(self.predictions.values()))
        many = 1 if self.kind == "classes" else getattr(p, f"num_{self.kind}")
        return tuple(p.names or map(str, range(many))) if many > 1 else ("",)

    @property
    def units(self) -> tuple[str, ...]:
        """The units of its values; empty where none is known."""
        p = next(iter(self.predictions.values()))
        return tuple(p.units or ()) if self.kind == "values" else ()

    @cached_property
    def parts(self) -> tuple[Subject, ...]:
        """One subject per label, as a task of two classes, or per value; of classes itself."""
        if self.kind == "classes" or (self.kind == "values" and self.names == ("",)):
            return (self,)
        found = []
        for t, name in enumerate(self.names):
            columns = {split: p.column(t) for split, p in self.predictions.items()}
            known = {split: p for split, p in columns.items() if len(p)} or columns
            runs = tuple(run.parts[t] for run in self.runs)
            evaluation = _about(self.result, name)
            found.append(replace(self, predictions=known, evaluation=evaluation, runs=runs))
        return tuple(found)

    def labelled(self, split: str) -> Any:
        """The predictions on a split if their targets are known, else ``None``."""
        p = self.predictions.get(split)
        return None if p is None or p.target is None else p

    def class_name(self, label: int, split: str) -> str:
        """What a class is called."""
        p = self.predictions[split]
        names = p.class_names or (self.splits.class_names if self.splits else ())
        return names[label] if label < len(names) else str(label)


def _about(evaluation: Evaluation, name: str) -> Evaluation:
    """What an evaluation says about one label or value."""
    if not name:
        return evaluation
    table = evaluation.table
    own = (table["variant"] == name) | table["variant"].str.startswith(f"{name}: ")
    shared = (table["kind"] == "ood") & ~table["variant"].str.contains(": ", regex=False)
    part = table[own | shared].copy()
    part["variant"] = part["variant"].str.removeprefix(name).str.removeprefix(": ")
    return replace(evaluation, table=part)


def checked(subjects: Subject | Iterable[Subject]) -> list[Subject]:
    """At least one subject, each with a name of its own."""
    given = [subjects] if isinstance(subjects, Subject) else list(subjects)
    if not given:
        raise InputError("at least one subject", "none")
    for subject in given:
        if not isinstance(subject, Subject):
            raise InputError("gduq.report.Subject objects", type(subject).__name__)
    if len(kinds := {s.kind for s in given}) > 1:
        raise InputError("subjects that predict the same kind", ", ".join(sorted(kinds)))
    # two runs that differ in their seed only are called alike, and that is no mistake
    often, taken, found = Counter(s.name for s in given), Counter[str](), []
    for subject in given:
        name, seed = subject.name, (subject.config or {}).get("seed")
        name = f"{name}, seed {seed}" if often[name] > 1 and isinstance(seed, int) else name
        taken[name] += 1
        name = name if taken[name] == 1 else f"{name} ({taken[name]})"
        found.append(subject if name == subject.name else replace(subject, name=name))
    return found
