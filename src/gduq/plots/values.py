"""Figures about values: truth and prediction, levels of intervals, error and uncertainty."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from gduq import metrics
from gduq.metrics.rows import ValueRows, read_as
from gduq.plots import style

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
    whole = read_as(ValueRows, p)
    part = whole.one[torch.from_numpy(style.thinned(len(whole), most))]
    truth, mean, low, high = map(style.array, (part.target, part.mean, *part.interval(level)))
    held = (low <= truth) & (truth <= high)
    share = f"{100 * metrics.coverage(whole, level):.0f} %"
    with style.panel(3.3, 2, title) as (figure, axes):
        for inside, i, label in (
            (held, 0, f"{100 * level:g} % intervals: {share} hold the truth"),
            (~held, 1, "the others"),
        ):
            bars = [(mean - low)[inside].clip(0), (high - mean)[inside].clip(0)]
            fill = "white" if i else style.COLOURS[0]
            axes.errorbar(truth[inside], mean[inside], bars, fmt="o", color=style.COLOURS[i],
                          markersize=2.5, markerfacecolor=fill, elinewidth=0.5,
                          ecolor=(style.COLOURS[i], 0.35), label=label)  # fmt: skip
        ends = min(truth.min(), mean.min()), max(truth.max(), mean.max())
        pad = 0.08 * (ends[1] - ends[0]) or 1.0  # long intervals are cut off: dots matter more
        both = (ends[0] - pad, ends[1] + pad)
        axes.plot(ends, ends, **style.DOTTED, zorder=3)
        name = _with_unit(part.names[0] if part.names else "value", part)
        axes.set(xlim=both, ylim=both, xlabel=f"true {name}", ylabel=f"predicted {name}")
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
    named = style.by_name(predictions)
    with style.panel(2.8, len(named), title) as (figure, axes):
        axes.plot([0, 1], [0, 1], **style.DOTTED, zorder=0)
        for i, (name, p) in enumerate(named.items()):
            x, y, low, high = map(style.array, metrics.calibration_curve(p, level=level))
            area = metrics.miscalibration_area(p)
            axes.plot(x, y, **style.line(i), label=style.labelled(name, "area", area))
            style.band(axes, x, low, high, i, len(named))
        axes.set(xlabel="level of the interval", ylabel="share of the truth in it")
        axes.set(xlim=(0, 1), ylim=(0, 1.01))
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
    named, top = style.by_name(predictions), 0.0
    with style.panel(2.8, len(named), title) as (figure, axes):
        for i, (name, p) in enumerate(named.items()):
            label = style.labelled(name, "ENCE", metrics.ence(p, bins=bins))
            rows = read_as(ValueRows, p)
            parts = rows.variance.argsort(stable=True).tensor_split(bins)
            said, found = ([float(v[part].mean().sqrt()) for part in parts]
                           for v in (rows.variance, rows.loss))  # fmt: skip
            axes.plot(said, found, **style.line(i, marked=True), label=label)
            top = max(top, *said, *found)
        axes.plot([0, top], [0, top], **style.DOTTED, zorder=0)
        axes.set(xlim=(0, None), ylim=(0, None), ylabel=_with_unit("RMSE", *named.values()),
                 xlabel=_with_unit("standard deviation", *named.values()))  # fmt: skip
    return figure


def _with_unit(words: str, *predictions: Any) -> str:
    """With the unit, where all have the same."""
    units = {p.units[0] for p in predictions if p.units}
    return f"{words} / {units.pop()}" if len(units) == 1 and "" not in units else words
