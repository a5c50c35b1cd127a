"""`run`: from a config to a result on disk, once."""

from __future__ import annotations

import platform
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import torch

import gduq
from gduq._io import locked, write_json
from gduq.bundle import save
from gduq.data import Splits
from gduq.data.outputs import RejectList
from gduq.errors import InputError
from gduq.models import Ensemble, MCDropout, Network
from gduq.models.predictor import Calibrate, Predictor
from gduq.prediction import Prediction, predict
from gduq.runs import build
from gduq.runs.config import RunConfig
from gduq.runs.folder import FINISHED, RunFolder
from gduq.training import History, choose, fit
from gduq.training.finishing import finish_model, warn_of_doubts

__all__ = ["requirements", "run", "train"]

_LIBRARIES = ("torch", "torch-geometric", "numpy", "scipy", "scikit-learn")
_NOTED = ("class_names", "target_names", "units", "description", "sources")
_WIDE = 1024  # features wider than this are not kept with predictions
_SHARED = ("vanilla", "ensemble", "mcdropout")  # their history is all of their training
_PREDICTED = 256  # graphs at a time


def run(config: RunConfig, root: str | Path, progress: bool = True) -> RunFolder:
    """Train, predict every split; all of it in one folder of ``root``, which measures when asked.

    A run that is finished is not repeated, one that was interrupted goes on from its checkpoint.
    Calibrators that are new are fitted without training. A lock keeps other processes from the
    same run: they wait and find it finished.

    Args:
        config: What to run.
        root: Folder of all runs.
        progress: Show the epochs, on a terminal.

    Example:
        >>> import tempfile
        >>> config = RunConfig(
        ...     data={"name": "cbas/color/concept"},
        ...     model={"conv": "gcn", "hidden_channels": 8},
        ...     method={"kind": "anchored", "recipe": "paper"},
        ...     training={"epochs": 2},
        ... )
        >>> folder = run(config, tempfile.mkdtemp(), progress=False)
        >>> folder.predictions()["ood_test"].samples.shape
        torch.Size([10, 140, 4])
    """
    root = Path(root)
    for needed in requirements(config):
        run(needed, root, progress)
    path = root / config.folder_name
    with locked(path):
        if not (path / FINISHED).is_file():
            _make(config, path, root, progress)
    return RunFolder(path).recalibrate(config.calibrators)


def requirements(config: RunConfig) -> list[RunConfig]:
    """Runs that must be there before: members of an ensemble, the network to start from."""
    method = config.method
    count = method.size if method.kind == "ensemble" else int(method.on_network)
    plain = {"kind": "vanilla", "calibrate": method.calibrate}
    bare = config.with_({"calibrators": (), "method": plain})
    return [bare.with_({"seed": config.seed + i}) for i in range(count)]


def _make(config: RunConfig, path: Path, root: Path, progress: bool) -> None:
    path.mkdir(parents=True, exist_ok=True)
    if any(path.iterdir()) and not (path / "config.json").is_file():
        raise InputError("a new folder for the run", f"{path}, which holds something else")
    write_json(path / "config.json", config.model_dump(mode="json"))
    own = build.own_of(config)
    if own is not None and own.rejects:
        with RejectList(path / "rejects.csv") as rows:
            for row, reject in own.rejects:
                rows.write(reject.file, row, reject)
    splits = build.splits_of(config)
    needed = [RunFolder(root / other.folder_name) for other in requirements(config)]
    model, history = train(config, splits, needed, path, progress)
    start = time.perf_counter()
    predictions = dict[str, Prediction]()
    for split, view in build.all_views(splits).items():
        p = predict(model, view, features=True).to("cpu")
        wide = p.features is not None and p.features.size(1) > _WIDE
        predictions[split] = replace(p, features=None) if wide else p
    times = {"train": history.seconds, "predict": time.perf_counter() - start}
    if config.method.kind not in _SHARED:  # what the network it starts from took
        times["plain"] = sum(folder.info["seconds"]["train"] for folder in needed)
    save(
        model,
        path / "bundle",
        class_names=splits.class_names or None,
        preprocessing=_preprocessing(config),
        reference=predictions.get("id_val"),
    )
    (path / "predictions").mkdir(exist_ok=True)
    for split, p in predictions.items():
        p.to_npz(path / "predictions" / f"{split}.npz")
    write_json(path / "history.json", asdict(history))
    parameters = list(model.parameters())
    info = {
        "hash": config.hash,
        "title": config.title,
        "seconds": times,
        "parameters": sum(p.numel() for p in parameters),
        "trained_parameters": sum(p.numel() for p in parameters if p.requires_grad),
        "rows": {split: len(p) for split, p in predictions.items()},
        "task": splits.train.task,
        "model": repr(model),
        "severities": list(splits.severities),
        **{name: getattr(splits, name) for name in _NOTED},
        "versions": {"gduq": gduq.__version__, "python": platform.python_version()}
        | {name: version(name) for name in _LIBRARIES},
        "machine": f"{platform.system()} {platform.machine()}, {torch.get_num_threads()} thread(s)",
    }
    write_json(path / "info.json", info)
    write_json(path / FINISHED, {"hash": config.hash})
    shutil.rmtree(path / "checkpoint", ignore_errors=True)


