"""The page, and the other formats a report can be written in."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any

from gduq.disk import to_json, write_text
from gduq.errors import InputError
from gduq.evaluation.evaluation import COLUMNS
from gduq.report import cards, graphs, other_tables
from gduq.report.charts import MOST, charts_of
from gduq.report.groups import subgroups
from gduq.report.header import first_lines, title_of
from gduq.report.split_names import main_split
from gduq.report.subject import Subject, checked
from gduq.report.verdict import verdict
from gduq.report.wording import sure_and_right
from gduq.text_tables import Table, plain, to_latex, to_markdown

__all__ = ["FORMATS", "build", "write"]

FORMATS = {
    "html": ".html", "markdown": ".md", "latex": ".tex", "json": ".json", "csv": ".csv",
}  # fmt: skip


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
        >>> from gduq.prediction import Prediction
        >>> p = Prediction(torch.eye(2).repeat(20, 1), target=torch.tensor([0, 1] * 20))
        >>> "<h1>Mine</h1>" in build(Subject("vanilla", {"id_test": p}), title="Mine")
        True
    """
    from jinja2 import Environment, StrictUndefined

    found = checked(subjects)
    source = files("gduq.report").joinpath("template.html.jinja").read_text(encoding="utf-8")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(source).render(
        title=title or title_of(found),
        reproduce=reproduce,
        **_context(found),
    )


def _context(subjects: Sequence[Subject]) -> dict[str, Any]:
    split = main_split(subjects)
    return {
        "kind": subjects[0].kind,
        "facts": first_lines(subjects),
        "subjects": [{"name": s.name, "config": _json(s.config)} for s in subjects],
        "seeds": any(s.runs for s in subjects),
        "data": subjects[0].splits,
        "split": split,
        "verdict": verdict(subjects),
        "gaps": _gaps(subjects, split),
        "scorecards": cards.scorecards(subjects),
        "scorecard_lead": cards.told_of(subjects),
        "labels": cards.label_table(subjects),
        **charts_of(subjects, split),
        "drawn": graphs.drawn([s.first for s in subjects], split),
        "colours": graphs.colour_legend(subjects, split) if split else (),
        "detection": other_tables.detection(subjects),
        "subgroups": subgroups(subjects),
        "costs": other_tables.costs(subjects),
        "sizes": other_tables.sizes(subjects),
        "versions": other_tables.versions(subjects),
    }


def _json(config: Any) -> str:
    return json.dumps(config, indent=1, ensure_ascii=False, default=str) if config else ""


def _gaps(subjects: Sequence[Subject], split: str | None) -> list[dict[str, Any]]:
    """What each subject promises and what it holds, in percent."""
    if split is None:
        return []
    known = [s for s in subjects[:MOST] if s.labelled(split) is not None]
    pairs = [sure_and_right(s, split) for s in known]
    return [
        {"name": s.name, "sure": sure, "right": right}
        for s, (sure, right) in zip(known, pairs, strict=True)
    ]


# -- files ---------------------------------------------------------------------------------------


def write(
    subjects: Subject | Iterable[Subject],
    path: str | Path,
    format: str | None = None,
    title: str | None = None,
    reproduce: str = "",
) -> Path:
    """Write a report to a file; the file is there whole or not at all.

    Args:
        subjects: What to report on; the first one is what the others are compared with.
        path: The file.
        format: ``"html"``, ``"markdown"``, ``"latex"``, ``"json"`` or ``"csv"``; by default what
            the ending of the file says.
        title: Title of the report; by default as in `build`.
        reproduce: The command that makes the same again.

    Returns:
        The path.
    """
    path, found = Path(path), checked(subjects)
    title = title or title_of(found)
    kind = format or {end: name for name, end in FORMATS.items()}.get(path.suffix, "")
    if kind == "html":
        text = build(found, title, reproduce)
    elif kind in ("markdown", "latex"):
        text = _document(found, kind, title)
    elif kind == "json":
        text = _as_json(found, title, reproduce)
    elif kind == "csv":
        text = _as_csv(found)
    else:
        got = repr(format) if format else f"a file called {path.name!r}"
        raise InputError(f"a format from {', '.join(FORMATS)}", got)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)
    return path


def _tables(subjects: Sequence[Subject]) -> list[Table]:
    groups = subgroups(subjects)
    others = [cards.label_table(subjects), other_tables.detection(subjects), *groups,
              other_tables.costs(subjects)]  # fmt: skip
    return [*cards.scorecards(subjects), *(t for t in others if t is not None)]


def _document(subjects: Sequence[Subject], kind: str, title: str) -> str:
    tables = _tables(subjects)
    if kind == "latex":
        return "\n\n".join(["% needs \\usepackage{booktabs}", *map(to_latex, tables)]) + "\n"
    said = verdict(subjects)
    points = "\n".join(f"- **{plain(p.about)}**: {plain(p.text)}" for p in said.points)
    todo = f"What to do: {plain(said.advice.text)}" if said.advice else ""
    if said.advice and said.advice.command:
        todo += f" Next: `{said.advice.command}`"
    facts = "\n".join(f"- {k}: {plain(v)}" for k, v in first_lines(subjects).items())
    parts = [
        f"# {plain(title)}",
        facts,
        f"**{plain(said.headline)}**",
        todo,
        points,
        plain(said.note),
    ]
    return "\n\n".join(filter(None, [*parts, *map(to_markdown, tables)])) + "\n"


def _as_json(subjects: Sequence[Subject], title: str, reproduce: str) -> str:
    said = verdict(subjects)
    held = {
        "title": title,
        "facts": first_lines(subjects),
        "reproduce": reproduce,
        "verdict": asdict(said),
        "subjects": [
            {"name": s.name, "cost": dict(s.cost or {}), "config": s.config} for s in subjects
        ],
        "versions": other_tables.versions(subjects),
        "table": other_tables.records(subjects),
    }
    return to_json(held, default=str) + "\n"


def _as_csv(subjects: Sequence[Subject]) -> str:
    file = io.StringIO()
    writer = csv.DictWriter(file, ["subject", *COLUMNS], lineterminator="\n")
    writer.writeheader()
    writer.writerows(other_tables.records(subjects))
    return file.getvalue()
