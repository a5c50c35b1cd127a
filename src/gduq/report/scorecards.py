"""The scorecards: what was measured on each split, one line per subject."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from gduq.report import seeds, wording
from gduq.report.differences import change, clear
from gduq.report.split_names import main_split, splits_of
from gduq.report.subject import Subject
from gduq.text_tables import Cell, Table, number, share, text

__all__ = ["apart", "label_table", "lead", "scorecards"]

_SIDE_BY_SIDE = 3  # subjects in the table of labels


class Column(NamedTuple):
    """A column of a scorecard.

    ``better`` says whether more or less is better, or nearer to 0; nothing if that cannot be said.
    """

    measure: str
    title: str
    style: Literal["number", "unit", "share", "gap"] = "number"
    better: Literal["up", "down", "near", ""] = "down"


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
        Column("rmse", "RMSE", "unit"),
        Column("coverage_90", "90\u00a0% intervals hold,\u00a0%", "share", ""),
        Column("gap", "Gap,\u00a0points", "gap", "near"),
        Column("width_90", "Their width", "unit", ""),
        Column("nll", "NLL"),
        Column("crps", "CRPS"),
        Column("miscalibration_area", "Miscalibration area"),
    ),
}
_LABEL = (*_RANKED, *_ANSWERS[1:2], *_ANSWERS[3:4])  # what is shown of each label
_GAP = "The gap is mean confidence minus accuracy: above 0 a model is over-confident. "
_BALANCED = "Balanced accuracy is the mean over classes of the share that is found. "
_LEADS = {
    "classes": f"{_GAP}{_BALANCED}Both accuracies should be high, everything else near 0.",
    "rare classes": f"{_GAP}{_BALANCED}ROC-AUC says how well classes are ranked (0.5 is guessing), "
    "average precision how many of those ranked first are right (guessing gets the class's share "
    "of rows). These and the accuracies should be high, everything else near 0.",
    "labels": f"Numbers are means over labels. {_GAP}ROC-AUC, average precision and accuracies "
    "should be high, everything else near 0.",
    "values": "The gap is 90 minus the share of the truth in the 90 % intervals: above 0 they are "
    "too narrow. Of two models with equal gaps the one with the smaller width says more. RMSE, "
    "NLL, CRPS and the area should be small.",
}
_FEW = "“–” instead of an interval: too few positives, or too few rows of a class, to resample."


def lead(subjects: Sequence[Subject]) -> str:
    """What the numbers of a scorecard mean."""
    level = 100 * subjects[0].sampling["level"]
    over = " and seeds" if any(s.runs for s in subjects) else ""
    between = f"Below each number stands its {level:g} % interval, from resampling rows{over}"
    apart = "; ± is the standard deviation over training seeds" if over else ""
    return f"{between}{apart}. {_LEADS[_card_of(subjects)]}{_ranked(subjects[0])}"


def _ranked(subject: Subject) -> str:
    """Of two classes, the one that is ranked."""
    first = next(iter(subject.predictions.values()), None)
    names: tuple[str, ...] = getattr(first, "class_names", None) or ()
    if subject.kind != "classes" or len(names) != 2:
        return ""
    return f" ROC-AUC and average precision are those of the class “{names[1]}”."


def _card_of(subjects: Sequence[Subject]) -> str:
    """Which scorecard: classes that are two, or one of which is rare, are ranked too."""
    first, split = subjects[0], main_split(subjects)
    if first.kind != "classes" or split is None:
        return first.kind
    classes = first.labelled(split).num_classes
    uneven = wording.common_share(first, split) >= wording.UNEVEN / classes
    return "rare classes" if classes == 2 or uneven else "classes"


def scorecards(subjects: Sequence[Subject]) -> list[Table]:
    """One table per split, and per value; one line per subject and each of its calibrators."""
    columns, tables = _CARDS[_card_of(subjects)], []
    for split in splits_of(subjects):
        for name, shown in apart(subjects):
            rows = [row for s in shown for row in _rows(s, shown[0], split, columns)]
            if rows:
                tables.append(_card(shown, split, name, columns, rows))
    return tables


def apart(subjects: Sequence[Subject]) -> list[tuple[str, Sequence[Subject]]]:
    """Values one by one, everything else as it is."""
    if subjects[0].kind != "values":
        return [("", subjects)]
    return [(name, [s.parts[i] for s in subjects]) for i, name in enumerate(subjects[0].names)]


def _card(
    subjects: Sequence[Subject],
    split: str,
    name: str,
    columns: Sequence[Column],
    rows: list[tuple[Cell, ...]],
) -> Table:
    known = [s for s in subjects if s.labelled(split) is not None]
    sizes = sorted({len(s.labelled(split)) for s in known})
    title = f"{split}{f': {name}' if name else ''} ({' or '.join(f'{n:,}' for n in sizes)} rows)"
    unit = next(filter(None, subjects[0].units), "")
    heads = [f"{c.title}, {unit}" if c.style == "unit" and unit else c.title for c in columns]
    few = _FEW if any(cell.detail == "–" for row in rows for cell in row) else ""
    note = " ".join(filter(None, (_always(known[0], split), few)))
    return Table(title, ("Model", *heads), tuple(rows), note)


def _always(subject: Subject, split: str) -> str:
    """What one answer for all rows would reach."""
    if subject.kind == "values":
        return ""
    share = f"{100 * wording.common_share(subject, split):.1f} % of the time"
    if subject.kind == "labels":
        return f"Always giving the more common answer is right {share}."
    name = wording.common_class(subject, split)
    return f"Always answering “{name}”, the most common class, is right {share}."


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
    apart = seeds.spread(r.value(split, column.measure, calibrator).value for r in subject.runs)
    mark = marks.get(column.measure, "")
    if column.style in ("number", "unit"):
        return number(found, mark=mark, spread=apart)
    return share(found, mark, signed=column.style == "gap", spread=apart)


def _marks(
    first: Subject, subject: Subject, split: str, columns: Sequence[Column]
) -> dict[str, str]:
    """Where a subject is better or worse than the first one, beyond the interval."""
    marks: dict[str, str] = {}
    for column in columns if subject is not first else ():
        name = "distance" if column.better == "near" else column.measure
        found = change(name, first, subject, split) if column.better else None
        if found is not None and clear(found):
            better = (found.value > 0) == (column.better == "up")
            marks[column.measure] = "better" if better else "worse"
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
        size = 0 if p is None else len(p)
        rate = float(p.target.double().mean()) if size else math.nan
        found = [_cell(c, s.parts[i], split, "none", {}) for s in shown for c in _LABEL]
        rows.append((text(name), Cell(f"{size:,}", float(size)), share(rate), *found))
    rows.sort(key=lambda row: (math.isnan(row[3].value or 0.0), row[3].value))
    several = len(shown) > 1
    heads = [f"{c.title}: {s.name}" if several else c.title for s in shown for c in _LABEL]
    note = (
        "Hold average precision against the share of yes: that is what guessing gets. Labels with "
        f"one answer only have no ROC-AUC. {_FEW}"
    )
    columns = ("Label", "Rows", "Yes,\u00a0%", *heads)
    return Table(f"Labels of {split}", columns, tuple(rows), note)
