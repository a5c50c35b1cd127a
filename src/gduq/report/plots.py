"""Figures: reliability and levels, truth and prediction, risk and coverage, ID and OOD, shift.

Every function returns a Matplotlib ``Figure`` made for one column of a paper (3.4 inches); save it
with ``figure.savefig("name.pdf")``. Nothing is shown and no global state is touched, so they work
without a display. Colours are those of Okabe and Ito, which colour-blind readers can tell apart;
lines also differ by marker and dash.
"""

from __future__ import annotations

import hashlib
import io
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from gduq import metrics, ood
from gduq.errors import InputError
from gduq.prediction import ClassPrediction, ValuePrediction

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "calibration_curve",
    "error_by_uncertainty",
    "parity",
    "precision_recall",
    "reliability_diagram",
    "risk_coverage",
    "score_histograms",
    "severity_lines",
    "to_svg",
]

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


# -- classes, and one label at a time


def reliability_diagram(
    predictions: Any,
    *,
    bins: int = 15,
    binning: metrics.Binning = "width",
    level: float = 0.95,
    title: str = "",
) -> Figure:
    """Accuracy against confidence with Wilson intervals, above a histogram of the confidence.

    Below the diagonal a model is overconfident. The legend names each one's ECE over these bins.

    Args:
        predictions: A `gduq.ClassPrediction` with targets, or up to seven of them by name.
        bins: Number of bins.
        binning: ``"width"``, or ``"mass"`` for equally full bins.
        level: Coverage of the intervals.
        title: Title of the figure.

    Example:
        >>> import torch
        >>> from gduq.prediction import ClassPrediction
        >>> p = ClassPrediction(torch.eye(2).repeat(20, 1) * 2, target=torch.tensor([0, 1] * 20))
        >>> len(reliability_diagram(p).axes)
        2
    """
    named, start = by_name(predictions), 1.0
    grid: Any = {"nrows": 2, "sharex": True, "height_ratios": [3.2, 1]}
    with panel(3.3, len(named), title, **grid) as (figure, (upper, lower)):
        upper.plot([0, 1], [0, 1], **DOTTED, zorder=0)
        for i, (name, p) in enumerate(named.items()):
            curve = metrics.reliability(p, bins=bins, binning=binning, level=level, strict=False)
            error = metrics.ece(p, bins=bins, binning=binning, strict=False)
            x, y, low, high = (array(v[curve.rows > 0]) for v in (
                curve.confidence, curve.accuracy, curve.low, curve.high))  # fmt: skip
            bars = [(y - low).clip(0), (high - y).clip(0)]  # rounding may leave a little below 0
            strength, cap = (1.0, 1.5) if len(named) <= 3 else (0.4, 0)
            label = labelled(name, "ECE", error)
            upper.errorbar(x, y, bars, **line(i, marked=True), label=label, capsize=cap,
                           elinewidth=0.7, ecolor=(COLOURS[i], strength))  # fmt: skip
            confidence = p.confidence
            outlined(lower, confidence, np.linspace(0, 1, max(bins, 20) + 1), i)
            start = min(start, float(confidence.min()))
        start = max(0.0, np.floor(start * 10) / 10)
        upper.set(xlim=(start, 1.01), ylim=(-0.02, 1.02), ylabel="accuracy")
        lower.set(xlabel="confidence", ylabel="share", ylim=(0, None))
    return figure


def precision_recall(predictions: Any, *, title: str = "") -> Figure:
    """Precision against recall of the second of two classes, over all thresholds.

    The grey line is its share of the rows, which guessing would reach. The legend names each one's
    average precision.

    Args:
        predictions: A `gduq.ClassPrediction` of two classes with targets (of labels,
            ``p.column(t)``), or up to seven of them by name, of the same rows.
        title: Title of the figure.

    Example:
        >>> import torch
        >>> from gduq.prediction import ClassPrediction
        >>> p = ClassPrediction(torch.eye(2).repeat(20, 1), target=torch.tensor([0, 1] * 20))
        >>> precision_recall(p).axes[0].get_xlabel()
        'recall'
    """
    named = by_name(predictions)
    with panel(2.3, max(len(named), 2), title) as (figure, axes):
        for i, (name, p) in enumerate(named.items()):
            label = labelled(name, "average precision", metrics.average_precision(p))
            axes.plot(*_precision_recall(p), **line(i), label=label)
        rate = float((p.require_target() == 1).double().mean())
        axes.axhline(rate, **DOTTED, label="guessing")
        axes.set(xlabel="recall", ylabel="precision", xlim=(0, 1.01), ylim=(-0.02, 1.02))
    return figure


