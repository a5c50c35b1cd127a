"""The pictures of docs/replication.md: one for each of its sections."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gduq.plots.style import COLOURS, GREY
from results_claims import CLAIMS, groups
from results_names import CALIBRATED, HIGHER, LAST, MEASURED, NETWORKS, READINGS, Found, counted
from results_pictures import WIDTH, as_svg

FOLDER = "docs/pictures"
DATASETS, CONVS = ("NCI1", "NCI109", "PROTEINS"), ("gcn", "gin", "pna")
MISSING = "not measured yet"

# Rows of panels. A panel is one claim, or several about the same cells, measure and rival.
CLAIMED = {
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
_LOOKS = {  # colour and marker
    "plain": (COLOURS[6], "|"),
    "T = 2": (COLOURS[6], "|"),
    "ensemble of 3": (COLOURS[6], "P"),
    "NFA": (COLOURS[0], "o"),
    "L1": (COLOURS[1], "s"),
    "L2": (COLOURS[2], "^"),
    "readout": (COLOURS[3], "D"),
    "pretrained": (COLOURS[4], "v"),
}


def replication_pictures(found: Found) -> dict[str, str]:
    """All of them, by file; what is not measured says so."""
    made = {name: claimed(found, rows) for name, rows in CLAIMED.items()}
    made |= {"sizes": sizes(found), "published": published(found)}
    return {f"{FOLDER}/replication-{name}.svg": text for name, text in made.items()}


# -- claims, cell by cell --------------------------------------------------------------------------


@as_svg
def claimed(found: Found, rows: Sequence[Sequence[str]]) -> Figure:
    """Panels of claims: per cell the paper's network and what it is held against."""
    cells = [[_cells(found, panel) for panel in row] for row in rows]
    heights = [0.85 + 0.15 * max(3, *map(len, row)) for row in cells]
    figure = Figure(figsize=(WIDTH, sum(heights) + 0.35), layout="constrained")
    columns = max(map(len, rows))
    grid = figure.subplots(len(rows), columns, squeeze=False, height_ratios=heights)
    for row, names, places in zip(rows, cells, grid, strict=True):
        for i, (panel, own) in enumerate(zip(row, names, strict=True)):
            named = i == 0 or own != names[i - 1]
            _panel(places[i], found, panel.split(), own, named)
        for axes in places[len(row) :]:
            axes.set_visible(False)
    _legend(figure)
    return figure


def _cells(found: Found, panel: str) -> list[str]:
    group = CLAIMS[panel.split()[0]].group
    return [c for c, of in found["seeds"].items() if of["paper"] and group in groups(c)]


def _panel(
    axes: Axes, found: Found, claims: Sequence[str], cells: Sequence[str], named: bool
) -> None:
    """One mark per cell and network, a line from the least to the most."""
    pairs = {name: found["pairs"][name] for name in claims if name in found["pairs"]}
    if not pairs:
        return _missing(axes)
    first = CLAIMS[claims[0]]
    for y, cell in enumerate(cells):
        values = [v for of in pairs.values() for v in of.get(cell, {}).values()]
        if values:
            axes.plot([min(values), max(values)], [y, y], color=GREY, lw=0.6, zorder=1)
    theirs = {c: of["theirs"] for own in pairs.values() for c, of in own.items()}
    _marks(axes, first.theirs, theirs, cells, _spelled(first))
    for i, (name, own) in enumerate(pairs.items()):  # several: one above the other
        lift = 0.25 * (i - (len(pairs) - 1) / 2)
        ours = {c: of["ours"] for c, of in own.items()}
        _marks(axes, CLAIMS[name].ours, ours, cells, _spelled(first), lift)
    _scale(axes, first.measure)
    _words(axes, found, list(pairs))
    axes.set_yticks(range(len(cells)), cells if named else [""] * len(cells))
    axes.set_ylim(len(cells) - 0.4, -0.6)
    axes.grid(axis="x", lw=0.3, color="0.85")
    axes.set_axisbelow(True)
    return None


def _marks(
    axes: Axes,
    key: str,
    values: dict[str, float],
    cells: Sequence[str],
    spelled: bool,
    lift: float = 0.0,
) -> None:
    x, y = list(values.values()), [cells.index(cell) + lift for cell in values]
    axes.plot(x, y, ls="", **_look(key, spelled))


def _words(axes: Axes, found: Found, claims: Sequence[str]) -> None:
    """Above a panel who is better how often, below it by what."""
    first, counts = CLAIMS[claims[0]], [found["claims"][name] for name in claims]
    names = ", ".join(_look(CLAIMS[name].ours, _spelled(first))["label"] for name in claims)
    won = ", ".join(str(count["won"]) for count in counts)
    axes.set_title(f"{names}:\nbetter in {won} of {counts[0]['of']} cells", fontsize=7.5)
    better = "better →" if first.measure in HIGHER else "← better"
    level = CALIBRATED[first.ours.partition("|")[2]]
    said = MEASURED[first.measure]
    said = said if first.measure in ("errors", "msp") else f"OOD {said}, {level}"
    axes.set_xlabel(f"{said}\n({better})")


def _base(key: str) -> str:
    """The network of a key, without reading and level."""
    return next(name for name in _LOOKS if key.startswith(name))


def _spelled(claim: Any) -> bool:
    """Whether readings of one network are compared, so that all of them need a name."""
    return _base(claim.ours) == _base(claim.theirs)


