"""Figures about any kind of prediction: risk and coverage, ID and OOD rows, growing shift."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from gduq import metrics
from gduq.metrics.rows import read_ranked
from gduq.novelty import ood_scores as ood
from gduq.plots import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["risk_coverage", "score_histograms", "severity_lines", "shift_severity"]

_FEW = 10  # fewer rows than this say nothing
_PILE = 0.35  # a bar with more of the rows than this hides all others on a linear scale
_SHORT = ("ece", "nll", "aurc", "rmse", "mae", "crps", "ence")  # names that are abbreviations
_METRIC_NAMES = {"brier": "Brier score", "roc_auc": "ROC-AUC"}
_SCORE_NAMES = {
    "msp": "1 − confidence",
    "std": "standard deviation",
    "epistemic": "epistemic (mutual information)",
    "mahalanobis": "Mahalanobis distance",
    "knn": "distance to k-th neighbour",
}


def risk_coverage(
    predictions: Any, *, resamples: int = 200, level: float = 0.95, seed: int = 0, title: str = ""
) -> Figure:
    """Share of errors among the most certain rows, against how many of them are answered.

    Of values it is the RMSE of the answers. Lower is better; the grey line of a single prediction
    is what a perfect ranking would reach. The legend names each one's AURC. The bands are those of
    `gduq.metrics.risk_band`, from ten answered rows on, cut off where they leave the figure.

    Args:
        predictions: A `gduq.Prediction` or `gduq.ValuePrediction` (of one value) with targets, or
            up to seven of them by name.
        resamples, level, seed: Of the bands; ``resamples=0`` for none.
        title: Title of the figure.

    Example:
        >>> import torch
        >>> from gduq.prediction import Prediction
        >>> p = Prediction(torch.eye(2).repeat(20, 1) * 2, target=torch.tensor([0, 1] * 20))
        >>> risk_coverage({"vanilla": p, "anchored": p}).axes[0].get_xlabel()
        'coverage'
    """
    named, top = style.by_name(predictions), 0.0
    values = any(getattr(p, "kind", "") == "values" for p in named.values())
    scale = np.sqrt if values else np.asarray  # an RMSE from mean squares
    with style.panel(2.3, max(len(named), 2), title) as (figure, axes):
        for i, (name, p) in enumerate(named.items()):
            curve, label = metrics.risk_coverage(p), style.labelled(name, "AURC", metrics.aurc(p))
            x, risk = style.array(curve.coverage), scale(style.array(curve.risk))
            keep = style.thinned(len(risk))
            axes.plot(x[keep], risk[keep], **style.line(i), label=label)
            top = max(top, float(risk[len(risk) // 10 :].max()))
            if resamples:
                around = metrics.risk_band(p, resamples=resamples, level=level, seed=seed)
                told = around.coverage * len(risk) >= min(_FEW, len(risk))
                where, _, low, high = (style.array(v[told]) for v in around)
                style.band(axes, where, scale(low), scale(high), i, len(named))
                top = max(top, float(scale(high)[-1]))
        if len(named) == 1:
            losses = np.sort(style.array(read_ranked(p).loss))
            best = scale(losses.cumsum() / np.arange(1, len(losses) + 1))
            axes.plot(x[keep], best[keep], **style.DOTTED, label="perfect ranking")
        top = 1.15 * top or 0.1  # the first few rows may err as they like
        axes.set(xlabel="coverage", xlim=(0, 1.01), ylim=(-0.02 * top, top))  # a 0 stays visible
        axes.set_ylabel("RMSE of the answers" if values else "risk (share of errors)")
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
    sets = {known: p_id, **style.by_name(p_ood, "OOD", most=6)}
    scores = {name: ood.score(p, score, train) for name, p in sets.items()}
    every = np.concatenate([style.array(s) for s in scores.values()])
    low, high = np.quantile(every, [0.0, 0.995])  # a few far rows should not flatten the rest
    few = len(sets) <= 3
    edges = np.linspace(low, high if high > low else low + 1.0, 41 if few else 21)
    with style.panel(2.0, len(sets), title) as (figure, axes):
        for i, (name, values) in enumerate(scores.items()):
            label = name
            if i:
                label = style.labelled(name, "AUROC", metrics.auroc(scores[known], values))
            style.outlined(axes, values.clamp(max=float(edges[-1])), edges, i, label, few)
        called = score if isinstance(score, str) else getattr(score, "__name__", "score")
        axes.set(xlabel=_SCORE_NAMES.get(called, called), ylabel="share of rows", ylim=(0, None))
        if axes.get_ylim()[1] > _PILE:
            smallest = min(map(len, scores.values()))
            axes.set(yscale="log", ylabel="share of rows (log)")
            axes.set_ylim(0.5 / smallest, 1.3)
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
        resamples, level, seed: Of the intervals.
        title: Title of the figure.
        **options: Passed to the metric.

    Example:
        >>> import torch
        >>> from gduq.prediction import Prediction
        >>> p = Prediction(torch.eye(2).repeat(20, 1) * 2, target=torch.tensor([0, 1] * 20))
        >>> shift_severity({"vanilla": {0: p, 15: p}}, metrics.nll).axes[0].get_ylabel()
        'NLL'
    """
    options |= {"resamples": resamples, "level": level, "seed": seed}
    lines = {
        name: {severity: metrics.bootstrap(metric, p, **options) for severity, p in one.items()}
        for name, one in style.by_name(predictions).items()
    }
    name = getattr(metric, "__name__", "metric")
    words = " ".join(word.upper() if word in _SHORT else word for word in name.split("_"))
    return severity_lines(lines, label or _METRIC_NAMES.get(name, words), xlabel, title)


def severity_lines(
    lines: Mapping[str, Mapping[Any, metrics.Interval]],
    label: str,
    xlabel: str = "",
    title: str = "",
) -> Figure:
    """The same of numbers with intervals that are there already: of each model, by severity."""
    names = list(dict.fromkeys(s for one in lines.values() for s in one))
    places, scale = _places(names)
    with style.panel(2.2, len(lines), title) as (figure, axes):
        for i, (name, one) in enumerate(lines.items()):
            order = sorted(one, key=places.__getitem__)
            x = [places[severity] for severity in order]
            value, low, high = np.array([one[severity] for severity in order]).T
            style.band(axes, x, low, high, i, len(lines))
            axes.plot(x, value, **style.line(i, marked=True), label=name)
        if not scale:
            axes.set_xticks(range(len(names)), [str(n) for n in names], rotation=30, ha="right")
        axes.set(xlabel=xlabel or scale or "shift", ylabel=label)
        axes.set_ylim(bottom=0)
    return figure


def _places(names: list[Any]) -> tuple[dict[Any, float], str]:
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
