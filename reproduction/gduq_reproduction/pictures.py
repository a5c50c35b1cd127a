"""Pictures of RESULTS.md and docs/replication.md, as SVG that is the same every time."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gduq_reproduction.methods import LAST
from gduq_reproduction.scoring import HIGHER
from gduq_reproduction.summary import CLAIMS, MAIN, groups

__all__ = ["MISSING", "pictures"]

_STYLE: Any = {
    "font.size": 8, "axes.labelsize": 8, "axes.titlesize": 7.5, "legend.fontsize": 7.5,
    "xtick.labelsize": 7, "ytick.labelsize": 7, "axes.linewidth": 0.6, "axes.axisbelow": True,
    "axes.spines.top": False, "axes.spines.right": False, "grid.linewidth": 0.3,
    "legend.frameon": False, "text.parse_math": False, "font.sans-serif": ["DejaVu Sans"],
    "svg.fonttype": "none", "svg.hashsalt": "gduq",
}  # fmt: skip
WIDTH = 7.2  # inches, that of a page
MISSING = "not measured yet"
GREY = "#7f7f7f"
# Rows of panels. A panel is one claim, or several about the same cells, measure and rival.
_PANELS = {
    "input": [["nfa_ece", "nfa_nll"]],
    "accuracy": [["nfa_accuracy", "readout_accuracy"]],
    "readout": [["readout_ece"]],
    "calibrated": [["nfa_ts", "nfa_copies l1_nodes l2_nodes"], ["readout_ts", "readout_copies"]],
    "frozen": [["pretrained_ece", "pretrained_nll"]],
    "ensemble": [["nfa_ensemble", "epistemic_nodes"], ["readout_ensemble"]],
    "readings": [
        ["mixture_nodes", "rule_nodes", "released_nodes"],
        ["mixture_graphs", "rule_graphs", "released_graphs"],
    ],
    "detection": [["msp_nodes", "msp_graphs msp_pretrained"]],
}
_LOOKS = {  # colour, marker and name
    "plain": (GREY, "|", "plain network"),
    "T = 2": (GREY, "|", "plain, logits halved (T = 2)"),
    "ensemble of 3": (GREY, "P", "ensemble of three"),
    "NFA": ("#0072b2", "o", "NFA"),
    "L1": ("#e69f00", "s", "layer 1"),
    "L2": ("#009e73", "^", "layer 2"),
    "readout": ("#cc79a7", "D", "READOUT"),
    "pretrained": ("#56b4e9", "v", "frozen READOUT"),
}
Found = dict[str, Any]  # the summary


def pictures(found: Found) -> dict[str, str]:
    """All of them, by file; what is not measured says so."""
    with matplotlib.rc_context(_STYLE):
        drawn = {name: _claims(found, rows) for name, rows in _PANELS.items()}
        drawn |= {"sizes": _sizes(found), "published": _published(found)}
        made = {f"docs/pictures/replication-{name}.svg": _svg(f) for name, f in drawn.items()}
        return made | {"results/headline.svg": _svg(_headline(found))}


def _svg(figure: Figure) -> str:
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None}, facecolor="white")
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def _headline(found: Found) -> Figure:
    """Left: the mean loss of each way, with its price. Right: every cell by itself."""
    figure = Figure(figsize=(8.6, 1.3 + 0.13 * len(found["cells"])), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.25))
    shown = ("plain", "T = 2", "ensemble of 3", "anchored head", "choose 1.2", "choose 2.5")
    keys = [key for key in MAIN if key.partition("|")[0] in shown]
    values = [found["means"]["ood_test"][key]["nll"] for key in keys]
    left.barh(range(len(keys)), values, color=["#009e73" if "choose" in k else GREY for k in keys])
    costs = [found["costs"].get(key.partition("|")[0], 1.0) for key in keys]
    names = [f"{MAIN[key]}\n{c:.1f}× training" for key, c in zip(keys, costs, strict=True)]
    left.set_yticks(range(len(keys)), names)
    left.invert_yaxis()
    left.set_xlabel("mean loss (NLL) under shift")
    for i, value in enumerate(values):
        left.text(value, i, f" {value:.2f}", va="center")
    left.set_xlim(0, 1.18 * max(values))
    cells = found["cells"]

    def ratios(key: str) -> dict[str, float]:
        return {c: of[key]["nll"] / of["plain|copies"]["nll"] for c, of in cells.items()}

    ours, others = ratios("choose 1.2|copies"), ratios("ensemble of 3|copies")
    order = sorted(ours, key=ours.__getitem__)
    right.axvline(1.0, color=GREY, lw=1)
    for of, colour, name in ((others, GREY, "ensemble of three"),
                             (ours, "#009e73", "gduq.choose(budget=1.2)")):  # fmt: skip
        right.plot([of[c] for c in order], range(len(order)), "o", color=colour, ms=4, label=name)
    right.set_yticks(range(len(order)), order)
    right.set_xlabel("loss, relative to a temperature from copies")
    figure.legend(loc="outside lower right", ncols=2)
    return figure


def _claims(found: Found, rows: Sequence[Sequence[str]]) -> Figure:
    """Panels of claims: per cell the paper's network and what it is held against."""
    shown = [[_cells(found, panel) for panel in row] for row in rows]
    heights = [0.85 + 0.15 * max(3, *map(len, row)) for row in shown]
    figure = Figure(figsize=(WIDTH, sum(heights) + 0.35), layout="constrained")
    columns = max(map(len, rows))
    grid = figure.subplots(len(rows), columns, squeeze=False, height_ratios=heights)
    for row, cells, line in zip(rows, shown, grid, strict=True):
        for i, axes in enumerate(line):
            axes.set_visible(i < len(row))
            if i < len(row):
                _panel(axes, found, row[i].split(), cells[i])
                if i and cells[i] == cells[i - 1]:
                    axes.set_yticklabels([])
    _legend(figure)
    return figure


