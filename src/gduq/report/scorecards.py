"""The scorecards: what was measured on each split, one line per subject."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from gduq.report.comparing import change, clear, spread
from gduq.report.subject import Subject, main_split, splits_of
from gduq.report.wording import JudgedSplit
from gduq.text_tables import Cell, Style, Table, count, number

__all__ = ["ACCURACY", "BALANCED", "COVERAGE", "ECE", "RMSE", "ScoreColumn", "apart", "card_of",
           "label_table", "scorecards"]  # fmt: skip

_SIDE_BY_SIDE = 3  # subjects in the table of labels
_FEW = "“–” instead of an interval: too few positives, or too few rows of a class, to resample."


class ScoreColumn(NamedTuple):
    """A column of a table; ``better`` says whether more or less is better, or nearer to 0."""

    measure: str
    title: str
    style: Style = "number"
    better: Literal["up", "down", "near", ""] = "down"

    def head(self, subject: Subject, named: bool = False) -> str:
        """Its title with the unit and, where several stand side by side, the subject's name."""
        title = self.title.format(unit=subject.unit and f", {subject.unit}")
        return f"{title}: {subject.name}" if named else title


ACCURACY = ScoreColumn("accuracy", "Accuracy,\u00a0%", "share", "up")
BALANCED = ScoreColumn("balanced_accuracy", "Balanced accuracy,\u00a0%", "share", "up")
ECE = ScoreColumn("ece", "ECE")
RMSE = ScoreColumn("rmse", "RMSE{unit}")
COVERAGE = ScoreColumn("coverage_90", "90\u00a0% intervals hold,\u00a0%", "share", "")
_GAP = ScoreColumn("gap", "Gap,\u00a0points", "points", "near")
_NLL = ScoreColumn("nll", "NLL")
_BRIER = ScoreColumn("brier", "Brier score")
_RANKED = (
    ScoreColumn("roc_auc", "ROC-AUC", better="up"),
    ScoreColumn("average_precision", "Average precision", better="up"),
)
_CARDS = {
    "classes": (ACCURACY, BALANCED, _GAP, ECE, _NLL, _BRIER, ScoreColumn("aurc", "AURC")),
    "rare classes": (ACCURACY, BALANCED, *_RANKED, _GAP, ECE, _NLL, _BRIER),
    "labels": (*_RANKED, ACCURACY, BALANCED, _GAP, ECE, _NLL),
    "values": (
        RMSE, COVERAGE, _GAP, ScoreColumn("width_90", "Their width{unit}", better=""), _NLL,
        ScoreColumn("crps", "CRPS"), ScoreColumn("miscalibration_area", "Miscalibration area"),
    ),
}  # fmt: skip
_OF_LABEL = (*_RANKED, BALANCED, ECE)


def card_of(subjects: Sequence[Subject]) -> str:
    """Which scorecard: classes that are two, or one of which is rare, are ranked too."""
    first, split = subjects[0], main_split(subjects)
    if first.kind != "classes" or split is None:
        return first.kind
    classes = first.labelled(split).num_classes
    ranked = classes == 2 or JudgedSplit(first, split).uneven(classes)
    return "rare classes" if ranked else "classes"


def apart(subjects: Sequence[Subject]) -> list[tuple[str, Sequence[Subject]]]:
    """Values one by one, everything else as it is."""
    if subjects[0].kind != "values":
        return [("", subjects)]
    return [(name, [s.parts[i] for s in subjects]) for i, name in enumerate(subjects[0].names)]


def scorecards(subjects: Sequence[Subject]) -> list[Table]:
    """One table per split, and per value; one line per subject and each of its calibrators."""
    columns, tables = _CARDS[card_of(subjects)], []
    for split in splits_of(subjects):
        for name, every in apart(subjects):
            shown = [s for s in every if s.labelled(split) is not None]
            rows = [row for s in shown for row in _rows(s, every[0], split, columns)]
            if rows:
                sizes = sorted({len(s.labelled(split)) for s in shown})
                called = f"{split}: {name}" if name else split
                title = f"{called} ({' or '.join(f'{n:,}' for n in sizes)} rows)"
                few = _FEW if any(cell.detail == "–" for row in rows for cell in row) else ""
                note = " ".join(filter(None, (_always(JudgedSplit(shown[0], split)), few)))
                heads = ("Model", *(column.head(every[0]) for column in columns))
                tables.append(Table(title, heads, rows, note))
    return tables


def _always(judged: JudgedSplit) -> str:
    """What one answer for all rows would reach."""
    if judged.subject.kind == "values":
        return ""
    share = f"{100 * judged.common_share:.1f} % of the time"
    if judged.subject.kind == "labels":
        return f"Always giving the more common answer is right {share}."
    return f"Always answering “{judged.common_class}”, the most common class, is right {share}."


def _rows(
    subject: Subject, first: Subject, split: str, columns: Sequence[ScoreColumn]
) -> Iterator[tuple[Cell, ...]]:
    table = subject.result.table
    table = table[(table["kind"] == "metrics") & (table["split"] == split)]
    for calibrator in dict.fromkeys(table["calibrator"]):
        plain = calibrator == "none"
        marks = _marks(first, subject, split, columns) if plain and subject is not first else {}
        cells = [_cell(c, subject, split, calibrator, marks.get(c, "")) for c in columns]
        yield Cell(subject.name if plain else f"{subject.name} + {calibrator}"), *cells


def _cell(column: ScoreColumn, subject: Subject, split: str, calibrator: str, mark: str) -> Cell:
    found = [s.value(split, column.measure, calibrator) for s in (subject, *subject.runs)]
    return number(found[0], column.style, mark, spread(run.value for run in found[1:]))


def _marks(
    first: Subject, subject: Subject, split: str, columns: Sequence[ScoreColumn]
) -> dict[ScoreColumn, str]:
    """Where a subject is better or worse than the first one, beyond the interval."""
    marks: dict[ScoreColumn, str] = {}
    for column in columns:
        name = "distance" if column.better == "near" else column.measure
        found = change(name, first, subject, split) if column.better else None
        if found is not None and clear(found):
            better = (found.value > 0) == (column.better == "up")
            marks[column] = "better" if better else "worse"
    if marks.get(BALANCED) == "worse" and marks.get(ACCURACY) == "better":
        del marks[ACCURACY]  # gained by leaving a class out: no praise for that
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
        found = [_cell(c, s.parts[i], split, "none", "") for s in shown for c in _OF_LABEL]
        rows.append((Cell(name), count(size), number(rate, "share"), *found))
    rows.sort(key=lambda row: (math.isnan(row[3].value or 0.0), row[3].value))
    heads = [c.head(s, named=len(shown) > 1) for s in shown for c in _OF_LABEL]
    note = (
        "Hold average precision against the share of yes: that is what guessing gets. Labels with "
        f"one answer only have no ROC-AUC. {_FEW}"
    )
    return Table(f"Labels of {split}", ("Label", "Rows", "Yes,\u00a0%", *heads), rows, note)
