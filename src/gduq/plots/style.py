"""The house style of figures, and the parts they are made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from gduq import metrics
from gduq.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "COLOURS", "CROWD", "DASHES", "FEW", "GREY", "MARKERS", "PILE", "array", "banded", "by_name",
    "filled_between", "finished", "framed", "outlined", "thinned", "with_value",
]  # fmt: skip

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
GREY = "#666666"
_STYLE = {
    "font.size": 8,
    "axes.labelsize": 8,
    "axes.titlesize": 8,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
    "text.parse_math": False,  # a "$" in a name is a dollar
}
_WIDTH = 3.4
CROWD = 3  # more curves than this: what surrounds them is drawn lighter
FEW = 10  # fewer rows than this say nothing
PILE = 0.35  # a bar with more of the rows than this hides all others on a linear scale


@contextmanager
def framed(height: float, entries: int) -> Iterator[Figure]:
    """A figure in the house style, with room for a legend of so many lines below it."""
    import matplotlib
    from matplotlib.figure import Figure

    style: Any = _STYLE
    with matplotlib.rc_context(style):
        yield Figure(figsize=(_WIDTH, height + 0.15 * entries), layout="constrained", dpi=200)


def finished(figure: Figure, axes: Axes, title: str) -> None:
    """Legend below the axes, where it hides nothing, and a title."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", handlelength=2.6, labelspacing=0.3)
    if title:
        axes.set_title(title)


def by_name(given: Any, alone: str = "", most: int = len(COLOURS)) -> dict[str, Any]:
    """Predictions by name; one alone is called ``alone``."""
    named = dict(given) if isinstance(given, Mapping) else {alone: given}
    if not 1 <= len(named) <= most:
        raise InputError(f"one to {most} predictions", len(named))
    return named


def with_value(name: str, measure: str, value: float) -> str:
    """An entry of a legend."""
    return f"{name} ({measure} {value:.3f})" if name else f"{measure} {value:.3f}"


def outlined(
    axes: Axes, values: Tensor, edges: Any, i: int, label: str = "", *, filled: bool = False
) -> None:
    """A histogram as shares of the rows."""
    heights, _ = np.histogram(array(values), bins=edges)
    heights = heights / max(heights.sum(), 1)
    if filled:
        axes.stairs(heights, edges, fill=True, color=COLOURS[i], alpha=0.2)
    axes.stairs(heights, edges, color=COLOURS[i], linestyle=DASHES[i], label=label or None)


def filled_between(axes: Axes, x: Any, low: Any, high: Any, i: int, *, crowded: bool) -> None:
    """A band around line number ``i``."""
    axes.fill_between(x, low, high, color=COLOURS[i], alpha=0.08 if crowded else 0.18, linewidth=0)


def banded(
    axes: Axes, x: list[float], found: list[metrics.Interval], i: int, name: str, crowded: bool
) -> None:
    """A line through values, and a band through their intervals."""
    value, low, high = (np.array(v) for v in zip(*found, strict=True))
    filled_between(axes, x, low, high, i, crowded=crowded)
    axes.plot(x, value, color=COLOURS[i], marker=MARKERS[i], linestyle=DASHES[i], label=name)


def thinned(rows: int, most: int = 1000) -> Any:
    """At most so many positions: more make files large and change nothing one could see."""
    return np.unique(np.linspace(0, rows - 1, min(rows, most)).astype(int))


def array(values: Tensor) -> Any:
    """For Matplotlib."""
    return values.detach().cpu().numpy()