def _cells(found: Found, panel: str) -> list[str]:
    group = CLAIMS[panel.split()[0]].group
    return [c for c, of in found["seeds"].items() if of["paper"] and group in groups(c)]


def _panel(axes: Axes, found: Found, claims: Sequence[str], cells: Sequence[str]) -> None:
    """One mark per cell and network, a line from the least to the most."""
    claims = [name for name in claims if name in found["pairs"]]
    if not claims:
        return _missing(axes)
    first = CLAIMS[claims[0]]
    marks = {first.theirs: {c: of["theirs"] for c, of in found["pairs"][claims[0]].items()}}
    for name in claims:
        marks[CLAIMS[name].ours] = {c: of["ours"] for c, of in found["pairs"][name].items()}
    for y, cell in enumerate(cells):
        values = [of[cell] for of in marks.values() if cell in of]
        axes.plot([min(values), max(values)], [y, y], color=GREY, lw=0.6, zorder=1)
    for key, of in marks.items():
        axes.plot(list(of.values()), [cells.index(cell) for cell in of], ls="", **_look(key))
    if first.measure == "nll":  # losses differ by factors between datasets
        axes.set_xscale("log")
        axes.xaxis.set_minor_formatter("{x:.2g}")
        axes.xaxis.set_major_formatter("{x:.2g}")
    won = ", ".join(str(found["claims"][name]["won"]) for name in claims)
    names = ", ".join(_look(CLAIMS[name].ours)["label"] for name in claims)
    axes.set_title(f"{names}:\nbetter in {won} of {found['claims'][claims[0]]['of']} cells")
    level = {"validation": ", temperature scaling", "copies": ", shifted copies"}
    label = f"OOD {first.measure}{level.get(first.ours.partition('|')[2], '')}"
    axes.set_xlabel(f"{label}\n({'better →' if first.measure in HIGHER else '← better'})")
    axes.set_yticks(range(len(cells)), cells)
    axes.set_ylim(len(cells) - 0.4, -0.6)
    axes.grid(axis="x")
    return None


