"""What the report's tables hold."""

from __future__ import annotations

import json
import math
import platform
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from gduq import metrics
from gduq.metrics import Interval
from gduq.report.changes import cost_ratios
from gduq.report.seeds import pool, runs_of
from gduq.report.split_names import main_split, splits_of
from gduq.report.subject import Subject
from gduq.text_tables import Cell, Table, number, share, text

__all__ = [
    "costs",
    "detection",
    "records",
    "sizes",
    "subgroups",
    "versions",
]

_GROUPS: dict[str, dict[str, tuple[str, Callable[..., Cell]]]] = {  # what groups are shown by
    "classes": {"accuracy": ("Accuracy,\u00a0%", share), "ece": ("ECE", number)},
    "labels": {
        "balanced_accuracy": ("Balanced accuracy,\u00a0%", share), "ece": ("ECE", number),
    },
    "values": {
        "rmse": ("RMSE", number), "coverage_90": ("90\u00a0% intervals hold,\u00a0%", share),
    },
}  # fmt: skip
_GROUPED = 4  # subjects side by side in the table of groups
_MISSING = [Interval(math.nan, math.nan, math.nan)] * 2
_LONG = re.compile(r"\d+\.\d{4,}")  # ends of groups with more digits than help a reader


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


def subgroups(subjects: Sequence[Subject]) -> list[Table]:
    """Parts of the main split: by class or true value, by domain, and by what graphs say."""
    split = main_split(subjects)
    if split is None:
        return []
    apart = subjects[0].names if subjects[0].kind == "values" else ("",)
    found = []
    for i, name in enumerate(apart):
        parts = [s.parts[i] if s.kind == "values" else s for s in subjects]
        found.append(_grouped(parts, split, name))
    return [table for table in found if table.rows]


def _grouped(subjects: Sequence[Subject], split: str, name: str) -> Table:
    shown = [s for s in subjects if s.labelled(split) is not None][:_GROUPED]
    found, styles = [_pooled_groups(s, split) for s in shown], _GROUPS[subjects[0].kind]
    rows = []
    for group, size in dict.fromkeys(key for part in found for key in part):
        columns = zip(*(part.get((group, size), _MISSING) for part in found), strict=True)
        styled = zip(styles.values(), columns, strict=True)
        cells = [style(value) for (_, style), values in styled for value in values]
        rows.append((text(group), Cell(f"{size:,}", float(size)), *cells))
    unit = next(filter(None, subjects[0].units), "")
    titles = [f"{t}, {unit}" if t == "RMSE" and unit else t for t, _ in styles.values()]
    heads = [
        f"{title}: {s.name}" if len(subjects) > 1 else title for title in titles for s in shown
    ]
    note = f"The first {len(shown)} models." if len(shown) < len(subjects) else ""
    title = f"Parts of {split}: {name}" if name else f"Parts of {split}"
    return Table(title, ("Group", "Rows", *heads), tuple(rows), note)


def _pooled_groups(subject: Subject, split: str) -> dict[tuple[str, int], list[Interval]]:
    """Two measures by group and its rows, as means over the runs of a subject."""
    runs = [{(g, size): pair for g, size, *pair in _groups(run, split)}
            for run in runs_of(subject)]  # fmt: skip
    level = subject.sampling["level"]
    return {
        key: [pool([run[key][i] for run in runs if key in run], level, measure)
              for i, measure in enumerate(_GROUPS[subject.kind])]
        for key in runs[0]
    }  # fmt: skip


def _groups(subject: Subject, split: str) -> Iterator[tuple[str, int, Interval, Interval]]:
    """Group, its rows, and the two measures that groups are shown by."""
    wanted = tuple(_GROUPS[subject.kind])
    for row in _own_groups(subject, split):
        one, two = (Interval(*(row[m + end] for end in ("", "_low", "_high"))) for m in wanted)
        group = f"{row['column']}: {row['group']}"
        named = subject.kind == "classes"  # a name stays as it is
        yield group if named else _short(group), int(row["rows"]), one, two
    table = subject.result.table
    table = table[(table["kind"] == "subgroups") & (table["split"] == split)]
    table = table[table["calibrator"] == "none"]
    for variant, part in table.groupby("variant", sort=False):
        found = {r["measure"]: r for r in part.to_dict(orient="records")}
        if set(wanted) <= set(found):
            one, two = (Interval(*(float(found[m][n]) for n in Interval._fields)) for m in wanted)
            yield _short(str(variant)), int(found[wanted[1]]["rows"]), one, two


def _short(group: str) -> str:
    """Ends of groups with no more digits than help a reader."""
    return _LONG.sub(lambda m: f"{float(m[0]):.3g}", group)


def _nominal(subject: Subject) -> bool:
    """Whether the numbers of the domain only tell things apart, as those of scaffolds do."""
    data = (subject.config or {}).get("data")
    by = str(data.get("by") or "") if isinstance(data, Mapping) else ""
    told = f"{subject.splits.name} {subject.splits.description}" if subject.splits else ""
    return by.startswith("group=") or "scaffold" in f"{by} {told}".lower()


def _own_groups(subject: Subject, split: str) -> list[dict[str, Any]]:
    """Groups that need no graphs: the true class or value, and the domain if it varies."""
    p, columns = subject.predictions[split], dict[str, Any]()
    if subject.kind == "classes":
        target = p.require_target().tolist()
        columns["true class"] = [subject.class_name(c, split) for c in target]
    elif subject.kind == "values":
        columns["true value"] = p.require_target()
    domain = None
    if subject.splits is not None and not _nominal(subject):
        domain = subject.splits.domains.get(split)
    if domain is not None and len(domain) == len(p) and len(np.unique(domain.numpy())) > 1:
        columns["domain"] = domain
    if not columns:
        return []
    options = subject.sampling
    bins = options.pop("bins")  # as everywhere: one number of bins
    known: dict[str, Callable[..., float]] = {
        "accuracy": metrics.accuracy,
        "balanced_accuracy": metrics.balanced_accuracy,
        "ece": partial(metrics.ece, bins=bins, strict=False),
        "rmse": metrics.rmse,
        "coverage_90": metrics.coverage,
    }
    wanted = {name: known[name] for name in _GROUPS[subject.kind]}
    found = metrics.subgroups(p, columns, metrics=wanted, **options)
    return [{str(k): v for k, v in row.items()} for row in found.to_dict(orient="records")]


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
