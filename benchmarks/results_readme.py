"""The README's headline table, from the summary alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from results_cells import (
    ENSEMBLE,
    GDUQ,
    MC_DROPOUT,
    NAMES,
    T2,
    TS,
    VANILLA,
    Cell,
    Index,
    Method,
    mean,
)
from results_text import markdown, number

Summary = Mapping[str, Any]
_GROUPS = {
    "node-shift": "nodes: concept and covariate shift",
    "size-shift": "graphs: larger than in training",
    "graph-shift": "graphs: concept and covariate shift",
    "rotation": "superpixels: rotated",
    "feature-noise": "superpixels: noisy",
}


def readme_block(summary: Summary) -> str:
    """The headline table and the picture, between the README's marks."""
    index, shown = Index(summary["records"]), (VANILLA, T2, TS, MC_DROPOUT, ENSEMBLE, GDUQ)
    cells = [c for c in index.cells
             if all(index.mean(c, m, "ece") is not None for m in shown)]  # fmt: skip
    if not cells:
        return "\nNot measured yet.\n"
    groups = {text: [c for c in cells if index.table(c) == name] for name, text in _GROUPS.items()}
    groups["graphs: further cells"] = [c for c in cells if index.table(c) not in _GROUPS]
    groups["all"] = cells
    rows = [_group_row(index, text, own, shown) for text, own in groups.items() if own]
    heads = ["mean OOD ECE", "cells", *(NAMES[m] for m in shown), "OOD accuracy, vanilla → G-ΔUQ"]
    met = sum(bar["met"] is True for bar in summary["bars"])
    seeds = sorted({s["seeds"] for s in summary["schedule"]})
    scales = sorted({s["scale"] for s in summary["schedule"]})
    words = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else str(seeds[0])
    return (
        f"\n{markdown(heads, rows)}\n\n"
        f"Scale {' and '.join(scales)}, {words} seeds, the same schedule for every method, "
        "no OOD data in any choice. "
        f"{met} of the {len(summary['bars'])} bars set before are met; what holds, what does not "
        "and every number: [RESULTS.md](RESULTS.md).\n\n"
        "![OOD ECE of every cell and method](results/headline.svg)\n"
    )


def _group_row(
    index: Index, text: str, cells: Sequence[Cell], shown: Sequence[Method]
) -> list[str]:
    def average(method: Method, metric: str) -> float:
        return mean([index.mean(c, method, metric) or 0.0 for c in cells])

    accuracy = " → ".join(number(average(m, "accuracy")) for m in (VANILLA, GDUQ))
    return [text, str(len(cells)), *(number(average(m, "ece")) for m in shown), accuracy]
