"""`gduq demo`: a plain network, an ensemble and an anchored network, judged under shift.

The data is CBAS (coloured houses on a random graph), generated on the spot: in training a node's
colour mostly tells its class, in the shifted test it says nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gduq import metrics
from gduq.anchoring import anchor
from gduq.baselines import Ensemble
from gduq.data import Splits, load
from gduq.nn import GNN
from gduq.prediction import Prediction, predict
from gduq.training import fit

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["SPLITS", "Comparison", "compare", "summary", "write"]

SPLITS = ("id_test", "ood_test")
_SCORES: dict[str, Callable[[Prediction], Any]] = {
    "accuracy": metrics.accuracy,
    "ece": metrics.ece,
    "nll": metrics.nll,
    "brier": metrics.brier,
}


def _network(splits: Splits, hidden: int, seed: int) -> GNN:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        channels, classes = splits.train.graphs[0].x.size(1), len(splits.class_names)
        return GNN(channels, hidden, classes, 3, conv="gcn", task="node", head="mlp")


Train = Callable[[nn.Module, int], object]  # a model, for so many epochs


def _vanilla(net: GNN, epochs: int, seed: int, train: Train) -> nn.Module:
    train(net, epochs)
    return net


def _ensemble(net: GNN, epochs: int, seed: int, train: Train) -> nn.Module:
    members = []
    for i in range(3):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1000 * (seed + 1) + i)
            members.append(GNN(**net.config))
    together = Ensemble(members)
    train(together, epochs)
    return together


def _anchored(net: GNN, epochs: int, seed: int, train: Train) -> nn.Module:
    head = max(1, epochs // 10)
    train(net, max(1, epochs - head))
    model = anchor(net, freeze=True, seed=seed)
    train(model, head)
    return model


_CONTENDERS = {"vanilla": _vanilla, "ensemble of 3": _ensemble, "G-ΔUQ": _anchored}


@dataclass
class Comparison:
    """What `compare` found.

    Attributes:
        results: One row a seed, model and split: accuracy, ECE (15 bins), NLL, Brier score and
            training seconds.
        splits: The data of the first seed.
        predictions: Of the first seed, by model and split.
        seconds: Training and prediction seconds of the first seed, by model.
    """

    results: pd.DataFrame
    splits: Splits
    predictions: dict[str, dict[str, Prediction]]
    seconds: dict[str, dict[str, float]]


def compare(
    seeds: int = 3,
    epochs: int = 400,
    hidden: int = 64,
    root: Path | None = None,
    notify: Callable[[str], None] = lambda _: None,
) -> Comparison:
    """Train the contenders on every seed's data and judge them.

    All have the same splits, epochs, learning rate and choice of weights (the best validation
    loss). G-ΔUQ spends nine tenths of the epochs on a plain network, one on its anchored head.
    """
    import pandas as pd

    rows = []
    found = Comparison(pd.DataFrame(), load("cbas/color/concept", root=root, seed=0), {}, {})
    for seed in range(seeds):
        splits = load("cbas/color/concept", root=root, seed=seed)
        for name, contender in _CONTENDERS.items():
            notify(f"seed {seed}: training {name}")
            start = time.perf_counter()
            net, train = _network(splits, hidden, seed), _trainer(splits, seed)
            model = contender(net, epochs, seed, train)
            trained = time.perf_counter() - start
            start = time.perf_counter()
            said = {split: predict(model, view) for split, view in splits if split != "train"}
            predicted = time.perf_counter() - start
            rows += [
                {"seed": seed, "model": name, "split": split, **_scores(said[split])}
                | {"seconds": trained}
                for split in SPLITS
            ]
            if seed == 0:
                found.predictions[name] = said
                found.seconds[name] = {"train_seconds": trained, "predict_seconds": predicted}
    found.results = pd.DataFrame(rows)
    return found


def _trainer(splits: Splits, seed: int) -> Train:
    def train(model: nn.Module, epochs: int) -> None:
        val = splits.id_val
        fit(model, splits.train, val, epochs=epochs, lr=3e-3, seed=seed, progress=False)

    return train


def _scores(prediction: Prediction) -> dict[str, float]:
    return {key: float(score(prediction)) for key, score in _SCORES.items()}


def summary(results: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds; training cost relative to the vanilla network of the same run."""
    import pandas as pd

    order = list(dict.fromkeys(results["model"]))
    table = results.drop(columns="seed").groupby(["split", "model"], sort=False).mean()
    cost = table["seconds"] / table.xs("vanilla", level="model")["seconds"].iloc[0]
    table = table.assign(cost=cost).drop(columns="seconds")
    return table.reindex(pd.MultiIndex.from_product([SPLITS, order], names=["split", "model"]))


def write(results: pd.DataFrame, folder: Path) -> Path:
    """Every run as a CSV file in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "demo.csv"
    results.to_csv(path, index=False)
    return path
