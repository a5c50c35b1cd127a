"""Seconds of an epoch, a training and a prediction, every method beside vanilla in one process."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from torch import nn

from gduq.baselines import Ensemble, MCDropout, as_predictor
from gduq.calibration import TemperatureScaling
from gduq.data import Splits
from gduq.prediction import predict
from gduq.prediction.predictor import Predictor
from gduq.runs import build
from gduq.runs.config import RunConfig
from gduq.runs.training import fit_options
from gduq.training import fit
from gduq_reproduction.specs import CONTROLS, PaperTable, ScaleName, Setting

__all__ = ["cells", "make", "title"]

_EPOCHS = {"graph": 4, "node": 21}  # the first is a warm-up
_REPEATS = 5
Cell = tuple[Setting, tuple[str, ...], ScaleName]


class Training(NamedTuple):
    """Seconds of an epoch, and of what comes once: a frozen part's pass, anchors, the bank."""

    epoch: float
    once: float

    def whole(self, epochs: int) -> float:
        """Seconds of a training of so many epochs."""
        return self.once + epochs * self.epoch


class Times(NamedTuple):
    """Seconds of a method: an epoch, all of its training, a prediction."""

    variant: str
    calibrator: str
    epoch: float
    training: float
    prediction: float


def cells(table: PaperTable, scale: ScaleName) -> Sequence[Cell]:
    """One per dataset and network: all methods in one process, one after the other."""
    variants = tuple(dict.fromkeys((*CONTROLS, *table.variants)))
    return [(setting, variants, scale) for setting in table.settings_at(scale)]


def title(cell: Cell) -> str:
    return f"{cell[0].data} {cell[0].model}"


def make(cell: Cell) -> dict[str, Any]:
    """Seconds and ratios to vanilla, by variant."""
    setting, variants, scale = cell
    times = list(_measured(setting, variants, scale))
    vanilla = times[0]
    numbers = []
    where = {"dataset": setting.dataset, "model": setting.model}
    for own in times:
        key = {**where, "variant": own.variant, "calibrator": own.calibrator}
        values = {
            "epoch_seconds": own.epoch,
            "train_seconds": own.training,
            "predict_seconds": own.prediction,
            "epoch_ratio": own.epoch / vanilla.epoch,
            "train_ratio": own.training / vanilla.training,
            "predict_ratio": own.prediction / vanilla.prediction,
        }
        numbers += [({**key, "metric": metric}, value) for metric, value in values.items()]
    return {"numbers": numbers, "data": None}


def _measured(setting: Setting, variants: Sequence[str], scale: ScaleName) -> Iterator[Times]:
    """Vanilla first; the rest is made of its networks."""
    config = setting.config("vanilla", 0, scale)
    splits = build.splits_of(config)
    _training(config, build.network(config, splits, 3), splits)  # the machine warms up
    nets = [build.network(config, splits, seed) for seed in range(3)]
    trained = [_training(config, net, splits) for net in nets]
    plain = sorted(trained)[1]
    epochs, test = config.training.epochs, _prediction(nets[0], splits)
    yield Times("vanilla", "none", plain.epoch, plain.whole(epochs), test)
    calibrated = test + _calibration(nets[0], splits)
    yield Times("vanilla", "temperature", plain.epoch, plain.whole(epochs), calibrated)
    for variant in variants:
        config = setting.config(variant, 0, scale)
        epochs = config.training.epochs
        if variant == "ensemble":
            each, all_ = sum(t.epoch for t in trained), sum(t.whole(epochs) for t in trained)
            yield Times(variant, "none", each, all_, _prediction(Ensemble(_wrapped(nets)), splits))
        elif variant == "mcdropout":
            model: Predictor = MCDropout(_wrapped(nets)[0], config.method.passes, config.seed)
            yield Times(
                variant, "none", plain.epoch, plain.whole(epochs), _prediction(model, splits)
            )
        elif variant != "vanilla":
            model = build.anchored(config, nets[0], splits)
            own = _training(config, model, splits)
            epoch, total = own.epoch, own.whole(fit_options(config)["epochs"] or 0)
            if variant == "gduq":  # its epochs are the plain network's, and the head comes once
                epoch, total = plain.epoch, total + plain.whole(epochs)
            yield Times(variant, "none", epoch, total, _prediction(model, splits))


def _wrapped(nets: Sequence[nn.Module]) -> list[Predictor]:
    return [as_predictor(net) for net in nets]


def _prediction(model: nn.Module, splits: Splits) -> float:
    """Seconds of predicting the shifted test split."""
    return _fastest(lambda: predict(model, splits.ood_test, novelty=False))


def _training(config: RunConfig, model: nn.Module, splits: Splits) -> Training:
    """A few epochs as a run has them, validated; a head that stops by itself runs to its end."""
    options = fit_options(config)
    if options["epochs"] is not None:
        options["epochs"] = _EPOCHS["node" if splits.train.task == "node" else "graph"]
    start = time.perf_counter()
    history = fit(model, splits.train, splits.id_val, progress=False, **options)
    spent = time.perf_counter() - start
    if options["epochs"] is None:
        return Training(0.0, spent)
    seconds = [record.seconds for record in history.records]
    return Training(statistics.median(seconds[1:]), spent - sum(seconds))


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
