"""The bars of the project, held against the records: reached or not, and where not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from results_cells import (
    AUTO,
    BASE,
    ENSEMBLE,
    GDUQ,
    ID,
    LAYERS,
    OOD,
    PRETRAINED,
    T2,
    TS,
    VANILLA,
    Cell,
    Index,
    Method,
    joined,
    mean,
    rounded,
)

Bar = dict[str, Any]
Part = dict[str, Any]
Pairs = Mapping[Cell, tuple[float, float]]

CHOSEN = "chosen"
SCORES = ("msp", "entropy", "energy", "epistemic", "spread")


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


_LOWER = (
    Share("ece-vanilla", "OOD ECE lower than vanilla's", 0.85),
    Share("ece-t2", "OOD ECE lower than vanilla's with T = 2", 0.70, theirs=T2),
    Share("ece-ts", "OOD ECE lower than vanilla's with temperature scaling", 0.70, theirs=TS),
    Share("nll-vanilla", "OOD NLL lower than vanilla's", 0.85, metric="nll"),
)
_NO_WORSE = (
    Share("id-nll", "ID NLL no worse than vanilla's", 0.70, metric="nll", split=ID, equal=True),
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


def bars(
    records: Sequence[Mapping[str, Any]],
    tables: Sequence[Mapping[str, Any]],
    notes: Mapping[str, str] | None = None,
) -> list[Bar]:
    """Every bar with the value reached, its verdict, the cells on the losing side and a note.

    Args:
        records: Of the summary.
        tables: Of the summary; they say which settings detection is judged on.
        notes: By name of the bar, written by hand.
    """
    index, notes = Index(records), notes or {}
    found = [
        *(_share_bar(index, share) for share in _LOWER),
        _difference_bar(index, "ood-accuracy", "OOD accuracy not below vanilla's", OOD, 0.0),
        _difference_bar(
            index, "id-accuracy", "ID accuracy at most half a point below vanilla's", ID, -0.005
        ),
        *(_share_bar(index, share) for share in _NO_WORSE),
        _ensemble_bar(index, records),
        _pretrained_bar(index, records),
        _detection_bar(index, _settings(tables, "ood-detection")),
        _error_bar(index, _settings(tables, "error-prediction")),
        _auto_bar(index),
    ]
    unknown = sorted(set(notes) - {bar["name"] for bar in found})
    if unknown:
        raise ValueError(f"results/notes.toml has a note for {unknown[0]!r}, which is no bar")
    return [{**bar, "note": notes.get(bar["name"], "").strip()} for bar in found]


# -- parts of a bar -------------------------------------------------------------------------------


def part(what: str, value: float | None, sign: str, wanted: float | None, unit: str) -> Part:
    """One number and what was wanted of it; without a wish it is only shown."""
    value = None if value is None else rounded(value)
    met = None
    if value is not None and wanted is not None:
        met = value >= wanted if sign == ">=" else value <= wanted
    return {"what": what, "value": value, "sign": sign, "wanted": wanted, "unit": unit, "met": met}


def bar(name: str, what: str, parts: Sequence[Part], losing: Pairs) -> Bar:
    """A bar is met if all its parts are; unknown if none is known to fail and one is unknown."""
    verdicts = [p["met"] for p in parts if p["wanted"] is not None]
    met = False if False in verdicts else None if None in verdicts else True
    lost = [{"cell": str(cell), "ours": a, "theirs": b} for cell, (a, b) in losing.items()]
    return {"name": name, "what": what, "met": met, "parts": list(parts), "losing": lost}


def _mean(values: Sequence[float]) -> float | None:
    return mean(values) if values else None


def _share(pairs: Mapping[Any, tuple[float, float]], equal: bool = False) -> float | None:
    wins = [a < b or (equal and a == b) for a, b in pairs.values()]
    return _mean(wins)


def _losing(pairs: Pairs, equal: bool = False) -> Pairs:
    return {c: (a, b) for c, (a, b) in pairs.items() if not (a < b or (equal and a == b))}


def _share_parts(pairs: Pairs, least: float, equal: bool = False) -> list[Part]:
    cells, sets = len(pairs), joined(pairs)
    return [
        part(f"of {cells} cells", _share(pairs, equal), ">=", least, "share"),
        part(f"of {len(sets)} datasets × shifts, networks averaged",
             _share(sets, equal), ">=", None, "share"),
    ]  # fmt: skip


def _share_bar(index: Index, share: Share) -> Bar:
    pairs = index.pairs(share.ours, share.theirs, share.metric, share.split)
    parts = _share_parts(pairs, share.least, share.equal)
    return bar(share.name, share.what, parts, _losing(pairs, share.equal))


def _difference_bar(index: Index, name: str, what: str, split: str, least: float) -> Bar:
    """Accuracy may not be paid for calibration, neither on average nor in one cell."""
    pairs = index.pairs(GDUQ, VANILLA, "accuracy", split)
    gains = [a - b for a, b in pairs.values()]
    parts = [
        part(f"on average over {len(gains)} cells", _mean(gains), ">=", least, "points"),
        part("in the worst cell", min(gains, default=None), ">=", -0.02, "points"),
    ]
    lost = {c: (a, b) for c, (a, b) in pairs.items() if a < b}
    return bar(name, what, parts, lost)


# -- bars with costs ------------------------------------------------------------------------------


def cost(index: Index, method: Method, metric: str) -> float | None:
    """Seconds of all runs of a method over those of vanilla on the same cells."""
    pairs = index.pairs(method, VANILLA, metric, "")
    return sum(a for a, _ in pairs.values()) / sum(b for _, b in pairs.values()) if pairs else None


def timed(records: Sequence[Mapping[str, Any]], method: Method, metric: str) -> float | None:
    """Mean over datasets of a ratio in the table of runtimes, measured alone on the machine."""
    there = [
        r["mean"]
        for r in records
        if (r["table"], r["variant"], r["calibrator"], r["metric"]) == ("runtime", *method, metric)
        and r["mean"] is not None
    ]
    return _mean(there)


def _cost_parts(
    records: Sequence[Mapping[str, Any]], method: Method, kind: str, most: float
) -> list[Part]:
    """Time against one network's: the table of runtimes counts, or else that of the runs.

    The runs shared the machine with others, so their times are only shown where there is a better
    measurement.
    """
    word = {"train": "training", "predict": "prediction"}[kind]
    alone = timed(records, method, f"{kind}_ratio")
    seen = cost(Index(records), method, f"{kind}_seconds")
    found = [part(f"the {word} time of one network (all runs, on a shared machine)", seen, "<=",
                  most if alone is None else None, "ratio")]  # fmt: skip
    if alone is not None:
        what = f"the {word} time of one network (table runtime)"
        found.insert(0, part(what, alone, "<=", most, "ratio"))
    return found


def _ensemble_bar(index: Index, records: Sequence[Mapping[str, Any]]) -> Bar:
    pairs = index.pairs(GDUQ, ENSEMBLE, "ece")
    parts = [
        *_share_parts(pairs, 0.60, equal=True),
        *_cost_parts(records, GDUQ, "train", 1.3),
        *_cost_parts(records, GDUQ, "predict", 1.2),
    ]
    what = "OOD ECE no worse than an ensemble of 3, at about the cost of one network"
    return bar("ensemble", what, parts, _losing(pairs, equal=True))


def _pretrained_bar(index: Index, records: Sequence[Mapping[str, Any]]) -> Bar:
    own = index.pairs(PRETRAINED, BASE, "ece")
    pairs = {**index.pairs(PRETRAINED, VANILLA, "ece"), **own}
    parts = [*_share_parts(pairs, 0.75), *_cost_parts(records, PRETRAINED, "train", 0.10)]
    what = "Pretrained: OOD ECE lower than its own frozen network's, in a tenth of the time"
    return bar("pretrained", what, parts, _losing(pairs))


# -- detection, error prediction, the automatic layer ---------------------------------------------


def _settings(tables: Sequence[Mapping[str, Any]], name: str) -> list[Cell]:
    return [Cell(*s) for table in tables if table["name"] == name for s in table["settings"]]


def _metric(score: str) -> str:
    return "auroc" if score == "msp" else f"auroc_{score}"


def _wins(pairs: Pairs) -> float | None:
    return float(sum(a > b for a, b in pairs.values())) if pairs else None


def _best_score(index: Index, method: Method, settings: Sequence[Cell]) -> str:
    """The one score with the highest mean AUROC over all settings that have it."""
    found = {}
    for score in SCORES:
        values = [index.mean(cell, method, _metric(score)) for cell in settings]
        if values and None not in values:
            found[score] = mean([v for v in values if v is not None])
    return max(found, key=lambda score: found[score]) if found else "msp"


def _best(index: Index, cell: Cell, method: Method) -> float | None:
    values = [index.mean(cell, method, _metric(score)) for score in SCORES]
    return max((v for v in values if v is not None), default=None)


def _detection_bar(index: Index, settings: Sequence[Cell]) -> Bar:
    """Judged with one score for all settings: a score a setting would be chosen on the test."""
    seen = [c for c in settings if index.mean(c, GDUQ, "auroc") is not None
            and index.mean(c, VANILLA, "auroc") is not None]  # fmt: skip
    theirs = {c: index.mean(c, VANILLA, "auroc") or 0.0 for c in seen}
    score, plain = _best_score(index, GDUQ, seen), _best_score(index, VANILLA, seen)

    def against(found: Mapping[Cell, float | None], other: Mapping[Cell, float | None]) -> Pairs:
        return {c: (a, b) for c in seen
                if (a := found[c]) is not None and (b := other[c]) is not None}  # fmt: skip

    one = {c: index.mean(c, GDUQ, _metric(score)) for c in seen}
    pairs = against(one, theirs)
    strong = {c: index.mean(c, VANILLA, _metric(plain)) for c in seen}
    parts = [
        part(f"of {len(seen)} settings, {score} in all (best on average)", _wins(pairs), ">=", 6.0,
             "count"),
        part(f"of {len(seen)} settings, the best score of each (chosen on the test)",
             _wins(against({c: _best(index, c, GDUQ) for c in seen}, theirs)), ">=", None, "count"),
        part(f"of {len(seen)} settings, {score} against vanilla's best score ({plain})",
             _wins(against(one, strong)), ">=", None, "count"),
    ]  # fmt: skip
    what = "OOD detection: AUROC higher than that of vanilla's confidence"
    return bar("detection", what, parts, {c: p for c, p in pairs.items() if not p[0] > p[1]})


def _error_bar(index: Index, settings: Sequence[Cell]) -> Bar:
    pairs = index.pairs(GDUQ, VANILLA, "gep_error", among=settings)
    wins = float(sum(a < b for a, b in pairs.values())) if pairs else None
    parts = [part(f"of {len(pairs)} settings", wins, ">=", 6.0, "count")]
    what = "Accuracy under shift predicted with a smaller error than vanilla's"
    return bar("error-prediction", what, parts, _losing(pairs))


def _auto_bar(index: Index) -> Bar:
    pairs = dict(_auto_pairs(index))
    close = {c: (a, b) for c, (a, b) in pairs.items() if a <= 1.1 * b}
    best = [a <= b for a, b in pairs.values()]
    share = len(close) / len(pairs) if pairs else None
    parts = [
        part(f"of {len(pairs)} cells", share, ">=", 0.75, "share"),
        part("with the best layer itself", _mean(best), ">=", None, "share"),
        part("the training time of vanilla", cost(index, AUTO, "train_seconds"), "<=", None,
             "ratio"),
    ]  # fmt: skip
    what = 'at="auto": OOD ECE within 10 % of the best layer\'s'
    return bar("auto", what, parts, {c: p for c, p in pairs.items() if c not in close})


def _auto_pairs(index: Index) -> Iterator[tuple[Cell, tuple[float, float]]]:
    for cell in index.cells:
        ours = index.mean(cell, AUTO, "ece")
        fixed = [v for m in LAYERS if (v := index.mean(cell, m, "ece")) is not None]
        if ours is not None and len(fixed) > 1:
            yield cell, (ours, min(fixed))
