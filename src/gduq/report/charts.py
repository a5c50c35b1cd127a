"""Which charts a page shows, by what its subjects predict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from gduq.report import content, curves, figures, graphs, told
from gduq.report.figures import MOST, Figure
from gduq.report.subject import Subject, main_split, splits_of

__all__ = ["of"]

_DRAWN = 3  # subjects whose graphs are drawn
_BLOCKS = 4  # labels or values with charts; tables show all
_GROWING = {
    "classes": ("ece", "accuracy"),
    "labels": ("ece", "roc_auc"),
    "values": ("coverage_90", "rmse"),
}

Block = tuple[str, Sequence[Subject]]
Shown = list[tuple[str, list[Figure]]]


def of(subjects: Sequence[Subject], split: str | None) -> dict[str, Any]:
    """Charts and drawn graphs by section of the page."""
    drawn = [s.first for s in subjects]  # a picture is of one run, and its title says which
    blocks = _blocks(drawn)
    values = subjects[0].kind == "values"
    return {
        "reliability": list(_each(blocks, curves.levels if values else figures.reliability)),
        "parity": list(_each(blocks, curves.parity)) if values else [],
        "errors": _together(blocks, curves.errors) if values else [],
        "precision": [] if values else _together(_binary(blocks), curves.precision_recall),
        "risk": _together(blocks, figures.risk_coverage),
        "histograms": _histograms(drawn, blocks, split),
        "severity": _severity(subjects),
        "drawn": _drawn(drawn, split),
        "colours": graphs.colour_legend(drawn, split) if split else (),
        "left_out": subjects[0].names[_BLOCKS:],
    }


def _blocks(subjects: Sequence[Subject]) -> list[Block]:
    """What is drawn one by one: classes as they are, the first few labels or values."""
    first = subjects[0]
    return [(name, [s.parts[i] for s in subjects])
            for i, name in enumerate(first.names[:_BLOCKS])]  # fmt: skip


def _binary(blocks: Sequence[Block]) -> list[Block]:
    """Those with two classes."""
    return [b for b in blocks if all(p.num_classes == 2 for p in b[1][0].predictions.values())]


def _places(blocks: Sequence[Block]) -> Iterator[tuple[str, str, Sequence[Subject]]]:
    """Title, split and subjects: the ID test, and the split the verdict is about.

    Of several labels or values the latter only: a page is to be read.
    """
    for name, subjects in blocks:
        main = main_split(subjects)
        for split in filter(None, dict.fromkeys([main] if name else ["id_test", main])):
            if any(s.labelled(split) is not None for s in subjects[:MOST]):
                yield f"{name}, {split}" if name else split, split, subjects


def _each(blocks: Sequence[Block], draw: Any) -> Iterator[tuple[str, list[Figure]]]:
    """One picture per subject."""
    for title, split, subjects in _places(blocks):
        known = [(i, s) for i, s in enumerate(subjects[:MOST]) if s.labelled(split) is not None]
        yield title, [draw(s, split, i) for i, s in known]


def _together(blocks: Sequence[Block], draw: Any) -> list[Figure]:
    """One picture with all subjects in it."""
    return [replace(draw(subjects, split), title=title)
            for title, split, subjects in _places(blocks)]  # fmt: skip


def _histograms(
    subjects: Sequence[Subject], blocks: Sequence[Block], split: str | None
) -> list[Figure]:
    """Rows of labels as a whole, of values one by one."""
    names = splits_of(subjects)
    known = next((s for s in ("id_test", "id_val") if s in names), None)
    shifted = split or next((s for s in ("ood_test", "ood_val") if s in names), None)
    if known is None or shifted is None or known == shifted:
        return []
    found = []
    for name, parts in blocks if subjects[0].kind == "values" else [("", subjects)]:
        for s in parts[:MOST]:
            if {known, shifted} <= set(s.predictions):
                figure = figures.histogram(s, known, shifted)
                found.append(replace(figure, title=f"{s.name}: {name}" if name else s.name))
    return found


def _severity(subjects: Sequence[Subject]) -> list[Figure]:
    found = []
    values = subjects[0].kind == "values"
    for splits in content.severities(subjects).values():
        judged = [n for n in splits if any(s.labelled(n) is not None for s in subjects[:MOST])]
        if len(judged) < 2:
            continue
        for name, parts in _blocks(subjects) if values else [("", subjects)]:
            for measure in _GROWING[subjects[0].kind]:
                figure = figures.severity(parts, judged, measure)
                title = f"{name}: {figure.title}" if name else figure.title
                found.append(replace(figure, title=title))
    return found


def _drawn(subjects: Sequence[Subject], split: str | None) -> list[dict[str, Any]]:
    found = []
    for subject in subjects[:_DRAWN]:
        if split is None or split not in subject.predictions:
            continue
        kinds: tuple[graphs.Kind, ...] = ("novel", "uncertain", "wrong")
        shown: dict[str, Any] = {kind: graphs.examples(subject, split, kind) for kind in kinds}
        if shown["uncertain"]:
            score = told.uncertainty_name(subject, split)
            found.append({"name": subject.name, "score": score, **shown})
    return found
