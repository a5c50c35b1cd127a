"""The scorecards: what was measured on each split, one line per subject."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from gduq.report import rare, seeds
from gduq.report.differences import change, clear
from gduq.report.split_names import main_split, splits_of
from gduq.report.subject import Subject
from gduq.text_tables import Cell, Table, number, share, text

__all__ = ["label_table", "scorecards", "told_of"]

_SIDE_BY_SIDE = 3  # subjects in the table of labels


@dataclass(frozen=True)
class Column:
    """A column of a scorecard.

    Args:
        measure: Its name in the evaluation.
        title: What stands above.
        style: A number, a share in percent, or a gap in points.
        better: Whether more or less is better, or nearer to 0; ``""`` if that cannot be said.
        unit: Whether it has the unit of the target.
    """

    measure: str
    title: str
    style: Literal["number", "share", "gap"] = "number"
    better: Literal["up", "down", "near", ""] = "down"
    unit: bool = False


_ANSWERS = (
    Column("accuracy", "Accuracy,\u00a0%", "share", "up"),
    Column("balanced_accuracy", "Balanced accuracy,\u00a0%", "share", "up"),
    Column("gap", "Gap,\u00a0points", "gap", "near"),
    Column("ece", "ECE"),
    Column("nll", "NLL"),
    Column("brier", "Brier score"),
)
_RANKED = (
    Column("roc_auc", "ROC-AUC", better="up"),
    Column("average_precision", "Average precision", better="up"),
)
_CARDS = {
    "classes": (*_ANSWERS, Column("aurc", "AURC")),
    "rare classes": (*_ANSWERS[:2], *_RANKED, *_ANSWERS[2:]),
    "labels": (*_RANKED, *_ANSWERS[:-1]),
    "values": (
        Column("rmse", "RMSE", unit=True),
        Column("coverage_90", "90\u00a0% intervals hold,\u00a0%", "share", ""),
        Column("gap", "Gap,\u00a0points", "gap", "near"),
        Column("width_90", "Their width", better="", unit=True),
        Column("nll", "NLL"),
        Column("crps", "CRPS"),
        Column("miscalibration_area", "Miscalibration area"),
    ),
}
_TOLD = {
    "roc_auc": "ROC-AUC",
    "average_precision": "Average precision",
    "balanced_accuracy": "Balanced accuracy,\u00a0%",
    "ece": "ECE",
}
_LEADS = {
    "classes": "The gap is mean confidence minus accuracy: above 0 a model is over-confident. "
    "Balanced accuracy is the mean over classes of the share that is found. Both accuracies should "
    "be high, everything else near 0.",
    "rare classes": "The gap is mean confidence minus accuracy: above 0 a model is over-confident. "
    "Balanced accuracy is the mean over classes of the share that is found. ROC-AUC says how well "
    "classes are ranked (0.5 is guessing), average precision how many of those ranked first are "
    "right (guessing gets the class's share of rows). These and the accuracies should be high, "
    "everything else near 0.",
    "labels": "Numbers are means over labels. The gap is mean confidence minus accuracy: above 0 a "
    "model is over-confident. ROC-AUC, average precision and accuracies should be high, "
    "everything else near 0.",
    "values": "The gap is 90 minus the share of the truth in the 90 % intervals: above 0 they are "
    "too narrow. Of two models with equal gaps the one with the smaller width says more. RMSE, "
    "NLL, CRPS and the area should be small.",
}
_FEW = "“–” instead of an interval: too few positives, or too few rows of a class, to resample."


def told_of(subjects: Sequence[Subject]) -> str:
    """What the numbers of a scorecard mean."""
    level = 100 * subjects[0].sampling["level"]
    over = " and seeds" if any(s.runs for s in subjects) else ""
    between = f"Below each number stands its {level:g} % interval, from resampling rows{over}"
    apart = "; ± is the standard deviation over training seeds" if over else ""
    return f"{between}{apart}. {_LEADS[_card_of(subjects)]}"


def _card_of(subjects: Sequence[Subject]) -> str:
    """Which scorecard: classes that are two, or one of which is rare, are ranked too."""
    first, split = subjects[0], main_split(subjects)
    if first.kind != "classes" or split is None:
        return first.kind
    classes = first.labelled(split).num_classes
    uneven = rare.common_share(first, split) >= rare.UNEVEN / classes
    return "rare classes" if classes == 2 or uneven else "classes"


def scorecards(subjects: Sequence[Subject]) -> list[Table]:
    """One table per split, and per value; one line per subject and each of its calibrators."""
    first, tables = subjects[0], []
    apart = first.names if first.kind == "values" else ("",)
    for split in splits_of(subjects):
        for i, name in enumerate(apart):
            shown = [s.parts[i] for s in subjects] if first.kind == "values" else list(subjects)
            table = _card(shown, split, name, _CARDS[_card_of(subjects)])
            if table is not None:
                tables.append(table)
    return tables


def _card(
    subjects: Sequence[Subject], split: str, name: str, columns: Sequence[Column]
) -> Table | None:
    rows = [row for s in subjects for row in _rows(s, subjects[0], split, columns)]
    if not rows:
        return None
    known = [p for s in subjects if (p := s.labelled(split)) is not None]
    counted = " or ".join(f"{size:,}" for size in sorted({len(p) for p in known}))
    title = f"{split}: {name} ({counted} rows)" if name else f"{split} ({counted} rows)"
    unit = next(filter(None, subjects[0].units), "")
    heads = [f"{c.title}, {unit}" if c.unit and unit else c.title for c in columns]
    few = _FEW if any(cell.detail == "–" for row in rows for cell in row) else ""
    note = " ".join(filter(None, (_note(subjects, split), few)))
    return Table(title, ("Model", *heads), tuple(rows), note)


def _note(subjects: Sequence[Subject], split: str) -> str:
    """What one answer for all rows would reach."""
    known = next((s for s in subjects if s.labelled(split) is not None), None)
    if known is None or known.kind == "values":
        return ""
    always = 100 * rare.common_share(known, split)
    if known.kind == "labels":
        return f"Always giving the more common answer is right {always:.1f} % of the time."
    name = rare.common_class(known, split)
    return f"Always answering “{name}”, the most common class, is right {always:.1f} % of the time."


def _rows(
    subject: Subject, first: Subject, split: str, columns: Sequence[Column]
) -> Iterator[tuple[Cell, ...]]:
    if subject.labelled(split) is None:
        return
    table = subject.result.table
    table = table[(table["kind"] == "metrics") & (table["split"] == split)]
    for calibrator in dict.fromkeys(table["calibrator"]):
        name = subject.name if calibrator == "none" else f"{subject.name} + {calibrator}"
        marks = _marks(first, subject, split, columns) if calibrator == "none" else {}
        yield (text(name), *(_cell(c, subject, split, calibrator, marks) for c in columns))


def _cell(
    column: Column, subject: Subject, split: str, calibrator: str, marks: dict[str, str]
) -> Cell:
    found = subject.value(split, column.measure, calibrator)
    runs = seeds.runs_of(subject) if subject.runs else ()
    apart = seeds.spread(run.value(split, column.measure, calibrator).value for run in runs)
    mark = marks.get(column.measure, "")
    if column.style == "number":
        return number(found, mark=mark, spread=apart)
    return share(found, mark, signed=column.style == "gap", spread=apart)


def _marks(
    first: Subject, subject: Subject, split: str, columns: Sequence[Column]
) -> dict[str, str]:
    """Where a subject is better or worse than the first one, beyond the interval."""
    if subject is first:
        return {}
    marks = {}
    for column in columns:
        name = "distance" if column.better == "near" else column.measure
        found = change(name, first, subject, split) if column.better else None
        if found is not None and clear(found):
            marks[column.measure] = (
                "better" if (found.value > 0) == (column.better == "up") else "worse"
            )
    if marks.get("balanced_accuracy") == "worse" and marks.get("accuracy") == "better":
        del marks["accuracy"]  # gained by leaving a class out: no praise for that
    return marks


def label_table(subjects: Sequence[Subject]) -> Table | None:
    """Every label of the main split, the worst ranked first: how rare it is, how well told."""
    first, split = subjects[0], main_split(subjects)
    if first.kind != "labels" or len(first.names) == 1 or split is None:
        return None
    shown = [s for s in subjects if s.labelled(split) is not None][:_SIDE_BY_SIDE]
    rows = []
    for i, name in enumerate(first.names):
        p = shown[0].parts[i].labelled(split)
        target = p.target if p is not None else None
        size = 0 if target is None else len(target)
        rate = float(target.double().mean()) if target is not None and size else math.nan
        cells = [text(name), Cell(f"{size:,}", float(size)), share(rate)]
        for s in shown:
            found = {m: s.parts[i].value(split, m) for m in _TOLD}
            cells += [share(v) if m == "balanced_accuracy" else number(v) for m, v in found.items()]
        rows.append(tuple(cells))
    rows.sort(key=lambda row: (math.isnan(row[3].value or 0.0), row[3].value))
    heads = [f"{n}: {s.name}" if len(shown) > 1 else n for s in shown for n in _TOLD.values()]
    note = (
        "Hold average precision against the share of yes: that is what guessing gets. Labels with "
        f"one answer only have no ROC-AUC. {_FEW}"
    )
    columns = ("Label", "Rows", "Yes,\u00a0%", *heads)
    return Table(f"Labels of {split}", columns, tuple(rows), note)
