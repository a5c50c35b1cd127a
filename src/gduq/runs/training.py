"""The model of a run: trained, or made of what other runs have trained."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gduq.bundle import load as load_bundle
from gduq.data import Splits
from gduq.data.source import source_digest
from gduq.errors import InputError
from gduq.models import Ensemble, MCDropout, as_predictor
from gduq.models.predictor import Calibrate, Predictor
from gduq.runs import build
from gduq.runs.config import RunConfig, bundle_at
from gduq.runs.folder import RunFolder
from gduq.training import History, choose, fit
from gduq.training.finishing import finish_model

__all__ = ["fit_options", "train"]

_PREDICTED = 256  # graphs at a time


def train(
    config: RunConfig,
    splits: Splits,
    needed: Sequence[RunFolder],
    path: Path,
    progress: bool = True,
) -> tuple[Predictor, History]:
    """The model of a run with its history.

    Args:
        config: Of the run.
        splits: Its data.
        needed: The finished runs it is made from, see `gduq.runs.run.requirements`.
        path: Its folder, for a checkpoint.
        progress: Show the epochs, on a terminal.
    """
    method = config.method
    if method.kind == "ensemble":
        return _ensemble(config, splits, needed)
    start = _start(config, needed)
    if method.kind == "mcdropout":
        assert start is not None
        return _mc_dropout(config, splits, start, needed)
    if method.kind == "choose":
        assert start is not None
        return _chosen(config, splits, start, progress)
    if start is None:
        net = build.network(config, splits, config.seed)
        plain = method.kind == "vanilla"
        model = as_predictor(net) if plain else build.anchored(config, net, splits)
    else:
        model = build.on_network(config, build.bare(start), splits)
    options = fit_options(config) | {"seed": config.seed, "progress": progress}
    history = fit(
        model,
        splits.train,
        splits.id_val,
        class_names=splits.class_names or None,
        target=build.target_of(config, splits),
        resume=path / "checkpoint",
        **options,
    )
    return model, history


def fit_options(config: RunConfig) -> dict[str, Any]:
    """Arguments of `gduq.fit` for the model of a config, which may stand on a trained network."""
    options = config.training.model_dump()
    method = config.method
    how = {None: "default", "none": None}.get(method.calibrate, method.calibrate)
    options["calibrate"] = how
    if not method.on_network:
        return options
    options["epochs"] = _epochs(config)
    if options["epochs"] is None:  # the head's own way to learn
        kept = ("epochs", "weight_decay", "class_weights", "calibrate")
        options = {name: options[name] for name in kept}
    return options


def _epochs(config: RunConfig) -> int | None:
    """How long to train on top of a network; ``None`` lets validation rows say stop."""
    method, epochs = config.method, config.training.epochs
    if method.epochs is not None or method.kind != "anchored" or method.recipe_name == "head":
        return method.epochs
    return max(1, epochs // 4) if method.recipe_name == "thawed" else epochs


def _start(config: RunConfig, needed: Sequence[RunFolder]) -> Predictor | None:
    """The trained model that a method stands on."""
    method = config.method
    if not method.on_network:
        return None
    if method.from_vanilla:
        return load_bundle(needed[0].bundle)[0]
    bundle = bundle_at(str(method.pretrained_from))
    if source_digest(str(bundle)) != method.pretrained_digest:
        raise InputError(
            f"the bundle that the config was made with in {bundle}",
            "another one",
            "Leave out method.pretrained_digest to start from what is there now.",
        )
    return load_bundle(bundle)[0]


def _ensemble(
    config: RunConfig, splits: Splits, needed: Sequence[RunFolder]
) -> tuple[Predictor, History]:
    members = [load_bundle(folder.bundle)[0] for folder in needed]
    model = Ensemble(members)
    _finish(config, splits, model, members)
    return model, History(members=tuple(folder.history for folder in needed))


def _mc_dropout(
    config: RunConfig, splits: Splits, start: Predictor, needed: Sequence[RunFolder]
) -> tuple[Predictor, History]:
    model = MCDropout(start, num_samples=config.method.passes, seed=config.seed)
    _finish(config, splits, model, [start])
    return model, needed[0].history if needed else History()


def _finish(
    config: RunConfig, splits: Splits, model: Predictor, parts: Sequence[Predictor]
) -> None:
    """Calibrate a model of trained parts as a whole, as `gduq.fit` does."""
    for part in parts:
        part.set_temperature(1.0, None)
    model.target = None if parts[0].target is None else parts[0].target.combined()
    asked = config.method.calibrate
    how: Calibrate = "shifted" if asked is None else None if asked == "none" else asked
    finish_model(model, splits.train, splits.id_val, how, _PREDICTED, config.seed)


def _chosen(
    config: RunConfig, splits: Splits, start: Predictor, progress: bool
) -> tuple[Predictor, History]:
    begun, training = time.perf_counter(), config.training
    model = choose(
        build.bare(start),
        splits.train,
        splits.id_val,
        budget=config.method.budget,
        epochs=training.epochs,
        lr=training.lr,
        batch_size=training.batch_size,
        weight_decay=training.weight_decay,
        class_names=splits.class_names or None,
        target=build.target_of(config, splits),
        seed=config.seed,
        progress=progress,
    )
    if config.method.calibrate == "none":
        for part in (*model, model):
            part.set_temperature(1.0, None)
    elif config.method.calibrate == "clean":
        finish_model(model, splits.train, splits.id_val, "clean", _PREDICTED, config.seed)
    return model, History(overhead_seconds=time.perf_counter() - begun)
