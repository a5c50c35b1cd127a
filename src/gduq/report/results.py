"""A model on a split: what depends on the kind, as numbers, and the tables made of them; words.j2
has the words."""

from __future__ import annotations

import math
import statistics
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cache, cached_property
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gduq import metrics
from gduq.metrics import Interval
from gduq.metrics.rows import PROMISED
from gduq.report.subject import Subject, change, is_clear, main_split, split_names

if TYPE_CHECKING:
    from jinja2 import Environment

__all__ = ["Mark", "ReportTable", "ScoreColumn", "SplitResult", "TableCell", "apart", "compared",
           "in_words", "label_table", "result_of", "scorecards", "templates"]  # fmt: skip

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


_OF_LABEL = [COLUMNS[n] for n in ("roc_auc", "average_precision", "balanced_accuracy", "ece")]
_FEW = "“–” instead of an interval: too few positives, or too few rows of a class, to resample."
_LABELS = f"Hold average precision against the share of yes, which is what guessing gets. {_FEW}"
_STYLES = {"number": (1.0, ".3f"), "share": (100.0, ".1f"), "points": (100.0, "+.1f")}


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

    def __init__(self, subject: Subject, split: str, part: str | None, p: Any) -> None:
        self.subject, self.split, self.part, self.p = subject, split, part, p
        self.kind, self.gap = self.p.kind, self.value("gap")
        self.is_clear = is_clear(self.gap)
        self.is_off = self.is_clear and abs(self.gap.value) >= _SMALL
        self.is_ranked = self.value("roc_auc").low > 0.5  # clearly better than by chance
        if len(self.p) < _MIN_ROWS:
            self.too_few = f"{len(self.p)} rows are too few to judge it"
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
        each: Tensor = getattr(self.p, self.p.ood_scores[0]).reshape(len(self.p), -1)
        return (each / each.mean(dim=0).clamp_min(1e-12)).mean(dim=1)

    @abstractmethod
    def name(self, y: Tensor) -> str:
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
        hits = [(c, p.correct[y == c].double()) for c in y.unique()]
        found = [Recall(self.name(c.view(1)), float(h.mean()), len(h)) for c, h in hits]
        self.recalls = sorted(found, key=lambda recall: recall.rows)
        super()._judge()
        self.errors = p.confidence * ~p.correct
        self.is_uneven = self.common_share >= _UNEVEN / len(found)  # others are rare
        rarest = self.recalls[0]
        if len(found) == 1:
            self.too_few, self.faults = f"all of these rows are “{rarest.name}”", []
        elif p.num_classes == 2 and rarest.rows < _MIN_POSITIVES:
            self.too_few = f"{rarest.rows} rows of “{rarest.name}” are too few to judge it"

    @property
    def hits(self) -> tuple[int, int, str]:
        """How many of the rows ranked first are of the second class, of how many; its name."""
        first = self.p.probs[:, 1].topk(min(_FIRST, len(self.p))).indices
        return int((self.p.target[first] == 1).sum()), len(first), self.name(torch.tensor([1]))

    def details(self) -> list[tuple[str, str, bool]]:
        lost = min(recall.share for recall in self.recalls) < self.value("accuracy").value / 2
        return [("", in_words("classes_found", self), lost)] if self.is_uneven or lost else []

    def name(self, y: Tensor) -> str:
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

    def name(self, y: Tensor) -> str:
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

    def name(self, y: Tensor) -> str:
        return self._named(["unknown" if math.isnan(v) else f"{v:.3g}" for v in y.tolist()])

    def _named(self, words: Sequence[str]) -> str:
        named = zip(self.subject.names, words, strict=True)  # one alone has an empty name
        return ", ".join(f"{name} {word}".strip() for name, word in named)

    def certainty(self, row: int) -> str:
        ends = zip(*(end.flatten().tolist() for end in self.p[row].interval(PROMISED)), strict=True)
        return f"90 % interval {self._named([f'{low:.3g} to {high:.3g}' for low, high in ends])}"


_RESULTS: Any = {"classes": _Classes, "labels": _Labels, "values": _Values}


def result_of(subject: Subject, split: str, part: str | None = None) -> SplitResult:
    """A subject on a split, or one of its labels or values there."""
    p = subject.predictions[split] if part is None else subject.parts[split][part]
    found: SplitResult = _RESULTS[p.kind](subject, split, part, p)
    return found


