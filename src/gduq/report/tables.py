"""The tables of a report: scorecards, labels, groups of rows, detection of shift, cost."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from gduq.metrics import Interval
from gduq.report import kinds
from gduq.report.kinds import Mark, ScoreColumn, compared, in_words, result_of
from gduq.report.subject import UNKNOWN, Subject, main_split, split_names
from gduq.report.verdict import cost_ratios

__all__ = ["ReportTable", "TableCell", "apart", "costs", "detection", "label_table", "scorecards",
           "subgroups"]  # fmt: skip

_BESIDE = 3  # subjects side by side
_OF_LABEL = (kinds.ROC_AUC, kinds.AVERAGE_PRECISION, kinds.BALANCED, kinds.ECE)
_FEW = "“–” instead of an interval: too few positives, or too few rows of a class, to resample."
_LABELS = "Hold average precision against the share of yes: that is what guessing gets. Labels with"
_STYLES = {"number": (1.0, ".3f"), "share": (100.0, ".1f"), "points": (100.0, "+.1f")}
_LONG = re.compile(r"\d+\.\d{4,}")  # ends of groups with more digits than help a reader


@dataclass(frozen=True)
class TableCell:
    """What a table shows in one place, and what it is sorted by."""

    text: str
    value: float | None = None  # None: no number
    detail: str = ""  # its interval
    mark: Mark = ""


@dataclass(frozen=True)
class ReportTable:
    """A table with a caption; the first column names the rows."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[TableCell]]
    note: str = ""

    @property
    def numeric(self) -> list[bool]:
        """Which columns hold numbers."""
        return [
            any(cell.value is not None for cell in column)
            for column in zip(*self.rows, strict=True)
        ]


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
        return TableCell("–", math.nan)
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


def apart(subjects: Sequence[Subject]) -> list[tuple[str, Sequence[Subject]]]:
    """Values one by one, everything else as it is."""
    first = subjects[0]
    if not result_of(first, next(iter(first.predictions))).in_parts:
        return [("", subjects)]
    return [(name, [s.parts[i] for s in subjects]) for i, name in enumerate(first.names)]


def _labelled(subjects: Sequence[Subject], split: str) -> list[Subject]:
    return [s for s in subjects if s.labelled(split) is not None]


def scorecards(subjects: Sequence[Subject]) -> list[ReportTable]:
    """One table per split, and per value; one line per subject and each of its calibrators."""
    main, found = main_split(subjects), []
    pairs = [(split, *part) for split in split_names(subjects) for part in apart(subjects)]
    for split, name, every in pairs if main is not None else ():
        columns, rows = result_of(every[0], str(main)).columns, []
        for s in (shown := _labelled(every, split)):
            for calibrator in dict.fromkeys(s.rows("metrics", split)["calibrator"]):
                plain = calibrator == "none"
                marks = compared(every[0], s, split, columns) if plain and s is not every[0] else {}
                cells = [_score(c, s, split, calibrator, (marks or {}).get(c, "")) for c in columns]
                rows.append((TableCell(s.name if plain else f"{s.name} + {calibrator}"), *cells))
        if rows:
            few = _FEW if any(cell.detail == "–" for row in rows for cell in row) else ""
            sizes = sorted({len(s.predictions[split]) for s in shown})
            title = f"{split}: {name}" if name else split
            title = f"{title} ({' or '.join(f'{n:,}' for n in sizes)} rows)"
            note = f"To compare: {in_words('baseline', result_of(shown[0], split))}. {few}".strip()
            heads = ("Model", *(_head(c, every[0]) for c in columns))
            found.append(ReportTable(title, heads, rows, note))
    return found


def _head(column: ScoreColumn, subject: Subject, named: bool = False) -> str:
    """The title of a column with the unit and, where several stand side by side, the subject."""
    unit = next(filter(None, getattr(subject.example, "units", None) or ()), "")
    title = column.title.format(unit=unit and f", {unit}")
    return f"{title}: {subject.name}" if named else title


def _score(
    column: ScoreColumn, subject: Subject, split: str, calibrator: str = "none", mark: Mark = ""
) -> TableCell:
    found = subject.value(split, column.measure, calibrator)
    runs = [run.value(split, column.measure, calibrator).value for run in subject.runs]
    return _number(found, column.style, mark, runs)


