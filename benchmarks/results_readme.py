"""The README's headline table, from the summary alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from results_bars import cost, timed
from results_cells import (
    ENSEMBLE,
    GDUQ,
    MC_DROPOUT,
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
_SHORT = {
    VANILLA: "vanilla",
    T2: "T = 2",
    TS: "temperature scaling",
    MC_DROPOUT: "MC dropout",
    ENSEMBLE: "ensemble of 3",
    GDUQ: "G-ΔUQ",
}
_COSTS = {"training time": "train", "prediction time": "predict"}
_GROUPS = {
    "node-shift": "nodes: concept and covariate shift",
    "size-shift": "graphs: larger than in training",
    "graph-shift": "graphs: concept and covariate shift",
    "rotation": "superpixels: rotated",
    "feature-noise": "superpixels: noisy",
}


def readme_block(summary: Summary) -> str:
    """The headline table and the picture, between the README's marks."""
    index, shown = Index(summary["records"]), tuple(_SHORT)
    cells = [c for c in index.cells
             if all(index.mean(c, m, "ece") is not None for m in shown)]  # fmt: skip
    if not cells:
        return "\nNot measured yet.\n"
    groups = {text: [c for c in cells if index.table(c) == name] for name, text in _GROUPS.items()}
    groups["graphs: further networks"] = [c for c in cells if index.table(c) not in _GROUPS]
    groups["all"] = cells
    rows = [_group_row(index, text, own, shown) for text, own in groups.items() if own]
    rows += [_cost_row(summary["records"], text, step, shown) for text, step in _COSTS.items()]
    heads = ["mean OOD ECE", "networks", *_SHORT.values(), "OOD accuracy: vanilla → G-ΔUQ"]
    met = sum(bar["met"] is True for bar in summary["bars"])
    seeds = sorted({s["seeds"] for s in summary["schedule"]})
    scales = sorted({s["scale"] for s in summary["schedule"]})
    words = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else str(seeds[0])
    return (
        f"\n{markdown(heads, rows)}\n\n"
        "ECE in 15 bins under shift, lower is better, lowest in bold; means over networks, each "
        f"trained on a dataset with a shift. Scale {' and '.join(scales)}, {words} seeds, the same "
        f"schedule for every method{_exception(summary)}, choices made on validation data but for "
        "those named in [docs/choices.md](docs/choices.md). Temperature scaling and G-ΔUQ, which "
        "only lowers its confidence by them, see labels of validation rows, the others do not. "
        f"{met} of the {len(summary['bars'])} bars set before are met; what holds, what does not "
        "and every number: [RESULTS.md](RESULTS.md).\n\n"
        "![OOD ECE of every network and method](results/headline.svg)\n"
    )


def _exception(summary: Summary) -> str:
    """What the schedules say that G-ΔUQ has to itself."""
    own = [s["unequal"].get("gduq", {}) for s in summary["schedule"]]
    turns = [s.get("below", {}).get("gduq", 0) for s in summary["schedule"]]
    said = ["G-ΔUQ has a two-layer head, the others a linear one"] * any("head" in s for s in own)
    said += ["G-ΔUQ is a head on a plain network that is trained a little shorter"] * any(turns)
    return f" ({'; '.join(said)})" if said else ""


def _group_row(
    index: Index, text: str, cells: Sequence[Cell], shown: Sequence[Method]
) -> list[str]:
    def average(method: Method, metric: str) -> float:
        return mean([index.mean(c, method, metric) or 0.0 for c in cells])

    values = [number(average(m, "ece")) for m in shown]
    bold = [f"**{v}**" if v == min(values) else v for v in values]
    accuracy = " → ".join(number(average(m, "accuracy")) for m in (VANILLA, GDUQ))
    return [text, str(len(cells)), *bold, accuracy]


def _cost_row(
    records: Sequence[Mapping[str, Any]], text: str, step: str, shown: Sequence[Method]
) -> list[str]:
    """Times over vanilla's, in one process if so measured; calibrating costs next to none."""
    index, found = Index(records), []
    for method in (Method(m.variant) for m in shown):
        alone = timed(records, method, step)
        value = alone[0] if alone else cost(index, method, f"{step}_seconds")
        found.append("–" if value is None else f"{value:.2f}×")
    return [text, "", *found, ""]
