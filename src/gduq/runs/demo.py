"""`gduq demo`: a plain network, calibrated too, an ensemble and an anchored head under shift.

The data is CBAS (coloured houses on a random graph), generated on the spot: in training a node's
colour mostly tells its class, in the shifted test it says nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gduq import metrics
from gduq.anchoring import anchor
from gduq.baselines import Ensemble, as_predictor
from gduq.data import Splits, load
from gduq.nn import GNN
from gduq.prediction import Prediction, predict
from gduq.prediction.predictor import Predictor
from gduq.training import fit
from gduq.training.finishing import finish_model

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


@dataclass
class _Contender:
    """A trained model with the seconds all of its training took."""

    name: str
    model: Predictor
    seconds: float


def _contenders(
    splits: Splits, hidden: int, epochs: int, seed: int, notify: Callable[[str], None]
) -> Iterator[_Contender]:
    """All models of a seed; they stand on one plain network, but for the ensemble."""
    data = (splits.train, splits.id_val)
    options: dict[str, Any] = {"seed": seed, "progress": False}
    plain_options = {"epochs": epochs, "lr": 3e-3, **options}
    notify(f"seed {seed}: training a plain network")
    net = _network(splits, hidden, seed)
    spent = _timed(lambda: fit(net, *data, calibrate=None, **plain_options))
    plain = as_predictor(net)
    yield _Contender("plain", plain, spent)
    more = _timed(lambda: finish_model(plain, *data, "shifted", 256, seed))
    yield _Contender("plain, calibrated", plain, spent + more)
    notify(f"seed {seed}: training an ensemble")
    first = 1000 * (seed + 1)
    together = Ensemble(_network(splits, hidden, first + i) for i in range(3))
    yield _Contender(
        "ensemble of 3", together, _timed(lambda: fit(together, *data, **plain_options))
    )
    notify(f"seed {seed}: training an anchored head")
    model = anchor(net, seed=seed)
    more = _timed(lambda: fit(model, *data, **options))
    yield _Contender("G-ΔUQ", model, spent + more)


def _timed(job: Callable[[], object]) -> float:
    start = time.perf_counter()
    job()
    return time.perf_counter() - start


@dataclass
class Comparison:
    """What `compare` found.

    Attributes:
        results: One row per seed, model and split: accuracy, ECE (15 bins), NLL, Brier score and
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
    epochs: int = 300,
    hidden: int = 64,
    root: Path | None = None,
    notify: Callable[[str], None] = lambda _: None,
) -> Comparison:
    """Train the contenders on every seed's data and judge them.

    All have the same splits, epochs, learning rate and choice of weights (the best validation
    loss). "plain, calibrated" and G-ΔUQ stand on the plain network. All but "plain" end with a
    temperature, as `gduq.fit` has it.
    """
    import pandas as pd

    rows = []
    found = Comparison(pd.DataFrame(), load("cbas/color/concept", root=root, seed=0), {}, {})
    for seed in range(seeds):
        splits = load("cbas/color/concept", root=root, seed=seed)
        for own in _contenders(splits, hidden, epochs, seed, notify):
            start = time.perf_counter()
            said = {split: predict(own.model, view) for split, view in splits if split != "train"}
            predicted = time.perf_counter() - start
            rows += [
                {"seed": seed, "model": own.name, "split": split, **_scores(said[split])}
                | {"seconds": own.seconds}
                for split in SPLITS
            ]
            if seed == 0:
                cost = {"train_seconds": own.seconds, "predict_seconds": predicted}
                found.predictions[own.name], found.seconds[own.name] = said, cost
    found.results = pd.DataFrame(rows)
    return found


def _scores(prediction: Prediction) -> dict[str, float]:
    return {key: float(score(prediction)) for key, score in _SCORES.items()}


def summary(results: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds; training cost relative to the plain network."""
    import pandas as pd

    order = list(dict.fromkeys(results["model"]))
    table = results.drop(columns="seed").groupby(["split", "model"], sort=False).mean()
    cost = table["seconds"] / table.xs("plain", level="model")["seconds"].iloc[0]
    table = table.assign(cost=cost).drop(columns="seconds")
    return table.reindex(pd.MultiIndex.from_product([SPLITS, order], names=["split", "model"]))


def write(results: pd.DataFrame, folder: Path) -> Path:
    """Every run as a CSV file in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "demo.csv"
    results.to_csv(path, index=False)
    return path
