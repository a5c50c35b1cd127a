"""Which charts a page shows; all are figures of `gduq.report.plots`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from gduq.metrics import Interval
from gduq.prediction import Prediction
from gduq.report import plots
from gduq.report.kinds import result_of
from gduq.report.subject import Subject, main_split, severities, split_names
from gduq.report.tables import apart

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["MOST", "charts_of"]

MOST = 6  # lines a reader can still tell apart
_BLOCKS = 4  # labels or values with charts; tables show all
_NAME = 40  # letters of a name in a legend

Panel = tuple[str, dict[str, Any]]  # a title, and predictions by name of the subject


class Chart(NamedTuple):
    """A picture with its title."""

    title: str
    svg: str


def charts_of(subjects: Sequence[Subject]) -> dict[str, list[Any]]:
    """Charts by section of the page, and what they leave out."""
    drawn = [s.first for s in subjects[:MOST]]  # a picture is of one run, and its name says which
    panels = list(_panels(drawn))
    found: dict[str, list[Any]] = {"reliability": [], "parity": [], "errors": [], "precision": []}
    if subjects[0].parts[0].kind == "classes":  # a label is two classes
        diagram = partial(plots.reliability_diagram, bins=subjects[0].sampling["bins"])
        found["reliability"] = _draw(panels, diagram, "Reliability")
        if all(p.num_classes == 2 for _, known in panels for p in known.values()):
            found["precision"] = _draw(panels, plots.precision_recall, "Precision and recall")
    else:
        single = [(f"{title}: {name}" if len(known) > 1 else title, p)
                  for title, known in panels for name, p in known.items()]  # fmt: skip
        parity = partial(plots.parity, most=300)
        found["reliability"] = _draw(panels, plots.calibration_curve, "Levels of intervals")
        found["errors"] = _draw(panels, _errors, "Error against deviation")
        found["parity"] = _draw(single, parity, "Truth and prediction")
    notes = []
    if names := subjects[0].names[_BLOCKS:]:
        notes.append(
            f"Charts show the first {_BLOCKS} targets. Only in tables: {', '.join(names)}."
        )
    if hidden := [s.name for s in subjects[MOST:]]:
        notes.append(f"Charts show the first {MOST} models. Only in tables: {', '.join(hidden)}.")
    if any(s.runs for s in subjects):
        notes.append("Charts show one run of a model with several seeds; numbers are means.")
    return found | {
        "risk": _draw(panels, plots.risk_coverage, "Risk and coverage"),
        "histograms": list(_histograms(drawn)),
        "severity": list(_severity(subjects[:MOST])),
        "notes": notes,
    }


def _errors(predictions: dict[str, Prediction]) -> Figure:
    fewest = min(map(len, predictions.values()))
    return plots.error_by_uncertainty(predictions, bins=min(8, max(1, fewest // 5)))


def _panels(subjects: Sequence[Subject]) -> Iterator[Panel]:
    """The ID test, and the split the verdict is about; of several labels or values the latter."""
    for i, name in enumerate(subjects[0].names[:_BLOCKS]):
        parts = [s.parts[i] for s in subjects]
        main = main_split(parts)
        for split in filter(None, dict.fromkeys([main] if name else ["id_test", main])):
            known: dict[str, Any] = {}
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
    for name, parts in apart(subjects)[:_BLOCKS]:
        for s in (s for s in parts if {known, shifted} <= set(s.predictions)):
            p, q = s.predictions[known], s.predictions[shifted]
            novel = p.novelty is not None and q.novelty is not None
            for score in (None, "novelty") if novel else (None,):
                draw = partial(plots.score_histograms, p, score=score, known=known)
                panel = (f"{s.name}: {name}" if name else s.name, {shifted: q})
                yield from _draw([panel], draw, "Uncertainty of known and shifted rows")


def _severity(subjects: Sequence[Subject]) -> Iterator[Chart]:
    for grows, splits in severities(subjects).items():
        labelled = [n for n in splits if any(s.labelled(n) is not None for s in subjects)]
        for name, parts in apart(subjects)[:_BLOCKS] if len(labelled) > 1 else ():
            for measure, words in result_of(subjects[0], labelled[0]).growing.items():
                lines: dict[str, dict[str, Interval]] = {}
                for s in parts:
                    line = {n: s.value(n, measure) for n in labelled if s.labelled(n) is not None}
                    lines |= {_short(s.name, lines): line} if line else {}
                title = f"{name}: {words} against {grows}" if name else f"{words} against {grows}"
                draw = partial(plots.severity_lines, label=words)
                yield from _draw([(title, lines)], draw, "Growing shift")