def _precision_recall(p: ClassPrediction) -> list[Any]:
    """Recall and precision at every threshold, from the highest on."""
    from sklearn.metrics import precision_recall_curve

    if not isinstance(p, ClassPrediction) or p.num_classes != 2:
        raise InputError("two classes", p.size, "Of labels, pass p.column(t).")
    scores = array((p.log_probs[:, 1] - p.log_probs[:, 0]).double())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # rows without a "yes" have a line at 0
        precision, recall, _ = precision_recall_curve(array(p.require_target() == 1), scores)
    keep = thinned(len(recall) - 1)
    return [values[:-1][::-1][keep] for values in (recall, precision)]


# -- values


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
    one = _single_value(p)
    part = one[torch.from_numpy(thinned(len(one), most))]
    tensors = (part.require_target(), part.mean, *part.interval(level))
    truth, mean, low, high = (array(v.flatten()) for v in tensors)
    held = (low <= truth) & (truth <= high)
    share = f"{100 * metrics.coverage(one, level):.0f} %"
    with panel(3.3, 2, title) as (figure, axes):
        for inside, i, label in (
            (held, 0, f"{100 * level:g} % intervals: {share} hold the truth"),
            (~held, 1, "the others"),
        ):
            bars = [(mean - low)[inside].clip(0), (high - mean)[inside].clip(0)]
            fill = "white" if i else COLOURS[0]
            axes.errorbar(truth[inside], mean[inside], bars, fmt="o", color=COLOURS[i],
                          markersize=2.5, markerfacecolor=fill, elinewidth=0.5,
                          ecolor=(COLOURS[i], 0.35), label=label)  # fmt: skip
        ends = min(truth.min(), mean.min()), max(truth.max(), mean.max())
        pad = 0.08 * (ends[1] - ends[0]) or 1.0  # long intervals are cut off: dots matter more
        both = (ends[0] - pad, ends[1] + pad)
        axes.plot(ends, ends, **DOTTED, zorder=3)
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
    named = by_name(predictions)
    with panel(2.8, len(named), title) as (figure, axes):
        axes.plot([0, 1], [0, 1], **DOTTED, zorder=0)
        for i, (name, p) in enumerate(named.items()):
            x, y, low, high = map(array, metrics.calibration_curve(p, level=level))
            area = metrics.miscalibration_area(p)
            axes.plot(x, y, **line(i), label=labelled(name, "area", area))
            band(axes, x, low, high, i, len(named))
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
    named, top = by_name(predictions), 0.0
    with panel(2.8, len(named), title) as (figure, axes):
        for i, (name, p) in enumerate(named.items()):
            label = labelled(name, "ENCE", metrics.ence(p, bins=bins))
            variance = _single_value(p).std.double().flatten().square()
            loss = (p.mean - p.require_target()).double().flatten().square()
            parts = variance.argsort(stable=True).tensor_split(bins)
            expected, found = ([float(v[i].mean().sqrt()) for i in parts] for v in (variance, loss))
            axes.plot(expected, found, **line(i, marked=True), label=label)
            top = max(top, *expected, *found)
        axes.plot([0, top], [0, top], **DOTTED, zorder=0)
        axes.set(xlim=(0, None), ylim=(0, None), ylabel=_with_unit("RMSE", *named.values()),
                 xlabel=_with_unit("standard deviation", *named.values()))  # fmt: skip
    return figure


def _single_value(p: ValuePrediction) -> ValuePrediction:
    """One value with targets."""
    p.require_target()
    if p.num_values != 1:
        raise InputError("a prediction of one value", p.num_values, "Pass p.column(t).")
    return p


def _with_unit(words: str, *predictions: ValuePrediction) -> str:
    """With the unit, where all have the same."""
    units = {p.units[0] for p in predictions if p.units}
    return f"{words} / {units.pop()}" if len(units) == 1 and "" not in units else words


# -- any kind

_PILE = 0.35  # a bar with more of the rows than this hides all others on a linear scale
_SCORE_NAMES = {
    "msp": "1 − confidence",
    "std": "standard deviation",
    "epistemic": "epistemic (mutual information)",
    "mahalanobis": "Mahalanobis distance",
    "knn": "distance to k-th neighbour",
}


