"""The bars of the project, held against the records: reached or not, and where not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from results_cells import (
    BASE,
    ENSEMBLE,
    GDUQ,
    GDUQ_COPIES,
    ID,
    OOD,
    PRETRAINED,
    T2,
    TS,
    TS_COPIES,
    VANILLA,
    Cell,
    Index,
    Method,
    joined,
)
from results_detection import detection_bar, error_bar, settings_of
from results_parts import Bar, Pairs, Part, bar, losing, mean_or_none, part, share, share_parts

CHOSEN = "chosen"


@dataclass(frozen=True)
class Share:
    """A bar on the share of cells where one method has a lower number than another."""

    name: str
    what: str
    least: float
    ours: Method = GDUQ
    theirs: Method = VANILLA
    metric: str = "ece"
    split: str = OOD
    equal: bool = False  # is enough
    beside: tuple[tuple[str, Method, Method], ...] = ()  # only shown, where measured


_CONTROL = "temperature scaling on clean and corrupted rows"

_LOWER = (
    Share("ece-vanilla", "OOD ECE lower than vanilla's", 0.85),
    Share(
        "ece-t2",
        "OOD ECE lower than vanilla's with T = 2",
        0.70,
        theirs=T2,
    ),
    Share(
        "ece-ts",
        "OOD ECE lower than vanilla's with temperature scaling",
        0.70,
        theirs=TS,
        beside=(
            (f"lower than vanilla's with {_CONTROL}", GDUQ, TS_COPIES),
            ("lower than that if G-ΔUQ is calibrated on both too", GDUQ_COPIES, TS_COPIES),
        ),
    ),
    Share(
        "nll-vanilla",
        "OOD NLL lower than vanilla's",
        0.85,
        metric="nll",
    ),
)
_NO_WORSE = (
    Share(
        "id-nll",
        "ID NLL no worse than vanilla's",
        0.70,
        metric="nll",
        split=ID,
        equal=True,
    ),
    Share("aurc", "OOD AURC no worse than vanilla's", 0.60, metric="aurc", equal=True),
    Share(
        "chosen-calibrator",
        "OOD ECE with the calibrator chosen on validation, no worse than vanilla's with its own",
        0.70,
        Method("gduq", CHOSEN),
        Method("vanilla", CHOSEN),
        equal=True,
    ),
)


def bars(summary: Mapping[str, Any], notes: Mapping[str, str] | None = None) -> list[Bar]:
    """Every bar with the value reached, its verdict, the cells on the losing side and a note.

    Args:
        summary: Its records; its tables, which say on what detection is judged; its tests, choices
            and schedule, as far as they are there.
        notes: By name of the bar, written by hand.
    """
    index, notes = Index(summary["records"]), notes or {}
    found = [
        *(_share_bar(index, one, summary) for one in _LOWER),
        _difference_bar(index, "ood-accuracy", "OOD accuracy not below vanilla's", OOD, 0.0),
        _difference_bar(
            index, "id-accuracy", "ID accuracy at most half a point below vanilla's", ID, -0.005
        ),
        *(_share_bar(index, one, summary) for one in _NO_WORSE),
        _ensemble_bar(index, summary),
        _pretrained_bar(index, summary),
        detection_bar(index, settings_of(summary["tables"], "ood-detection")),
        error_bar(index, settings_of(summary["tables"], "error-prediction")),
    ]
    unknown = sorted(set(notes) - {bar["name"] for bar in found})
    if unknown:
        raise ValueError(f"results/notes.toml has a note for {unknown[0]!r}, which is no bar")
    return [{**bar, "note": notes.get(bar["name"], "").strip()} for bar in found]


# -- bars on shares and differences ---------------------------------------------------------------


def _share_bar(index: Index, one: Share, summary: Mapping[str, Any]) -> Bar:
    pairs = index.pairs(one.ours, one.theirs, one.metric, one.split)
    parts = share_parts(pairs, one.least, one.equal)
    parts += _tested(pairs, one, summary.get("tests", ()))
    parts += _beside(index, one.beside, one.metric, one.split)
    return bar(one.name, one.what, parts, losing(pairs, one.equal))


def _beside(
    index: Index, beside: Sequence[tuple[str, Method, Method]], metric: str, split: str
) -> Iterator[Part]:
    """Other comparisons of the same kind, only shown."""
    for what, ours, theirs in beside:
        if pairs := index.pairs(ours, theirs, metric, split):
            sets = joined(pairs)
            yield part(f"of {len(sets)} cells {what}", share(sets), ">=", None, "share")


def _tested(pairs: Pairs, one: Share, tests: Sequence[Mapping[str, Any]]) -> list[Part]:
    """Cells with a verdict of the paired test, which is only made against the same calibrator."""
    if one.ours.calibrator != one.theirs.calibrator or not tests:
        return []
    key = (*one.ours, one.split, one.metric, ", ".join(one.theirs))
    names = ("variant", "calibrator", "split", "metric", "versus")
    found = {Cell(t["dataset"], t["shift"], t["model"]): t["verdict"]
             for t in tests if tuple(t[k] for k in names) == key}  # fmt: skip
    said = [found.get(cell) for cell in pairs]
    what = f"networks better and {said.count('worse')} worse by the paired test"
    return [part(what, float(said.count("better")), ">=", None, "count")]


def _difference_bar(index: Index, name: str, what: str, split: str, least: float) -> Bar:
    """Accuracy may not be paid for calibration, neither on average nor in one cell."""
    pairs = index.pairs(GDUQ, VANILLA, "accuracy", split)
    alone, gains = ([a - b for a, b in both.values()] for both in (pairs, joined(pairs)))
    parts = [
        part(f"on average over {len(gains)} cells", mean_or_none(gains), ">=", least, "points"),
        part("in the worst cell", min(gains, default=None), ">=", -0.02, "points"),
        part("with the worst network", min(alone, default=None), ">=", None, "points"),
    ]
    lost = {c: (a, b) for c, (a, b) in pairs.items() if a < b}
    return bar(name, what, parts, lost)


# -- bars with costs ------------------------------------------------------------------------------


def cost(index: Index, method: Method, metric: str) -> float | None:
    """Seconds of all runs of a method over those of vanilla on the same cells."""
    pairs = index.pairs(method, VANILLA, metric, "")
    return sum(a for a, _ in pairs.values()) / sum(b for _, b in pairs.values()) if pairs else None


def timed(
    records: Sequence[Mapping[str, Any]], method: Method, step: str
) -> tuple[float, float] | None:
    """Seconds over vanilla's in the table of runtimes: of all networks together, and the most."""
    found: dict[Method, dict[tuple[str, str], float]] = {method: {}, VANILLA: {}}
    for r in records:
        own = Method(r["variant"], r["calibrator"])
        wanted = (r["table"], r["metric"]) == ("runtime", f"{step}_seconds") and own in found
        if wanted and r["mean"] is not None:
            found[own][r["dataset"], r["model"]] = r["mean"]
    ours, theirs = found[method], found[VANILLA]
    both = [(ours[key], theirs[key]) for key in ours.keys() & theirs.keys()]
    if not both:
        return None
    return sum(a for a, _ in both) / sum(b for _, b in both), max(a / b for a, b in both)


