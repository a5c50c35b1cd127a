"""What a report holds beside scorecards: groups of rows, detection of shift, cost, versions."""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import torch

from gduq import metrics
from gduq.evaluation.measures import group_measures
from gduq.metrics import Interval
from gduq.report.comparing import UNKNOWN, pool
from gduq.report.scorecards import ACCURACY, BALANCED, COVERAGE, ECE, RMSE, apart
from gduq.report.subject import Subject, main_split, splits_of
from gduq.report.verdict import cost_ratios
from gduq.text_tables import Cell, Table, count, number

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["costs", "detection", "numbers", "sizes", "subgroups", "versions"]

_SHOWN = {  # of groups, by kind
    "classes": (ACCURACY, ECE),
    "labels": (BALANCED, ECE),
    "values": (RMSE, COVERAGE),
}
_MOST = 4  # subjects side by side
_LONG = re.compile(r"\d+\.\d{4,}")  # ends of groups with more digits than help a reader

Groups = dict[tuple[str, int], dict[str, Interval]]  # by name and rows of the group, and measure


def subgroups(subjects: Sequence[Subject]) -> list[Table]:
    """Parts of the main split: by class or true value, by domain, and by what graphs say."""
    split = main_split(subjects)
    if split is None:
        return []
    found = [_groups_table(parts, split, name) for name, parts in apart(subjects)]
    return [table for table in found if table.rows]


def _groups_table(subjects: Sequence[Subject], split: str, name: str) -> Table:
    shown = [s for s in subjects if s.labelled(split) is not None][:_MOST]
    found, columns, rows = [_pooled(s, split) for s in shown], _SHOWN[subjects[0].kind], []
    for group in dict.fromkeys(key for part in found for key in part):
        cells = [number(part.get(group, {}).get(c.measure, UNKNOWN), c.style)
                 for c in columns for part in found]  # fmt: skip
        rows.append((Cell(group[0]), count(group[1]), *cells))
    heads = [c.head(s, named=len(subjects) > 1) for c in columns for s in shown]
    note = f"The first {len(shown)} models." if len(shown) < len(subjects) else ""
    title = f"Parts of {split}: {name}" if name else f"Parts of {split}"
    return Table(title, ("Group", "Rows", *heads), rows, note)


def _pooled(subject: Subject, split: str) -> Groups:
    """Measures by group, as means over the runs of a subject."""
    runs, level = [_groups(run, split) for run in subject.each_run], subject.sampling["level"]
    return {
        group: {m: pool([run[group][m] for run in runs if group in run], level, m) for m in known}
        for group, known in runs[0].items()
    }


def _groups(subject: Subject, split: str) -> Groups:
    """Measures by group: of true classes or values and domains, then those of the evaluation."""
    table = subject.result.table
    table = table[(table["kind"] == "subgroups") & (table["split"] == split)]
    known = table[table["calibrator"] == "none"].to_dict(orient="records")
    found: Groups = {}
    for row in (*_own(subject, split), *known):
        group = str(row["variant"])
        if not group.startswith("true class: "):  # a name stays as it is
            group = _LONG.sub(lambda m: f"{float(m[0]):.3g}", group)
        value = Interval(*(float(row[k]) for k in Interval._fields))
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
    domain = subject.splits.domains.get(split) if subject.splits is not None else None
    varies = domain is not None and len(domain) == len(p) and torch.unique(domain).numel() > 1
    if varies and not _is_nominal(subject):
        columns["domain"] = domain
    if not columns:
        return
    options = subject.sampling
    known = group_measures(subject.kind, options.pop("bins"))  # as everywhere: one number of bins
    wanted = {column.measure: known[column.measure] for column in _SHOWN[subject.kind]}
    found = metrics.subgroups(p, columns, metrics=wanted, **options)
    for row in found.to_dict(orient="records"):
        for m in wanted:
            ends = {"value": row[m], "low": row[f"{m}_low"], "high": row[f"{m}_high"]}
            name = f"{row['column']}: {row['group']}"
            yield {"variant": name, "measure": m, "rows": row["rows"], **ends}


def _is_nominal(subject: Subject) -> bool:
    """Whether the numbers of the domain only tell things apart, as those of scaffolds do."""
    data = (subject.config or {}).get("data")
    by = str(data.get("by") or "") if isinstance(data, Mapping) else ""
    told = f"{subject.splits.name} {subject.splits.description}" if subject.splits else ""
    return by.startswith("group=") or "scaffold" in f"{by} {told}".lower()


def detection(subjects: Sequence[Subject]) -> Table | None:
    """How well each uncertainty tells shifted rows from those of known kind."""
    rows = []
    for subject in subjects:
        table = subject.result.table
        table = table[(table["kind"] == "ood") & (table["calibrator"] == "none")]
        keys = table[["split", "variant", "against"]].drop_duplicates()
        for split, score, against in keys.itertuples(index=False):
            found = [subject.value(split, m, "none", score) for m in ("auroc", "fpr95")]
            words = (subject.name, score, f"{split} against {against}")
            rows.append((*map(Cell, words), *map(number, found)))
    columns = ("Model", "Score", "Rows", "AUROC", "False alarms at 95 % found")
    return Table("Telling shifted rows apart", columns, rows) if rows else None


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
        rows.append((Cell(subject.name), *cells))
    names = [k.removesuffix("_seconds").replace("_", " ").capitalize() for k in keys]
    return Table("Cost", ("Model", *names), rows, f"Relative to {first.name}.")


def sizes(subjects: Sequence[Subject]) -> Table:
    """Rows, hypotheses and what they are about, of everything that was judged."""
    rows = []
    for subject in subjects:
        for split in splits_of([subject]):
            p = subject.predictions[split]
            known = Cell("no" if p.target is None else "yes")
            sizes = (count(len(p)), count(p.num_samples), Cell(p.size))
            rows.append((Cell(subject.name), Cell(split), *sizes, known))
    columns = ("Model", "Split", "Rows", "Hypotheses (K)", "About", "Truth known")
    return Table("What was judged", columns, rows)


def versions(subjects: Sequence[Subject]) -> dict[str, str]:
    """Versions of the first run that recorded any, otherwise of this process."""
    for info in filter(None, (subject.info for subject in subjects)):
        return {str(k): v if isinstance(v, str) else json.dumps(v, default=str)
                for k, v in info.items()}  # fmt: skip
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
