"""Figures: reliability, risk against coverage, ID against OOD scores, calibration against shift.

Every function returns a Matplotlib ``Figure`` made for one column of a paper (3.4 inches); save it
with ``figure.savefig("name.pdf")``. Nothing is shown and no global state is touched, so they work
without a display. Colours are those of Okabe and Ito, which colour-blind readers can tell apart;
lines also differ by marker and dash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from gduq import metrics, ood
from gduq.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["reliability_diagram", "risk_coverage", "score_histograms", "shift_severity"]

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
_GREY = "#666666"
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
}
_WIDTH = 3.4
_CROWD = 3  # more curves than this: what surrounds them is drawn lighter
_FEW = 10  # fewer rows than this say nothing
_PILE = 0.35  # a bar with more of the rows than this hides all others on a linear scale


def reliability_diagram(
    predictions: Any,
    *,
    bins: int = 10,
    binning: metrics.Binning = "width",
    level: float = 0.95,
    title: str = "",
) -> Figure:
    """Accuracy against confidence with Wilson intervals, above a histogram of the confidence.

    Below the diagonal a model is overconfident. The legend names each one's ECE over these bins.

    Args:
        predictions: A `gduq.Prediction` with targets, or up to seven of them by name.
        bins: Number of bins.
        binning: ``"width"``, or ``"mass"`` for equally full bins.
        level: Coverage of the intervals.
        title: Title of the figure.

    Example:
        >>> import torch
        >>> from gduq.prediction import Prediction
        >>> p = Prediction(torch.eye(2).repeat(20, 1) * 2, target=torch.tensor([0, 1] * 20))
        >>> len(reliability_diagram(p).axes)
        2
    """
    named = _named(predictions)
    with _figure(3.3, len(named)) as figure:
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3.2, 1])
        upper.plot([0, 1], [0, 1], color=_GREY, linewidth=0.8, linestyle=":", zorder=0)
        for i, (name, p) in enumerate(named.items()):
            curve = metrics.reliability(p, bins=bins, binning=binning, level=level, strict=False)
            error = metrics.ece(p, bins=bins, binning=binning, strict=False)
            _points(upper, curve, i, _with_value(name, "ECE", error), len(named) > _CROWD)
            edges = np.linspace(0, 1, max(bins, 20) + 1)
            _outline(lower, metrics.read(p).confidence, edges, i)
        start = min(float(metrics.read(p).confidence.min()) for p in named.values())
        start = max(0.0, np.floor(start * 10) / 10)
        upper.set(xlim=(start, 1.01), ylim=(-0.02, 1.02), ylabel="accuracy")
        lower.set(xlabel="confidence", ylabel="share", ylim=(0, None))
        _finished(figure, upper, title)
    return figure


def risk_coverage(
    predictions: Any,
    *,
    resamples: int = 200,
    level: float = 0.95,
    seed: int = 0,
    title: str = "",
) -> Figure:
    """Share of errors among the most certain rows, against how many of them are answered.

    Lower is better; the grey line of a single prediction is what a perfect ranking would reach. The
    legend names each one's AURC. The bands are those of `gduq.metrics.risk_band`, from ten answered
    rows on: wide at the left, and cut off where they leave the rest of the figure.

    Args:
        predictions: A `gduq.Prediction` with targets, or up to seven of them by name.
        resamples: Bootstrap resamples of the bands; 0 for none.
        level: Coverage of the bands.
        seed: Seed of the resampling.
        title: Title of the figure.

    Example:
        >>> import torch
        >>> from gduq.prediction import Prediction
        >>> p = Prediction(torch.eye(2).repeat(20, 1) * 2, target=torch.tensor([0, 1] * 20))
        >>> risk_coverage({"vanilla": p, "anchored": p}).axes[0].get_xlabel()
        'coverage'
    """
    named = _named(predictions)
    with _figure(2.3, max(len(named), 2)) as figure:
        axes, top = figure.subplots(), 0.0
        for i, (name, p) in enumerate(named.items()):
            curve = metrics.risk_coverage(p)
            keep = _thin(len(curve.risk))
            label = _with_value(name, "AURC", metrics.aurc(p))
            axes.plot(curve.coverage[keep], curve.risk[keep], color=_COLOURS[i],
                      linestyle=_DASHES[i], label=label)  # fmt: skip
            top = max(top, float(curve.risk[len(curve.risk) // 10 :].max()))
            if resamples:
                band = metrics.risk_band(p, resamples=resamples, level=level, seed=seed)
                told = band.coverage * len(curve.risk) >= min(_FEW, len(curve.risk))
                x, low, high = (_array(v[told]) for v in (band.coverage, band.low, band.high))
                _fill(axes, x, low, high, i, crowded=len(named) > _CROWD)
                top = max(top, float(band.high[-1]))
        if len(named) == 1:
            size = np.arange(1, len(curve.risk) + 1)
            good = len(size) * (1 - float(curve.risk[-1]))
            best = np.clip(size - good, 0, None) / size
            axes.plot(curve.coverage[keep], best[keep], color=_GREY, linestyle=":", linewidth=0.8,
                      label="perfect ranking")  # fmt: skip
        axes.set(xlabel="coverage", ylabel="risk (share of errors)", xlim=(0, 1.01))
        top = 1.15 * top or 0.1  # the first few rows may err as they like
        axes.set_ylim(-0.02 * top, top)  # a risk of 0 stays visible
        _finished(figure, axes, title)
    return figure


def score_histograms(
    p_id: Any,
    p_ood: Any,
    score: str | ood.Score = "msp",
    train: Any = None,
    *,
    title: str = "",
) -> Figure:
    """The distribution of an OOD score on ID and OOD rows, and its AUROC.

    Where most rows share one bar, as confident models have it, the shares are on a logarithmic
    scale.

    Args:
        p_id: Predictions on ID rows.
        p_ood: Predictions on OOD rows, or up to six sets of them by name.
        score: As in `gduq.ood.auroc`.
        train: Training predictions, for scores that are fitted.
        title: Title of the figure.

    Example:
        >>> import torch
        >>> from gduq.prediction import Prediction
        >>> sure, unsure = Prediction(torch.eye(3) * 9), Prediction(torch.eye(3))
        >>> score_histograms(sure, unsure, "entropy").axes[0].get_xlabel()
        'entropy'
    """
    sets = {"ID": ood.score(p_id, score, train)}
    for name, p in _named(p_ood, "OOD", most=6).items():
        sets[name] = ood.score(p, score, train)
    every = np.concatenate([_array(s) for s in sets.values()])
    low, high = np.quantile(every, [0.0, 0.995])  # a few far rows should not flatten the rest
    bars = 40 if len(sets) <= _CROWD else 20
    edges = np.linspace(low, high if high > low else low + 1.0, bars + 1)
    with _figure(2.0, len(sets)) as figure:
        axes = figure.subplots()
        for i, (name, values) in enumerate(sets.items()):
            label = name
            if i > 0:
                label = _with_value(name, "AUROC", metrics.auroc(sets["ID"], values))
            values = values.clamp(max=float(edges[-1]))
            _outline(axes, values, edges, i, label, filled=len(sets) <= _CROWD)
        label = score if isinstance(score, str) else getattr(score, "__name__", "score")
        axes.set(xlabel=_SCORE_NAMES.get(label, label), ylabel="share of rows", ylim=(0, None))
        if axes.get_ylim()[1] > _PILE:
            smallest = min(len(values) for values in sets.values())
            axes.set_yscale("log")
            axes.set(ylabel="share of rows (log)", ylim=(0.5 / smallest, 1.3))
        _finished(figure, axes, title)
    return figure


def shift_severity(
    predictions: Mapping[str, Mapping[Any, Any]],
    metric: Callable[..., float] = metrics.ece,
    *,
    label: str = "",
    xlabel: str = "",
    resamples: int = 200,
    level: float = 0.95,
    seed: int = 0,
    title: str = "",
    **options: Any,
) -> Figure:
    """A metric against the severity of a shift, one line per model, with bootstrap intervals.

    Args:
        predictions: For each model its predictions by severity. Numbers, and names such as
            ``"rotation=10"``, are placed on a scale; other names in the order given.
        metric: A function of `gduq.metrics`, or any ``f(p) -> float``.
        label: Name of the metric; its function's name by default.
        xlabel: What the severity is; by default what stands before the "=".
        resamples: Bootstrap resamples.
        level: Coverage of the intervals.
        seed: Seed of the resampling.
        title: Title of the figure.
        **options: Passed to the metric.

    Example:
        >>> import torch
        >>> from gduq.prediction import Prediction
        >>> p = Prediction(torch.eye(2).repeat(20, 1) * 2, target=torch.tensor([0, 1] * 20))
        >>> shift_severity({"vanilla": {0: p, 15: p}}, metrics.nll).axes[0].get_ylabel()
        'NLL'
    """
    if not predictions or len(predictions) > len(_COLOURS):
        raise InputError(f"one to {len(_COLOURS)} models by name", len(predictions))
    names = list(dict.fromkeys(s for line in predictions.values() for s in line))
    places, found_label = _places(names)
    with _figure(2.2, len(predictions)) as figure:
        axes = figure.subplots()
        for i, (name, line) in enumerate(predictions.items()):
            x, found = [], []
            for severity, p in sorted(line.items(), key=lambda item: places[item[0]]):
                x.append(places[severity])
                found.append(metrics.bootstrap(metric, p, resamples=resamples, level=level,
                                               seed=seed, **options))  # fmt: skip
            _band(axes, x, found, i, name, len(predictions) > _CROWD)
        if not found_label:
            axes.set_xticks(range(len(names)), [str(n) for n in names], rotation=30, ha="right")
        known = getattr(metric, "__name__", "metric")
        axes.set(xlabel=xlabel or found_label or "shift")
        axes.set(ylabel=label or _METRIC_NAMES.get(known, known.replace("_", " ")))
        axes.set_ylim(bottom=0)
        _finished(figure, axes, title)
    return figure


def _places(names: list[Any]) -> tuple[dict[Any, float], str]:
    """Where each severity stands, and what the scale is called; no name: one after the other."""
    if all(isinstance(n, (int, float)) for n in names):
        return {n: float(n) for n in names}, "shift severity"
    kinds, values = zip(*(str(n).partition("=")[::2] for n in names), strict=True)
    try:
        numbers = [float(v) for v in values]
    except ValueError:
        numbers = []
    if numbers and len(set(kinds)) == 1:
        return dict(zip(names, numbers, strict=True)), str(kinds[0])
    return {n: float(i) for i, n in enumerate(names)}, ""


_METRIC_NAMES = {
    "ece": "ECE",
    "nll": "NLL",
    "aurc": "AURC",
    "brier": "Brier score",
    "adaptive_ece": "adaptive ECE",
    "classwise_ece": "classwise ECE",
    "smooth_ece": "smooth ECE",
    "excess_aurc": "excess AURC",
}
_SCORE_NAMES = {
    "msp": "1 − confidence",
    "epistemic": "epistemic (mutual information)",
    "mahalanobis": "Mahalanobis distance",
    "knn": "distance to k-th neighbour",
}


# -- parts of figures ---------------------------------------------------------------------------


@contextmanager
def _figure(height: float, entries: int) -> Iterator[Figure]:
    """A figure in the house style, with room for a legend of so many lines below it."""
    import matplotlib
    from matplotlib.figure import Figure

    style: Any = _STYLE
    with matplotlib.rc_context(style):
        yield Figure(figsize=(_WIDTH, height + 0.15 * entries), layout="constrained", dpi=200)


def _finished(figure: Figure, axes: Axes, title: str) -> None:
    """Legend below the axes, where it hides nothing, and a title."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", handlelength=2.6, labelspacing=0.3)
    if title:
        axes.set_title(title)