def _cost_parts(
    records: Sequence[Mapping[str, Any]], method: Method, step: str, most: float
) -> list[Part]:
    """Time against one network's, measured in one process (table runtime).

    Beside it the seconds of all runs, which shared the machine with others.
    """
    word = {"train": "training", "predict": "prediction"}[step]
    what = f"the {word} time of one network"
    alone, most_ = timed(records, method, step) or (None, None)
    shared = cost(Index(records), method, f"{step}_seconds")
    return [
        part(f"{what} (in one process, all datasets together)", alone, "<=", most, "ratio"),
        part(f"{what} on the dataset where it is most", most_, "<=", None, "ratio"),
        part(f"{what} (all runs, on a shared machine)", shared, "<=", None, "ratio"),
    ]


def _ensemble_bar(index: Index, summary: Mapping[str, Any]) -> Bar:
    pairs = index.pairs(GDUQ, ENSEMBLE, "ece")
    parts = [
        *share_parts(pairs, 0.60, equal=True),
        *_cost_parts(summary["records"], GDUQ, "train", 1.3),
        *_cost_parts(summary["records"], GDUQ, "predict", 1.2),
    ]
    what = "OOD ECE no worse than an ensemble of 3, at about the cost of one network"
    return bar("ensemble", what, parts, losing(pairs, equal=True))


def _pretrained_bar(index: Index, summary: Mapping[str, Any]) -> Bar:
    own = index.pairs(PRETRAINED, BASE, "ece")
    pairs = {**index.pairs(PRETRAINED, VANILLA, "ece"), **own}
    parts = [*share_parts(pairs, 0.75), *_cost_parts(summary["records"], PRETRAINED, "train", 0.1)]
    what = "Pretrained: OOD ECE lower than its own frozen network's, in a tenth of the time"
    return bar("pretrained", what, parts, losing(pairs))
