"""Which charts a page shows, by what its subjects predict; all are figures of `gduq.plots`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gduq import plots
from gduq.metrics import Interval
from gduq.report.split_names import main_split, severities, splits_of
from gduq.report.subject import Subject

__all__ = ["MOST", "Chart", "charts_of"]

MOST = 6  # lines a reader can still tell apart
_BLOCKS = 4  # labels or values with charts; tables show all
_NAME = 40  # letters of a name in a legend
_GROWING = {
    "classes": {"ece": "ECE", "accuracy": "accuracy"},
    "labels": {"ece": "ECE", "roc_auc": "ROC-AUC"},
    "values": {"coverage_90": "share in 90 % intervals", "rmse": "RMSE"},
}

Block = tuple[str, Sequence[Subject]]


@dataclass(frozen=True)
class Chart:
    """A picture with its title."""

    title: str
    svg: str


def charts_of(subjects: Sequence[Subject], split: str | None) -> dict[str, Any]:
    """Charts by section of the page, and what they leave out."""
    drawn = [s.first for s in subjects[:MOST]]  # a picture is of one run, and its name says which
    blocks = _blocks(drawn)
    bins, values = subjects[0].sampling["bins"], subjects[0].kind == "values"
    if values:
        parts = {
            "reliability": _together(blocks, plots.calibration_curve, "Levels of intervals"),
            "parity": _each(blocks),
            "errors": _together(blocks, _errors, "Error against deviation"),
            "precision": [],
        }
    else:
        parts = {
            "reliability": _together(blocks, _reliability(bins), "Reliability"),
            "parity": [],
            "errors": [],
            "precision": _together(_binary(blocks), plots.precision_recall, "Precision and recall"),
        }
    return {
        **parts,
        "risk": _together(blocks, _risk, "Risk and coverage"),
        "histograms": _histograms(drawn, blocks, split),
        "severity": _severity(subjects[:MOST]),
        "left_out": subjects[0].names[_BLOCKS:],
        "hidden": [s.name for s in subjects[MOST:]],
    }


def _reliability(bins: int) -> Callable[[Any], Any]:
    return lambda predictions: plots.reliability_diagram(predictions, bins=bins)


def _risk(predictions: Any) -> Any:
    return plots.risk_coverage(predictions, resamples=0)


def _errors(predictions: Any) -> Any:
    fewest = min(len(p) for p in predictions.values())
    return plots.error_by_uncertainty(predictions, bins=min(8, max(1, fewest // 5)))


def _blocks(subjects: Sequence[Subject]) -> list[Block]:
    """What is drawn one by one: classes as they are, the first few labels or values."""
    names = subjects[0].names[:_BLOCKS]
    return [(name, [s.parts[i] for s in subjects]) for i, name in enumerate(names)]


def _binary(blocks: Sequence[Block]) -> list[Block]:
    """Those with two classes."""
    return [b for b in blocks if all(p.num_classes == 2 for p in b[1][0].predictions.values())]


def _places(blocks: Sequence[Block]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Title and predictions by name: of the ID test, and of the split the verdict is about.

    Of several labels or values the latter only: a page is to be read.
    """
    for name, subjects in blocks:
        main = main_split(subjects)
        for split in filter(None, dict.fromkeys([main] if name else ["id_test", main])):
            known: dict[str, Any] = {}
            for subject in subjects:
                if subject.labelled(split) is not None:
                    known[_short(subject.name, known)] = subject.labelled(split)
            if known:
                yield f"{name}, {split}" if name else split, known


def _short(name: str, taken: Iterable[str] = ()) -> str:
    """A name for a legend; Matplotlib leaves out those that begin with an underscore."""
    name = name if len(name) <= _NAME else f"{name[: _NAME - 1]}…"
    name = f"\u200b{name}" if name.startswith("_") else name
    return f"{name} ({len(list(taken)) + 1})" if name in taken else name


def _chart(title: str, what: str, figure: Any) -> Chart:
    """A figure with a description: what it shows, and its legend, which holds the numbers."""
    legend = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    return Chart(title, plots.to_svg(figure, f"{what}, {title}: {'; '.join(legend)}"))


def _together(blocks: Sequence[Block], draw: Callable[[Any], Any], what: str) -> list[Chart]:
    """One picture per place with all subjects in it."""
    return [_chart(title, what, draw(known)) for title, known in _places(blocks)]


def _each(blocks: Sequence[Block]) -> list[Chart]:
    """One picture of truth and prediction per place and subject."""
    return [
        _chart(f"{title}: {name}" if len(known) > 1 else title, "Truth and prediction",
               plots.parity(p, most=300))
        for title, known in _places(blocks)
        for name, p in known.items()
    ]  # fmt: skip


def _histograms(
    subjects: Sequence[Subject], blocks: Sequence[Block], split: str | None
) -> list[Chart]:
    """Rows of labels as a whole, of values one by one."""
    names = splits_of(subjects)
    known = next((s for s in ("id_test", "id_val") if s in names), None)
    shifted = split or next((s for s in ("ood_test", "ood_val") if s in names), None)
    if known is None or shifted is None or known == shifted:
        return []
    found: list[Chart] = []
    for name, parts in blocks if subjects[0].kind == "values" else [("", subjects)]:
        for s in parts:
            if {known, shifted} <= set(s.predictions):
                title = f"{s.name}: {name}" if name else s.name
                found += _scores(
                    title, s.predictions[known], known, s.predictions[shifted], shifted
                )
    return found


def _scores(title: str, p_id: Any, known: str, p_ood: Any, shifted: str) -> Iterator[Chart]:
    """The usual uncertainty of both splits and, where it was measured, their novelty."""
    novel = p_id.novelty is not None and p_ood.novelty is not None
    for score in (None, "novelty") if novel else (None,):
        figure = plots.score_histograms(p_id, {shifted: p_ood}, score, known=known)
        yield _chart(title, "Uncertainty of known and shifted rows", figure)


def _severity(subjects: Sequence[Subject]) -> list[Chart]:
    found = []
    for kind, splits in severities(subjects).items():
        judged = [n for n in splits if any(s.labelled(n) is not None for s in subjects)]
        if len(judged) < 2:
            continue
        for name, parts in _blocks(subjects) if subjects[0].kind == "values" else [("", subjects)]:
            for measure, words in _GROWING[subjects[0].kind].items():
                lines: dict[str, dict[str, Interval]] = {}
                for s in parts:
                    line = {n: s.value(n, measure) for n in judged if s.labelled(n) is not None}
                    lines |= {_short(s.name, lines): line} if line else {}
                title = f"{words} against {kind}"
                figure = plots.severity_lines(lines, words)
                found.append(_chart(f"{name}: {title}" if name else title, "Growing shift", figure))
    return found