def compared(
    first: Subject, other: SplitResult, columns: Sequence[ScoreColumn]
) -> dict[ScoreColumn, Mark] | None:
    """Where another subject is better or worse, beyond the interval of the paired difference;
    ``None`` if they were not judged on the same rows."""
    marks: dict[ScoreColumn, Mark] = {}
    several = other.part is None and len(first.names) > 1
    for column in columns:
        if not column.better or (several and "{unit}" in column.title):
            continue
        name = "distance" if column.better == "near" else column.measure
        found = change(name, first, other.subject, other.split, other.part)
        if found is None:
            return None
        if is_clear(found):
            marks[column] = "better" if (found.value > 0) == (column.better == "up") else "worse"
    if [marks.get(COLUMNS[n]) for n in ("accuracy", "balanced_accuracy")] == ["better", "worse"]:
        del marks[COLUMNS["accuracy"]]  # gained by leaving a class out: no praise for that
    return marks


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


# -- tables --------------------------------------------------------------------------------------


class TableCell(NamedTuple):
    """What a table shows in one place, and the number it stands for."""

    text: str
    value: float = math.nan
    detail: str = ""  # its interval
    mark: Mark = ""


class ReportTable(NamedTuple):
    """A table with a caption; the first column names the rows, the others hold numbers."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[TableCell]]
    note: str = ""


def _cell(
    column: ScoreColumn, result: SplitResult, calibrator: str = "none", mark: Mark = ""
) -> TableCell:
    """A number with its interval and its deviation over runs."""
    value, *ends = result.value(column.measure, calibrator)
    if math.isnan(value):
        return TableCell("–")
    factor, digits = _STYLES[column.style]
    texts = [f"{factor * v:{digits}}" for v in (value, *ends)]
    shown, low, high = (t if t.strip("+-0.") else t.lstrip("+-") for t in texts)  # no minus of a 0
    key = (result.split, column.measure, calibrator, result.part or "")
    runs = [v for run in result.subject.runs if not math.isnan(v := run.value(*key).value)]
    if len(runs) > 1:
        shown += f" ± {factor * statistics.stdev(runs):{digits.lstrip('+')}}"
    detail = "–" if math.isnan(ends[0]) else f"{low} to {high}"  # too few rows give none
    return TableCell(shown.replace("-", "−"), value, detail.replace("-", "−"), mark)


def apart(subject: Subject) -> list[str | None]:
    """What is shown one by one: values, by name; everything else is shown as it is."""
    return [None] if subject.example.mean_of_parts else list(subject.names)


def scorecards(subjects: Sequence[Subject]) -> list[ReportTable]:
    """One table per split, and per value; one line per subject and each of its calibrators."""
    found, first = [], subjects[0]
    for split, part in product(split_names(subjects), apart(first)):
        shown = [result_of(s, split, part) for s in subjects if s.labelled(split, part) is not None]
        rows = list[tuple[TableCell, ...]]()
        for one in shown:
            table, name = one.subject.result.table, one.subject.name
            here = table[(table["kind"] == "metrics") & (table["split"] == split)]
            plain = {} if one.subject is first else compared(first, one, one.columns) or {}
            for calibrator in here["calibrator"].unique():
                marks, added = (plain, "") if calibrator == "none" else ({}, f" + {calibrator}")
                cells = [_cell(c, one, calibrator, marks.get(c, "")) for c in one.columns]
                rows.append((TableCell(name + added), *cells))
        if shown:
            few = _FEW if any(cell.detail == "–" for row in rows for cell in row) else ""
            sizes = " or ".join(f"{n:,}" for n in sorted({len(one.p) for one in shown}))
            title = f"{split}: {part} ({sizes} rows)" if part else f"{split} ({sizes} rows)"
            note = f"To compare: {in_words('baseline', shown[0])}. {few}".strip()
            unit = next(filter(None, getattr(shown[0].p, "units", None) or ()), "")
            heads = [c.title.format(unit=unit and f", {unit}") for c in shown[0].columns]
            found.append(ReportTable(title, ("Model", *heads), rows, note))
    return found


def label_table(subjects: Sequence[Subject]) -> ReportTable | None:
    """Every label of the first subject, the worst ranked first: how rare it is, how well ranked."""
    first, split, rows = subjects[0], main_split(subjects), []
    if split is None or len(first.names) == 1 or not first.example.mean_of_parts:
        return None
    for name in first.names:
        one = result_of(first, split, name)
        size, rate = len(one.p), float(one.p.require_target().double().mean())
        facts = TableCell(name), TableCell(f"{size:,}", size), TableCell(f"{100 * rate:.1f}", rate)
        rows.append((*facts, *(_cell(column, one) for column in _OF_LABEL)))
    rows.sort(key=lambda row: (math.isnan(row[3].value), row[3].value))
    columns = ("Label", "Rows", "Yes,\u00a0%", *(column.title for column in _OF_LABEL))
    return ReportTable(f"Labels of {split}: {first.name}", columns, rows, _LABELS)
