"""Pictures as SVG in one style, and the one of README and RESULTS."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gduq.plots.style import COLOURS, GREY
from results_names import MAIN, README_ROWS, Found, Key, cost_of, joined

_STYLE: Any = {
    "font.size": 8, "axes.labelsize": 8, "axes.titlesize": 8, "legend.fontsize": 7.5,
    "xtick.labelsize": 7, "ytick.labelsize": 7, "axes.linewidth": 0.6, "xtick.major.width": 0.6,
    "ytick.major.width": 0.6, "axes.spines.top": False, "axes.spines.right": False,
    "legend.frameon": False, "text.parse_math": False, "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial"],
    "svg.fonttype": "none", "svg.hashsalt": "gduq",
}  # fmt: skip
WIDTH = 7.2  # inches, that of a page


def as_svg(draw: Callable[..., Figure]) -> Callable[..., str]:
    """What a function draws, as the text of an SVG file that is the same every time."""

    @wraps(draw)
    def drawn(*arguments: Any) -> str:
        file = io.StringIO()
        with matplotlib.rc_context(_STYLE):
            figure = draw(*arguments)
            figure.savefig(file, format="svg", metadata={"Date": None}, facecolor="white")
        return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"

    return drawn


@as_svg
def headline(found: Found) -> Figure:
    """Left: the mean loss of each way, with its price. Right: every cell by itself."""
    figure = Figure(figsize=(8.6, 1.3 + 0.13 * len(found["cells"])), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.25))
    _bars_of_means(left, found)
    ratios = _ratios(found["cells"], ("choose 1.2", "copies"), ("plain", "copies"))
    others = _ratios(found["cells"], ("ensemble of 3", "copies"), ("plain", "copies"))
    order = sorted(ratios, key=ratios.__getitem__)
    right.axvline(1.0, color=GREY, lw=1)
    right.plot([others[c] for c in order], range(len(order)), "o", color=GREY, ms=4,
               label="ensemble of three")  # fmt: skip
    right.plot([ratios[c] for c in order], range(len(order)), "o", color=COLOURS[2], ms=5,
               label="gduq.choose(budget=1.2)")  # fmt: skip
    right.set_yticks(range(len(order)), order)
    right.set_xlabel("loss, relative to a temperature from copies")
    figure.legend(loc="outside lower right", ncols=2)
    return figure


def _bars_of_means(axes: Axes, found: Found) -> None:
    values = [found["means"]["ood_test"][joined(*key)]["nll"] for key in README_ROWS]
    colours = [COLOURS[2] if "choose" in method else GREY for method, _ in README_ROWS]
    axes.barh(range(len(values)), values, color=colours)
    names = [f"{MAIN[key]}\n{cost_of(found, key[0]):.1f}× training" for key in README_ROWS]
    axes.set_yticks(range(len(values)), names)
    axes.invert_yaxis()
    axes.set_xlabel("mean loss (NLL) under shift")
    for i, value in enumerate(values):
        axes.annotate(f"{value:.2f}", (value, i), (3, 0), textcoords="offset points", va="center")
    axes.set_xlim(0, 1.18 * max(values))


def _ratios(cells: Mapping[str, Any], ours: Key, theirs: Key) -> dict[str, float]:
    a, b = joined(*ours), joined(*theirs)
    return {c: of[a]["nll"] / of[b]["nll"] for c, of in cells.items() if a in of and b in of}
