"""Parts of a split: where does a model fail?"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from gduq import metrics
from gduq.metrics import Interval
from gduq.report.seeds import pool, runs_of
from gduq.report.split_names import main_split
from gduq.report.subject import Subject
from gduq.text_tables import Cell, Table, number, share, text

__all__ = ["is_nominal", "subgroups"]

_SHOWN: dict[str, dict[str, tuple[str, Callable[..., Cell]]]] = {  # measures of groups, by kind
    "classes": {"accuracy": ("Accuracy,\u00a0%", share), "ece": ("ECE", number)},
    "labels": {
        "balanced_accuracy": ("Balanced accuracy,\u00a0%", share), "ece": ("ECE", number),
    },
    "values": {
        "rmse": ("RMSE", number), "coverage_90": ("90\u00a0% intervals hold,\u00a0%", share),
    },
}  # fmt: skip
_MOST = 4  # subjects side by side
_MISSING = Interval(math.nan, math.nan, math.nan)
_LONG = re.compile(r"\d+\.\d{4,}")  # ends of groups with more digits than help a reader

Group = tuple[str, int]  # its name and its rows


def subgroups(subjects: Sequence[Subject]) -> list[Table]:
    """Parts of the main split: by class or true value, by domain, and by what graphs say."""
    split = main_split(subjects)
    if split is None:
        return []
    apart = subjects[0].names if subjects[0].kind == "values" else ("",)
    found = []
    for i, name in enumerate(apart):
        parts = [s.parts[i] if s.kind == "values" else s for s in subjects]
        found.append(_table(parts, split, name))
    return [table for table in found if table.rows]


def _table(subjects: Sequence[Subject], split: str, name: str) -> Table:
    shown = [s for s in subjects if s.labelled(split) is not None][:_MOST]
    found, measures = [_pooled(s, split) for s in shown], _SHOWN[subjects[0].kind]
    rows = []
    for group in dict.fromkeys(key for part in found for key in part):
        cells = [style(part.get(group, {}).get(measure, _MISSING))
                 for measure, (_, style) in measures.items() for part in found]  # fmt: skip
        rows.append((text(group[0]), Cell(f"{group[1]:,}", float(group[1])), *cells))
    unit = next(filter(None, subjects[0].units), "")
    titles = [f"{t}, {unit}" if t == "RMSE" and unit else t for t, _ in measures.values()]
    several = len(subjects) > 1
    heads = [f"{title}: {s.name}" if several else title for title in titles for s in shown]
    note = f"The first {len(shown)} models." if len(shown) < len(subjects) else ""
    title = f"Parts of {split}: {name}" if name else f"Parts of {split}"
    return Table(title, ("Group", "Rows", *heads), tuple(rows), note)


def _pooled(subject: Subject, split: str) -> dict[Group, dict[str, Interval]]:
    """Measures by group, as means over the runs of a subject."""
    runs, level = [_groups(run, split) for run in runs_of(subject)], subject.sampling["level"]
    return {
        group: {m: pool([run[group][m] for run in runs if group in run], level, m) for m in known}
        for group, known in runs[0].items()
    }


def _groups(subject: Subject, split: str) -> dict[Group, dict[str, Interval]]:
    """Measures by group: of true classes or values and domains, then those of the evaluation."""
    table = subject.result.table
    table = table[(table["kind"] == "subgroups") & (table["split"] == split)]
    known = table[table["calibrator"] == "none"].to_dict(orient="records")
    found: dict[Group, dict[str, Interval]] = {}
    for row in (*_own(subject, split), *known):
        if row["measure"] in _SHOWN[subject.kind]:
            value = Interval(*(float(row[name]) for name in Interval._fields))
            group = _LONG.sub(lambda m: f"{float(m[0]):.3g}", str(row["variant"]))
            group = group if row.get("rounded", True) else str(row["variant"])
            found.setdefault((group, int(row["rows"])), {})[str(row["measure"])] = value
    return found


def _own(subject: Subject, split: str) -> Iterator[dict[Any, Any]]:
    """Groups that need no graphs: the true class or value, and the domain if it varies."""
    p, columns = subject.predictions[split], dict[str, Any]()
    if subject.kind == "classes":
        target = p.require_target().tolist()
        columns["true class"] = [subject.class_name(c, split) for c in target]
    elif subject.kind == "values":
        columns["true value"] = p.require_target()
    known_domain = subject.splits is not None and not is_nominal(subject)
    domain = subject.splits.domains.get(split) if known_domain else None  # type: ignore[union-attr]
    if domain is not None and len(domain) == len(p) and torch.unique(domain).numel() > 1:
        columns["domain"] = domain
    options = subject.sampling
    bins = options.pop("bins")  # as everywhere: one number of bins
    known: dict[str, Callable[..., float]] = {
        "accuracy": metrics.accuracy,
        "balanced_accuracy": metrics.balanced_accuracy,
        "ece": partial(metrics.ece, bins=bins, strict=False),
        "rmse": metrics.rmse,
        "coverage_90": metrics.coverage,
    }
    wanted = {name: known[name] for name in _SHOWN[subject.kind]}
    found = metrics.subgroups(p, columns, metrics=wanted, **options) if columns else None
    for row in [] if found is None else found.to_dict(orient="records"):
        name = f"{row['column']}: {row['group']}"
        rounded = row["column"] != "true class"  # a name stays as it is
        for m in wanted:
            ends = {"value": row[m], "low": row[f"{m}_low"], "high": row[f"{m}_high"]}
            yield {"variant": name, "measure": m, "rows": row["rows"], "rounded": rounded, **ends}


def is_nominal(subject: Subject) -> bool:
    """Whether the numbers of the domain only tell things apart, as those of scaffolds do."""
    data = (subject.config or {}).get("data")
    by = str(data.get("by") or "") if isinstance(data, Mapping) else ""
    told = f"{subject.splits.name} {subject.splits.description}" if subject.splits else ""
    return by.startswith("group=") or "scaffold" in f"{by} {told}".lower()
