"""The page, and the same as JSON."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from gduq._io import to_json, write_text
from gduq.errors import InputError
from gduq.report import tables
from gduq.report.charts import MOST, charts_of
from gduq.report.examples import examples_of
from gduq.report.kinds import AVERAGE_PRECISION, result_of, templates
from gduq.report.subject import Subject, as_subjects, main_split
from gduq.report.verdict import verdict

__all__ = ["build", "write"]


def build(
    subjects: Subject | Iterable[Subject], title: str | None = None, reproduce: str = ""
) -> str:
    """One self-contained HTML page: no network, no script, for screens, phones and paper.

    Args:
        subjects: What to report on; the first one is what the others are compared with.
        title: Title of the page; by default the target and the file it is learned from.
        reproduce: The command that makes the same again.

    Example:
        >>> import torch
        >>> from gduq.prediction import ClassPrediction
        >>> p = ClassPrediction(torch.eye(2).repeat(20, 1), target=torch.tensor([0, 1] * 20))
        >>> "<h1>Mine</h1>" in build(Subject("vanilla", {"id_test": p}), title="Mine")
        True
    """
    found = as_subjects(subjects)
    first, split = found[0], main_split(found)
    results = [result_of(s, split) for s in found[:MOST] if split and s.labelled(split)]
    return (
        templates()
        .get_template("page.html.j2")
        .render(
            title=title or _title(found),
            reproduce=reproduce,
            kind=first.kind,
            ranked=any(AVERAGE_PRECISION in r.columns for r in results),
            facts=_facts(found),
            subjects=[{"name": s.name, "config": _json(s.config)} for s in found],
            data=first.splits,
            split=split,
            verdict=verdict(found),
            gaps=[(r.subject.name, *(100 * v for v in r.promise)) for r in results],
            scorecards=tables.scorecards(found),
            level=100 * first.sampling["level"],
            seeds=any(s.runs for s in found),
            classes=first.example.names if first.names == ("",) else (),
            labels=tables.label_table(found),
            drawn=examples_of([s.first for s in found], split),
            detection=tables.detection(found),
            subgroups=tables.subgroups(found),
            costs=tables.costs(found),
            versions=_versions(found),
            **charts_of(found),
        )
    )


def write(
    subjects: Subject | Iterable[Subject],
    path: str | Path,
    title: str | None = None,
    reproduce: str = "",
) -> Path:
    """Write a report as a page (``.html``) or as JSON (``.json``), by the ending of the file.

    Args:
        subjects: What to report on; the first one is what the others are compared with.
        path: The file, which is also returned; it is there whole or not at all.
        title: Title of the report; by default as in `build`.
        reproduce: The command that makes the same again.
    """
    path, found = Path(path), as_subjects(subjects)
    title = title or _title(found)
    if path.suffix == ".html":
        text = build(found, title, reproduce)
    elif path.suffix == ".json":
        text = to_json(_as_json(found, title, reproduce), default=str) + "\n"
    else:
        raise InputError("a file called .html or .json", repr(path.name))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)
    return path


def _title(subjects: Sequence[Subject]) -> str:
    """The target and where it comes from, where that is known."""
    facts = subjects[0].facts
    about = ", from ".join(filter(None, (facts.get("Target"), facts.get("Data"))))
    return f"{about}: how far to trust it" if about else "How far to trust it"


def _facts(subjects: Sequence[Subject]) -> dict[str, str]:
    """Facts of the first subject; what was trained of all of them."""
    facts = dict(subjects[0].facts)
    if len(subjects) > 1 and "Model" in facts:
        facts["Model"] = "; ".join(s.facts.get("Model", s.name) for s in subjects)
    return facts


def _json(config: Any) -> str:
    return json.dumps(config, indent=1, ensure_ascii=False, default=str) if config else ""


def _as_json(subjects: Sequence[Subject], title: str, reproduce: str) -> dict[str, Any]:
    return {
        "title": title,
        "facts": _facts(subjects),
        "reproduce": reproduce,
        "verdict": asdict(verdict(subjects)),
        "subjects": [
            {"name": s.name, "cost": dict(s.cost or {}), "config": s.config} for s in subjects
        ],
        "versions": _versions(subjects),
        "table": [
            {"subject": s.name, **row}
            for s in subjects
            for row in s.result.table.to_dict(orient="records")
        ],
    }


def _versions(subjects: Sequence[Subject]) -> dict[str, str]:
    """Versions of the first run that recorded any, otherwise of this process."""
    for info in filter(None, (subject.info for subject in subjects)):
        return {str(k): v if isinstance(v, str) else json.dumps(v, default=str)
                for k, v in info.items()}  # fmt: skip
    found = {"python": platform.python_version(), "machine": platform.platform()}
    packages = {p.metadata["Name"]: p.version for p in distributions()}
    names = ("gduq", "torch", "torch-geometric", "numpy", "scipy")
    return found | {name: packages[name] for name in names if name in packages}
