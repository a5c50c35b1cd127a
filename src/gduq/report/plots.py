"""Figures: reliability and levels, truth and prediction, risk and coverage, ID and OOD.

Every function returns a Matplotlib ``Figure`` for one column of a paper (3.4 inches): save it with
``figure.savefig("name.pdf")``. No global state is touched. ``predictions`` are one prediction with
targets, or up to seven by name. Colours are those of Okabe and Ito, which colour-blind readers can
tell apart; lines also differ by marker and dash.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gduq import metrics, ood
from gduq.errors import InputError
from gduq.prediction import Prediction, ValuePrediction

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["calibration_curve", "parity", "reliability_diagram", "risk_coverage",
           "score_histograms", "to_svg"]  # fmt: skip

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
_GREY = "#666666"
_DOTTED: dict[str, Any] = {"color": _GREY, "linewidth": 0.8, "linestyle": ":"}  # to compare with
_STYLE: Any = {
    "font.size": 8, "axes.labelsize": 8, "axes.titlesize": 8, "legend.fontsize": 7,
    "xtick.labelsize": 7, "ytick.labelsize": 7, "axes.linewidth": 0.6, "xtick.major.width": 0.6,
    "ytick.major.width": 0.6, "axes.spines.top": False, "axes.spines.right": False,
    "legend.frameon": False, "lines.linewidth": 1.2, "lines.markersize": 4,
    "text.parse_math": False,  # a "$" in a name is a dollar
}  # fmt: skip
_PILE = 0.35  # a bar with more of the rows than this hides all others on a linear scale
_MOST = 1000  # points of a line: more make files large and change nothing one could see

Predictions = Prediction | Mapping[str, Prediction]
_Array = NDArray[np.floating]


@contextmanager
def _panel(height: float, entries: int, **grid: Any) -> Iterator[tuple[Figure, Any]]:
    """A figure and its axes; on leaving, a legend of so many lines below them."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(3.4, height + 0.15 * entries), layout="constrained", dpi=200)
        yield figure, figure.subplots(**grid)
        handles = figure.axes[0].get_legend_handles_labels()
        figure.legend(*handles, loc="outside lower center", handlelength=2.6, labelspacing=0.3)


def _by_name(given: Predictions) -> dict[str, Any]:
    named = dict(given) if isinstance(given, Mapping) else {"": given}
    if not 1 <= len(named) <= len(COLOURS):
        raise InputError(f"one to {len(COLOURS)} predictions", len(named))
    return named


def _line(i: int, name: str = "", measure: str = "", value: float = 0.0) -> dict[str, Any]:
    """How the i-th line looks, and what the legend says of it."""
    number = f"{measure} {value:.3f}" if measure else ""
    label = f"{name} ({number})" if name and number else name or number
    return {"color": COLOURS[i], "linestyle": _DASHES[i], "label": label or None}


def _shares(values: Tensor, edges: _Array) -> _Array:
    """A histogram as shares of the rows."""
    heights, _ = np.histogram(_array(values), bins=edges)
    shares: _Array = heights / max(heights.sum(), 1)
    return shares


def _thinned(rows: int, most: int = _MOST) -> NDArray[np.int64]:
    """At most so many positions, evenly chosen."""
    return np.unique(np.linspace(0, rows - 1, min(rows, most)).astype(int))


def _array(values: Tensor) -> _Array:
    found: _Array = values.detach().cpu().numpy()
    return found


def _intervals(
    axes: Axes, i: int, x: _Array, y: _Array, low: _Array, high: _Array, **style: Any
) -> None:
    """Points with error bars; rounding may leave a length a little below 0."""
    axes.errorbar(x, y, [(y - low).clip(0), (high - y).clip(0)], ecolor=(COLOURS[i], 0.4), **style)


