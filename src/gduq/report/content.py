"""What the report's tables hold."""

from __future__ import annotations

import json
import math
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from gduq import metrics
from gduq.metrics import Interval
from gduq.report import seeds
from gduq.report.scores import clear, pool, sampling
from gduq.report.subject import Subject, is_severity, main_split, splits_of
from gduq.report.tables import Cell, Table, number, share, text
from gduq.report.verdict import cost_ratios

__all__ = [
    "costs",
    "detection",
    "records",
    "scorecards",
    "severities",
    "sizes",
    "subgroups",
    "versions",
]

_SCORES = {"ece": "ECE", "nll": "NLL", "brier": "Brier score", "aurc": "AURC"}
_COLUMNS = ("Model", "Accuracy,\u00a0%", "Gap,\u00a0points", *_SCORES.values())
_GROUPED = 4  # subjects side by side in the table of groups
_MISSING = [Interval(math.nan, math.nan, math.nan)] * 2
_LONG = re.compile(r"\d+\.\d{4,}")  # ends of groups with more digits than help a reader
_UP = ("accuracy",)  # the only measure of a scorecard where more is better


# -- scorecards ----------------------------------------------------------------------------------


def scorecards(subjects: Sequence[Subject]) -> list[Table]:
    """One table per split, one line per subject (and each of its calibrators)."""
    tables = []
    for split in splits_of(subjects):
        rows = [row for s in subjects for row in _score_rows(s, subjects[0], split)]
        if rows:
            sizes = {len(s.predictions[split]) for s in subjects if split in s.predictions}
            counted = " or ".join(f"{size:,}" for size in sorted(sizes))
            tables.append(Table(f"{split} ({counted} rows)", _COLUMNS, tuple(rows)))
    return tables


def _score_rows(subject: Subject, first: Subject, split: str) -> Iterator[tuple[Cell, ...]]:
    if subject.labelled(split) is None:
        return
    table = subject.result.table
    table = table[(table["kind"] == "metrics") & (table["split"] == split)]
    for calibrator in dict.fromkeys(table["calibrator"]):
        found = {name: subject.value(split, name, calibrator) for name in ("accuracy", *_SCORES)}
        found["gap"] = seeds.number("gap", subject, split, calibrator)
        name = subject.name if calibrator == "none" else f"{subject.name} + {calibrator}"
        marks = _marks(first, subject, split) if calibrator == "none" else {}
        apart = {key: _spread(subject, split, key, calibrator) for key in found}
        yield (
            text(name),
            share(found["accuracy"], marks.get("accuracy", ""), spread=apart["accuracy"]),
            share(found["gap"], marks.get("distance", ""), signed=True, spread=apart["gap"]),
            *(number(found[key], mark=marks.get(key, ""), spread=apart[key]) for key in _SCORES),
        )


def _spread(subject: Subject, split: str, measure: str, calibrator: str) -> float:
    """How far the runs of a subject lie apart."""
    if measure == "gap":
        found = [seeds.number("gap", run, split, calibrator) for run in subject.runs]
    else:
        found = [run.value(split, measure, calibrator) for run in subject.runs]
    return seeds.spread(f.value for f in found)


def _marks(first: Subject, subject: Subject, split: str) -> dict[str, str]:
    """Where a subject is better or worse than the first one, beyond the interval."""
    if subject is first:
        return {}
    marks = {}
    for name in ("accuracy", "distance", *_SCORES):
        found = seeds.change(name, first, subject, split)
        if found is not None and clear(found):
            marks[name] = "better" if (found.value > 0) == (name in _UP) else "worse"
    return marks


# -- the other tables ----------------------------------------------------------------------------


def detection(subjects: Sequence[Subject]) -> Table | None:
    """How well each uncertainty tells shifted rows from those of known kind."""
    rows = []
    for subject in subjects:
        table = subject.result.table
        table = table[(table["kind"] == "ood") & (table["calibrator"] == "none")]
        keys = table[["split", "variant", "against"]].drop_duplicates()
        for split, score, against in keys.itertuples(index=False):
            found = [subject.value(split, m, "none", score) for m in ("auroc", "fpr95")]
            cells = [text(subject.name), text(score), text(f"{split} against {against}")]
            rows.append((*cells, *(number(f) for f in found)))
    columns = ("Model", "Score", "Rows", "AUROC", "False alarms at 95 % found")
    return Table("Telling shifted rows apart", columns, tuple(rows)) if rows else None


def subgroups(subjects: Sequence[Subject]) -> Table | None:
    """Accuracy and ECE of parts of the main split: by class, domain, and what graphs say."""
    split = main_split(subjects)
    if split is None:
        return None
    shown = [s for s in subjects if s.labelled(split)][:_GROUPED]
    found = [_pooled_groups(s, split) for s in shown]
    rows = []
    for group, size in dict.fromkeys(key for part in found for key in part):
        pairs = [part.get((group, size), _MISSING) for part in found]
        cells = [*(share(accuracy) for accuracy, _ in pairs), *(number(ece) for _, ece in pairs)]
        rows.append((text(group), Cell(f"{size:,}", float(size)), *cells))
    heads = [f"{measure} {s.name}" for measure in ("Accuracy,\u00a0%:", "ECE:") for s in shown]
    note = f"The first {len(shown)} models." if len(shown) < len(subjects) else ""
    return Table(f"Parts of {split}", ("Group", "Rows", *heads), tuple(rows), note)


