"""`Subject`: one model of a report with its numbers, and which splits count."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import fmean
from typing import TYPE_CHECKING, Any

from gduq.errors import InputError
from gduq.evaluation import Evaluation, evaluate
from gduq.graphs.splits import SPLIT_NAMES, Splits
from gduq.metrics import Interval
from gduq.prediction import Prediction

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Subject", "as_subjects", "main_split", "situation", "split_names"]

UNKNOWN = Interval(math.nan, math.nan, math.nan)
KEYS = ["split", "measure", "calibrator", "variant"]


@dataclass(frozen=True, eq=False)
class Subject:
    """One model in a report.

    Args:
        name: What it is called; shown as it is.
        predictions: By split: ``id_val``, ``id_test``, ``ood_val``, ``ood_test``, steps of a
            growing shift such as ``"rotation=10"``, the mildest first, or any other name.
        cost: Such as ``train_seconds`` and ``predict_seconds``; shown as ratios to the first
            subject, so any unit will do.
        config: What it was made with; shown as JSON.
        splits: The data, for drawn molecules.
        evaluation: What `gduq.evaluate` found; computed when missing.
        info: Versions and machine of the run; those of this process when missing.
        runs: The same model trained with several seeds, if it was; `gduq.report.seeds.pooled`
            makes such a subject. Numbers are then means over the runs, pictures show the first.
        facts: What it was made from, for the first lines of the page: file, target, model.
        folder: Its run folder, for commands that the page names.

    Example:
        >>> import torch
        >>> from gduq.prediction import ClassPrediction
        >>> p = ClassPrediction(torch.eye(2).repeat(20, 1), target=torch.tensor([0, 1] * 20))
        >>> Subject("vanilla", {"id_test": p}).value("id_test", "accuracy").value
        1.0
    """

    name: str
    predictions: Mapping[str, Prediction]
    cost: Mapping[str, float] | None = None
    config: Mapping[str, Any] | None = None
    splits: Splits | None = field(default=None, repr=False)
    evaluation: Evaluation | None = field(default=None, repr=False)
    info: Mapping[str, Any] | None = None
    runs: tuple[Subject, ...] = field(default=(), repr=False)
    facts: Mapping[str, str] = field(default_factory=dict)
    folder: str = ""

    def __post_init__(self) -> None:
        given = self.predictions
        if not given or not all(isinstance(p, Prediction) for p in given.values()):
            raise InputError("predictions by split name", f"{given!r:.60}")
        if len(kinds := {p.kind for p in given.values()}) > 1:
            raise InputError("predictions of one kind", ", ".join(sorted(kinds)))
        for key, value in (self.cost or {}).items():
            if not value >= 0:
                raise InputError(f"a cost {key!r} of 0 or more", value)

    @cached_property
    def result(self) -> Evaluation:
        """The evaluation given, or made now."""
        if self.evaluation is not None:
            return self.evaluation
        shifted = [n for n in self.predictions if n.startswith("ood") or "=" in n]
        return evaluate(self.predictions, ood=shifted)

    def rows(self, kind: str) -> pd.DataFrame:
        """What the evaluation measured of one kind."""
        return self.result.table[self.result.table["kind"] == kind]

    @cached_property
    def numbers(self) -> dict[tuple[str, ...], Interval]:
        """All numbers of the evaluation; looking each up in its table would take seconds."""
        table = self.result.table.drop_duplicates(KEYS)[[*KEYS, *Interval._fields]]
        return {row[:4]: Interval(*map(float, row[4:])) for row in table.itertuples(False, None)}

    def value(
        self, split: str, measure: str, calibrator: str = "none", variant: str = ""
    ) -> Interval:
        """A number of the evaluation, NaN where it was not measured.

        Where only the parts of a prediction have it (of several values), it is the mean over them,
        and its ends are means too, as if the errors of all values went together.
        """
        found = self.numbers.get((split, measure, calibrator, variant))
        if found is None and not variant and len(self.names) > 1:
            parts = [self.numbers.get((split, measure, calibrator, name)) for name in self.names]
            known = [part for part in parts if part is not None]
            found = Interval(*map(fmean, zip(*known, strict=True))) if known else None
        return UNKNOWN if found is None else found

    @property
    def sampling(self) -> dict[str, Any]:
        """Bins, resamples, level and seed its evaluation was made with."""
        default = {"bins": 15, "resamples": 1000, "level": 0.95, "seed": 0}
        return {key: self.result.settings.get(key, value) for key, value in default.items()}

    @property
    def each_run(self) -> tuple[Subject, ...]:
        """Its runs: itself, if there is one only. Pictures are of the first."""
        return self.runs or (self,)

    @property
    def example(self) -> Prediction:
        """One of its predictions."""
        return next(iter(self.predictions.values()))

    @cached_property
    def parts(self) -> dict[str, dict[str, Prediction]]:
        """By split, every label (a task of two classes) or value by name; of classes themselves."""
        return {split: p.parts() for split, p in self.predictions.items()}

    @property
    def names(self) -> tuple[str, ...]:
        """What its labels or values are called; of classes, and of one alone, an empty name."""
        return tuple(next(iter(self.parts.values())))

    def labelled(self, split: str, part: str | None = None) -> Prediction | None:
        """The predictions on a split, or of one label or value there, if their truth is known."""
        p = self.predictions.get(split) if part is None else self.parts.get(split, {}).get(part)
        return None if p is None or p.target is None or not len(p) else p


def as_subjects(subjects: Subject | Iterable[Subject]) -> list[Subject]:
    """At least one subject, each with a name of its own."""
    given = [subjects] if isinstance(subjects, Subject) else list(subjects)
    if not given or not all(isinstance(subject, Subject) for subject in given):
        raise InputError("at least one gduq.report.Subject", f"{given!r:.60}")
    if len(kinds := {s.example.kind for s in given}) > 1:
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


# -- splits --------------------------------------------------------------------------------------


def split_names(subjects: Sequence[Subject]) -> list[str]:
    """Splits of the report in reading order, without training data."""
    found = dict.fromkeys(s for subject in subjects for s in subject.predictions if s != "train")
    return [*(s for s in SPLIT_NAMES if s in found), *(s for s in found if s not in SPLIT_NAMES)]


def main_split(subjects: Sequence[Subject], part: str | None = None) -> str | None:
    """The split the verdict is about: the shifted test data if there is any, with labels."""
    labelled = [s for s in split_names(subjects) if subjects[0].labelled(s, part) is not None]
    severe = [s for s in labelled if "=" in s]
    wanted = ["ood_test", *severe[-1:], "ood_val", "id_test", *labelled]
    return next((s for s in wanted if s in labelled), None)


def situation(subject: Subject, split: str) -> str:
    """How a sentence calls the situation of a split: ``Under size shift``."""
    if "=" in split:
        return f"At {split}"
    if not split.startswith("ood"):
        return "On data like its training data" if split.startswith("id") else f"On {split}"
    named = (subject.config or {}).get("data", "")
    data = named.get("name", "") if isinstance(named, Mapping) else named
    data = subject.splits.name if subject.splits else data
    parts = [p for p in str(data).split("/")[1:] if p not in ("covariate", "concept")]
    return f"Under {parts[-1]} shift" if parts else "Under shift"