def _preprocessing(config: RunConfig) -> dict[str, Any] | None:
    """How `gduq predict` is to read new files: what the model was trained on says it."""
    own, data = build.own_of(config), config.data
    if own is None:
        return None
    notes: dict[str, Any] = {"file": data.name, "digest": data.digest, "task": own.target.kind}
    notes |= {"by": own.by, "rows": sum(len(view) for _, view in own.splits)}
    if data.smiles is not None:
        columns = {"smiles": data.smiles, "targets": list(data.targets), "ids": list(data.ids)}
        notes |= {**columns, "features": "torch_geometric.utils.from_smiles"}
    return notes


# -- the model -----------------------------------------------------------------------------------


def train(
    config: RunConfig,
    splits: Splits,
    needed: Sequence[RunFolder],
    path: Path,
    progress: bool = True,
) -> tuple[Predictor, History]:
    """The model of a run in a folder, of its data and the finished runs of `requirements`."""
    method, seed = config.method, config.seed
    if method.kind == "ensemble":
        model: Predictor = Ensemble([folder.model for folder in needed])
        _calibrate(config, splits, model, [folder.model for folder in needed])
        return model, History(members=tuple(folder.history for folder in needed))
    more: dict[str, Any] = {"class_names": splits.class_names or None, "progress": progress}
    more |= {"target": build.target_of(config, splits), "seed": seed}
    if method.on_network:
        start = cast(Network, needed[0].model)
        if method.kind == "mcdropout":
            model = MCDropout(start, num_samples=method.passes, seed=seed)
            _calibrate(config, splits, model, [start])
            return model, needed[0].history
        net = start.net
        if method.kind == "choose":
            begun, same = time.perf_counter(), ("epochs", "lr", "batch_size", "weight_decay")
            more |= config.training.model_dump(include=set(same))
            model = choose(net, splits.train, splits.id_val, budget=method.budget, **more)
            if method.calibrate is not None:
                _calibrate(config, splits, model, list(model) if method.calibrate == "none" else [])
            return model, History(overhead_seconds=time.perf_counter() - begun)
    else:
        net = build.network(config, splits)
    model = build.on_network(config, net, splits)
    more |= _fit_options(config) | {"resume": path / "checkpoint"}
    return model, fit(model, splits.train, splits.id_val, **more)


def _fit_options(config: RunConfig) -> dict[str, Any]:
    """Arguments of `gduq.fit` for the model of a config, which may stand on a trained network."""
    method, options = config.method, config.training.model_dump()
    how = {None: "default", "none": None}.get(method.calibrate, method.calibrate)
    if method.on_network:
        longer = {"thawed": max(1, options["epochs"] // 4), "paper": options["epochs"]}
        usual = longer.get(method.recipe_name) if method.kind == "anchored" else None
        options["epochs"] = method.epochs or usual
        if options["epochs"] is None:  # the head's own way to learn
            kept = ("epochs", "weight_decay", "class_weights")
            options = {name: options[name] for name in kept}
    return options | {"calibrate": how}


def _calibrate(
    config: RunConfig, splits: Splits, model: Predictor, parts: Sequence[Predictor]
) -> None:
    """Calibrate a model of trained parts together, as `gduq.fit` does."""
    for part in parts:
        part.set_temperature(1.0, None)
    if model.target is None and parts[0].target is not None:
        model.target = parts[0].target.combined()
    asked = config.method.calibrate
    how: Calibrate = "shifted" if asked is None else None if asked == "none" else asked
    if how is None:
        model.set_temperature(1.0, None)
    sets = finish_model(model, splits.train, splits.id_val, how, _PREDICTED, config.seed)
    warn_of_doubts(model, sets)
