"""`Subject`: one model of a report, with all it said about every split."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from gduq.calibration import METHODS, Calibrator
from gduq.data.view import SPLIT_NAMES, Splits
from gduq.errors import InputError
from gduq.evaluation import Evaluation, evaluate
from gduq.evaluation.calibrated import make_calibrator
from gduq.metrics import Interval
from gduq.prediction import Hypotheses
from gduq.report.scores import pool, sampling

__all__ = ["Subject", "checked", "is_severity", "main_split", "shift_name", "splits_of"]


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
        whole: Of one label or value (see `parts`): the subject it is a part of, and its number.

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
    whole: tuple[Subject, int] | None = field(default=None, repr=False)

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
            return pool(found, sampling(self.result)["level"], measure)
        missing = Interval(math.nan, math.nan, math.nan)
        return self._numbers.get((split, measure, calibrator, variant), missing)

    @property
    def first(self) -> Subject:
        """The run that pictures are of: itself, or the first of several, which its name says."""
        return self.runs[0] if self.runs else self

    @cached_property
    def _refitted(self) -> dict[str, Calibrator | None]:
        return {}

    def calibrator(self, name: str) -> Calibrator | None:
        """A fitted calibrator of the evaluation; one read from a file is fitted again."""
        if name in self.result.calibrators:
            known: Calibrator = self.result.calibrators[name]
            return known
        if name not in self._refitted:
            p, kind = self.labelled(self.result.settings.get("fit_on", "id_val")), METHODS.get(name)
            if p is None or kind is None or kind.needs_graph or kind.needs_features:
                self._refitted[name] = None
            else:  # as the evaluation made it: absent classes stay as they are
                self._refitted[name] = make_calibrator(name).fit(p)
        return self._refitted[name]

    # -- what it is about ------------------------------------------------------------------------

    @property
    def kind(self) -> str:
        """What its predictions are about: classes, labels or values."""
        return str(next(iter(self.predictions.values())).kind)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """What its labels or values are called; of classes, and of one alone, an empty name."""
        p = next(iter(self.predictions.values()))
        number = {"labels": "num_labels", "values": "num_values"}.get(self.kind)
        many = getattr(p, number) if number else 1
        return tuple(p.names or map(str, range(many))) if many > 1 else ("",)

    @cached_property
    def parts(self) -> tuple[Subject, ...]:
        """One subject per label, as a task of two classes, or per value; of classes itself."""
        if self.kind == "classes" or (self.kind == "values" and self.names == ("",)):
            return (self,)
        return tuple(self._part(t, name) for t, name in enumerate(self.names))

    def _part(self, t: int, name: str) -> Subject:
        columns = {split: p.column(t) for split, p in self.predictions.items()}
        return replace(
            self,
            predictions={split: p for split, p in columns.items() if len(p)} or columns,
            evaluation=_about(self.result, name),
            runs=tuple(run.parts[t] for run in self.runs),
            whole=(self, t),
        )

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
    return _counted(_with_seeds(given))


def _with_seeds(subjects: list[Subject]) -> list[Subject]:
    """Equal names get the seed of their config, where there is one."""
    often = Counter(s.name for s in subjects)
    seeds = [(s.config or {}).get("seed") for s in subjects]
    return [
        replace(s, name=f"{s.name}, seed {seed}")
        if often[s.name] > 1 and isinstance(seed, int)
        else s
        for s, seed in zip(subjects, seeds, strict=True)
    ]


def _counted(subjects: list[Subject]) -> list[Subject]:
    """Names that are still equal are numbered."""
    taken: Counter[str] = Counter()
    found = []
    for subject in subjects:
        taken[subject.name] += 1
        number = taken[subject.name]
        name = f"{subject.name} ({number})"
        found.append(subject if number == 1 else replace(subject, name=name))
    return found


def is_severity(split: str) -> bool:
    """Whether a name is a step of a growing shift, such as ``"rotation=10"``.

    Example:
        >>> is_severity("rotation=10"), is_severity("ood_test"), is_severity("noise=high")
        (True, False, False)
    """
    try:
        float(split.partition("=")[2])
    except ValueError:
        return False
    return True


def splits_of(subjects: Sequence[Subject]) -> list[str]:
    """Splits of the report in reading order, without training data."""
    found = dict.fromkeys(s for subject in subjects for s in subject.predictions if s != "train")
    known = [s for s in SPLIT_NAMES if s in found]
    other = [s for s in found if s not in known and not is_severity(s)]
    return [*known, *other, *_by_severity(s for s in found if is_severity(s))]


def _by_severity(names: Iterable[str]) -> list[str]:
    parts = [(name.partition("=")[0], float(name.partition("=")[2]), name) for name in names]
    return [name for _, _, name in sorted(parts)]


def main_split(subjects: Sequence[Subject]) -> str | None:
    """The split the verdict is about: the shifted test data if there is any, with labels."""
    labelled = [s for s in splits_of(subjects) if subjects[0].labelled(s) is not None]
    severe = [s for s in labelled if is_severity(s)]
    wanted = ["ood_test", *severe[::-1][:1], "ood_val", "id_test", *labelled]
    return next((s for s in wanted if s in labelled), None)


def shift_name(subjects: Sequence[Subject], split: str) -> str:
    """How a sentence calls the situation of a split.

    Example:
        >>> import torch
        >>> from gduq.prediction import Prediction
        >>> p = Prediction(torch.eye(2))
        >>> subject = Subject("a", {"test": p}, config={"dataset": "tu/NCI1/size"})
        >>> shift_name([subject], "ood_test"), shift_name([subject], "rotation=10")
        ('Under size shift', 'At rotation=10')
    """
    if is_severity(split):
        return f"At {split}"
    if not split.startswith("ood"):
        return "On data like its training data" if split.startswith("id") else f"On {split}"
    config = subjects[0].config or {}
    named = config.get("data", config.get("dataset", ""))
    data = named.get("name", "") if isinstance(named, Mapping) else named
    data = subjects[0].splits.name if subjects[0].splits else data
    parts = [p for p in str(data).split("/")[1:] if p not in ("covariate", "concept")]
    return f"Under {parts[-1]} shift" if parts else "Under shift"
