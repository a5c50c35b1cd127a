"""Draws the pictures of docs/uncertainty.md: ``python docs/pictures.py``, about a minute."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd
import torch
from matplotlib.figure import Figure

from gduq import ClassPrediction, anchor, fit, predict
from gduq.data import load
from gduq.models import as_predictor
from gduq.nn import GNN
from gduq.shifts import LEVELS, feature_mask

HERE = Path(__file__).parent
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#666666"


def compare(seed: int) -> dict[str, dict[str, Any]]:
    """A network and the same with gduq, while colours of generated nodes go missing."""
    splits = load("cbas/color/concept", seed=seed)
    train, val, test = splits.train, splits.id_val, dict(splits)["id_test"]
    views = {"id_test": test}
    views |= {f"missing colours={LEVELS[s]:g}": feature_mask(test, s) for s in (1, 3, 5)}
    torch.manual_seed(seed)
    channels, classes = train.graphs[0].x.size(1), len(splits.class_names)
    net = GNN(channels, 64, classes, 3, conv="gcn", task="node", head="mlp")
    fit(net, train, val, epochs=300, lr=3e-3, calibrate=None, seed=seed, progress=False)
    ours = anchor(net, seed=seed)
    fit(ours, train, val, seed=seed, progress=False)
    models = {"plain": as_predictor(net), "gduq": ours}
    return {who: {n: predict(m, v) for n, v in views.items()} for who, m in models.items()}


def by_stage(found: dict[str, dict[str, Any]]) -> pd.DataFrame:
    """How sure and how right each model is, a row per stage."""
    columns = {}
    for who, stages in found.items():
        columns[f"confidence_{who}"] = {n: float(p.confidence.mean()) for n, p in stages.items()}
        columns[f"accuracy_{who}"] = {
            n: float(p.correct.double().mean()) for n, p in stages.items()
        }
    return pd.DataFrame(columns)


def hypotheses() -> Figure:
    """Three rows with ten hypotheses each: sure, noisy, in disagreement."""
    generator = torch.Generator().manual_seed(0)
    jitter = 0.15 * torch.randn(10, generator=generator)
    rows = {
        "sure": 3 + jitter,
        "noisy: all say 60 %": 0.4 + jitter,
        "they disagree": 3 * torch.linspace(-1, 1.4, 10),
    }
    figure, axes = drawn(len(rows), 1.5, sharey=True)
    for ax, (title, logits) in zip(axes, rows.items(), strict=True):
        p = ClassPrediction(torch.stack([logits, torch.zeros(10)], dim=1).view(10, 1, 2))
        each = p.samples.softmax(dim=-1)[:, 0, 0]
        ax.plot(each, torch.linspace(0.25, 0.75, 10), "o", color=BLUE, ms=4, label="hypotheses")
        ax.axvline(float(p.probs[0, 0]), color=ORANGE, label="their mixture")
        ax.set(title=title, xlim=(-0.02, 1.02), ylim=(0, 1), yticks=[], xticks=[0, 0.5, 1])
        said = f"aleatoric {p.aleatoric.item():.2f}\nepistemic {p.epistemic.item():.2f}"
        ax.set_xlabel(f"probability of the class\n{said}")
    legend(figure, axes[0])
    return figure


def confidence(told: pd.DataFrame) -> Figure:
    """How sure and how right, while features go missing."""
    figure, (ax,) = drawn(1, 2.2)
    x = range(len(told))
    for name, colour, words in (("plain", GREY, "network"), ("gduq", BLUE, "with gduq")):
        ax.plot(x, told[f"confidence_{name}"], "o-", color=colour, label=f"{words}: says")
        ax.plot(x, told[f"accuracy_{name}"], "s--", color=colour, label=f"{words}: is right")
    names = [stage.partition("=")[2] for stage in told.index[1:]]
    ax.set_xticks(x, ["as in training", *(f"{float(n):.0%} missing" for n in names)])
    ax.set(ylim=(0.4, 1), ylabel="share of the nodes")
    legend(figure, ax)
    return figure


def novelty(predictions: Any) -> Figure:
    """Its distribution on rows like the training data, and on shifted ones."""
    figure, (ax,) = drawn(1, 2.0)
    said = predictions
    for name, colour, words in (
        ("id_test", BLUE, "as in training"),
        ("missing colours=0.2", ORANGE, "20 % of the colours missing"),
    ):
        ax.hist(said[name].novelty, bins=20, range=(0, 1), color=colour, alpha=0.6, label=words)
    ax.axvline(0.99, color=GREY, ls=":")
    ax.set(xlabel="novelty", ylabel="nodes", xlim=(0, 1.01))
    legend(figure, ax)
    return figure


def intervals(made: dict[str, Any]) -> Figure:
    """Values with their 90 % intervals, sorted by the prediction."""
    figure, (ax,) = drawn(1, 2.2)
    p = made["p"]
    (low, high), order = p.interval(0.9), p.mean.flatten().argsort()
    low, high, mean, truth = (v.flatten()[order] for v in (low, high, p.mean, p.target))
    x, inside = torch.arange(len(order)), (low <= truth) & (truth <= high)
    ax.fill_between(x, low, high, color=BLUE, alpha=0.2, lw=0, label="90 % interval")
    ax.plot(x, mean, color=BLUE, lw=1, label="mean")
    ax.plot(x[inside], truth[inside], ".", color=GREY, ms=3, label="truth, inside")
    ax.plot(x[~inside], truth[~inside], "x", color=ORANGE, ms=4, label="truth, outside")
    ax.set(xlabel="test graphs, sorted", ylabel="melting point in K", xticks=[])
    legend(figure, ax)
    return figure


def drawn(panels: int, height: float, **more: Any) -> tuple[Figure, Any]:
    figure = Figure(figsize=(6.4, height + 0.9), layout="constrained")
    return figure, figure.subplots(1, panels, squeeze=False, **more)[0]


def legend(figure: Figure, ax: Any) -> None:
    handles, labels = ax.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)


def main() -> None:
    torch.set_num_threads(1)
    found = [compare(seed) for seed in range(3)]
    told = pd.concat(map(by_stage, found)).groupby(level=0, sort=False).mean()
    figures = {
        "hypotheses": hypotheses(),
        "confidence": confidence(told),
        "novelty": novelty(found[0]["gduq"]),
        "intervals": intervals(runpy.run_path(str(HERE / "tutorials" / "values.py"))),
    }
    for name, figure in figures.items():
        figure.savefig(HERE / "pictures" / f"{name}.svg", metadata={"Date": None})


STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "gduq",
    "font.size": 9,
    "font.family": "sans-serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
}

if __name__ == "__main__":
    (HERE / "pictures").mkdir(exist_ok=True)
    with matplotlib.rc_context(STYLE):
        main()