def _pooled_groups(subject: Subject, split: str) -> dict[tuple[str, int], list[Interval]]:
    """Accuracy and ECE by group and its rows, as means over the runs of a subject."""
    runs = [{(g, size): pair for g, size, *pair in _groups(run, split)}
            for run in seeds.runs_of(subject)]  # fmt: skip
    level = sampling(subject.result)["level"]
    return {
        key: [pool([run[key][i] for run in runs if key in run], level, measure)
              for i, measure in enumerate(("accuracy", "ece"))]
        for key in runs[0]
    }  # fmt: skip


def _groups(subject: Subject, split: str) -> Iterator[tuple[str, int, Interval, Interval]]:
    """Group, its rows, accuracy and ECE."""
    for row in _own_groups(subject, split):
        accuracy, ece = (Interval(*(row[m + end] for end in ("", "_low", "_high")))
                         for m in ("accuracy", "ece"))  # fmt: skip
        yield f"{row['column']}: {row['group']}", int(row["rows"]), accuracy, ece
    table = subject.result.table
    table = table[(table["kind"] == "subgroups") & (table["split"] == split)]
    table = table[table["calibrator"] == "none"]
    for variant, part in table.groupby("variant", sort=False):
        found = {r["measure"]: r for r in part.to_dict(orient="records")}
        if {"accuracy", "ece"} <= set(found):
            accuracy, ece = (Interval(*(float(found[m][n]) for n in Interval._fields))
                             for m in ("accuracy", "ece"))  # fmt: skip
            group = _LONG.sub(lambda m: f"{float(m[0]):.3g}", str(variant))
            yield group, int(found["ece"]["rows"]), accuracy, ece


def _own_groups(subject: Subject, split: str) -> list[dict[str, Any]]:
    """Groups that need no graphs: the true class, and the domain if it varies."""
    p = subject.predictions[split]
    target = p.require_target().tolist()
    columns: dict[str, Any] = {"true class": [subject.class_name(c, split) for c in target]}
    domain = subject.splits.domains.get(split) if subject.splits else None
    if domain is not None and len(np.unique(domain.numpy())) > 1:
        columns["domain"] = domain
    options = sampling(subject.result)
    options.pop("bins")
    found = metrics.subgroups(p, columns, **options)
    return [{str(k): v for k, v in row.items()} for row in found.to_dict(orient="records")]


def costs(subjects: Sequence[Subject]) -> Table | None:
    """Costs as ratios to the first subject."""
    first = subjects[0]
    keys = [k for k, v in (first.cost or {}).items() if v > 0]
    if not keys:
        return None
    rows = []
    for subject in subjects:
        ratios = cost_ratios(first, subject)
        cells = [Cell(f"{ratios[k]:.2f}×", ratios[k]) if k in ratios else Cell("–") for k in keys]
        rows.append((text(subject.name), *cells))
    names = [k.removesuffix("_seconds").replace("_", " ").capitalize() for k in keys]
    note = f"Relative to {first.name}."
    return Table("Cost", ("Model", *names), tuple(rows), note)


def sizes(subjects: Sequence[Subject]) -> Table:
    """Rows, hypotheses and classes of everything that was judged."""
    rows = []
    for subject in subjects:
        for split in splits_of([subject]):
            p = subject.predictions[split]
            counts = (len(p), p.num_samples, p.num_classes)
            known = text("yes" if p.target is not None else "no")
            cells = (Cell(f"{n:,}", float(n)) for n in counts)
            rows.append((text(subject.name), text(split), *cells, known))
    columns = ("Model", "Split", "Rows", "Hypotheses (K)", "Classes", "Labels known")
    return Table("What was judged", columns, tuple(rows))


def versions(subjects: Sequence[Subject]) -> dict[str, str]:
    """Versions of the first run that recorded any, otherwise of this process."""
    for subject in subjects:
        if subject.info:
            return {str(k): _shown(v) for k, v in subject.info.items()}
    found = {"python": platform.python_version(), "machine": platform.platform()}
    for package in ("gduq", "torch", "torch-geometric", "numpy", "scipy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:  # run from a folder that was never installed
            continue
    return found


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def records(subjects: Sequence[Subject]) -> list[dict[str, Any]]:
    """All evaluations as rows with a ``subject``, and the gap of every labelled split."""
    found: list[dict[str, Any]] = []
    for subject in subjects:
        rows = map(_named, subject.result.table.to_dict(orient="records"))
        found += [{"subject": subject.name} | _over_runs(subject, row) for row in rows]
        for split in splits_of([subject]):
            if subject.labelled(split) is not None:
                gap = seeds.number("gap", subject, split)
                found.append({
                    "subject": subject.name, "kind": "metrics", "split": split,
                    "calibrator": "none", "variant": "", "measure": "confidence_gap",
                    **gap._asdict(), "rows": len(subject.predictions[split]), "against": "",
                })  # fmt: skip
    return found


def _over_runs(subject: Subject, row: dict[str, Any]) -> dict[str, Any]:
    """A row of the first run's evaluation with the means over all runs."""
    if not subject.runs:
        return row
    key = (row[name] for name in ("split", "measure", "calibrator", "variant"))
    return {**row, **subject.value(*key)._asdict()}


def _named(row: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(key): value for key, value in row.items()}


def severities(subjects: Sequence[Subject]) -> dict[str, list[str]]:
    """Severity splits by what grows, such as rotation."""
    kinds: dict[str, list[str]] = {}
    for split in filter(is_severity, splits_of(subjects)):
        kinds.setdefault(split.partition("=")[0], []).append(split)
    return kinds
