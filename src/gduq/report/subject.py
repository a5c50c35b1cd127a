"""`Subject`: one model of a report, of one run or of several seeds; differences of two of them,
paired by seed and by row: what is hard for both cancels."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from itertools import product, zip_longest
from os import PathLike
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gduq import metrics
from gduq.errors import InputError
from gduq.evaluation import Evaluation, evaluate
from gduq.evaluation.evaluation import EvaluationSettings
from gduq.graphs.view import SPLIT_NAMES, Splits
from gduq.metrics import Interval
from gduq.metrics.resampling import interval, resampled
from gduq.metrics.rows import read
from gduq.prediction import Prediction
from gduq.runs.folder import RunFolder, all_views, data_of

__all__ = ["Subject", "as_subjects", "change", "difference", "is_clear", "main_split",
           "mean_over_runs", "pooled", "split_names", "subject_from_run",
           "subjects_from_runs"]  # fmt: skip

UNKNOWN = Interval(math.nan, math.nan, math.nan)
KEYS = ["split", "measure", "calibrator", "variant"]
_MOST = 6  # names of targets or classes that are listed
_SHARES = ("accuracy", "balanced_accuracy", "roc_auc", "average_precision", "ece", "ece100",
           "adaptive_ece", "classwise_ece", "aurc", "auroc", "fpr95", "coverage_90")  # fmt: skip


@dataclass(frozen=True, eq=False)
class Subject:
    """One model in a report.

    Args:
        name: What it is called; shown as it is.
        predictions: By split: ``id_val``, ``id_test``, ``ood_val``, ``ood_test``, steps of a
            growing shift such as ``"rotation=10"``, the mildest first, or any other name.
        config: What it was made with; shown as JSON.
        splits: The data, for drawn molecules.
        evaluation: What `gduq.evaluate` found; computed when missing.
        info: Versions and machine of the run.
        runs: The same model trained with several seeds; numbers are then means over the runs.
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
    config: Mapping[str, Any] | None = None
    splits: Splits | None = field(default=None, repr=False)
    evaluation: Evaluation | None = field(default=None, repr=False)
    info: Mapping[str, str] | None = None
    runs: tuple[Subject, ...] = field(default=(), repr=False)
    facts: Mapping[str, str] = field(default_factory=dict)
    folder: str = ""

    def __post_init__(self) -> None:
        given = self.predictions
        if not given or not all(isinstance(p, Prediction) for p in given.values()):
            raise InputError("predictions by split name", f"{given!r:.60}")
        if len(kinds := {p.kind for p in given.values()}) > 1:
            raise InputError("predictions of one kind", ", ".join(sorted(kinds)))

    @cached_property
    def result(self) -> Evaluation:
        """The evaluation given, or made now."""
        if self.evaluation is not None:
            return self.evaluation
        shifted = [n for n in self.predictions if n.startswith("ood") or "=" in n]
        return evaluate(self.predictions, ood=shifted)

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
            parts = (self.numbers.get((split, measure, calibrator, name)) for name in self.names)
            means = [fmean(ends) for ends in zip(*filter(None, parts), strict=True)]
            found = Interval(*means) if means else None
        return found or UNKNOWN

    @cached_property
    def settings(self) -> EvaluationSettings:
        """What its evaluation was made with."""
        return EvaluationSettings.model_validate(self.result.settings)

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
    names = [subject.name for subject in given]
    for i, name in enumerate(names):
        if again := names[:i].count(name):
            given[i] = replace(given[i], name=f"{name} ({again + 1})")
    return given


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


# -- runs and seeds -------------------------------------------------------------------------------


def subject_from_run(path: str | PathLike[str] | RunFolder) -> Subject:
    """The subject of a finished run (a run folder, as `gduq.runs.run.run` leaves it).

    Its data is read too, for drawn molecules; where it is gone the report does without.
    """
    folder = path if isinstance(path, RunFolder) else RunFolder(path)
    predictions, info, config = folder.predictions(), folder.info, folder.config
    # the network and the method: data and seed are mostly those of all subjects
    title = config.title.removeprefix(f"{config.data.name} ")
    name = title.removesuffix(f", seed {config.seed}")
    splits: Splits | None = None
    with suppress(InputError, OSError):  # raw files that moved must not cost us the report
        found = data_of(config).splits
        views = all_views(found)
        same = all(len(views[s]) == len(p) for s, p in predictions.items() if s in views)
        splits = found if same else None
    return Subject(
        name,
        predictions,
        config.model_dump(mode="json"),
        splits,
        folder.evaluation(),
        {**info["versions"], "machine": info["machine"] or "unknown"},
        facts=_facts(name, config.data.name, info),
        folder=str(folder.path),
    )


def _facts(name: str, data: str, info: Mapping[str, Any]) -> dict[str, str]:
    """Data, target, rows and model, in words."""

    def some(names: Sequence[str]) -> str:
        more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
        return ", ".join(names[:_MOST]) + more

    pairs = zip_longest(info["target_names"], info["units"][: len(info["target_names"])])
    rows = ", ".join(f"{count:,} {split}" for split, count in info["rows"].items())
    found = {
        "Data": data,
        "Target": some([f"{n} [{u}]" if u and f"[{u}]" not in n else n for n, u in pairs]),
        "Classes": some(info["class_names"]),
        "Rows": f"{info['description']} {rows}.".strip(),
        "Model": f"{name}: {info['model']}" if info["model"] else name,
    }
    return {key: value for key, value in found.items() if value}


