"""A model on a split: what depends on the kind, as numbers; words.j2 has the words."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np
from torch import Tensor

from gduq import metrics
from gduq.metrics import Interval
from gduq.metrics.rows import PROMISED
from gduq.report.seeds import change, is_clear
from gduq.report.subject import Subject

if TYPE_CHECKING:
    from jinja2 import Environment

__all__ = ["Mark", "ScoreColumn", "SplitResult", "compared", "in_words", "result_of", "templates"]

_MIN_ROWS, _MIN_POSITIVES = 30, 10  # fewer say nothing about a model
_WIDE = 0.5  # of the spread of the measured values: wider 90 % intervals say too little
_R2 = 0.1  # a model of values that explains less is of little use
_RECALL = 1 / 3  # who finds less of a class or label misses most of it
_UNEVEN = 1.5  # times its fair share of the rows make a class so common that others are rare
_FIRST = 30  # rows at the top of a ranking whose hits are counted
_SMALL = 0.02  # a gap of less is left alone

Mark = Literal["", "better", "worse"]


class ScoreColumn(NamedTuple):
    """A column of a scorecard; ``better`` says whether more or less is better, or nearer to 0."""

    measure: str
    title: str
    style: Literal["number", "share", "points"] = "number"
    better: Literal["up", "down", "near", ""] = "down"


COLUMNS = {column.measure: column for column in (
    ScoreColumn("accuracy", "Accuracy,\u00a0%", "share", "up"),
    ScoreColumn("balanced_accuracy", "Balanced accuracy,\u00a0%", "share", "up"),
    ScoreColumn("roc_auc", "ROC-AUC", better="up"),
    ScoreColumn("average_precision", "Average precision", better="up"),
    ScoreColumn("ece", "ECE"),
    ScoreColumn("rmse", "RMSE{unit}"),
    ScoreColumn("r2", "R²", better="up"),
    ScoreColumn("coverage_90", "90\u00a0% intervals hold,\u00a0%", "share", ""),
    ScoreColumn("width_90", "Their width{unit}", better=""),
    ScoreColumn("gap", "Gap,\u00a0points", "points", "near"),
    ScoreColumn("nll", "NLL"),
)}  # fmt: skip


class Recall(NamedTuple):
    """Which share of the rows of a class or label is found."""

    name: str
    share: float
    rows: int


class SplitResult(ABC):
    """A subject on a split, or one of its labels or values there: all rows, and single ones."""

    promise: tuple[float, float]  # what it promises and what it holds
    has_skill: bool  # more than one answer for all rows has
    too_few: str = ""  # what these rows are too few to show
    faults: Sequence[Any]  # why it is of little use, which low confidence does not excuse
    answers: ClassVar[str] = "label"  # of a prediction
    errors: Tensor  # how surely it is wrong [m]; 0 where it is right, or nothing is known

    def __init__(self, subject: Subject, split: str, part: str | None = None) -> None:
        self.subject, self.split, self.part = subject, split, part
        p = subject.predictions[split]
        self.p: Any = p if part is None else subject.parts[split][part]
        self.kind, self.gap = self.p.kind, self.value("gap")
        self.is_clear = is_clear(self.gap)
        self.is_off = self.is_clear and abs(self.gap.value) >= _SMALL
        self.is_ranked = self.value("roc_auc").low > 0.5  # clearly better than by chance
        if self.p.target is not None and len(self.p):
            self._judge()

    @abstractmethod
    def _judge(self) -> None:
        """Find what its kind says of labelled rows."""

    def value(self, measure: str, calibrator: str = "none") -> Interval:
        """A number of its evaluation here."""
        return self.subject.value(self.split, measure, calibrator, self.part or "")

    @property
    def columns(self) -> list[ScoreColumn]:
        """Of its scorecard: the measures its kind shows first, and the gap before the last."""
        *names, last = self.p.summary
        return [COLUMNS[name] for name in (*names, "gap", last)]

    @cached_property
    def parts(self) -> list[SplitResult]:
        """Every label or value that has rows with a truth here; one alone is itself."""
        if self.part is not None:
            return [self]
        known = (n for n in self.subject.names if self.subject.labelled(self.split, n))
        return [result_of(self.subject, self.split, name) for name in known]

    @abstractmethod
    def details(self) -> list[tuple[str, str, bool]]:
        """What the average hides: about what, in words, and whether that is bad."""

    @property
    def uncertainty(self) -> Tensor:
        """The first score of its kind ``[m]``; of several, in units of what is usual."""
        each = getattr(self.p, self.p.ood_scores[0]).reshape(len(self.p), -1)
        found: Tensor = (each / each.mean(dim=0).clamp_min(1e-12)).mean(dim=1)
        return found

    @abstractmethod
    def name(self, y: Any) -> str:
        """An answer or a truth ``[T]``, as far as it is known."""

    def certainty(self, row: int) -> str:
        """How sure it is of a row."""
        return f"{100 * self.p.confidence[row].mean():.0f} % sure"


class _Discrete(SplitResult):
    recalls: list[Recall]  # of each class or label

    def _judge(self) -> None:
        right = self.value("accuracy").value
        self.common_share = metrics.majority(self.p)  # of labels on average
        self.has_skill = self.common_share == 1 or right > self.common_share or self.is_ranked
        self.promise = right + self.gap.value, right
        self.faults = [recall for recall in self.recalls if recall.share < _RECALL]


class _Classes(_Discrete):
    def _judge(self) -> None:
        p, y = self.p, self.p.target
        hits = {c: p.correct[y == c].double() for c in y.unique().tolist()}
        found = [Recall(self.name([c]), float(h.mean()), len(h)) for c, h in hits.items()]
        self.recalls = sorted(found, key=lambda recall: recall.rows)
        super()._judge()
        self.errors = p.confidence * ~p.correct
        self.is_uneven = self.common_share >= _UNEVEN / len(found)  # others are rare
        rarest = self.recalls[0]
        if len(found) == 1:
            every = f"all of these rows are “{rarest.name}”"
            self.too_few = f"{every}, so they cannot show whether others are found"
            self.faults = []
        elif p.num_classes == 2 and rarest.rows < _MIN_POSITIVES:
            self.too_few = f"{rarest.rows} rows of “{rarest.name}” are too few to judge it"
        elif len(p) < _MIN_ROWS:
            self.too_few = f"{len(p)} rows are too few to judge it"

    @property
    def hits(self) -> tuple[int, int, str]:
        """How many of the rows ranked first are of the second class, of how many; its name."""
        first = self.p.probs[:, 1].topk(min(_FIRST, len(self.p))).indices
        return int((self.p.target[first] == 1).sum()), len(first), self.name([1])

    def details(self) -> list[tuple[str, str, bool]]:
        lost = min(recall.share for recall in self.recalls) < self.value("accuracy").value / 2
        return [("", in_words("classes_found", self), lost)] if self.is_uneven or lost else []

    def name(self, y: Any) -> str:
        known, label = self.subject.splits, int(y[0])
        names = self.p.names or (known.class_names if known else ())
        return str(names[label]) if label < len(names) else str(label)


class _Labels(_Discrete):
    def _judge(self) -> None:
        p, self.recalls = self.p, []
        yes, right = (a.reshape(len(p), -1) for a in (p.target == 1, p.label == (p.target == 1)))
        for t, name in enumerate(self.subject.names):
            hits = right[yes[:, t], t].double()
            self.recalls += [Recall(name, float(hits.mean()), len(hits))] if len(hits) else []
        super()._judge()
        missed = (p.label != (p.target == 1)) & p.known
        self.errors = (p.confidence * missed).reshape(len(p), -1).amax(dim=1)
        most = max((recall.rows for recall in self.recalls), default=0)
        if most < _MIN_POSITIVES:
            self.too_few = f"{most} positives are too few to judge it"

    def details(self) -> list[tuple[str, str, bool]]:
        found = [(one.part, one.value("roc_auc")) for one in self.parts]
        known = sorted((f for f in found if f[1].value >= 0), key=lambda f: f[1].value)
        weak = [(name, auc) for name, auc in known if auc.low <= 0.5]
        text = in_words("labels_by_chance", weak, len(known))
        return [("", text, len(weak) == len(known))] if weak and len(known) > 1 else []

    def name(self, y: Any) -> str:
        if len(y) == 1:
            return {1.0: "yes", 0.0: "no"}.get(float(y[0]), "unknown")
        named = list(zip(self.subject.names, y.tolist(), strict=True))
        gaps = [name for name, value in named if value not in (0, 1)]
        if len(gaps) == len(named):
            return "unknown"
        found = ", ".join(name for name, value in named if value == 1) or "none"
        return f"{found} (unknown: {', '.join(gaps)})" if gaps else found


class _Values(SplitResult):
    answers: ClassVar[str] = "mean"

    def _judge(self) -> None:
        p, y = self.p, self.p.target
        low, high = np.nanquantile(y.double().cpu().numpy(), (0.05, 0.95))
        self.spread = float(high - low)  # of the measured values
        self.wide = self.value("width_90").value / self.spread if self.spread else math.nan
        self.unit = f" {unit}" if (unit := next(filter(None, p.units or ()), "")) else ""
        self.promise = PROMISED, PROMISED - self.gap.value
        self.has_skill = not self.value("r2").value <= 0
        if len(p) < _MIN_ROWS:
            self.too_few = f"{len(p)} rows are too few to judge it"
        low, high = p.interval(PROMISED)
        deviations = ((y - p.mean).abs() / p.std).nan_to_num(0.0) * ((y < low) | (y > high))
        self.errors = deviations.reshape(len(p), -1).amax(dim=1)

    @cached_property
    def faults(self) -> Sequence[Any]:  # type: ignore[override]
        """Name, result and what is wrong with it: its R² or its width."""
        each = [one for one in self.parts if isinstance(one, _Values)]
        poor = [(one.part, one, "r2") for one in each if one.value("r2").value < _R2]
        return poor + [(one.part, one, "width") for one in each if one.wide > _WIDE]

    def details(self) -> list[tuple[str, str, bool]]:
        each = self.parts if len(self.parts) > 1 else []
        return [(one.part or "", in_words("result", one), one.is_clear and one.gap.value >= 0.05)
                for one in each]  # fmt: skip

    def name(self, y: Any) -> str:
        return self._named(["unknown" if math.isnan(v) else f"{v:.3g}" for v in y.tolist()])

    def _named(self, words: Sequence[str]) -> str:
        named = zip(self.subject.names, words, strict=True)  # one alone has an empty name
        return ", ".join(f"{name} {word}".strip() for name, word in named)

    def certainty(self, row: int) -> str:
        ends = zip(*(end.flatten().tolist() for end in self.p[row].interval(PROMISED)), strict=True)
        return f"90 % interval {self._named([f'{low:.3g} to {high:.3g}' for low, high in ends])}"


_RESULTS: dict[str, type[SplitResult]] = {
    "classes": _Classes, "labels": _Labels, "values": _Values,
}  # fmt: skip


def result_of(subject: Subject, split: str, part: str | None = None) -> SplitResult:
    """A subject on a split, or one of its labels or values there."""
    p = subject.predictions[split] if part is None else subject.parts[split][part]
    return _RESULTS[p.kind](subject, split, part)


def compared(
    first: Subject, other: SplitResult, columns: Sequence[ScoreColumn]
) -> dict[ScoreColumn, Mark] | None:
    """Where another subject is better or worse, beyond the interval of the paired difference;
    ``None`` if they were not judged on the same rows."""
    marks: dict[str, Mark] = {}
    several = other.part is None and len(first.names) > 1
    for measure, title, _, better in columns:
        if not better or (several and "{unit}" in title):
            continue
        name = "distance" if better == "near" else measure
        found = change(name, first, other.subject, other.split, other.part)
        if found is None:
            return None
        if is_clear(found):
            marks[measure] = "better" if (found.value > 0) == (better == "up") else "worse"
    if marks.get("balanced_accuracy") == "worse" and marks.get("accuracy") == "better":
        del marks["accuracy"]  # gained by leaving a class out: no praise for that
    return {COLUMNS[measure]: mark for measure, mark in marks.items()}


@cache
def templates() -> Environment:
    """The page, which escapes what it shows, and the sentences, which are plain text."""
    from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

    return Environment(
        loader=PackageLoader("gduq.report", ""), autoescape=select_autoescape(["html.j2"]),
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip


def in_words(macro: str, *about: object) -> str:
    """A sentence of words.j2."""
    found = getattr(templates().get_template("words.j2").module, macro)(*about)
    return " ".join(str(found).split())