def _look(key: str) -> dict[str, Any]:
    """How a network looks, in a reading of its hypotheses."""
    base = next(name for name in _LOOKS if key.startswith(name))
    reading = key.partition("|")[0][len(base) :]
    colour, marker, label = _LOOKS[base]
    look = {"color": colour, "marker": marker, "ms": 8 if marker == "|" else 4.5, "zorder": 2}
    if reading:
        look |= {"mfc": "none", "ms": 7, "mew": 0.9}
    return look | {"label": label + reading}


def _missing(axes: Axes) -> None:
    axes.set_axis_off()
    axes.text(0.5, 0.5, MISSING, ha="center", va="center", color=GREY, transform=axes.transAxes)


def _legend(figure: Figure) -> None:
    """Every name once."""
    entries = {
        label: handle
        for axes in figure.axes
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    if entries:
        columns = 3 if max(map(len, entries)) > 18 else min(len(entries), 5)
        figure.legend(entries.values(), entries, loc="outside lower center", ncols=columns)


def _sizes(found: Found) -> Figure:
    """The paper's figure of size shifts: datasets by networks, accuracy and ECE."""
    figure = Figure(figsize=(WIDTH, 6.4), layout="constrained")
    grid = figure.subplots(3, 3, sharex="row", sharey="row")
    for dataset, line in zip(("NCI1", "NCI109", "PROTEINS"), grid, strict=True):
        for conv, axes in zip(("gcn", "gin", "pna"), line, strict=True):
            cell = f"tu/{dataset}/size {conv}"
            of, seeds, scale = (
                found["published"].get(cell),
                found["published_seeds"].get(cell),
                "published",
            )
            if of is None and cell in found["paper"]:
                small = found["paper"][cell]
                of = {f"{m}|none": {k: row[f"{k}|none"] for k in ("ece", "accuracy")}
                      for m, row in small.items()}  # fmt: skip
                seeds, scale = found["seeds"][cell]["paper"], "small scale"
            if of is None:
                _missing(axes)
            for method in ("plain", "L1", "L2", "readout") if of else ():
                row = of[f"{method}|none"]
                axes.plot([row["accuracy"]], [row["ece"]], ls="", **_look(method))
            scale = f"\n{scale}, {seeds} seeds" if of else ""
            axes.set_title(f"{dataset}, {conv.upper()}{scale}")
            axes.grid()
        line[0].set_ylabel("OOD ECE (↓ better)")
    for axes in grid[-1]:
        axes.set_xlabel("OOD accuracy (better →)")
    _legend(figure)
    return figure


def _published(found: Found) -> Figure:
    """ECE of plain and NFA: weights picked by validation loss, of the last epoch, and printed."""
    figure = Figure(figsize=(WIDTH, 4.2), layout="constrained")
    cells = [f"{d}/{s} gcn" for d in ("webkb/university", "cbas/color")
             for s in ("concept", "covariate")]  # fmt: skip
    for cell, axes in zip(cells, figure.subplots(2, 2, sharey="row").flat, strict=True):
        of, printed = found["published"].get(cell, {}), found["printed"].get(cell, {})
        axes.set_title(f"{cell}, {found['published_seeds'].get(cell, MISSING)} seeds")
        ways = {
            "weights picked by validation loss": (of, ""),
            "weights of the last epoch": (of, LAST),
            "what the paper prints": (printed, ""),
        }
        for i, (way, (source, end)) in enumerate(ways.items()):
            heights = [source.get(f"{n}{end}|none", {"ece": 0.0})["ece"] for n in ("plain", "NFA")]
            colour = ("#0072b2", "#56b4e9", GREY)[i]
            bars = axes.bar(
                [j + 0.27 * (i - 1) for j in (0, 1)], heights, 0.25, color=colour, label=way
            )
            axes.bar_label(bars, fmt=lambda height: f"{height:.2f}" if height else MISSING)
        axes.set_xticks((0, 1), ("plain network", "NFA"))
        axes.set_ylabel("OOD ECE (↓ better)")
        axes.margins(y=0.15)
    _legend(figure)
    return figure
