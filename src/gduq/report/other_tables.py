"""What a report holds beside scorecards: detection of shift, cost, sizes, versions, all numbers."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from gduq.report.changes import cost_ratios
from gduq.report.split_names import splits_of
from gduq.report.subject import Subject
from gduq.text_tables import Cell, Table, number, text

__all__ = [
    "costs",
    "detection",
    "records",
    "sizes",
    "versions",
]


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


def costs(subjects: Sequence[Subject]) -> Table | None:
    """Costs as ratios to the first subject; one alone has none."""
    first = subjects[0]
    keys = [k for k, v in (first.cost or {}).items() if v > 0]
    if not keys or len(subjects) == 1:
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
    """Rows, hypotheses and what they are about, of everything that was judged."""
    rows = []
    for subject in subjects:
        for split in splits_of([subject]):
            p = subject.predictions[split]
            known = text("yes" if p.target is not None else "no")
            cells = (Cell(f"{n:,}", float(n)) for n in (len(p), p.num_samples))
            rows.append((text(subject.name), text(split), *cells, text(p.size), known))
    columns = ("Model", "Split", "Rows", "Hypotheses (K)", "About", "Truth known")
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
    """All evaluations as rows with a ``subject``."""
    found: list[dict[str, Any]] = []
    for subject in subjects:
        rows = map(_named, subject.result.table.to_dict(orient="records"))
        found += [{"subject": subject.name} | _over_runs(subject, row) for row in rows]
    return found


def _over_runs(subject: Subject, row: dict[str, Any]) -> dict[str, Any]:
    """A row of the first run's evaluation with the means over all runs."""
    if not subject.runs:
        return row
    key = (row[name] for name in ("split", "measure", "calibrator", "variant"))
    return {**row, **subject.value(*key)._asdict()}


def _named(row: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(key): value for key, value in row.items()}
