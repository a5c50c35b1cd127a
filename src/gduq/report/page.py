"""The page, and the other formats a report can be written in."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gduq.data.outputs import FORMATS
from gduq.disk import to_json, write_text
from gduq.errors import InputError
from gduq.evaluation.evaluation import COLUMNS
from gduq.report import examples, tables
from gduq.report.charts import MOST, charts_of
from gduq.report.scorecards import card_of, label_table, scorecards
from gduq.report.subject import Subject, checked, main_split
from gduq.report.verdict import verdict
from gduq.report.wording import JudgedSplit
from gduq.text_tables import Table, plain, to_latex, to_markdown

__all__ = ["FORMATS", "build", "write"]


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
    from jinja2 import Environment, PackageLoader, StrictUndefined

    found = checked(subjects)
    environment = Environment(
        loader=PackageLoader("gduq.report", ""), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    first, split = found[0], main_split(found)
    shown = [s for s in found[:MOST] if split is not None and s.labelled(split) is not None]
    return environment.get_template("page.html.j2").render(
        title=title or _title(found),
        reproduce=reproduce,
        kind=first.kind,
        facts=_facts(found),
        subjects=[{"name": s.name, "config": _json(s.config)} for s in found],
        data=first.splits,
        split=split,
        verdict=verdict(found),
        gaps=[(s.name, *JudgedSplit(s, split).sure_and_right) for s in shown if split is not None],
        scorecards=scorecards(found),
        card=card_of(found),
        level=100 * first.sampling["level"],
        seeds=any(s.runs for s in found),
        classes=getattr(next(iter(first.predictions.values())), "class_names", None) or (),
        labels=label_table(found),
        drawn=examples.drawn([s.first for s in found], split),
        colours=examples.colour_legend(found, split) if split else (),
        detection=tables.detection(found),
        subgroups=tables.subgroups(found),
        costs=tables.costs(found),
        sizes=tables.sizes(found),
        versions=tables.versions(found),
        **charts_of(found),
    )


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
        path: The file, which is also returned.
        format: ``"html"``, ``"markdown"``, ``"latex"``, ``"json"`` or ``"csv"``; by default what
            the ending of the file says.
        title: Title of the report; by default as in `build`.
        reproduce: The command that makes the same again.
    """
    path, found = Path(path), checked(subjects)
    title = title or _title(found)
    kind = format or {end: name for name, end in FORMATS.items()}.get(path.suffix, "")
    if kind == "html":
        text = build(found, title, reproduce)
    elif kind == "markdown":
        text = _markdown(found, title)
    elif kind == "latex":
        latex = ["% gduq report; needs \\usepackage{booktabs}", *map(to_latex, _tables(found))]
        text = "\n\n".join(latex) + "\n"
    elif kind == "json":
        text = _as_json(found, title, reproduce)
    elif kind == "csv":
        columns = ["subject", *COLUMNS]
        text = tables.numbers(found)[columns].to_csv(index=False, na_rep="nan", lineterminator="\n")
    else:
        got = repr(format) if format else f"a file called {path.name!r}"
        raise InputError(f"a format from {', '.join(FORMATS)}", got)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)
    return path


def _tables(subjects: Sequence[Subject]) -> list[Table]:
    others = [label_table(subjects), tables.detection(subjects), *tables.subgroups(subjects),
              tables.costs(subjects)]  # fmt: skip
    return [*scorecards(subjects), *(t for t in others if t is not None)]


def _markdown(subjects: Sequence[Subject], title: str) -> str:
    said = verdict(subjects)
    todo = f"What to do: {plain(said.advice.text)}" if said.advice else ""
    if said.advice and said.advice.command:
        todo += f" Next: `{said.advice.command}`"
    parts = [
        f"# {plain(title)}",
        "\n".join(f"- {k}: {plain(v)}" for k, v in _facts(subjects).items()),
        f"**{plain(said.headline)}**",
        todo,
        "\n".join(f"- **{plain(p.about)}**: {plain(p.text)}" for p in said.points),
        plain(said.note),
        *map(to_markdown, _tables(subjects)),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _as_json(subjects: Sequence[Subject], title: str, reproduce: str) -> str:
    held = {
        "title": title,
        "facts": _facts(subjects),
        "reproduce": reproduce,
        "verdict": asdict(verdict(subjects)),
        "subjects": [
            {"name": s.name, "cost": dict(s.cost or {}), "config": s.config} for s in subjects
        ],
        "versions": tables.versions(subjects),
        "table": tables.numbers(subjects).to_dict(orient="records"),
    }
    return to_json(held, default=str) + "\n"
