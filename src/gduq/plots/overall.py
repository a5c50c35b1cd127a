"""Figures about any kind of prediction: risk and coverage, ID and OOD rows, growing shift."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from gduq import metrics
from gduq.metrics.reading import read_ranked
from gduq.novelty import ood_scores as ood
from gduq.plots.style import (
    COLOURS,
    CROWD,
    DASHES,
    FEW,
    GREY,
    PILE,
    array,
    banded,
    by_name,
    filled_between,
    finished,
    framed,
    outlined,
    thinned,
    with_value,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["risk_coverage", "score_histograms", "severity_lines", "shift_severity"]


def risk_coverage(
    predictions: Any,
    *,
    resamples: int = 200,
    level: float = 0.95,
    seed: int = 0,
    title: str = "",
) -> Figure:
    """Share of errors among the most certain rows, against how many of them are answered.

    Of values it is the RMSE of the answers. Lower is better; the grey line of a single prediction
    is what a perfect ranking would reach. The legend names each one's AURC. The bands are those of
    `gduq.metrics.risk_band`, from ten answered rows on: wide at the left, and cut off where they
    leave the rest of the figure.

    Args:
        predictions: A `gduq.Prediction` or `gduq.ValuePrediction` (of one value) with targets, or
            up to seven of them by name.
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
    named = by_name(predictions)
    values = any(getattr(p, "kind", "") == "values" for p in named.values())
    scale = np.sqrt if values else np.asarray  # an RMSE from mean squares
    with framed(2.3, max(len(named), 2)) as figure:
        axes, top = figure.subplots(), 0.0
        for i, (name, p) in enumerate(named.items()):
            curve = metrics.risk_coverage(p)
            keep, risk = thinned(len(curve.risk)), scale(array(curve.risk))
            label = with_value(name, "AURC", metrics.aurc(p))
            axes.plot(curve.coverage[keep], risk[keep], color=COLOURS[i], linestyle=DASHES[i],
                      label=label)  # fmt: skip
            top = max(top, float(risk[len(risk) // 10 :].max()))
            if resamples:
                band = metrics.risk_band(p, resamples=resamples, level=level, seed=seed)
                told = band.coverage * len(risk) >= min(FEW, len(risk))
                low, high = (scale(array(v[told])) for v in (band.low, band.high))
                x = array(band.coverage[told])
                filled_between(axes, x, low, high, i, crowded=len(named) > CROWD)
                top = max(top, float(high[-1]))
        if len(named) == 1:
            best = scale(_best(p))
            axes.plot(curve.coverage[keep], best[keep], color=GREY, linestyle=":", linewidth=0.8,
                      label="perfect ranking")  # fmt: skip
        name = "RMSE of the answers" if values else "risk (share of errors)"
        axes.set(xlabel="coverage", ylabel=name, xlim=(0, 1.01))
        top = 1.15 * top or 0.1  # the first few rows may err as they like
        axes.set_ylim(-0.02 * top, top)  # a risk of 0 stays visible
        finished(figure, axes, title)
    return figure


def _best(p: Any) -> Any:
    """The risk of the i rows with the smallest losses, for every i."""
    losses = np.sort(array(read_ranked(p).loss))
    return losses.cumsum() / np.arange(1, len(losses) + 1)


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
        score: As in `gduq.novelty.auroc`.
        train: Training predictions, for scores that are fitted.
        known: What the ID rows are called.
        title: Title of the figure.

    Example:
        >>> import torch
        >>> from gduq.prediction import Prediction
        >>> sure, unsure = Prediction(torch.eye(3) * 9), Prediction(torch.eye(3))
        >>> score_histograms(sure, unsure, "entropy").axes[0].get_xlabel()
        'entropy'
    """
    score = ood.default_score(p_id) if score is None else score
    sets = {known: ood.score(p_id, score, train)}
    for name, p in by_name(p_ood, "OOD", most=6).items():
        sets[name] = ood.score(p, score, train)
    every = np.concatenate([array(s) for s in sets.values()])
    low, high = np.quantile(every, [0.0, 0.995])  # a few far rows should not flatten the rest
    bars = 40 if len(sets) <= CROWD else 20
    edges = np.linspace(low, high if high > low else low + 1.0, bars + 1)
    with framed(2.0, len(sets)) as figure:
        axes = figure.subplots()
        for i, (name, values) in enumerate(sets.items()):
            label = name
            if i > 0:
                label = with_value(name, "AUROC", metrics.auroc(sets[known], values))
            values = values.clamp(max=float(edges[-1]))
            outlined(axes, values, edges, i, label, filled=len(sets) <= CROWD)
        label = score if isinstance(score, str) else getattr(score, "__name__", "score")
        axes.set(xlabel=_SCORE_NAMES.get(label, label), ylabel="share of rows", ylim=(0, None))
        if axes.get_ylim()[1] > PILE:
            smallest = min(len(values) for values in sets.values())
            axes.set_yscale("log")
            axes.set(ylabel="share of rows (log)", ylim=(0.5 / smallest, 1.3))
        finished(figure, axes, title)
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
    named = by_name(predictions)
    lines = {
        name: {
            severity: metrics.bootstrap(metric, p, resamples=resamples, level=level, seed=seed,
                                        **options)
            for severity, p in line.items()
        }
        for name, line in named.items()
    }  # fmt: skip
    known = getattr(metric, "__name__", "metric")
    return severity_lines(lines, label or _METRIC_NAMES.get(known, known.replace("_", " ")),
                          xlabel=xlabel, title=title)  # fmt: skip


def severity_lines(
    lines: Mapping[str, Mapping[Any, metrics.Interval]],
    label: str,
    *,
    xlabel: str = "",
    title: str = "",
) -> Figure:
    """The same of numbers with intervals that are there already.

    Args:
        lines: For each model its numbers by severity.
        label: What the numbers are.
        xlabel: What the severity is; by default what stands before the "=".
        title: Title of the figure.
    """
    names = list(dict.fromkeys(s for line in lines.values() for s in line))
    places, found_label = _places(names)
    with framed(2.2, len(lines)) as figure:
        axes = figure.subplots()
        for i, (name, line) in enumerate(lines.items()):
            found = sorted(line.items(), key=lambda item: places[item[0]])
            x = [places[severity] for severity, _ in found]
            banded(axes, x, [value for _, value in found], i, name, len(lines) > CROWD)
        if not found_label:
            axes.set_xticks(range(len(names)), [str(n) for n in names], rotation=30, ha="right")
        axes.set(xlabel=xlabel or found_label or "shift", ylabel=label)
        axes.set_ylim(bottom=0)
        finished(figure, axes, title)
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
    "rmse": "RMSE",
    "mae": "MAE",
    "crps": "CRPS",
    "ence": "ENCE",
    "roc_auc": "ROC-AUC",
}
_SCORE_NAMES = {
    "msp": "1 − confidence",
    "std": "standard deviation",
    "epistemic": "epistemic (mutual information)",
    "mahalanobis": "Mahalanobis distance",
    "knn": "distance to k-th neighbour",
}
