"""`Subject`: one model of a report with its numbers, which splits count, and paired differences.

Two subjects are resampled alike, so a difference is paired: what is hard for both cancels.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import product
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from gduq import metrics
from gduq.errors import InputError
from gduq.evaluation import Evaluation, evaluate
from gduq.graphs.splits import SPLIT_NAMES, Splits
from gduq.metrics import Interval
from gduq.metrics.resampling import interval, resample_counts, resampled
from gduq.metrics.rows import read
from gduq.prediction import Prediction, ValuePrediction

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Subject", "as_subjects", "change", "difference", "is_clear", "main_split",
           "mean_over_runs", "pooled", "severities", "situation", "split_names"]  # fmt: skip

UNKNOWN = Interval(math.nan, math.nan, math.nan)
_KEYS = ["split", "measure", "calibrator", "variant"]
_SHARES = ("accuracy", "balanced_accuracy", "roc_auc", "average_precision", "ece", "ece100",
           "adaptive_ece", "classwise_ece", "aurc", "auroc", "fpr95", "coverage_90")  # fmt: skip
# A subject is met in the verdict and in every scorecard; it is resampled once.
_DRAWS: WeakKeyDictionary[Prediction, dict[tuple[object, ...], Tensor]] = WeakKeyDictionary()


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
        given = self.predictions
        if not given or not all(isinstance(p, Prediction) for p in given.values()):
            raise InputError("predictions by split name", f"{given!r:.60}")
        if len(kinds := {p.kind for p in given.values()}) > 1:
            raise InputError("predictions of one kind", ", ".join(sorted(kinds)))
        for key, value in (self.cost or {}).items():
            if not value >= 0:
                raise InputError(f"a cost {key!r} of 0 or more", value)

    # -- numbers ---------------------------------------------------------------------------------

    @cached_property
    def result(self) -> Evaluation:
        """The evaluation given, or made now; of several runs their means."""
        if not self.runs and self.evaluation is not None:
            return self.evaluation
        if not self.runs:
            shifted = [n for n in self.predictions if n.startswith("ood") or _is_severity(n)]
            groups = self.splits is not None
            return evaluate(self.predictions, self.splits, ood=shifted, subgroups=groups)
        first = self.runs[0].result
        level, table = first.settings.get("level", 0.95), first.table.drop_duplicates(_KEYS)
        means = [mean_over_runs([run.numbers[key] for run in self.runs if key in run.numbers],
                                level, key[1]) for key in self.runs[0].numbers]  # fmt: skip
        ends = dict(zip(Interval._fields, zip(*means, strict=True), strict=True))
        return replace(first, table=table.reset_index(drop=True).assign(**ends))

    def rows(self, kind: str, split: str | None = None) -> pd.DataFrame:
        """What the evaluation measured of one kind, on one split or all."""
        table = self.result.table
        return table[(table["kind"] == kind) & (table["split"].eq(split) | (split is None))]

    @cached_property
    def numbers(self) -> dict[tuple[str, ...], Interval]:
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
    if strange := {type(s).__name__ for s in given if not isinstance(s, Subject)}:
        raise InputError("gduq.report.Subject objects", ", ".join(sorted(strange)))
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
    if len(runs) == 1:
        return runs[0]
    first, seeds = runs[0], list(_by_seed(runs))
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


def severities(subjects: Sequence[Subject]) -> dict[str, dict[float, str]]:
    """Severity splits by what grows, such as rotation, and how far."""
    found: dict[str, dict[float, str]] = {}
    for split in filter(_is_severity, split_names(subjects)):
        scale, _, level = split.partition("=")
        found.setdefault(scale, {})[float(level)] = split
    return found


def main_split(subjects: Sequence[Subject]) -> str | None:
    """The split the verdict is about: the shifted test data if there is any, with labels."""
    labelled = [s for s in split_names(subjects) if subjects[0].labelled(s) is not None]
    severe = [s for s in labelled if _is_severity(s)]
    wanted = ["ood_test", *severe[::-1][:1], "ood_val", "id_test", *labelled]
    return next((s for s in wanted if s in labelled), None)


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


# -- several runs, and differences ---------------------------------------------------------------


def is_clear(found: Interval | None) -> bool:
    """Whether an interval leaves out 0."""
    return found is not None and (found.low > 0 or found.high < 0)


def mean_over_runs(found: Iterable[Interval], level: float = 0.95, measure: str = "") -> Interval:
    r"""The mean of a number over n training runs, judged on the same rows.

    Two things make it uncertain: which rows there were, and which seeds. Half-widths of the
    intervals over rows are averaged (the rows are the same in all runs, so averaging runs removes
    none of their noise); with :math:`t\,s/\sqrt n` of the runs' values they add as independent
    errors do, in squares. No interval leaves the range of its measure, where that has one.

    Example:
        >>> mean_over_runs([Interval(0.2, 0.1, 0.3), Interval(0.2, 0.1, 0.3)])
        Interval(value=0.2, low=0.1, high=0.3)
    """
    known = [f for f in found if not math.isnan(f.value)]
    if len(known) < 2:
        return known[0] if known else UNKNOWN
    from scipy.stats import t

    numbers, size = [f.value for f in known], len(known)
    mean = fmean(numbers)
    seeds = t.ppf((1 + level) / 2, size - 1) * stdev(numbers) / math.sqrt(size)
    low = mean - math.hypot(fmean(f.value - f.low for f in known), seeds)
    high = mean + math.hypot(fmean(f.high - f.value for f in known), seeds)
    if measure not in ("", "gap"):
        low = max(low, min(0.0, *(f.low for f in known)))
    if measure in _SHARES:
        high = min(high, max(1.0, *(f.high for f in known)))
    return Interval(mean, low, high)


def _pairs(first: Subject, other: Subject) -> Sequence[tuple[Subject, Subject]]:
    """Runs of equal seeds; without such, one after the other, and a single run with all."""
    one, two = first.each_run, other.each_run
    if min(len(one), len(two)) == 1:
        return list(product(one, two))
    mine, theirs = _by_seed(one), _by_seed(two)
    common = [(mine[seed], theirs[seed]) for seed in theirs if seed in mine]
    return common if len(common) > 1 else list(zip(one, two, strict=False))


def _by_seed(runs: Sequence[Subject]) -> dict[Any, Subject]:
    return {(run.config or {}).get("seed", i): run for i, run in enumerate(runs)}


def change(name: str, first: Subject, other: Subject, split: str) -> Interval | None:
    """Other minus first on the same rows, paired by seed; ``None`` if the rows are not the same."""
    options, found = first.sampling, []
    for one, two in _pairs(first, other):
        p, q = one.labelled(split), two.labelled(split)
        differs = None if p is None or q is None else difference(name, p, q, **options)
        if differs is None:
            return None
        found.append(differs)
    return mean_over_runs(found, options["level"])


def difference(
    name: str, p: Prediction, other: Prediction, *, bins: int, resamples: int, level: float,
    seed: int,
) -> Interval | None:  # fmt: skip
    """Other minus first on the same rows; ``None`` if they were not judged on the same rows.

    Measured are a metric, the ``"gap"``, or its size, the ``"distance"``. The interval also holds
    the plain percentiles of the resamples: where two subjects differ in a row or two, a resample
    without those rows shows no difference, and none is claimed.
    """
    first, second = (q.require_target().cpu().nan_to_num(-1.0) for q in (p, other))
    if first.shape != second.shape or not torch.allclose(first.double(), second.double()):
        return None
    once = torch.ones(1, len(p), dtype=torch.float64)
    value = float(_measured(name, other, once, bins) - _measured(name, p, once, bins))
    draws = _draws(name, other, bins, resamples, seed) - _draws(name, p, bins, resamples, seed)
    draws = draws[~draws.isnan()]
    if math.isnan(value) or not draws.numel():
        return UNKNOWN
    _, low, high = interval(value, draws, level)
    ends = torch.quantile(draws, draws.new_tensor([(1 - level) / 2, (1 + level) / 2])).tolist()
    return Interval(value, min(low, ends[0]), max(high, ends[1]))


def _draws(name: str, p: Prediction, bins: int, resamples: int, seed: int) -> Tensor:
    kept, key = _DRAWS.setdefault(p, {}), (name, bins, resamples, seed)
    if key not in kept:
        counts = resample_counts(len(p), resamples, seed)
        kept[key] = torch.cat([_measured(name, p, block, bins) for block in counts])
    return kept[key]


def _measured(name: str, p: Prediction, counts: Tensor, bins: int) -> Tensor:
    """A measure in each resample ``[R]``; of several values their mean."""
    if name == "distance":
        return _measured("gap", p, counts, bins).abs()
    metric: Any = partial(metrics.ece, bins=bins) if name == "ece" else getattr(metrics, name, None)
    columns = p.parts().values() if isinstance(p, ValuePrediction) else [p]
    found = [resampled(metric, read(q).weighted(counts)) for q in columns]
    return torch.stack(found).mean(dim=0).cpu()