def label_table(subjects: Sequence[Subject]) -> ReportTable | None:
    """Every label of the main split, the worst ranked first: how rare it is, how well ranked."""
    first, split = subjects[0], main_split(subjects)
    if split is None or len(first.names) == 1 or result_of(first, split).in_parts:
        return None
    shown, rows = _labelled(subjects, split)[:_BESIDE], []
    for i, name in enumerate(first.names):
        p = shown[0].parts[i].labelled(split)
        rate = math.nan if p is None else float(p.require_target().double().mean())
        size = 0 if p is None else len(p)
        found = [_score(c, s.parts[i], split) for s in shown for c in _OF_LABEL]
        rows.append((TableCell(name), TableCell(f"{size:,}", size), _number(rate, "share"), *found))
    rows.sort(key=lambda row: (math.isnan(row[3].value or 0.0), row[3].value))
    heads = [_head(c, s, named=len(shown) > 1) for s in shown for c in _OF_LABEL]
    note = f"{_LABELS} one answer only have no ROC-AUC. {_FEW}"
    columns = ("Label", "Rows", "Yes,\u00a0%", *heads)
    return ReportTable(f"Labels of {split}", columns, rows, note)


def subgroups(subjects: Sequence[Subject]) -> list[ReportTable]:
    """Parts of the main split: by class or true value, by domain, and by what graphs say."""
    import pandas as pd

    split, found = main_split(subjects) or "", []
    for name, every in apart(subjects) if split else ():
        shown = _labelled(every, split)[:_BESIDE]
        measured = pd.concat([s.rows("subgroups", split) for s in shown])
        names, rows = set(measured["measure"]), []
        columns = [c for c in result_of(shown[0], split).columns if c.measure in names]
        for group, size in measured[["variant", "rows"]].drop_duplicates().itertuples(index=False):
            cells = [_number(s.numbers.get((split, c.measure, "none", group), UNKNOWN), c.style)
                     for c in columns for s in shown]  # fmt: skip
            if not group.startswith("true class: "):  # a name stays as it is
                group = _LONG.sub(lambda m: f"{float(m[0]):.3g}", group)
            rows.append((TableCell(group), TableCell(f"{int(size):,}", float(size)), *cells))
        heads = [_head(c, s, named=len(every) > 1) for c in columns for s in shown]
        note = f"The first {len(shown)} models." if len(shown) < len(every) else ""
        title = f"Parts of {split}: {name}" if name else f"Parts of {split}"
        found.append(ReportTable(title, ("Group", "Rows", *heads), rows, note))
    return [table for table in found if table.rows]


def detection(subjects: Sequence[Subject]) -> ReportTable | None:
    """How well each uncertainty tells shifted rows from those of known kind."""
    rows = []
    for subject in subjects:
        table = subject.rows("ood")
        keys = table[table["calibrator"] == "none"][["split", "variant", "against"]]
        for split, score, against in keys.drop_duplicates().itertuples(index=False):
            found = [subject.value(split, m, "none", score) for m in ("auroc", "fpr95")]
            words = (subject.name, score, f"{split} against {against}")
            rows.append((*map(TableCell, words), *map(_number, found)))
    columns = ("Model", "Score", "Rows", "AUROC", "False alarms at 95 % found")
    return ReportTable("Telling shifted rows apart", columns, rows) if rows else None


def costs(subjects: Sequence[Subject]) -> ReportTable | None:
    """Costs as ratios to the first subject; one alone has none."""
    first, rows = subjects[0], []
    keys = list(cost_ratios(first, first)) if len(subjects) > 1 else []
    for subject in subjects:
        ratios = cost_ratios(first, subject)
        cells = [
            TableCell(f"{ratios[k]:.2f}×" if k in ratios else "–", ratios.get(k)) for k in keys
        ]
        rows.append((TableCell(subject.name), *cells))
    names = [k.removesuffix("_seconds").replace("_", " ").capitalize() for k in keys]
    table = ReportTable("Cost", ("Model", *names), rows, f"Relative to {first.name}.")
    return table if keys else None