def _named(given: Any, alone: str = "", most: int = len(_COLOURS)) -> dict[str, Any]:
    named = dict(given) if isinstance(given, Mapping) else {alone: given}
    if not 1 <= len(named) <= most:
        raise InputError(f"one to {most} predictions", len(named))
    return named


def _with_value(name: str, measure: str, value: float) -> str:
    return f"{name} ({measure} {value:.3f})" if name else f"{measure} {value:.3f}"


def _points(axes: Axes, curve: metrics.Reliability, i: int, label: str, crowded: bool) -> None:
    filled = (curve.rows > 0).numpy()
    x, y, low, high = (
        _array(v)[filled] for v in (curve.confidence, curve.accuracy, curve.low, curve.high)
    )
    bars = [(y - low).clip(0), (high - y).clip(0)]  # rounding may leave a little below 0
    axes.errorbar(x, y, yerr=bars, color=_COLOURS[i], marker=_MARKERS[i], linestyle=_DASHES[i],
                  ecolor=(_COLOURS[i], 0.4 if crowded else 1.0), elinewidth=0.7,
                  capsize=0 if crowded else 1.5, label=label)  # fmt: skip


def _outline(
    axes: Axes, values: Tensor, edges: Any, i: int, label: str = "", *, filled: bool = False
) -> None:
    heights, _ = np.histogram(_array(values), bins=edges)
    heights = heights / max(heights.sum(), 1)
    if filled:
        axes.stairs(heights, edges, fill=True, color=_COLOURS[i], alpha=0.2)
    axes.stairs(heights, edges, color=_COLOURS[i], linestyle=_DASHES[i], label=label or None)


def _fill(axes: Axes, x: Any, low: Any, high: Any, i: int, *, crowded: bool) -> None:
    axes.fill_between(x, low, high, color=_COLOURS[i], alpha=0.08 if crowded else 0.18, linewidth=0)


def _band(
    axes: Axes, x: list[float], found: list[metrics.Interval], i: int, name: str, crowded: bool
) -> None:
    value, low, high = (np.array(v) for v in zip(*found, strict=True))
    _fill(axes, x, low, high, i, crowded=crowded)
    axes.plot(x, value, color=_COLOURS[i], marker=_MARKERS[i], linestyle=_DASHES[i], label=name)


def _thin(rows: int) -> Any:
    """At most 1000 positions: more make files large and change nothing one could see."""
    return np.unique(np.linspace(0, rows - 1, min(rows, 1000)).astype(int))


def _array(values: Tensor) -> Any:
    return values.detach().cpu().numpy()
