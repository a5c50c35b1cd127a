"""Bars on shift itself, seen and counted: one score for all settings, chosen on validation rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gduq.runs import scores
from results_cells import GDUQ, VANILLA, Cell, Index, Method, mean
from results_parts import Bar, Pairs, bar, losing, pairs_of, part

# The first is the paper's: it needs no choice.
SCORES = {"msp": "auroc", **{name: f"auroc_{name}" for name in scores.DETECTORS}}
ESTIMATORS = {
    "threshold": "gep_error",
    **{name.replace("_", " "): f"gep_error_{name}" for name in scores.ESTIMATORS},
}
_MOST = 6.0  # settings to win


def settings_of(tables: Sequence[Mapping[str, Any]], name: str) -> list[Cell]:
    """The settings that a table is asked for."""
    return [Cell(*s) for table in tables if table["name"] == name for s in table["settings"]]


class Choice:
    """The name with the best mean over all settings on corrupted validation rows.

    Args:
        index: The records.
        method: Whose numbers.
        settings: Which must all have the number.
        metrics: By name; the first is taken where nothing was measured on corrupted rows.
        highest: Whether more is better.
    """

    def __init__(
        self,
        index: Index,
        method: Method,
        settings: Sequence[Cell],
        metrics: Mapping[str, str],
        highest: bool,
    ) -> None:
        found = {}
        for name, metric in metrics.items():
            values = [index.mean(cell, method, metric, scores.CORRUPTED) for cell in settings]
            known = [v for v in values if v is not None]
            if known and len(known) == len(values):
                found[name] = mean(known)
        best = (max if highest else min)(found.values(), default=None)
        self.chosen = bool(found)
        self.name = next((n for n, v in found.items() if v == best), next(iter(metrics)))
        self.measured = method, metrics[self.name]

    def __str__(self) -> str:
        how = "chosen on corrupted validation rows"
        return f"{self.name} ({how if self.chosen else 'the default: nothing to choose on'})"


def _count(pairs: Pairs, higher: bool) -> float | None:
    wins = [a > b if higher else a < b for a, b in pairs.values()]
    return float(sum(wins)) if wins else None


def detection_bar(index: Index, settings: Sequence[Cell]) -> Bar:
    """Judged with one score for all settings: a score a setting would be chosen on the test."""
    plain = VANILLA, SCORES["msp"]
    seen = [*pairs_of(index, settings, (GDUQ, SCORES["msp"]), plain)]
    ours, theirs = (Choice(index, m, seen, SCORES, highest=True) for m in (GDUQ, VANILLA))
    pairs = pairs_of(index, seen, ours.measured, plain)
    strong = pairs_of(index, seen, ours.measured, theirs.measured)
    best = {c: (_best(index, c, GDUQ), _best(index, c, VANILLA)) for c in seen}
    parts = [
        part(f"of {len(pairs)} settings, {ours} against msp", _count(pairs, True), ">=", _MOST,
             "count"),
        part(f"of {len(strong)} settings against vanilla's own score, {theirs}",
             _count(strong, True), ">=", None, "count"),
        part(f"of {len(best)} settings, the best score of both in each (chosen on the test)",
             _count(best, True), ">=", None, "count"),
    ]  # fmt: skip
    what = "OOD detection: AUROC higher than that of vanilla's confidence"
    return bar("detection", what, parts, {c: p for c, p in pairs.items() if not p[0] > p[1]})


def _best(index: Index, cell: Cell, method: Method) -> float:
    values = [index.mean(cell, method, metric) for metric in SCORES.values()]
    return max(v for v in values if v is not None)


def error_bar(index: Index, settings: Sequence[Cell]) -> Bar:
    """Each side with one estimator for all settings, both chosen by the same rule."""
    usual = ESTIMATORS["threshold"]
    papers = pairs_of(index, settings, (GDUQ, usual), (VANILLA, usual))
    ours, theirs = (Choice(index, m, [*papers], ESTIMATORS, highest=False)
                    for m in (GDUQ, VANILLA))  # fmt: skip
    pairs = pairs_of(index, papers, ours.measured, theirs.measured)
    parts = [
        part(f"of {len(pairs)} settings, {ours} against vanilla's {theirs}",
             _count(pairs, False), ">=", _MOST, "count"),
        part(f"of {len(papers)} settings, both with the paper's threshold",
             _count(papers, False), ">=", None, "count"),
    ]  # fmt: skip
    what = "Accuracy under shift predicted with a smaller error than vanilla's"
    return bar("error-prediction", what, parts, losing(pairs))
