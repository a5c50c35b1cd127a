"""The tables of a report: scorecards, and labels one by one."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from gduq.metrics import Interval
from gduq.report.results import (
    COLUMNS,
    Mark,
    ScoreColumn,
    SplitResult,
    compared,
    in_words,
    result_of,
)
from gduq.report.subject import Subject, main_split, split_names

__all__ = ["ReportTable", "TableCell", "apart", "label_table", "scorecards"]

_BESIDE = 3  # subjects side by side
_OF_LABEL = [COLUMNS[n] for n in ("roc_auc", "average_precision", "balanced_accuracy", "ece")]
_FEW = "“–” instead of an interval: too few positives, or too few rows of a class, to resample."
_LABELS = "Hold average precision against the share of yes: that is what guessing gets. Labels with"
_STYLES = {"number": (1.0, ".3f"), "share": (100.0, ".1f"), "points": (100.0, "+.1f")}


@dataclass(frozen=True)
class TableCell:
    """What a table shows in one place, and the number it stands for."""

    text: str
    value: float = math.nan
    detail: str = ""  # its interval
    mark: Mark = ""


@dataclass(frozen=True)
class ReportTable:
    """A table with a caption; the first column names the rows, the others hold numbers."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[TableCell]]
    note: str = ""


def _number(
    found: Interval | float, style: str = "number", mark: Mark = "", runs: Sequence[float] = ()
) -> TableCell:
    """A number with its interval, if it has one, and its deviation over runs.

    Example:
        >>> _number(Interval(0.1234, 0.1, 0.2), runs=[0.12, 0.14])
        TableCell(text='0.123 ± 0.014', value=0.1234, detail='0.100 to 0.200', mark='')
        >>> _number(-0.125, "points").text
        '−12.5'
    """
    value, *ends = found if isinstance(found, tuple) else (found, math.nan, math.nan)
    if math.isnan(value):
        return TableCell("–")
    factor, digits = _STYLES[style]
    texts = [f"{factor * v:{digits}}" for v in (value, *ends)]
    shown, low, high = (t if t.strip("+-0.") else t.lstrip("+-") for t in texts)  # no minus of a 0
    detail = f"{low} to {high}"
    if math.isnan(ends[0]):  # where an interval was asked for, too few rows give none
        detail = "–" if isinstance(found, tuple) else ""
    known = [v for v in runs if not math.isnan(v)]
    if len(known) > 1:
        shown += f" ± {factor * statistics.stdev(known):{digits.lstrip('+')}}"
    return TableCell(shown.replace("-", "−"), value, detail.replace("-", "−"), mark)


def _score(
    column: ScoreColumn, result: SplitResult, calibrator: str = "none", mark: Mark = ""
) -> TableCell:
    key = (result.split, column.measure, calibrator, result.part or "")
    runs = [run.value(*key).value for run in result.subject.runs]
    return _number(result.value(column.measure, calibrator), column.style, mark, runs)


def _head(column: ScoreColumn, result: SplitResult, named: bool = False) -> str:
    """The title of a column with the unit and, where several stand side by side, the subject."""
    unit = next(filter(None, getattr(result.p, "units", None) or ()), "")
    title = column.title.format(unit=unit and f", {unit}")
    return f"{title}: {result.subject.name}" if named else title


def apart(subject: Subject) -> list[str | None]:
    """What is shown one by one: values, by name; everything else is shown as it is."""
    return [None] if subject.example.mean_of_parts else list(subject.names)


def _results(
    subjects: Sequence[Subject], split: str | None, part: str | None = None
) -> list[SplitResult]:
    known = [s for s in subjects if split is not None and s.labelled(split, part) is not None]
    return [result_of(s, str(split), part) for s in known]


def scorecards(subjects: Sequence[Subject]) -> list[ReportTable]:
    """One table per split, and per value; one line per subject and each of its calibrators."""
    found, first = [], subjects[0]
    for split, part in [(s, part) for s in split_names(subjects) for part in apart(first)]:
        shown, rows = _results(subjects, split, part), []
        for one in shown:
            table = one.subject.rows("metrics")
            for calibrator in table[table["split"] == split]["calibrator"].unique():
                name, marks = f"{one.subject.name} + {calibrator}", dict[ScoreColumn, Mark]()
                if calibrator == "none":
                    name, same = one.subject.name, one.subject is first
                    marks = (not same and compared(first, one, one.columns)) or {}
                cells = [_score(c, one, calibrator, marks.get(c, "")) for c in one.columns]
                rows.append((TableCell(name), *cells))
        if shown:
            few = _FEW if any(cell.detail == "–" for row in rows for cell in row) else ""
            sizes = " or ".join(f"{n:,}" for n in sorted({len(one.p) for one in shown}))
            title = f"{split}: {part} ({sizes} rows)" if part else f"{split} ({sizes} rows)"
            note = f"To compare: {in_words('baseline', shown[0])}. {few}".strip()
            heads = ("Model", *(_head(c, shown[0]) for c in shown[0].columns))
            found.append(ReportTable(title, heads, rows, note))
    return found


def label_table(subjects: Sequence[Subject]) -> ReportTable | None:
    """Every label of the main split, the worst ranked first: how rare it is, how well ranked."""
    first, split, rows = subjects[0], main_split(subjects), []
    if split is None or len(first.names) == 1 or not first.example.mean_of_parts:
        return None
    shown = [one.subject for one in _results(subjects, split)][:_BESIDE]
    for name in first.names:
        each = [result_of(s, split, name) for s in shown]
        size, truth = len(each[0].p), each[0].p.require_target().double()
        found = [_score(c, one) for one in each for c in _OF_LABEL]
        rate = _number(float(truth.mean()), "share")
        rows.append((TableCell(name), TableCell(f"{size:,}", size), rate, *found))
    rows.sort(key=lambda row: (math.isnan(row[3].value), row[3].value))
    heads = [_head(c, one, named=len(shown) > 1) for one in each for c in _OF_LABEL]
    columns = ("Label", "Rows", "Yes,\u00a0%", *heads)
    note = f"{_LABELS} one answer only have no ROC-AUC. {_FEW}"
    return ReportTable(f"Labels of {split}", columns, rows, note)
