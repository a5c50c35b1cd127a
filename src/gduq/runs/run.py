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
from torch import nn
from torch_geometric.nn import PNAConv

import gduq
from gduq._io import locked, write_json
from gduq.anchoring import Recipe, anchor
from gduq.bundle import save
from gduq.data import View
from gduq.data.files import OwnData
from gduq.data.outputs import write_rejects
from gduq.errors import InputError, warn_user
from gduq.models import Ensemble, HeadEnsemble, LastLayerLaplace, Network, as_predictor
from gduq.models.predictor import Predictor
from gduq.nn import GNN, BondGNN
from gduq.nn.bond_gnn import ATOMS, BONDS
from gduq.prediction import Prediction, predict
from gduq.runs.config import RECIPE_FIELDS, RunConfig
from gduq.runs.folder import FINISHED, RunFolder, all_views, data_of
from gduq.training import History, choose, fit

__all__ = ["model_on", "network", "requirements", "run", "train"]

_LIBRARIES = ("torch", "torch-geometric", "numpy", "scipy", "scikit-learn")
_NOTED = ("class_names", "target_names", "units", "description")
_WIDE = 1024  # features wider than this are not kept with predictions


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
        ...     method={"kind": "paper"},
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
    folder = RunFolder(path)
    if config.calibrators:
        folder.evaluation(config.calibrators)
    return folder


def requirements(config: RunConfig) -> list[RunConfig]:
    """Runs that must be there before: members of an ensemble, the network to start from."""
    method = config.method
    count = method.size if method.kind == "ensemble" else int(method.on_network)
    plain = {"kind": "plain", "calibrate": method.calibrate}
    bare = config.with_({"calibrators": (), "method": plain})
    return [bare.with_({"seed": config.seed + i}) for i in range(count)]


def _make(config: RunConfig, path: Path, root: Path, progress: bool) -> None:
    path.mkdir(parents=True, exist_ok=True)
    if any(path.iterdir()) and not (path / "config.json").is_file():
        raise InputError("a new folder for the run", f"{path}, which holds something else")
    write_json(path / "config.json", config.model_dump(mode="json"))
    data = data_of(config)
    if data.rejects:
        write_rejects(path / "rejects.csv", [(one.file, row, one) for row, one in data.rejects])
    needed = [RunFolder(root / other.folder_name) for other in requirements(config)]
    model, history = train(config, data, needed, path, progress)
    start = time.perf_counter()
    predictions = dict[str, Prediction]()
    for split, view in all_views(data.splits).items():
        p = predict(model, view, features=True).to("cpu")
        wide = p.features is not None and p.features.size(1) > _WIDE
        predictions[split] = replace(p, features=None) if wide else p
    times = {"train": history.seconds, "predict": time.perf_counter() - start}
    if config.method.on_network:  # what the network it starts from took
        times["plain"] = sum(folder.info["seconds"]["train"] for folder in needed)
    save(
        model,
        path / "bundle",
        class_names=data.splits.class_names or None,
        preprocessing=_preprocessing(config, data),
        reference=predictions.get("id_val"),
    )
    (path / "predictions").mkdir(exist_ok=True)
    for split, p in predictions.items():
        p.to_npz(path / "predictions" / f"{split}.npz")
    write_json(path / "history.json", asdict(history))
    info = {
        "title": config.title,
        "seconds": times,
        "parameters": sum(p.numel() for p in model.parameters()),
        "rows": {split: len(p) for split, p in predictions.items()},
        "task": data.splits.train.task,
        "model": repr(model),
        "severities": list(data.splits.severities),
        **{name: getattr(data.splits, name) for name in _NOTED},
        "versions": {"gduq": gduq.__version__, "python": platform.python_version()}
        | {name: version(name) for name in _LIBRARIES},
        "machine": f"{platform.system()} {platform.machine()}, {torch.get_num_threads()} thread(s)",
    }
    write_json(path / "info.json", info)
    write_json(path / FINISHED, {"hash": config.hash})
    shutil.rmtree(path / "checkpoint", ignore_errors=True)


