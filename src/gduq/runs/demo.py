"""`gduq demo`: a network is trained, wrapped by gduq, and then its data shifts.

The data is CBAS (coloured houses on a random graph), generated on the spot: in training a node's
colour mostly tells its class. Then colours go missing; at last they are there, but mislead.
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
from gduq.data import Splits, View, load
from gduq.nn import GNN
from gduq.prediction import Prediction, predict
from gduq.prediction.predictor import Predictor
from gduq.shifts import LEVELS, feature_mask
from gduq.training import fit

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["OURS", "PLAIN", "Comparison", "compare", "contenders", "stages", "story", "write"]

PLAIN, OURS = "plain", "gduq"
_SEVERITIES = (1, 3, 5)
_SCORES: dict[str, Callable[[Prediction], Any]] = {
    "accuracy": metrics.accuracy,
    "confidence": lambda p: p.confidence.mean(),
    "ece": metrics.ece,
    "nll": metrics.nll,
    "brier": metrics.brier,
    "novelty": lambda p: float("nan") if p.novelty is None else p.novelty.mean(),
}


def stages(splits: Splits) -> dict[str, View]:
    """Labelled nodes in the order of their arrival: as in training, then shifted more and more."""
    views = dict(splits)
    home = views["id_test"]
    missing = {f"missing colours={LEVELS[s]:g}": feature_mask(home, s) for s in _SEVERITIES}
    return {"id_test": home, **missing, "ood_test": views["ood_test"]}


@dataclass
class _Contender:
    """A trained model with the seconds all of its training took."""

    name: str
    model: Predictor
    seconds: float


def _network(splits: Splits, hidden: int, seed: int) -> GNN:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        channels, classes = splits.train.graphs[0].x.size(1), len(splits.class_names)
        return GNN(channels, hidden, classes, 3, conv="gcn", task="node", head="mlp")


def _contenders(
    splits: Splits, hidden: int, epochs: int, seed: int, notify: Callable[[str], None]
) -> Iterator[_Contender]:
    """All models of a seed; each stands on the same plain network."""
    data = (splits.train, splits.id_val)
    options: dict[str, Any] = {"seed": seed, "progress": False}

    def trained(member: int) -> tuple[GNN, float]:
        net = _network(splits, hidden, 1000 * member + seed)
        more: dict[str, Any] = {"epochs": epochs, "lr": 3e-3, "calibrate": None, **options}
        return net, _timed(lambda: fit(net, *data, **more))

    notify(f"seed {seed}: training a network")
    net, spent = trained(0)
    yield _Contender(PLAIN, as_predictor(net), spent)
    notify(f"seed {seed}: gduq.anchor, gduq.fit")
    model = anchor(net, seed=seed)
    yield _Contender(OURS, model, spent + _timed(lambda: fit(model, *data, **options)))
    notify(f"seed {seed}: training two more networks for an ensemble")
    others = [trained(member) for member in (1, 2)]
    together = Ensemble([net, *(other for other, _ in others)])
    seconds = spent + sum(more for _, more in others)
    seconds += _timed(lambda: fit(together, *data, epochs=0, **options))
    yield _Contender("ensemble of 3", together, seconds)
    more = _timed(lambda: fit(net, *data, epochs=0, **options))
    yield _Contender("plain, calibrated", as_predictor(net), spent + more)


def _timed(job: Callable[[], object]) -> float:
    start = time.perf_counter()
    job()
    return time.perf_counter() - start


@dataclass
class Comparison:
    """What `compare` found.

    Attributes:
        results: One row per seed, model and stage: accuracy, mean confidence, ECE (15 bins), NLL,
            Brier score, mean novelty and training seconds.
        splits: The data of the first seed.
        predictions: Of the first seed, by model and split or stage.
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
    """Train the contenders on every seed's data and judge them at every stage.

    All have the same splits, epochs, learning rate and choice of weights (the best validation
    loss). All but the plain network end with a temperature, as `gduq.fit` has it.
    """
    import pandas as pd

    rows = []
    found = Comparison(pd.DataFrame(), load("cbas/color/concept", root=root, seed=0), {}, {})
    for seed in range(seeds):
        splits = load("cbas/color/concept", root=root, seed=seed)
        views = stages(splits)
        for own in _contenders(splits, hidden, epochs, seed, notify):
            start = time.perf_counter()
            said = {stage: predict(own.model, view) for stage, view in views.items()}
            predicted = time.perf_counter() - start
            rows += [
                {"seed": seed, "model": own.name, "stage": stage}
                | {key: float(score(p)) for key, score in _SCORES.items()}
                | {"seconds": own.seconds}
                for stage, p in said.items()
            ]
            if seed == 0:
                said = {"id_val": predict(own.model, splits.id_val), **said}
                cost = {"train_seconds": own.seconds, "predict_seconds": predicted}
                found.predictions[own.name], found.seconds[own.name] = said, cost
    found.results = pd.DataFrame(rows)
    return found


def story(results: pd.DataFrame) -> pd.DataFrame:
    """One row per stage, means over seeds: how often right, how sure, how unlike the training."""
    means = results.groupby(["model", "stage"], sort=False).mean()
    plain, ours = means.loc[PLAIN], means.loc[OURS]
    return (
        plain[["accuracy", "confidence"]]
        .join(ours[["accuracy", "confidence"]], lsuffix="_plain", rsuffix="_gduq")
        .assign(novelty=ours["novelty"])
    )


def contenders(results: pd.DataFrame) -> pd.DataFrame:
    """One row per model at the last stage, means over seeds; cost in trainings of one network."""
    last = results[results["stage"] == "ood_test"]
    table = last.drop(columns=["seed", "stage"]).groupby("model", sort=False).mean()
    cost = table["seconds"] / table.loc[PLAIN, "seconds"]
    return table.assign(cost=cost)[["accuracy", "ece", "nll", "cost"]]


def write(results: pd.DataFrame, folder: Path) -> Path:
    """Every run as a CSV file in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "demo.csv"
    results.to_csv(path, index=False)
    return path
