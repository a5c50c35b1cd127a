"""`Subject`: one model of a report with its predictions on every split, and which splits count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import fmean
from typing import Any

from gduq.errors import InputError
from gduq.evaluation import Evaluation, evaluate
from gduq.graphs.splits import SPLIT_NAMES, Splits
from gduq.metrics import Interval
from gduq.prediction import Prediction
from gduq.report.comparing import UNKNOWN, mean_over_runs, seed_of

__all__ = ["Subject", "as_subjects", "home_split", "main_split", "pooled", "severities",
           "situation", "split_names"]  # fmt: skip

_KEYS = ["split", "measure", "calibrator", "variant"]


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
        splits: The data, for drawn molecules and subgroups.
        evaluation: What `gduq.evaluate` found; computed when missing.
        info: Versions and machine of the run; those of this process when missing.
        runs: The same model trained with several seeds, if it was; `gduq.report.subject.pooled`
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
        if not isinstance(self.predictions, Mapping) or not self.predictions:
            raise InputError("predictions by split name", f"{self.predictions!r:.60}")
        for split, p in self.predictions.items():
            if not isinstance(p, Prediction):
                raise InputError(f"a Prediction for {split!r}", type(p).__name__)
        if len(kinds := {p.kind for p in self.predictions.values()}) > 1:
            raise InputError("predictions of one kind", ", ".join(sorted(kinds)))
        for key, value in (self.cost or {}).items():
            if not value >= 0:
                raise InputError(f"a cost {key!r} of 0 or more", value)

    # -- numbers ---------------------------------------------------------------------------------

    @cached_property
    def result(self) -> Evaluation:
        """The evaluation given, or made now; of several runs their means."""
        if self.runs:
            return _mean_evaluation([run.result for run in self.runs])
        if self.evaluation is not None:
            return self.evaluation
        shifted = [n for n in self.predictions if n.startswith("ood") or _is_severity(n)]
        return evaluate(
            self.predictions, self.splits, ood=shifted, subgroups=self.splits is not None
        )

    @cached_property
    def _numbers(self) -> dict[tuple[str, ...], Interval]:
        """All numbers of the evaluation; looking each up in its table would take seconds."""
        table = self.result.table.drop_duplicates(_KEYS)[[*_KEYS, *Interval._fields]]
        return {row[:4]: Interval(*map(float, row[4:])) for row in table.itertuples(False, None)}

    def value(
        self, split: str, measure: str, calibrator: str = "none", variant: str = ""
    ) -> Interval:
        """A number of the evaluation, NaN where it was not measured.

        Where only the parts of a prediction have it (of several values), it is the mean over them,
        and its ends are means too, as if the errors of all values went together.
        """
        found = self._numbers.get((split, measure, calibrator, variant))
        if found is None and not variant and len(self.names) > 1:
            parts = [self._numbers.get((split, measure, calibrator, name)) for name in self.names]
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
        """Its runs: itself, if there is one only."""
        return self.runs or (self,)

    @property
    def first(self) -> Subject:
        """The run that pictures are of: itself, or the first of several, which its name says."""
        return self.each_run[0]

    # -- what it is about ------------------------------------------------------------------------

    @property
    def example(self) -> Prediction:
        """One of its predictions."""
        return next(iter(self.predictions.values()))

    @property
    def kind(self) -> str:
        """What its predictions are about: classes, labels or values."""
        return self.example.kind

    @cached_property
    def names(self) -> tuple[str, ...]:
        """What its labels or values are called; of classes, and of one alone, an empty name."""
        return tuple(self.example.parts())

    @cached_property
    def parts(self) -> tuple[Subject, ...]:
        """One subject per label, as a task of two classes, or per value; of classes itself."""
        columns = {split: p.parts() for split, p in self.predictions.items()}
        found = []
        for t, name in enumerate(self.names):
            part = {split: each[name] for split, each in columns.items()}
            known = {split: p for split, p in part.items() if len(p)} or part
            runs = tuple(run.parts[t] for run in self.runs)
            evaluation = _about(self.result, name)
            found.append(replace(self, predictions=known, evaluation=evaluation, runs=runs))
        return tuple(found)

    def labelled(self, split: str) -> Prediction | None:
        """The predictions on a split if their targets are known, else ``None``."""
        p = self.predictions.get(split)
        return None if p is None or p.target is None else p

    def class_name(self, label: int, split: str) -> str:
        """What a class is called."""
        names = self.predictions[split].names
        names = names or (self.splits.class_names if self.splits else ())
        return names[label] if label < len(names) else str(label)


def _mean_evaluation(runs: Sequence[Evaluation]) -> Evaluation:
    """Means over training runs that were judged on the same rows, see `mean_over_runs`."""
    first, level = runs[0], float(runs[0].settings.get("level", 0.95))
    tables = [run.table.drop_duplicates(_KEYS).set_index(_KEYS).sort_index() for run in runs]
    ends, means = list(Interval._fields), []
    for key in tables[0].index:
        known = [Interval(*map(float, t.loc[key, ends])) for t in tables if key in t.index]
        means.append(mean_over_runs(known, level, key[1]))
    table = tables[0].assign(**{name: [getattr(m, name) for m in means] for name in ends})
    return replace(first, table=table.reset_index()[first.table.columns])


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


def as_subjects(subjects: Subject | Iterable[Subject]) -> list[Subject]:
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


def pooled(subjects: Iterable[Subject]) -> Subject:
    """One subject from runs of one model that differ in their seed; a single one stays as it is.

    Example:
        >>> import torch
        >>> from gduq.prediction import ClassPrediction
        >>> p = ClassPrediction(torch.eye(2).repeat(20, 1), target=torch.tensor([0, 1] * 20))
        >>> runs = [Subject("mine", {"id_test": p}, config={"seed": i}) for i in range(3)]
        >>> both = pooled(runs)
        >>> both.name, both.first.name, both.value("id_test", "accuracy").value
        ('mine (3 seeds)', 'mine, seed 0', 1.0)
    """
    runs = list(subjects)
    if not runs:
        raise InputError("at least one run", "none")
    if len(runs) == 1:
        return runs[0]
    first, seeds = runs[0], [seed_of(run, i) for i, run in enumerate(runs)]
    costs = [run.cost or {} for run in runs]
    shared = [key for key in costs[0] if all(key in cost for cost in costs)]
    return replace(
        first,
        name=f"{first.name} ({len(runs)} seeds)",
        cost={key: fmean(cost[key] for cost in costs) for key in shared} or None,
        config=None if first.config is None else {**first.config, "seed": seeds},
        runs=tuple(replace(r, name=f"{r.name}, seed {seeds[i]}") for i, r in enumerate(runs)),
    )


# -- splits --------------------------------------------------------------------------------------


def _is_severity(split: str) -> bool:
    """Whether a name is a step of a growing shift, such as ``"rotation=10"``."""
    try:
        float(split.partition("=")[2])
    except ValueError:
        return False
    return True


def split_names(subjects: Sequence[Subject]) -> list[str]:
    """Splits of the report in reading order, without training data."""
    found = dict.fromkeys(s for subject in subjects for s in subject.predictions if s != "train")
    known = [s for s in SPLIT_NAMES if s in found]
    other = [s for s in found if s not in known and not _is_severity(s)]
    growing = [s.partition("=") for s in found if _is_severity(s)]
    severe = sorted(growing, key=lambda part: (part[0], float(part[2]), part[2]))
    return [*known, *other, *map("".join, severe)]


def severities(subjects: Sequence[Subject]) -> dict[str, list[str]]:
    """Severity splits by what grows, such as rotation."""
    kinds: dict[str, list[str]] = {}
    for split in filter(_is_severity, split_names(subjects)):
        kinds.setdefault(split.partition("=")[0], []).append(split)
    return kinds


def main_split(subjects: Sequence[Subject]) -> str | None:
    """The split the verdict is about: the shifted test data if there is any, with labels."""
    labelled = [s for s in split_names(subjects) if subjects[0].labelled(s) is not None]
    severe = [s for s in labelled if _is_severity(s)]
    wanted = ["ood_test", *severe[::-1][:1], "ood_val", "id_test", *labelled]
    return next((s for s in wanted if s in labelled), None)


def home_split(subject: Subject, split: str) -> str | None:
    """The labelled split of data like the training data, to compare a shifted one with."""
    return "id_test" if split != "id_test" and subject.labelled("id_test") is not None else None


def situation(subject: Subject, split: str) -> str:
    """How a sentence calls the situation of a split: ``Under size shift``."""
    if _is_severity(split):
        return f"At {split}"
    if not split.startswith("ood"):
        return "On data like its training data" if split.startswith("id") else f"On {split}"
    config = subject.config or {}
    named = config.get("data", config.get("dataset", ""))
    data = named.get("name", "") if isinstance(named, Mapping) else named
    data = subject.splits.name if subject.splits else data
    parts = [p for p in str(data).split("/")[1:] if p not in ("covariate", "concept")]
    return f"Under {parts[-1]} shift" if parts else "Under shift"
