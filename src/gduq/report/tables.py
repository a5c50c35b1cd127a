"""The tables of a report: scorecards, labels, groups of rows, detection of shift, cost, sizes."""

from __future__ import annotations

import json
import math
import platform
import re
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from gduq.metrics import Interval
from gduq.report import kinds
from gduq.report.comparing import UNKNOWN
from gduq.report.kinds import Mark, ScoreColumn, compared, result_of
from gduq.report.subject import Subject, main_split, split_names
from gduq.report.verdict import cost_ratios

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "ReportTable",
    "TableCell",
    "apart",
    "costs",
    "detection",
    "label_table",
    "numbers",
    "scorecards",
    "subgroups",
    "versions",
]  # fmt: skip

_BESIDE = 3  # subjects side by side
_OF_LABEL = (kinds.ROC_AUC, kinds.AVERAGE_PRECISION, kinds.BALANCED, kinds.ECE)
_FEW = "“–” instead of an interval: too few positives, or too few rows of a class, to resample."
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
        places = range(len(self.columns))
        return [any(row[i].value is not None for row in self.rows) for i in places]


def _count(rows: int) -> TableCell:
    return TableCell(f"{rows:,}", float(rows))


def _number(
    found: Interval | float,
    style: str = "number",
    mark: Mark = "",
    runs: Sequence[float] = (),
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
    shown, low, high = (_signed(f"{factor * v:{digits}}") for v in (value, *ends))
    detail = f"{low} to {high}"
    if math.isnan(ends[0]):  # where an interval was asked for, too few rows give none
        detail = "–" if isinstance(found, tuple) else ""
    known = [v for v in runs if not math.isnan(v)]
    if len(known) > 1:
        shown += f" ± {factor * statistics.stdev(known):{digits.lstrip('+')}}"
    return TableCell(shown, value, detail, mark)


def _signed(shown: str) -> str:
    """With a true minus, and none before a zero."""
    return shown.lstrip("+-") if not shown.strip("+-0.") else shown.replace("-", "−")


def apart(subjects: Sequence[Subject]) -> list[tuple[str, Sequence[Subject]]]:
    """Values one by one, everything else as it is."""
    first = subjects[0]
    if not result_of(first, next(iter(first.predictions))).in_parts:
        return [("", subjects)]
    return [(name, [s.parts[i] for s in subjects]) for i, name in enumerate(subjects[0].names)]


# -- scorecards ----------------------------------------------------------------------------------


def scorecards(subjects: Sequence[Subject]) -> list[ReportTable]:
    """One table per split, and per value; one line per subject and each of its calibrators."""
    main, found = main_split(subjects), []
    for split in split_names(subjects) if main is not None else ():
        for name, every in apart(subjects):
            shown = [s for s in every if s.labelled(split) is not None]
            if not shown:
                continue
            first, columns = result_of(shown[0], split), result_of(every[0], str(main)).columns
            rows = [row for s in shown for row in _score_rows(s, every[0], split, columns)]
            few = _FEW if any(cell.detail == "–" for row in rows for cell in row) else ""
            lengths = sorted({len(s.predictions[split]) for s in shown})
            title = f"{split}: {name}" if name else split
            found.append(
                ReportTable(
                    f"{title} ({' or '.join(f'{n:,}' for n in lengths)} rows)",
                    ("Model", *(_head(c, every[0]) for c in columns)),
                    rows,
                    " ".join(filter(None, (f"To compare: {first.baseline}.", few))),
                )
            )
    return [table for table in found if table.rows]


def _head(column: ScoreColumn, subject: Subject, named: bool = False) -> str:
    """The title of a column with the unit and, where several stand side by side, the subject."""
    unit = next(filter(None, getattr(subject.example, "units", None) or ()), "")
    title = column.title.format(unit=unit and f", {unit}")
    return f"{title}: {subject.name}" if named else title


def _score_rows(
    subject: Subject, first: Subject, split: str, columns: Sequence[ScoreColumn]
) -> Iterator[tuple[TableCell, ...]]:
    table = subject.result.table
    table = table[(table["kind"] == "metrics") & (table["split"] == split)]
    for calibrator in dict.fromkeys(table["calibrator"]):
        plain = calibrator == "none"
        other = plain and subject is not first
        marks = compared(first, subject, split, columns) or {} if other else {}
        cells = [_score(c, subject, split, calibrator, marks.get(c, "")) for c in columns]
        yield TableCell(subject.name if plain else f"{subject.name} + {calibrator}"), *cells


def _score(
    column: ScoreColumn,
    subject: Subject,
    split: str,
    calibrator: str = "none",
    mark: Mark = "",
) -> TableCell:
    found = subject.value(split, column.measure, calibrator)
    runs = [run.value(split, column.measure, calibrator).value for run in subject.runs]
    return _number(found, column.style, mark, runs)


def label_table(subjects: Sequence[Subject]) -> ReportTable | None:
    """Every label of the main split, the worst ranked first: how rare it is, how well ranked."""
    first, split = subjects[0], main_split(subjects)
    if split is None or len(first.names) == 1 or result_of(first, split).in_parts:
        return None
    shown = [s for s in subjects if s.labelled(split) is not None][:_BESIDE]
    rows = []
    for i, name in enumerate(first.names):
        p = shown[0].parts[i].labelled(split)
        size = 0 if p is None else len(p)
        rate = float(p.require_target().double().mean()) if p is not None and size else math.nan
        found = [_score(c, s.parts[i], split) for s in shown for c in _OF_LABEL]
        rows.append((TableCell(name), _count(size), _number(rate, "share"), *found))
    rows.sort(key=lambda row: (math.isnan(row[3].value or 0.0), row[3].value))
    heads = [_head(c, s, named=len(shown) > 1) for s in shown for c in _OF_LABEL]
    note = (
        "Hold average precision against the share of yes: that is what guessing gets. Labels with "
        f"one answer only have no ROC-AUC. {_FEW}"
    )
    return ReportTable(f"Labels of {split}", ("Label", "Rows", "Yes,\u00a0%", *heads), rows, note)


# -- groups of rows ------------------------------------------------------------------------------

Groups = dict[tuple[str, int], dict[str, Interval]]  # by name and rows of the group, and measure


def subgroups(subjects: Sequence[Subject]) -> list[ReportTable]:
    """Parts of the main split: by class or true value, by domain, and by what graphs say."""
    split, found = main_split(subjects), []
    for name, every in apart(subjects) if split is not None else ():
        shown = [s for s in every if s.labelled(str(split)) is not None][:_BESIDE]
        groups = [_groups(s, str(split)) for s in shown]
        measured = {m for part in groups for known in part.values() for m in known}
        columns = [c for c in result_of(shown[0], str(split)).columns if c.measure in measured]
        rows = [
            (
                TableCell(group),
                _count(size),
                *(
                    _number(part.get((group, size), {}).get(c.measure, UNKNOWN), c.style)
                    for c in columns
                    for part in groups
                ),
            )
            for group, size in dict.fromkeys(key for part in groups for key in part)
        ]
        heads = [_head(c, s, named=len(every) > 1) for c in columns for s in shown]
        note = f"The first {len(shown)} models." if len(shown) < len(every) else ""
        title = f"Parts of {split}: {name}" if name else f"Parts of {split}"
        found.append(ReportTable(title, ("Group", "Rows", *heads), rows, note))
    return [table for table in found if table.rows]


def _groups(subject: Subject, split: str) -> Groups:
    """Measures by group, as the evaluation has them."""
    table = subject.result.table
    table = table[(table["kind"] == "subgroups") & (table["split"] == split)]
    found: Groups = {}
    for row in table[table["calibrator"] == "none"].to_dict(orient="records"):
        group = str(row["variant"])
        if not group.startswith("true class: "):  # a name stays as it is
            group = _LONG.sub(lambda m: f"{float(m[0]):.3g}", group)
        value = Interval(*(float(row[k]) for k in Interval._fields))
        found.setdefault((group, int(row["rows"])), {})[str(row["measure"])] = value
    return found


# -- the rest ------------------------------------------------------------------------------------


def detection(subjects: Sequence[Subject]) -> ReportTable | None:
    """How well each uncertainty tells shifted rows from those of known kind."""
    rows = []
    for subject in subjects:
        table = subject.result.table
        table = table[(table["kind"] == "ood") & (table["calibrator"] == "none")]
        keys = table[["split", "variant", "against"]].drop_duplicates()
        for split, score, against in keys.itertuples(index=False):
            found = [subject.value(split, m, "none", score) for m in ("auroc", "fpr95")]
            words = (subject.name, score, f"{split} against {against}")
            rows.append((*map(TableCell, words), *map(_number, found)))
    columns = ("Model", "Score", "Rows", "AUROC", "False alarms at 95 % found")
    return ReportTable("Telling shifted rows apart", columns, rows) if rows else None


def costs(subjects: Sequence[Subject]) -> ReportTable | None:
    """Costs as ratios to the first subject; one alone has none."""
    first = subjects[0]
    keys = [k for k, v in (first.cost or {}).items() if v > 0]
    if not keys or len(subjects) == 1:
        return None
    rows = []
    for subject in subjects:
        ratios = cost_ratios(first, subject)
        cells = [
            TableCell(f"{ratios[k]:.2f}×", ratios[k]) if k in ratios else TableCell("–")
            for k in keys
        ]
        rows.append((TableCell(subject.name), *cells))
    names = [k.removesuffix("_seconds").replace("_", " ").capitalize() for k in keys]
    return ReportTable("Cost", ("Model", *names), rows, f"Relative to {first.name}.")


def versions(subjects: Sequence[Subject]) -> dict[str, str]:
    """Versions of the first run that recorded any, otherwise of this process."""
    for info in filter(None, (subject.info for subject in subjects)):
        return {
            str(k): v if isinstance(v, str) else json.dumps(v, default=str) for k, v in info.items()
        }
    found = {"python": platform.python_version(), "machine": platform.platform()}
    for package in ("gduq", "torch", "torch-geometric", "numpy", "scipy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:  # run from a folder that was never installed
            continue
    return found


def numbers(subjects: Sequence[Subject]) -> pd.DataFrame:
    """Every number of every evaluation, one row per number; of several runs the mean."""
    import pandas as pd

    found = []
    for subject in subjects:
        table = subject.result.table.copy()
        if subject.runs:
            keys = table[["split", "measure", "calibrator", "variant"]].itertuples(index=False)
            means = [subject.value(*key) for key in keys]
            table[["value", "low", "high"]] = pd.DataFrame(means, index=table.index)
        table.insert(0, "subject", subject.name)
        found.append(table)
    return pd.concat(found, ignore_index=True)
