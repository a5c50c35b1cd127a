"""The house style of figures, and the parts they are made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from gduq.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["COLOURS", "DOTTED", "GREY", "array", "band", "by_name", "labelled", "line", "outlined",
           "panel", "thinned"]  # fmt: skip

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
GREY = "#666666"
DOTTED: dict[str, Any] = {"color": GREY, "linewidth": 0.8, "linestyle": ":"}  # what to compare with
_STYLE: Any = {
    "font.size": 8, "axes.labelsize": 8, "axes.titlesize": 8, "legend.fontsize": 7,
    "xtick.labelsize": 7, "ytick.labelsize": 7, "axes.linewidth": 0.6, "xtick.major.width": 0.6,
    "ytick.major.width": 0.6, "axes.spines.top": False, "axes.spines.right": False,
    "legend.frameon": False, "lines.linewidth": 1.2, "lines.markersize": 4,
    "text.parse_math": False,  # a "$" in a name is a dollar
}  # fmt: skip
_WIDTH = 3.4


@contextmanager
def panel(height: float, entries: int, title: str, **grid: Any) -> Iterator[tuple[Figure, Any]]:
    """A figure and its axes; on leaving, a legend of so many lines below them, and a title."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH, height + 0.15 * entries), layout="constrained", dpi=200)
        yield figure, figure.subplots(**grid)
        handles = figure.axes[0].get_legend_handles_labels()
        figure.legend(*handles, loc="outside lower center", handlelength=2.6, labelspacing=0.3)
        figure.axes[0].set_title(title)


def by_name(given: Any, alone: str = "", most: int = len(COLOURS)) -> dict[str, Any]:
    """Predictions by name; one alone is called ``alone``."""
    named = dict(given) if isinstance(given, Mapping) else {alone: given}
    if not 1 <= len(named) <= most:
        raise InputError(f"one to {most} predictions", len(named))
    return named


def labelled(name: str, measure: str, value: float) -> str:
    """An entry of a legend."""
    return f"{name} ({measure} {value:.3f})" if name else f"{measure} {value:.3f}"


def line(i: int, marked: bool = False) -> dict[str, Any]:
    """How line number ``i`` looks."""
    more = {"marker": _MARKERS[i]} if marked else {}
    return {"color": COLOURS[i], "linestyle": _DASHES[i], **more}


def band(axes: Axes, x: Any, low: Any, high: Any, i: int, lines: int) -> None:
    """A band around line number ``i``, the lighter the more lines there are."""
    alpha = 0.18 if lines <= 3 else 0.08
    axes.fill_between(x, low, high, color=COLOURS[i], alpha=alpha, linewidth=0)


def outlined(
    axes: Axes, values: Tensor, edges: Any, i: int, label: str | None = None, filled: bool = False
) -> None:
    """A histogram as shares of the rows."""
    heights, _ = np.histogram(array(values), bins=edges)
    heights = heights / max(heights.sum(), 1)
    if filled:
        axes.stairs(heights, edges, fill=True, color=COLOURS[i], alpha=0.2)
    axes.stairs(heights, edges, **line(i), label=label)


def thinned(rows: int, most: int = 1000) -> Any:
    """At most so many positions: more make files large and change nothing one could see."""
    return np.unique(np.linspace(0, rows - 1, min(rows, most)).astype(int))


def array(values: Tensor) -> Any:
    """For Matplotlib."""
    return values.detach().cpu().numpy()