def _preprocessing(config: RunConfig, found: OwnData) -> dict[str, object] | None:
    """How `gduq predict` is to read new files: what the model was trained on says it."""
    data = config.data
    if data.source is None:
        return None
    notes: dict[str, object] = {"file": data.name, "digest": data.digest, "by": found.by}
    notes |= {"task": found.target.kind, "rows": sum(len(view) for _, view in found.splits)}
    if data.smiles is not None:
        notes |= data.model_dump(mode="json", include={"smiles", "targets", "ids"})
        notes["features"] = "torch_geometric.utils.from_smiles"
    return notes


# -- the model -----------------------------------------------------------------------------------


def network(config: RunConfig, data: OwnData) -> nn.Module:
    """The backbone with widths from the data, initialised from the seed."""
    model, train, conv = config.model, data.splits.train, config.model.conv
    graph, columns = train.graphs[0], 1 if train.target.dim() == 1 else train.target.size(1)
    outputs = getattr(data.target, "num_classes", columns)
    x, bonds = graph.get("x"), graph.get("edge_attr")
    if conv == "auto":
        widths = [None if t is None or t.dim() != 2 else t.size(1) for t in (x, bonds)]
        molecules = "smiles" in graph and widths == [len(ATOMS), len(BONDS)]  # as of from_smiles
        conv = "bond" if molecules else "gin"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        if conv == "bond":
            return BondGNN(outputs, model.hidden_channels, model.num_layers, model.dropout)
        if bonds is not None and conv == "gin":
            warn_user("the network does not read edge_attr: what edges say goes unused")
        options = model.model_dump(exclude={"hidden_channels"}) | {"conv": conv}
        if conv == "pna":
            options["degree"] = PNAConv.get_degree_histogram(train.batches()).tolist()
        return GNN(
            0 if x is None else int(x.size(1)),
            model.hidden_channels,
            outputs,
            task="node" if train.task == "node" else "graph",
            **options,
        )


def model_on(config: RunConfig, net: nn.Module, train: View) -> Predictor:
    """The model that is to be trained, on a network that may be trained already."""
    method = config.method
    if method.kind == "plain":
        return as_predictor(net)
    if method.kind == "heads":
        return HeadEnsemble(net, seed=config.seed)
    if method.kind == "laplace":
        return LastLayerLaplace(net)
    named = Recipe.named(method.kind, train.task)
    recipe = named.with_(**{name: getattr(method, name) for name in RECIPE_FIELDS})
    return anchor(net, recipe=recipe, seed=config.seed, like=next(iter(train.batches(8))))


def train(
    config: RunConfig,
    data: OwnData,
    needed: Sequence[RunFolder],
    path: Path,
    progress: bool = True,
) -> tuple[Predictor, History]:
    """The model of a run in a folder, of its data and the finished runs of `requirements`."""
    method, settings, splits = config.method, config.training.model_dump(), data.splits
    nets, options = [cast(Network, folder.model) for folder in needed], dict[str, Any]()
    options |= {"class_names": splits.class_names or None, "target": data.target}
    options |= {"seed": config.seed, "progress": progress}
    if method.kind == "choose":
        start = time.perf_counter()
        options |= {name: settings[name] for name in ("epochs", "lr", "batch_size", "weight_decay")}
        chosen = choose(nets[0].net, splits.train, splits.id_val, budget=method.budget, **options)
        return chosen, History(seconds=time.perf_counter() - start)
    settings["patience"] = settings["patience"] or None
    if method.kind == "ensemble":  # its members are trained already, and now calibrated together
        model: Predictor = Ensemble(nets)
        options["target"], settings = nets[0].target, {"epochs": 0}
    else:
        net = nets[0].net if nets else network(config, data)
        model = model_on(config, net, splits.train)
        options["resume"] = path / "checkpoint"
        if method.on_network:
            a_quarter = max(1, settings["epochs"] // 4) if method.kind == "thawed" else None
            settings["epochs"] = method.epochs or a_quarter
            if settings["epochs"] is None:  # the head's own way to learn
                kept = ("epochs", "weight_decay", "class_weights")
                settings = {name: settings[name] for name in kept}
    how = {None: "default", "none": None}.get(method.calibrate, method.calibrate)
    history = fit(model, splits.train, splits.id_val, calibrate=how, **settings, **options)
    if method.kind == "ensemble":
        members = tuple(folder.history for folder in needed)
        history = History(members=members, seconds=sum(each.seconds for each in members))
    return model, history
