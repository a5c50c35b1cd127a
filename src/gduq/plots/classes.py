"""Figures about classes, and about one label at a time: reliability, precision and recall."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gduq import metrics
from gduq.errors import InputError
from gduq.plots.style import (
    COLOURS,
    CROWD,
    DASHES,
    GREY,
    MARKERS,
    array,
    by_name,
    finished,
    framed,
    outlined,
    thinned,
    with_value,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["precision_recall", "reliability_diagram"]


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
    named = by_name(predictions)
    with framed(3.3, len(named)) as figure:
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3.2, 1])
        upper.plot([0, 1], [0, 1], color=GREY, linewidth=0.8, linestyle=":", zorder=0)
        for i, (name, p) in enumerate(named.items()):
            curve = metrics.reliability(p, bins=bins, binning=binning, level=level, strict=False)
            error = metrics.ece(p, bins=bins, binning=binning, strict=False)
            _points(upper, curve, i, with_value(name, "ECE", error), len(named) > CROWD)
            edges = np.linspace(0, 1, max(bins, 20) + 1)
            outlined(lower, metrics.read(p).confidence, edges, i)
        start = min(float(metrics.read(p).confidence.min()) for p in named.values())
        start = max(0.0, np.floor(start * 10) / 10)
        upper.set(xlim=(start, 1.01), ylim=(-0.02, 1.02), ylabel="accuracy")
        lower.set(xlabel="confidence", ylabel="share", ylim=(0, None))
        finished(figure, upper, title)
    return figure


def precision_recall(predictions: Any, *, title: str = "") -> Figure:
    """Precision against recall of the second of two classes, over all thresholds.

    The grey line is its share of the rows, which guessing would reach. The legend names each one's
    average precision.

    Args:
        predictions: A `gduq.Prediction` of two classes with targets (of labels, ``p.column(t)``),
            or up to seven of them by name, of the same rows.
        title: Title of the figure.

    Example:
        >>> from gduq.prediction import Prediction
        >>> p = Prediction(torch.eye(2).repeat(20, 1), target=torch.tensor([0, 1] * 20))
        >>> precision_recall(p).axes[0].get_xlabel()
        'recall'
    """
    named = by_name(predictions)
    with framed(2.3, max(len(named), 2)) as figure:
        axes, rows = figure.subplots(), []
        for i, (name, p) in enumerate(named.items()):
            rows.append(metrics.read(p))
            recall, precision = _precisions(rows[-1])
            label = with_value(name, "average precision", metrics.average_precision(rows[-1]))
            axes.plot(recall, precision, color=COLOURS[i], linestyle=DASHES[i], label=label)
        rate = float((rows[0].labels == 1).double().mean())
        axes.axhline(rate, color=GREY, linestyle=":", linewidth=0.8, label="guessing")
        axes.set(xlabel="recall", ylabel="precision", xlim=(0, 1.01), ylim=(-0.02, 1.02))
        finished(figure, axes, title)
    return figure


def _precisions(rows: metrics.Rows) -> tuple[Any, Any]:
    """Recall and precision at every threshold, from the highest on."""
    if rows.num_classes != 2:
        raise InputError("two classes", rows.num_classes, "Of labels, pass p.column(t).")
    ranked, order = (rows.logits[:, 1] - rows.logits[:, 0]).double().sort(descending=True)
    hits = (rows.labels[order] == 1).double().cumsum(0)
    count = torch.arange(1, len(rows) + 1, dtype=torch.float64, device=hits.device)
    last = torch.ones(len(rows), dtype=torch.bool, device=hits.device)
    last[:-1] = ranked[1:] != ranked[:-1]  # equal scores are one threshold
    recall, precision = (hits / hits[-1].clamp_min(1.0))[last], (hits / count)[last]
    keep = thinned(len(recall))
    return array(recall)[keep], array(precision)[keep]


def _points(axes: Axes, curve: metrics.Reliability, i: int, label: str, crowded: bool) -> None:
    filled = (curve.rows > 0).numpy()
    x, y, low, high = (
        array(v)[filled] for v in (curve.confidence, curve.accuracy, curve.low, curve.high)
    )
    bars = [(y - low).clip(0), (high - y).clip(0)]  # rounding may leave a little below 0
    axes.errorbar(x, y, yerr=bars, color=COLOURS[i], marker=MARKERS[i], linestyle=DASHES[i],
                  ecolor=(COLOURS[i], 0.4 if crowded else 1.0), elinewidth=0.7,
                  capsize=0 if crowded else 1.5, label=label)  # fmt: skip
