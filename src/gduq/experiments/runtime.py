"""Seconds of an epoch and of a prediction, every method beside vanilla in one process."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import nn

from gduq.baselines import Ensemble
from gduq.calibration import TemperatureScaling
from gduq.data import Splits
from gduq.experiments import build
from gduq.experiments.config import RunConfig
from gduq.experiments.specs import CONTROLS, ScaleName, Setting, Table
from gduq.prediction import predict
from gduq.training import fit

__all__ = ["cells", "make", "title"]

_EPOCHS = 3  # the first is a warm-up
_REPEATS = 3
Cell = tuple[Setting, tuple[str, ...], ScaleName]
Times = tuple[str, str, float, float]  # variant, calibrator, seconds of an epoch, of a prediction


def cells(table: Table, scale: ScaleName) -> Sequence[Cell]:
    """One a dataset: all methods in one process, one after the other."""
    variants = tuple(dict.fromkeys((*CONTROLS, *table.variants)))
    return [(setting, variants, scale) for setting in table.settings_at(scale)]


def title(cell: Cell) -> str:
    return cell[0].data


def make(cell: Cell) -> dict[str, Any]:
    """Seconds and ratios to vanilla, by variant."""
    setting, variants, scale = cell
    times = list(_measured(setting, variants, scale))
    vanilla = times[0]
    numbers = []
    for variant, calibrator, train, test in times:
        key = {"dataset": setting.dataset, "variant": variant, "calibrator": calibrator}
        values = {
            "train_seconds": train,
            "predict_seconds": test,
            "train_ratio": train / vanilla[2],
            "predict_ratio": test / vanilla[3],
        }
        numbers += [({**key, "metric": metric}, value) for metric, value in values.items()]
    return {"numbers": numbers, "data": None}


def _measured(setting: Setting, variants: Sequence[str], scale: ScaleName) -> Iterator[Times]:
    """Vanilla first; the rest is made of its networks."""
    splits = build.splits_of(setting.config("vanilla", 0, scale))
    config = setting.config("vanilla", 0, scale)
    nets = [build.network(config.model, splits, seed) for seed in range(3)]
    epochs = [_epoch(config, net, splits) for net in nets]
    test = _prediction(nets[0], splits)
    yield "vanilla", "none", epochs[0], test
    yield "vanilla", "temperature", epochs[0], test + _calibration(nets[0], splits)
    for variant in variants:
        config = setting.config(variant, 0, scale)
        if variant == "ensemble":
            yield variant, "none", sum(epochs), _prediction(Ensemble(nets), splits)
        elif variant == "mcdropout":
            dropping = build.mc_dropout(config, nets[0])
            yield variant, "none", epochs[0], _prediction(dropping, splits)
        elif variant != "vanilla":
            model = build.anchored(config, nets[0])
            epoch = _epoch(config, model, splits)
            if variant == "gduq":  # some of its epochs are the plain network's
                epoch = _mixed(config, epochs[0], epoch)
            yield variant, "none", epoch, _prediction(model, splits)


def _mixed(config: RunConfig, plain: float, head: float) -> float:
    """The mean over the epochs of a plain network and of the anchored head on it."""
    before, after = config.method.plain_epochs or 0, config.training.epochs
    return (before * plain + after * head) / (before + after)


def _prediction(model: nn.Module, splits: Splits) -> float:
    """Seconds of predicting the shifted test split."""
    return _fastest(lambda: predict(model, splits.ood_test))


def _epoch(config: RunConfig, model: nn.Module, splits: Splits) -> float:
    """Median seconds of an epoch after the first."""
    training = config.training
    anchored = config.method.is_anchored
    own: dict[str, Any] = {"draws": training.draws, "mask": training.mask} if anchored else {}
    history = fit(
        model,
        splits.train,
        epochs=_EPOCHS,
        lr=training.lr,
        batch_size=training.batch_size,
        progress=False,
        **own,
    )
    return statistics.median(record.seconds for record in history.records[1:])


def _calibration(net: nn.Module, splits: Splits) -> float:
    """Seconds of fitting a temperature."""
    p = predict(net, splits.id_val)
    return _fastest(lambda: TemperatureScaling().fit(p))


def _fastest(job: Callable[[], Any]) -> float:
    found = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        job()
        found.append(time.perf_counter() - start)
    return min(found)