def reliability_diagram(predictions: Predictions, *, bins: int = 15) -> Figure:
    """Accuracy against confidence with Wilson intervals, above a histogram of the confidence.

    For classes (of labels, ``p.column(t)``). Below the diagonal a model is overconfident. The
    legend names each one's ECE over these bins.
    """
    named, start = _by_name(predictions), 1.0
    grid: Any = {"nrows": 2, "sharex": True, "height_ratios": [3.2, 1]}
    edges = np.linspace(0, 1, max(bins, 20) + 1)
    with _panel(3.3, len(named), **grid) as (figure, (upper, lower)):
        upper.plot([0, 1], [0, 1], **_DOTTED, zorder=0)
        for i, (name, p) in enumerate(named.items()):
            curve = metrics.reliability(p, bins=bins, strict=False)
            parts = curve.confidence, curve.accuracy, curve.low, curve.high
            line = _line(i, name, "ECE", metrics.ece(p, bins=bins, strict=False))
            _intervals(upper, i, *(_array(part[curve.rows > 0]) for part in parts), **line,
                       marker=_MARKERS[i], elinewidth=0.7)  # fmt: skip
            lower.stairs(_shares(p.confidence, edges), edges, **_line(i))
            start = min(start, float(p.confidence.min()))
        start = max(0.0, np.floor(start * 10) / 10)
        upper.set(xlim=(start, 1.01), ylim=(-0.02, 1.02), ylabel="accuracy")
        lower.set(xlabel="confidence", ylabel="share", ylim=(0, None))
    return figure


def calibration_curve(predictions: Predictions) -> Figure:
    """Which share of the truth lies in intervals of every level, with Wilson intervals.

    For one value. Below the diagonal intervals are too narrow. The legend names each one's
    miscalibration area.
    """
    named = _by_name(predictions)
    with _panel(2.8, len(named)) as (figure, axes):
        axes.plot([0, 1], [0, 1], **_DOTTED, zorder=0)
        for i, (name, p) in enumerate(named.items()):
            x, y, low, high = map(_array, metrics.calibration_curve(p))
            axes.plot(x, y, **_line(i, name, "area", metrics.miscalibration_area(p)))
            axes.fill_between(x, low, high, color=COLOURS[i], alpha=0.12, linewidth=0)
        axes.set(xlabel="level of the interval", ylabel="share of the truth in it", xlim=(0, 1),
                 ylim=(0, 1.01))  # fmt: skip
    return figure


def parity(p: ValuePrediction, *, level: float = 0.9, most: int = 300) -> Figure:
    """Predicted against true values with intervals; those that miss the truth are hollow.

    For one value (of several, ``p.column(t)``). At most ``most`` rows are drawn, evenly chosen.
    """
    share = f"{100 * level:g} % intervals: {100 * metrics.coverage(p, level):.0f} % hold the truth"
    part = p[torch.from_numpy(_thinned(len(p), most))]
    tensors = (part.require_target(), part.mean, *part.interval(level))
    truth, mean, low, high = (_array(v.flatten()) for v in tensors)
    held = (low <= truth) & (truth <= high)
    with _panel(3.3, 2) as (figure, axes):
        for i, (rows, label) in enumerate(((held, share), (~held, "the others"))):
            _intervals(axes, i, truth[rows], mean[rows], low[rows], high[rows], fmt="o",
                       color=COLOURS[i], markersize=2.5, elinewidth=0.5, label=label,
                       markerfacecolor="white" if i else COLOURS[0])  # fmt: skip
        ends = min(truth.min(), mean.min()), max(truth.max(), mean.max())
        pad = 0.08 * (ends[1] - ends[0]) or 1.0  # long intervals are cut off: dots matter more
        both = (ends[0] - pad, ends[1] + pad)
        axes.plot(ends, ends, **_DOTTED, zorder=3)
        name, unit = p.names[0] if p.names else "value", p.units[0] if p.units else ""
        name = f"{name} / {unit}" if unit else name
        axes.set(xlim=both, ylim=both, xlabel=f"true {name}", ylabel=f"predicted {name}")
    return figure


