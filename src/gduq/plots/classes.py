"""Figures about classes, and about one label at a time: reliability, precision and recall."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from gduq import metrics
from gduq.errors import InputError
from gduq.plots import style

if TYPE_CHECKING:
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
    named, start = style.by_name(predictions), 1.0
    grid: Any = {"nrows": 2, "sharex": True, "height_ratios": [3.2, 1]}
    with style.panel(3.3, len(named), title, **grid) as (figure, (upper, lower)):
        upper.plot([0, 1], [0, 1], **style.DOTTED, zorder=0)
        for i, (name, p) in enumerate(named.items()):
            curve = metrics.reliability(p, bins=bins, binning=binning, level=level, strict=False)
            error = metrics.ece(p, bins=bins, binning=binning, strict=False)
            x, y, low, high = (style.array(v[curve.rows > 0]) for v in (
                curve.confidence, curve.accuracy, curve.low, curve.high))  # fmt: skip
            bars = [(y - low).clip(0), (high - y).clip(0)]  # rounding may leave a little below 0
            strength, cap = (1.0, 1.5) if len(named) <= 3 else (0.4, 0)
            label = style.labelled(name, "ECE", error)
            upper.errorbar(x, y, bars, **style.line(i, marked=True), label=label, capsize=cap,
                           elinewidth=0.7, ecolor=(style.COLOURS[i], strength))  # fmt: skip
            confidence = metrics.read(p).confidence
            style.outlined(lower, confidence, np.linspace(0, 1, max(bins, 20) + 1), i)
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
        predictions: A `gduq.Prediction` of two classes with targets (of labels, ``p.column(t)``),
            or up to seven of them by name, of the same rows.
        title: Title of the figure.

    Example:
        >>> import torch
        >>> from gduq.prediction import Prediction
        >>> p = Prediction(torch.eye(2).repeat(20, 1), target=torch.tensor([0, 1] * 20))
        >>> precision_recall(p).axes[0].get_xlabel()
        'recall'
    """
    named = style.by_name(predictions)
    with style.panel(2.3, max(len(named), 2), title) as (figure, axes):
        for i, (name, p) in enumerate(named.items()):
            rows = metrics.read(p)
            label = style.labelled(name, "average precision", metrics.average_precision(rows))
            axes.plot(*_curve(rows), **style.line(i), label=label)
        rate = float((rows.labels == 1).double().mean())
        axes.axhline(rate, **style.DOTTED, label="guessing")
        axes.set(xlabel="recall", ylabel="precision", xlim=(0, 1.01), ylim=(-0.02, 1.02))
    return figure


def _curve(rows: metrics.Rows) -> list[Any]:
    """Recall and precision at every threshold, from the highest on."""
    from sklearn.metrics import precision_recall_curve

    if rows.num_classes != 2:
        raise InputError("two classes", rows.num_classes, "Of labels, pass p.column(t).")
    scores = style.array((rows.logits[:, 1] - rows.logits[:, 0]).double())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # rows without a "yes" have a line at 0
        precision, recall, _ = precision_recall_curve(style.array(rows.labels == 1), scores)
    keep = style.thinned(len(recall) - 1)
    return [values[:-1][::-1][keep] for values in (recall, precision)]