def risk_coverage(predictions: Any, *, title: str = "") -> Figure:
    """Share of errors among the most certain rows, against how many of them are answered.

    Of values it is the RMSE of the answers. Lower is better; the grey line of a single prediction
    is what a perfect ranking would reach. The legend names each one's AURC.

    Args:
        predictions: A `gduq.ClassPrediction` or `gduq.ValuePrediction` (of one value) with
            targets, or up to seven of them by name.
        title: Title of the figure.

    Example:
        >>> import torch
        >>> from gduq.prediction import ClassPrediction
        >>> p = ClassPrediction(torch.eye(2).repeat(20, 1) * 2, target=torch.tensor([0, 1] * 20))
        >>> risk_coverage({"vanilla": p, "anchored": p}).axes[0].get_xlabel()
        'coverage'
    """
    named, top = by_name(predictions), 0.0
    squared = isinstance(next(iter(named.values())), ValuePrediction)
    scale = np.sqrt if squared else np.asarray  # an RMSE from mean squares
    with panel(2.3, max(len(named), 2), title) as (figure, axes):
        for i, (name, p) in enumerate(named.items()):
            curve, label = metrics.risk_coverage(p), labelled(name, "AURC", metrics.aurc(p))
            x, risk = array(curve.coverage), scale(array(curve.risk))
            keep = thinned(len(risk))
            axes.plot(x[keep], risk[keep], **line(i), label=label)
            top = max(top, float(risk[len(risk) // 10 :].max()))
        if len(named) == 1:
            sizes = np.arange(1, len(risk) + 1)
            losses = np.sort(np.diff(array(curve.risk) * sizes, prepend=0.0))
            best = scale((losses.cumsum() / sizes).clip(0))
            axes.plot(x[keep], best[keep], **DOTTED, label="perfect ranking")
        top = 1.15 * top or 0.1  # the first few rows may err as they like
        axes.set(xlabel="coverage", xlim=(0, 1.01), ylim=(-0.02 * top, top))  # a 0 stays visible
        axes.set_ylabel("RMSE of the answers" if squared else "risk (share of errors)")
    return figure


def score_histograms(
    p_id: Any,
    p_ood: Any,
    score: str | ood.Score | None = None,
    train: Any = None,
    *,
    known: str = "ID",
    title: str = "",
) -> Figure:
    """The distribution of an OOD score on ID and OOD rows, and its AUROC.

    Where most rows share one bar, as confident models have it, the shares are on a logarithmic
    scale.

    Args:
        p_id: Predictions on ID rows.
        p_ood: Predictions on OOD rows, or up to six sets of them by name.
        score: As in `gduq.ood.score`.
        train: Training predictions, for scores that are fitted.
        known: What the ID rows are called.
        title: Title of the figure.

    Example:
        >>> import torch
        >>> from gduq.prediction import ClassPrediction
        >>> sure, unsure = ClassPrediction(torch.eye(3) * 9), ClassPrediction(torch.eye(3))
        >>> score_histograms(sure, unsure, "entropy").axes[0].get_xlabel()
        'entropy'
    """
    score = p_id.ood_scores[0] if score is None else score
    sets = {known: p_id, **by_name(p_ood, "OOD", most=6)}
    scores = {name: ood.score(p, score, train) for name, p in sets.items()}
    every = np.concatenate([array(s) for s in scores.values()])
    low, high = np.quantile(every, [0.0, 0.995])  # a few far rows should not flatten the rest
    few = len(sets) <= 3
    edges = np.linspace(low, high if high > low else low + 1.0, 41 if few else 21)
    with panel(2.0, len(sets), title) as (figure, axes):
        for i, (name, values) in enumerate(scores.items()):
            label = name
            if i:
                label = labelled(name, "AUROC", metrics.auroc(scores[known], values))
            outlined(axes, values.clamp(max=float(edges[-1])), edges, i, label, few)
        called = score if isinstance(score, str) else getattr(score, "__name__", "score")
        axes.set(xlabel=_SCORE_NAMES.get(called, called), ylabel="share of rows", ylim=(0, None))
        if axes.get_ylim()[1] > _PILE:
            smallest = min(map(len, scores.values()))
            axes.set(yscale="log", ylabel="share of rows (log)")
            axes.set_ylim(0.5 / smallest, 1.3)
    return figure


def severity_lines(
    lines: Mapping[str, Mapping[Any, metrics.Interval]],
    label: str,
    xlabel: str = "",
    title: str = "",
) -> Figure:
    """A number with its interval against the severity of a shift, one line per model.

    Args:
        lines: Of each model its numbers by severity. Numbers, and names such as ``"rotation=10"``,
            stand on a scale; other names in the order given.
        label: What the number is.
        xlabel: What the severity is; by default what stands before the "=".
        title: Title of the figure.
    """
    names = list(dict.fromkeys(s for one in lines.values() for s in one))
    x_of, scale = _severity_scale(names)
    with panel(2.2, len(lines), title) as (figure, axes):
        for i, (name, one) in enumerate(lines.items()):
            order = sorted(one, key=x_of.__getitem__)
            x = [x_of[severity] for severity in order]
            value, low, high = np.array([one[severity] for severity in order]).T
            band(axes, x, low, high, i, len(lines))
            axes.plot(x, value, **line(i, marked=True), label=name)
        if not scale:
            axes.set_xticks(range(len(names)), [str(n) for n in names], rotation=30, ha="right")
        axes.set(xlabel=xlabel or scale or "shift", ylabel=label)
        axes.set_ylim(bottom=0)
    return figure


def _severity_scale(names: list[Any]) -> tuple[dict[Any, float], str]:
    """Where each severity stands, and what the scale is called; no name: one after the other."""
    if all(isinstance(n, (int, float)) for n in names):
        return {n: float(n) for n in names}, "shift severity"
    kinds, values = zip(*(str(n).partition("=")[::2] for n in names), strict=True)
    try:
        numbers = dict(zip(names, map(float, values), strict=True))
    except ValueError:
        numbers = {}
    if numbers and len(set(kinds)) == 1:
        return numbers, str(kinds[0])
    return {n: float(i) for i, n in enumerate(names)}, ""


# -- for pages

_PAGE = {colour.lower(): f"var(--s{i})" for i, colour in enumerate(COLOURS[:-1])} | {
    GREY: "var(--soft)",
    "#000000": "var(--ink)",
    "#ffffff": "var(--card)",
}
_NOISE = re.compile(
    r"<!--.*?-->|<metadata>.*?</metadata>|<defs>\s*<style.*?</style>\s*</defs>"
    r"|font-family: [^;\"]*;? ?|(?<=>)\s+(?=<)",
    re.DOTALL,
)


def to_svg(figure: Figure, label: str) -> str:
    """A Matplotlib figure for a page with the colours ``--s0`` to ``--s5``, ``--ink`` and so on.

    Text stays text, nothing is loaded or run, and two figures of a page share no name.

    Args:
        figure: The figure.
        label: What it shows, for readers who cannot see it.

    Example:
        >>> import torch
        >>> from gduq.report.plots import risk_coverage
        >>> from gduq.prediction import ClassPrediction
        >>> p = ClassPrediction(torch.eye(2).repeat(20, 1) * 2, target=torch.tensor([0, 1] * 20))
        >>> svg = to_svg(risk_coverage(p), "Risk & coverage")
        >>> svg[:9], "&amp; coverage" in svg, "coverage</text>" in svg, "#0072b2" in svg
        ('<svg view', True, True, False)
    """
    import matplotlib

    file = io.StringIO()
    style: Any = {"svg.fonttype": "none", "svg.hashsalt": "gduq"}
    with matplotlib.rc_context(style), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # the page's font draws it
        figure.draw_without_rendering()  # once for ticks, once for where they leave room
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    text = file.getvalue()
    body = _NOISE.sub("", text[text.index("<svg") :])
    start = body.index(">") + 1
    width, height = (figure.get_size_inches() * 72).tolist()
    return inline(_own(body[start : body.rindex("</svg>")], label), width, height, label)


def inline(body: str, width: float, height: float, label: str) -> str:
    """An SVG element around what is drawn, with a description."""
    said = escape(label)
    return f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{said}">{body}</svg>'


def _own(body: str, label: str) -> str:
    """With the colours and fonts of the page, and names that only this figure has."""
    body = body.replace("xlink:href", "href")
    used = set(re.findall(r'(?:url\(#|href="#)([\w-]+)', body))
    key = hashlib.sha256((label + body).encode()).hexdigest()[:8]
    body = re.sub(r' id="([\w.:-]+)"', lambda m: f' id="{m[1]}-{key}"' * (m[1] in used), body)
    body = re.sub(r'(url\(#|href="#)([\w-]+)', rf"\1\2-{key}", body)
    return re.sub(r"#[0-9a-f]{6}\b", lambda m: _PAGE.get(m[0], m[0]), body)
