"""Figures about values: truth and prediction, levels of intervals, error and uncertainty."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from gduq import metrics
from gduq.metrics.value_rows import read_values
from gduq.plots.style import (
    COLOURS,
    CROWD,
    DASHES,
    GREY,
    MARKERS,
    array,
    by_name,
    filled_between,
    finished,
    framed,
    thinned,
    with_value,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["calibration_curve", "error_by_uncertainty", "parity"]


def parity(p: Any, *, level: float = 0.9, most: int = 1000, title: str = "") -> Figure:
    """Predicted against true values with intervals; those that miss the truth are hollow.

    Rows are evenly chosen where there are more than ``most``.

    Args:
        p: A `gduq.ValuePrediction` of one value with targets; of several, pass ``p.column(t)``.
        level: Level of the intervals.
        most: Rows that are drawn.
        title: Title of the figure.

    Example:
        >>> from gduq.prediction import ValuePrediction
        >>> p = ValuePrediction(torch.zeros(9, 2), target=torch.linspace(-2, 2, 9))
        >>> parity(p).axes[0].get_xlabel()
        'true value'
    """
    whole = read_values(p)
    part = whole.one[torch.from_numpy(thinned(len(whole), most))]
    truth, mean = array(part.target), array(part.mean)
    low, high = (array(end) for end in part.interval(level))
    held = (low <= truth) & (truth <= high)
    name = _named(part)
    with framed(3.3, 2) as figure:
        axes = figure.subplots()
        share = metrics.coverage(whole, level)
        for inside, colour, label in (
            (held, COLOURS[0], f"{100 * level:g} % intervals: {100 * share:.0f} % hold the truth"),
            (~held, COLOURS[1], "the others"),
        ):
            bars = [(mean - low)[inside].clip(0), (high - mean)[inside].clip(0)]
            fill = colour if inside is held else "white"
            axes.errorbar(truth[inside], mean[inside], yerr=bars, fmt="o", color=colour,
                          markersize=2.5, markerfacecolor=fill, elinewidth=0.5,
                          ecolor=(colour, 0.35), label=label)  # fmt: skip
        ends = min(truth.min(), mean.min()), max(truth.max(), mean.max())
        pad = 0.08 * (ends[1] - ends[0]) or 1.0  # long intervals are cut off: dots matter more
        both = (ends[0] - pad, ends[1] + pad)
        axes.set(xlim=both, ylim=both)
        axes.plot(ends, ends, color=GREY, linewidth=0.8, linestyle=":", zorder=3)
        axes.set(xlabel=f"true {name}", ylabel=f"predicted {name}")
        finished(figure, axes, title)
    return figure


def calibration_curve(predictions: Any, *, level: float = 0.95, title: str = "") -> Figure:
    """Which share of the truth lies in intervals of every level, with Wilson intervals.

    Below the diagonal intervals are too narrow. The legend names each one's miscalibration area.

    Args:
        predictions: A `gduq.ValuePrediction` of one value with targets, or up to seven by name.
        level: Coverage of the bands.
        title: Title of the figure.

    Example:
        >>> from gduq.prediction import ValuePrediction
        >>> p = ValuePrediction(torch.zeros(9, 2), target=torch.linspace(-2, 2, 9))
        >>> calibration_curve({"vanilla": p, "anchored": p}).axes[0].get_xlabel()
        'level of the interval'
    """
    named = by_name(predictions)
    with framed(2.8, len(named)) as figure:
        axes = figure.subplots()
        axes.plot([0, 1], [0, 1], color=GREY, linewidth=0.8, linestyle=":", zorder=0)
        for i, (name, p) in enumerate(named.items()):
            curve = metrics.calibration_curve(p, level=level)
            x, y, low, high = (array(v) for v in curve)
            label = with_value(name, "area", metrics.miscalibration_area(p))
            axes.plot(x, y, color=COLOURS[i], linestyle=DASHES[i], label=label)
            filled_between(axes, x, low, high, i, crowded=len(named) > CROWD)
        axes.set(xlabel="level of the interval", ylabel="share of the truth in it")
        axes.set(xlim=(0, 1), ylim=(0, 1.01))
        finished(figure, axes, title)
    return figure


def error_by_uncertainty(predictions: Any, *, bins: int = 10, title: str = "") -> Figure:
    """RMSE against the root mean variance of rows, sorted by it into bins of equally many.

    Above the diagonal errors are larger than said. The legend names each one's ENCE.

    Args:
        predictions: A `gduq.ValuePrediction` of one value with targets, or up to seven by name.
        bins: Number of bins; at least as many rows.
        title: Title of the figure.

    Example:
        >>> from gduq.prediction import ValuePrediction
        >>> p = ValuePrediction(torch.zeros(40, 2), target=torch.linspace(-2, 2, 40))
        >>> error_by_uncertainty(p, bins=4).axes[0].get_ylabel()
        'RMSE'
    """
    named = by_name(predictions)
    with framed(2.8, len(named)) as figure:
        axes, top = figure.subplots(), 0.0
        for i, (name, p) in enumerate(named.items()):
            label = with_value(name, "ENCE", metrics.ence(p, bins=bins))
            said, found = _binned(p, bins)
            axes.plot(said, found, color=COLOURS[i], marker=MARKERS[i], linestyle=DASHES[i],
                      label=label)  # fmt: skip
            top = max(top, *said, *found)
        axes.plot([0, top], [0, top], color=GREY, linewidth=0.8, linestyle=":", zorder=0)
        axes.set(xlabel=_with_unit("standard deviation", named), ylabel=_with_unit("RMSE", named))
        axes.set(xlim=(0, None), ylim=(0, None))
        finished(figure, axes, title)
    return figure


def _binned(p: Any, bins: int) -> tuple[list[float], list[float]]:
    """Root mean variance and RMSE of every bin."""
    rows = read_values(p)
    parts = rows.variance.argsort(stable=True).tensor_split(bins)
    both = ([float(v[part].mean().sqrt()) for part in parts] for v in (rows.variance, rows.loss))
    said, found = both
    return said, found


def _named(p: Any) -> str:
    """The name of a value, with its unit where it has one."""
    name = p.names[0] if p.names else "value"
    return f"{name} / {p.units[0]}" if p.units and p.units[0] else str(name)


def _with_unit(words: str, named: dict[str, Any]) -> str:
    units = {p.units[0] for p in named.values() if p.units}
    return f"{words} / {units.pop()}" if len(units) == 1 and "" not in units else words
