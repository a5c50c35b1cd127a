"""The page with its charts, and the same as JSON."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gduq._io import to_json, write_text
from gduq.errors import InputError
from gduq.metrics import Interval
from gduq.prediction import Prediction
from gduq.report import plots, tables
from gduq.report.examples import examples_of
from gduq.report.kinds import AVERAGE_PRECISION, result_of, templates
from gduq.report.subject import Subject, as_subjects, main_split, severities, split_names
from gduq.report.verdict import verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["build", "write"]

_MODELS, _BLOCKS = 6, 4  # lines a reader can still tell apart; labels or values with charts
_NAME = 40  # letters of a name in a legend


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
    results = [result_of(s, split) for s in found[:_MODELS] if split and s.labelled(split)]
    return (
        templates()
        .get_template("page.html.j2")
        .render(
            about=_about(found, title, reproduce),
            kind=first.kind,
            ranked=any(AVERAGE_PRECISION in r.columns for r in results),
            configs=[(s.name, json.dumps(s.config, indent=1, ensure_ascii=False, default=str))
                     for s in found if s.config],
            subjects=found,
            split=split,
            verdict=verdict(found),
            gaps=[(r.subject.name, *(100 * v for v in r.promise)) for r in results],
            scorecards=tables.scorecards(found),
            classes=first.example.names if first.names == ("",) else (),
            labels=tables.label_table(found),
            drawn=examples_of([s.first for s in found], split),
            detection=tables.detection(found),
            subgroups=tables.subgroups(found),
            costs=tables.costs(found),
            targets_left_out=first.names[_BLOCKS:],
            models_left_out=[s.name for s in found[_MODELS:]],
            **_charts(found),
        )
    )  # fmt: skip


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
    if path.suffix == ".html":
        text = build(found, title, reproduce)
    elif path.suffix == ".json":
        content = _about(found, title, reproduce) | {
            "verdict": asdict(verdict(found)),
            "subjects": [{"name": s.name, "cost": dict(s.cost or {}), "config": s.config}
                         for s in found],
            "table": [{"subject": s.name, **row} for s in found
                      for row in s.result.table.to_dict(orient="records")],
        }  # fmt: skip
        text = to_json(content, default=str) + "\n"
    else:
        raise InputError("a file called .html or .json", repr(path.name))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)
    return path


def _about(subjects: Sequence[Subject], title: str | None, reproduce: str) -> dict[str, Any]:
    """Title, facts of the first subject (what was trained of all of them), command, versions."""
    facts = dict(subjects[0].facts)
    if len(subjects) > 1 and "Model" in facts:
        facts["Model"] = "; ".join(s.facts.get("Model", s.name) for s in subjects)
    about = ", from ".join(filter(None, (facts.get("Target"), facts.get("Data"))))
    default = f"{about}: how far to trust it" if about else "How far to trust it"
    versions = next((s.info for s in subjects if s.info), None) or _versions()
    return {"title": title or default, "facts": facts, "reproduce": reproduce,
            "versions": {k: v if isinstance(v, str) else json.dumps(v, default=str)
                         for k, v in versions.items()}}  # fmt: skip


def _versions() -> Mapping[str, str]:
    """Of this process."""
    packages = {p.metadata["Name"]: p.version for p in distributions()}
    names = ("gduq", "torch", "torch-geometric", "numpy", "scipy")
    found = {"python": platform.python_version(), "machine": platform.platform()}
    return found | {name: packages[name] for name in names if name in packages}


# -- charts --------------------------------------------------------------------------------------


class Chart(NamedTuple):
    """A picture with its title."""

    title: str
    svg: str


def _charts(subjects: Sequence[Subject]) -> dict[str, list[Chart]]:
    """Charts by section of the page."""
    drawn = [s.first for s in subjects[:_MODELS]]  # a picture is of one run, as its name says
    panels = list(_panels(drawn))
    known = [p for _, named in panels for p in named.values()]
    found = {
        "reliability": list[Chart](), "parity": list[Chart](), "errors": list[Chart](),
        "precision": list[Chart](), "risk": _draw(panels, plots.risk_coverage, "Risk and coverage"),
        "histograms": list(_histograms(drawn)), "severity": list(_severity(subjects[:_MODELS])),
    }  # fmt: skip
    if subjects[0].parts[0].kind == "classes":  # a label is two classes
        diagram = partial(plots.reliability_diagram, bins=subjects[0].sampling["bins"])
        found["reliability"] = _draw(panels, diagram, "Reliability")
        if all(p.width == 2 for p in known):
            found["precision"] = _draw(panels, plots.precision_recall, "Precision and recall")
    else:
        single = [(f"{title}: {name}" if len(named) > 1 else title, p)
                  for title, named in panels for name, p in named.items()]  # fmt: skip
        bins = min(8, max(1, min(map(len, known), default=0) // 5))
        errors = partial(plots.error_by_uncertainty, bins=bins)
        found["reliability"] = _draw(panels, plots.calibration_curve, "Levels of intervals")
        found["errors"] = _draw(panels, errors, "Error against deviation")
        found["parity"] = _draw(single, plots.parity, "Truth and prediction")
    return found


def _panels(subjects: Sequence[Subject]) -> Iterator[tuple[str, dict[str, Prediction]]]:
    """The ID test, and the split the verdict is about; of several labels or values the latter."""
    for i, name in enumerate(subjects[0].names[:_BLOCKS]):
        parts = [s.parts[i] for s in subjects]
        main = main_split(parts)
        for split in filter(None, dict.fromkeys([main] if name else ["id_test", main])):
            known: dict[str, Prediction] = {}
            for part in parts:
                if (p := part.labelled(split)) is not None:
                    known[_short(part.name, known)] = p
            if known:
                yield f"{name}, {split}" if name else split, known


def _short(name: str, taken: Iterable[str]) -> str:
    """A name for a legend; Matplotlib leaves out those that begin with an underscore."""
    name = name if len(name) <= _NAME else f"{name[: _NAME - 1]}…"
    name = f"\u200b{name}" if name.startswith("_") else name
    return f"{name} ({len(list(taken)) + 1})" if name in taken else name


def _draw(panels: Sequence[tuple[str, Any]], draw: Callable[..., Figure], what: str) -> list[Chart]:
    """One picture per panel; its description holds its legend, and so the numbers."""
    found = []
    for title, known in panels:
        figure = draw(known)
        legend = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
        found.append(Chart(title, plots.to_svg(figure, f"{what}, {title}: {'; '.join(legend)}")))
    return found


def _histograms(subjects: Sequence[Subject]) -> Iterator[Chart]:
    """The usual uncertainty of known and shifted rows and, where it was measured, their novelty."""
    names, main = split_names(subjects), main_split(subjects)
    known = next((s for s in ("id_test", "id_val") if s in names), None)
    shifted = main or next((s for s in ("ood_test", "ood_val") if s in names), None)
    if known is None or shifted is None or known == shifted:
        return
    for name, parts in tables.apart(subjects)[:_BLOCKS]:
        for s in (s for s in parts if {known, shifted} <= set(s.predictions)):
            p, q = s.predictions[known], s.predictions[shifted]
            novel = p.novelty is not None and q.novelty is not None
            for score in (None, "novelty") if novel else (None,):
                draw = partial(plots.score_histograms, p, score=score, known=known)
                panel = (f"{s.name}: {name}" if name else s.name, {shifted: q})
                yield from _draw([panel], draw, "Uncertainty of known and shifted rows")


def _severity(subjects: Sequence[Subject]) -> Iterator[Chart]:
    for scale, splits in severities(subjects).items():
        labelled = {level: split for level, split in splits.items()
                    if any(s.labelled(split) is not None for s in subjects)}  # fmt: skip
        if len(labelled) < 2:
            continue
        growing = result_of(subjects[0], next(iter(subjects[0].predictions))).growing
        for name, parts in tables.apart(subjects)[:_BLOCKS]:
            for measure, words in growing.items():
                lines: dict[str, dict[float, Interval]] = {}
                for s in parts:
                    line = {level: s.value(split, measure) for level, split in labelled.items()
                            if s.labelled(split) is not None}  # fmt: skip
                    lines |= {_short(s.name, lines): line} if line else {}
                draw = partial(plots.severity_lines, label=words, scale=scale)
                title = f"{name}: {words} against {scale}" if name else f"{words} against {scale}"
                yield from _draw([(title, lines)], draw, "Growing shift")