def _scale(axes: Axes, measure: str) -> None:
    """Losses differ by factors between datasets, so their scale is logarithmic."""
    if measure != "nll":
        return
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    wide = (0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 7, 10, 20)
    close = (0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10)
    ticks = [tick for tick in (wide if high > 6 * low else close) if low <= tick <= high]
    axes.set_xticks([], minor=True)
    axes.set_xticks(ticks, [f"{t:g}" for t in ticks])


def _look(key: str, spelled: bool = False) -> dict[str, Any]:
    """How a network looks, in a reading of its hypotheses."""
    base, method = _base(key), key.partition("|")[0]
    label, (colour, marker) = NETWORKS[base], _LOOKS[base]
    reading = method[len(base) :]
    look = {"label": label, "color": colour, "marker": marker, "ms": 4.5, "zorder": 2}
    if marker == "|":
        look |= {"ms": 8, "mew": 1.4}
    if reading or spelled:
        look["label"] = f"{label}, {READINGS[reading]}"
    if reading == ", paper rule":
        look |= {"marker": "x", "color": COLOURS[6], "ms": 3.5, "zorder": 3}
    elif reading == ", mean logits":
        look |= {"mfc": "none", "ms": 7, "mew": 0.9}
    return look


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


# -- graph sizes -----------------------------------------------------------------------------------


@as_svg
def sizes(found: Found) -> Figure:
    """The paper's figure of size shifts: datasets by networks, accuracy and ECE."""
    figure = Figure(figsize=(WIDTH, 6.4), layout="constrained")
    grid = figure.subplots(len(DATASETS), len(CONVS), squeeze=False, sharex="row", sharey="row")
    for dataset, places in zip(DATASETS, grid, strict=True):
        for conv, axes in zip(CONVS, places, strict=True):
            _size(axes, found, f"tu/{dataset}/size {conv}")
            axes.set_title(f"{dataset}, {conv.upper()}\n{axes.get_title()}")
        places[0].set_ylabel("OOD ECE (↓ better)")
    for axes in grid[-1]:
        axes.set_xlabel("OOD accuracy (better →)")
    _legend(figure)
    return figure


def _size(axes: Axes, found: Found, cell: str) -> None:
    """One panel: a mark per network, with a line from the plain one; published ones if there."""
    if cell in found["published"]:
        of, key = found["published"][cell], "{}|none"
        said, measures = f"published, {counted(found['published_seeds'][cell])}", "{}"
    elif cell in found["paper"]:
        of, key = found["paper"][cell], "{}"
        said, measures = f"small scale, {counted(found['seeds'][cell]['paper'])}", "{}|none"
    else:
        return _missing(axes)
    x, y = measures.format("accuracy"), measures.format("ece")
    rows = {m: of[key.format(m)] for m in ("plain", "L1", "L2", "readout") if key.format(m) in of}
    for method, row in rows.items():
        start = rows.get("plain", row)
        axes.plot([start[x], row[x]], [start[y], row[y]], color=GREY, lw=0.6, zorder=1)
        look = _look(method) | ({"marker": "X", "ms": 6, "mew": 0} if method == "plain" else {})
        axes.plot([row[x]], [row[y]], ls="", **look)
    axes.set_title(said)
    axes.grid(lw=0.3, color="0.85")
    return None


# -- published networks ----------------------------------------------------------------------------


@as_svg
def published(found: Found) -> Figure:
    """ECE of plain and NFA: weights picked by validation loss, of the last epoch, and printed."""
    figure = Figure(figsize=(WIDTH, 4.2), layout="constrained")
    grid = figure.subplots(2, 2, sharey="row")
    for data, places in zip(("webkb/university", "cbas/color"), grid, strict=True):
        for shift, axes in zip(("concept", "covariate"), places, strict=True):
            _bars(axes, found, f"{data}/{shift} gcn")
        places[0].set_ylabel("OOD ECE (↓ better)")
    _legend(figure)
    return figure


def _bars(axes: Axes, found: Found, cell: str) -> None:
    """Per network one bar for each way to take its weights, and one for the paper's figure."""
    seeds, of = found["published_seeds"].get(cell), found["published"].get(cell, {})
    axes.set_title(f"{cell}, {MISSING if seeds is None else counted(seeds)}")
    networks = ("plain", "NFA")
    ways = {
        "weights picked by validation loss": [of.get(f"{n}|none") for n in networks],
        "weights of the last epoch": [of.get(f"{n}{LAST}|none") for n in networks],
        "what the paper prints": [
            found["printed"].get(cell, {}).get(f"{n}|none") for n in networks
        ],
    }
    for i, (way, rows) in enumerate(ways.items()):
        places = [j + 0.27 * (i - 1) for j in range(len(networks))]
        heights = [0.0 if row is None else row["ece"] for row in rows]
        axes.bar(places, heights, 0.25, color=COLOURS[(0, 4, 6)[i]], label=way)
        for x, row, height in zip(places, rows, heights, strict=True):
            if row is None:
                axes.text(x, 0.03, MISSING, ha="center", va="bottom", color=GREY, rotation=90,
                          transform=axes.get_xaxis_transform())  # fmt: skip
            else:
                axes.text(x, height, f"{height:.2f}", ha="center", va="bottom")
    axes.set_xticks(range(len(networks)), [NETWORKS[n] for n in networks])
    axes.margins(y=0.15)
