"""The page, and the other formats a report can be written in."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import math
import os
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any

from gduq.errors import InputError
from gduq.evaluation.result import COLUMNS
from gduq.report import content, figures, graphs
from gduq.report.figures import MOST, Figure
from gduq.report.subject import Subject, checked, main_split, splits_of
from gduq.report.tables import Table, plain, to_latex, to_markdown
from gduq.report.verdict import sure_and_right, verdict

__all__ = ["FORMATS", "build", "write"]

FORMATS = {
    "html": ".html", "markdown": ".md", "latex": ".tex", "json": ".json", "csv": ".csv",
}  # fmt: skip
_DRAWN = 3  # subjects whose graphs are drawn


def build(
    subjects: Subject | Iterable[Subject], title: str = "How far to trust it", reproduce: str = ""
) -> str:
    """One self-contained HTML page: no network, light and dark, for screens, phones and paper.

    Args:
        subjects: What to report on; the first one is what the others are compared with.
        title: Title of the page.
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
    script = source.split("<script>")[1].split("</script>")[0]
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(source).render(
        title=title,
        reproduce=reproduce,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        **_context(found),
    )


def _context(subjects: Sequence[Subject]) -> dict[str, Any]:
    split = main_split(subjects)
    drawn = [s.first for s in subjects]  # a picture is of one run, and its title says which
    return {
        "subjects": [{"name": s.name, "config": _json(s.config)} for s in subjects],
        "seeds": any(s.runs for s in subjects),
        "data": subjects[0].splits,
        "split": split,
        "verdict": verdict(subjects),
        "gaps": _gaps(subjects, split),
        "scorecards": content.scorecards(subjects),
        "reliability": _reliability(drawn),
        "risk": [figures.risk_coverage(drawn, s) for s in _shown(drawn)],
        "histograms": _histograms(drawn, split),
        "severity": _severity(subjects),
        "drawn": _drawn(drawn, split),
        "colours": graphs.colour_legend(drawn, split) if split else (),
        "detection": content.detection(subjects),
        "subgroups": content.subgroups(subjects),
        "costs": content.costs(subjects),
        "sizes": content.sizes(subjects),
        "versions": content.versions(subjects),
        "hidden": [s.name for s in subjects[MOST:]],
    }


def _json(config: Any) -> str:
    return json.dumps(config, indent=1, ensure_ascii=False, default=str) if config else ""


def _gaps(subjects: Sequence[Subject], split: str | None) -> list[dict[str, Any]]:
    """How sure and how right each subject is, in percent."""
    if split is None:
        return []
    known = [s for s in subjects[:MOST] if s.labelled(split) is not None]
    pairs = [sure_and_right(s, split) for s in known]
    return [
        {"name": s.name, "sure": sure, "right": right}
        for s, (sure, right) in zip(known, pairs, strict=True)
    ]


# -- figures -------------------------------------------------------------------------------------


def _shown(subjects: Sequence[Subject]) -> list[str]:
    """Splits with figures: the ID test, and the one the verdict is about."""
    wanted = dict.fromkeys(["id_test", main_split(subjects)])
    return [s for s in wanted if s and any(x.labelled(s) for x in subjects[:MOST])]


def _reliability(subjects: Sequence[Subject]) -> list[tuple[str, list[Figure]]]:
    return [
        (split, [figures.reliability(s, split, i) for i, s in enumerate(subjects[:MOST])
                 if s.labelled(split)])
        for split in _shown(subjects)
    ]  # fmt: skip


def _histograms(subjects: Sequence[Subject], split: str | None) -> list[Figure]:
    names = splits_of(subjects)
    known = next((s for s in ("id_test", "id_val") if s in names), None)
    shifted = split or next((s for s in ("ood_test", "ood_val") if s in names), None)
    if known is None or shifted is None or known == shifted:
        return []
    both = [s for s in subjects[:MOST] if {known, shifted} <= set(s.predictions)]
    return [figures.histogram(s, known, shifted) for s in both]


def _severity(subjects: Sequence[Subject]) -> list[Figure]:
    found = []
    for splits in content.severities(subjects).values():
        judged = [n for n in splits if any(s.labelled(n) for s in subjects[:MOST])]
        if len(judged) > 1:
            found += [figures.severity(subjects, judged, m) for m in ("ece", "accuracy")]
    return found


def _drawn(subjects: Sequence[Subject], split: str | None) -> list[dict[str, Any]]:
    found = []
    for subject in subjects[:_DRAWN]:
        if split is None or split not in subject.predictions:
            continue
        uncertain = graphs.examples(subject, split, "uncertain")
        wrong = graphs.examples(subject, split, "wrong")
        if uncertain:
            score = graphs.uncertainty_name(subject, split)
            found.append(
                {"name": subject.name, "score": score, "uncertain": uncertain, "wrong": wrong}
            )
    return found


# -- files ---------------------------------------------------------------------------------------


def write(
    subjects: Subject | Iterable[Subject],
    path: str | Path,
    format: str | None = None,
    title: str = "How far to trust it",
    reproduce: str = "",
) -> Path:
    """Write a report to a file; the file is there whole or not at all.

    Args:
        subjects: What to report on; the first one is what the others are compared with.
        path: The file.
        format: ``"html"``, ``"markdown"``, ``"latex"``, ``"json"`` or ``"csv"``; by default what
            the ending of the file says.
        title: Title of the report.
        reproduce: The command that makes the same again.

    Returns:
        The path.
    """
    path, found = Path(path), checked(subjects)
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
    _replace(path, text)
    return path


def _replace(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.write(text)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _tables(subjects: Sequence[Subject]) -> list[Table]:
    others = (content.detection(subjects), content.subgroups(subjects), content.costs(subjects))
    return [*content.scorecards(subjects), *(t for t in others if t is not None)]


def _document(subjects: Sequence[Subject], kind: str, title: str) -> str:
    tables = _tables(subjects)
    if kind == "latex":
        return "\n\n".join(["% needs \\usepackage{booktabs}", *map(to_latex, tables)]) + "\n"
    said = verdict(subjects)
    points = "\n".join(f"- **{plain(p.about)}**: {plain(p.text)}" for p in said.points)
    parts = [f"# {plain(title)}", f"**{plain(said.headline)}**", points, plain(said.note)]
    return "\n\n".join(filter(None, [*parts, *map(to_markdown, tables)])) + "\n"


def _as_json(subjects: Sequence[Subject], title: str, reproduce: str) -> str:
    said = verdict(subjects)
    held = {
        "title": title,
        "reproduce": reproduce,
        "verdict": asdict(said),
        "subjects": [
            {"name": s.name, "cost": dict(s.cost or {}), "config": s.config} for s in subjects
        ],
        "versions": content.versions(subjects),
        "table": [_finite(row) for row in content.records(subjects)],
    }
    return json.dumps(held, indent=1, ensure_ascii=False, default=str) + "\n"


def _finite(row: dict[str, Any]) -> dict[str, Any]:
    plain = {k: v.item() if hasattr(v, "item") else v for k, v in row.items()}
    return {
        k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in plain.items()
    }


def _as_csv(subjects: Sequence[Subject]) -> str:
    file = io.StringIO()
    writer = csv.DictWriter(file, ["subject", *COLUMNS], lineterminator="\n")
    writer.writeheader()
    writer.writerows(content.records(subjects))
    return file.getvalue()
