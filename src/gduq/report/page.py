"""The page with its charts, and the same as JSON."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gduq._io import to_json, write_text
from gduq.errors import InputError
from gduq.prediction import Prediction
from gduq.report import plots, tables
from gduq.report.molecules import examples_of
from gduq.report.results import result_of, templates
from gduq.report.subject import Subject, as_subjects, main_split, split_names
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

    The first subject is what the others are compared with. The title is by default the target and
    the file it is learned from; ``reproduce`` is the command that makes the same again.

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
    drawn = [s.each_run[0] for s in found]  # a picture is of one run, as its name says
    return (
        templates()
        .get_template("page.html.j2")
        .render(
            about=_about(found, title, reproduce),
            kind=first.example.kind,
            configs=[(s.name, json.dumps(s.config, indent=1, ensure_ascii=False, default=str))
                     for s in found if s.config],
            subjects=found,
            split=split,
            verdict=verdict(found),
            gaps=[(r.subject.name, *(100 * v for v in r.promise)) for r in results],
            scorecards=tables.scorecards(found),
            classes=first.example.names if first.names == ("",) else (),
            labels=tables.label_table(found),
            drawn=examples_of(drawn, split),
            targets_left_out=first.names[_BLOCKS:],
            models_left_out=[s.name for s in found[_MODELS:]],
            histograms=list(_histograms(drawn[:_MODELS])),
            **_charts(drawn[:_MODELS]),
        )
    )  # fmt: skip


def write(
    subjects: Subject | Iterable[Subject],
    path: str | Path,
    title: str | None = None,
    reproduce: str = "",
) -> Path:
    """Write a report as a page (``.html``) or as JSON (``.json``), by the ending of the file.

    All but ``path`` is as in `build`. The file is there whole or not at all.
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
    own = {"python": platform.python_version(), "machine": platform.platform()}
    own |= {name: version(name) for name in ("gduq", "torch", "torch-geometric")}
    versions = next((s.info for s in subjects if s.info), None) or own
    return {"title": title or default, "facts": facts, "reproduce": reproduce,
            "versions": {k: v if isinstance(v, str) else json.dumps(v, default=str)
                         for k, v in versions.items()}}  # fmt: skip


# -- charts --------------------------------------------------------------------------------------


Chart = tuple[str, str]  # a title and its picture


def _charts(subjects: Sequence[Subject]) -> dict[str, list[Chart]]:
    """Charts of what is known, by section of the page; a label is two classes."""
    panels = list(_panels(subjects))
    single = [(f"{title}: {name}" if len(named) > 1 else title, p)
              for title, named in panels for name, p in named.items()]  # fmt: skip
    values = not subjects[0].example.mean_of_parts
    diagram = partial(plots.reliability_diagram, bins=subjects[0].sampling["bins"])
    return {
        "reliability": _draw(panels, plots.calibration_curve, "Levels of intervals") if values
        else _draw(panels, diagram, "Reliability"),
        "parity": _draw(single, plots.parity, "Truth and prediction") if values else [],
        "risk": _draw(panels, plots.risk_coverage, "Risk and coverage"),
    }  # fmt: skip


def _panels(subjects: Sequence[Subject]) -> Iterator[tuple[str, dict[str, Prediction]]]:
    """The ID test, and the split the verdict is about; of several labels or values the latter."""
    for part in subjects[0].names[:_BLOCKS]:
        main = main_split(subjects, part)
        for split in filter(None, dict.fromkeys([main] if part else ["id_test", main])):
            known: dict[str, Prediction] = {}
            for subject in subjects:
                if (p := subject.labelled(split, part)) is not None:
                    known[_short(subject.name, known)] = p
            if known:
                yield f"{part}, {split}" if part else split, known


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
        found.append((title, plots.to_svg(figure, f"{what}, {title}: {'; '.join(legend)}")))
    return found


def _histograms(subjects: Sequence[Subject]) -> Iterator[Chart]:
    """The usual uncertainty of known and shifted rows and, where it was measured, their novelty."""
    names, main = split_names(subjects), main_split(subjects)
    known = next((s for s in ("id_test", "id_val") if s in names), "")
    shifted = main or next((s for s in ("ood_test", "ood_val") if s in names), "")
    both = [s for s in subjects if {known, shifted} <= set(s.predictions) and known != shifted]
    for part, s in product(tables.apart(subjects[0])[:_BLOCKS], both):
        p, q = (result_of(s, split, part).p for split in (known, shifted))
        novel = p.novelty is not None and q.novelty is not None
        for score in (None, "novelty") if novel else (None,):
            draw = partial(plots.score_histograms, p, score=score, names=(known, shifted))
            panel = (f"{s.name}: {part}" if part else s.name, q)
            yield from _draw([panel], draw, "Uncertainty of known and shifted rows")