def risk_coverage(predictions: Predictions) -> Figure:
    """Share of errors among the most certain rows, against how many of them are answered.

    For classes, or one value, of which it is the RMSE of the answers. Lower is better. The legend
    names each AURC.
    """
    named, top = _by_name(predictions), 0.0
    squared = isinstance(next(iter(named.values())), ValuePrediction)
    scale = np.sqrt if squared else np.asarray  # an RMSE from mean squares
    with _panel(2.3, len(named)) as (figure, axes):
        for i, (name, p) in enumerate(named.items()):
            curve = metrics.risk_coverage(p)
            x, risk = _array(curve.coverage), scale(_array(curve.risk))
            keep = _thinned(len(risk))
            axes.plot(x[keep], risk[keep], **_line(i, name, "AURC", metrics.aurc(p)))
            top = max(top, float(risk[len(risk) // 10 :].max()))
        top = 1.15 * top or 0.1  # the first few rows may err as they like
        axes.set(xlabel="coverage", xlim=(0, 1.01), ylim=(-0.02 * top, top))  # a 0 stays visible
        axes.set_ylabel("RMSE of the answers" if squared else "risk (share of errors)")
    return figure


def score_histograms(
    p_id: Prediction, p_ood: Prediction, score: str | None = None, *,
    names: tuple[str, str] = ("ID", "OOD"),
) -> Figure:  # fmt: skip
    """The distribution of an OOD score (of `gduq.ood.score`) on ID and OOD rows, and its AUROC.

    Where most rows share one bar, as confident models have it, the shares are on a logarithmic
    scale. ``names`` is what the two sets are called.
    """
    score = score or p_id.ood_scores[0]
    scores = [ood.score(p, score) for p in (p_id, p_ood)]
    every = np.concatenate([_array(s) for s in scores])
    low, high = np.quantile(every, [0.0, 0.995])  # a few far rows should not flatten the rest
    edges = np.linspace(low, high if high > low else low + 1.0, 41)
    with _panel(2.0, 2) as (figure, axes):
        for i, (name, values) in enumerate(zip(names, scores, strict=True)):
            heights = _shares(values.clamp(max=float(edges[-1])), edges)
            axes.stairs(heights, edges, fill=True, color=COLOURS[i], alpha=0.2)
            auroc = ("AUROC", metrics.auroc(*scores)) if i else ()
            axes.stairs(heights, edges, **_line(i, name, *auroc))
        called = {"msp": "1 − confidence", "std": "standard deviation"}.get(score, score)
        axes.set(xlabel=called, ylabel="share of rows", ylim=(0, None))
        if axes.get_ylim()[1] > _PILE:
            least = 0.5 / min(map(len, scores))
            axes.set(yscale="log", ylabel="share of rows (log)", ylim=(least, 1.3))
    return figure


# -- for pages

_PAGE = {colour.lower(): f"var(--s{i})" for i, colour in enumerate(COLOURS[:-1])} | {
    _GREY: "var(--soft)",
    "#000000": "var(--ink)",
    "#ffffff": "var(--card)",
}
_NOISE = re.compile(  # of Matplotlib's drawings and RDKit's
    r"^.*?<svg[^>]*>|</svg>.*|<!--.*?-->|<metadata>.*?</metadata>|\sclass='[^']*'"
    r"|<defs>\s*<style.*?</style>\s*</defs>|font-family: [^;\"]*;? ?|(?<=<g) id=\"[^\"]*\""
    r"|(?<=>)\s+(?=<)",
    re.DOTALL,
)


def to_svg(figure: Figure, label: str) -> str:
    """A Matplotlib figure for a page with the colours ``--s0`` to ``--s5``, ``--ink`` and so on.

    Text stays text, nothing is loaded or run, and two figures of a page share no id. ``label`` is
    what it shows, for readers who cannot see it.
    """
    import matplotlib

    file = io.StringIO()
    style: Any = {"svg.fonttype": "none", "svg.hashsalt": label}  # ids that only this figure has
    with matplotlib.rc_context(style), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # the page's font draws it
        figure.draw_without_rendering()  # once for ticks, once for where they leave room
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    body = file.getvalue().replace("xlink:href", "href")
    body = re.sub(r"#[0-9a-f]{6}\b", lambda m: _PAGE.get(m[0], m[0]), body)
    width, height = (figure.get_size_inches() * 72).tolist()
    return inline(body, width, height, label)


def inline(svg: str, width: float, height: float, label: str) -> str:
    """A drawing with a description, without what a page does not need."""
    start = f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(label)}">'
    return f"{start}{_NOISE.sub('', svg)}</svg>"