def subjects_from_runs(
    paths: Iterable[str | PathLike[str] | RunFolder],
    notify: Callable[[str], None] = lambda _: None,
) -> list[Subject]:
    """Subjects of finished runs, in order; runs that differ in the seed only become one.

    ``notify`` is called with the name of each folder before it is read.
    """
    groups: dict[str, list[RunFolder]] = {}
    for path in paths:
        folder = path if isinstance(path, RunFolder) else RunFolder(path)
        groups.setdefault(folder.config.with_({"seed": 0}).hash, []).append(folder)
    found = []
    for group in groups.values():
        runs = []
        for folder in sorted(group, key=lambda run: run.config.seed):
            notify(folder.path.name)
            runs.append(subject_from_run(folder))
        found.append(pooled(runs))
    return found


def is_clear(found: Interval | None) -> bool:
    """Whether an interval leaves out 0."""
    return found is not None and (found.low > 0 or found.high < 0)


def mean_over_runs(found: Iterable[Interval], level: float = 0.95, measure: str = "") -> Interval:
    r"""The mean of a number over n training runs, judged on the same rows.

    Half-widths of the intervals over rows are averaged (averaging runs removes none of the noise of
    the rows); with :math:`t\,s/\sqrt n` of the runs' values they add as independent errors do, in
    squares. No interval leaves the range of its measure, where that has one.
    """
    known = [f for f in found if not math.isnan(f.value)]
    if len(known) < 2:
        return known[0] if known else UNKNOWN
    from scipy.stats import t

    every, size = np.array(known), len(known)
    mean, low, high = every.mean(axis=0).tolist()
    seeds = t.ppf((1 + level) / 2, size - 1) * every[:, 0].std(ddof=1) / math.sqrt(size)
    low, high = mean - math.hypot(mean - low, seeds), mean + math.hypot(high - mean, seeds)
    if measure not in ("", "gap"):
        low = max(low, min(0.0, *every[:, 1].tolist()))
    if measure in _SHARES:
        high = min(high, max(1.0, *every[:, 2].tolist()))
    return Interval(mean, low, high)


def pooled(subjects: Iterable[Subject]) -> Subject:
    """One subject from runs of one model that differ in their seed; a single one stays as it is."""
    runs = list(subjects)
    if len(runs) == 1:
        return runs[0]
    first, seeds = runs[0], [_seed(run) for run in runs]
    table, level = first.result.table.drop_duplicates(KEYS), first.settings.level
    means = [mean_over_runs([run.numbers[key] for run in runs if key in run.numbers], level, key[1])
             for key in first.numbers]  # fmt: skip
    ends = dict(zip(Interval._fields, zip(*means, strict=True), strict=True))
    return replace(
        first,
        name=f"{first.name} ({len(runs)} seeds)",
        config=None if first.config is None else {**first.config, "seed": seeds},
        evaluation=replace(first.result, table=table.reset_index(drop=True).assign(**ends)),
        runs=tuple(replace(r, name=f"{r.name}, seed {seeds[i]}") for i, r in enumerate(runs)),
    )


def _seed(run: Subject) -> object:
    return (run.config or {}).get("seed")


def _pairs(first: Subject, other: Subject) -> Sequence[tuple[Subject, Subject]]:
    """Runs of equal seeds; without such, one after the other, and a single run with all."""
    one, two = first.each_run, other.each_run
    if min(len(one), len(two)) == 1:
        return list(product(one, two))
    common = [(a, b) for a, b in product(one, two) if _seed(a) == _seed(b)]
    return common if len(common) > 1 else list(zip(one, two, strict=False))


def change(
    name: str, first: Subject, other: Subject, split: str, part: str | None = None
) -> Interval | None:
    """Other minus first on the same rows, paired by seed; ``None`` if the rows are not the same."""
    found = []
    for one, two in _pairs(first, other):
        p, q = one.labelled(split, part), two.labelled(split, part)
        differs = None if p is None or q is None else difference(name, p, q, first.settings)
        if differs is None:
            return None
        found.append(differs)
    return mean_over_runs(found, first.settings.level)


def difference(
    name: str, p: Prediction, other: Prediction, settings: EvaluationSettings
) -> Interval | None:
    """Other minus first on the same rows; ``None`` if they were not judged on the same rows.

    Measured are a metric, the ``"gap"``, or its size, the ``"distance"``. The interval also holds
    the plain percentiles of the resamples: where two subjects differ in a row or two, a resample
    without those rows shows no difference, and none is claimed.
    """
    first, second = (q.require_target().cpu().nan_to_num(-1.0) for q in (p, other))
    if first.shape != second.shape or not torch.allclose(first.double(), second.double()):
        return None
    sampling, level = (settings.bins, settings.resamples, settings.seed), settings.level
    one, two = (_draws(name, q, *sampling) for q in (p, other))
    value, draws = float(two[0] - one[0]), two[1:] - one[1:]
    _, low, high = interval(value, draws, level)
    if math.isnan(low):
        return UNKNOWN
    ends = draws.nanquantile(draws.new_tensor([(1 - level) / 2, (1 + level) / 2])).tolist()
    return Interval(value, min(low, ends[0]), max(high, ends[1]))


@lru_cache(maxsize=256)  # the first subject is met in the verdict and in every scorecard
def _draws(name: str, p: Prediction, bins: int, resamples: int, seed: int) -> Tensor:
    """A measure ``[1 + R]``: of all rows, and in each resample; of several values their mean."""
    if name == "distance":
        return _draws("gap", p, bins, resamples, seed).abs()
    metric = partial(metrics.ece, bins=bins) if name == "ece" else getattr(metrics, name)
    parts = [p] if p.mean_of_parts else p.parts().values()
    found = [resampled({name: metric}, q, read(q), resamples, seed)[name] for q in parts]
    return torch.stack(found).mean(dim=0)
