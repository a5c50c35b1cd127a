"""From a config to data, networks and models."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import nn
from torch_geometric.data import Data

from gduq.anchoring import Recipe, anchor
from gduq.anchoring.recipe import make_recipe
from gduq.data import Packed, Splits, View, add_laplacian, laplacian_encoding, load
from gduq.data.source import OwnData, read_own, source_digest
from gduq.errors import InputError, warn_user
from gduq.graphs import Rows
from gduq.models import HeadEnsemble, LastLayerLaplace
from gduq.models.predictor import Predictor
from gduq.nn import GNN, BondGNN
from gduq.nn.bond_gnn import ATOMS, BONDS
from gduq.prediction import Classes, Labels, Target, Values, infer_target
from gduq.runs.config import RECIPE_FIELDS, RunConfig
from gduq.shifts.cuts import LimitError

__all__ = [
    "all_views",
    "anchored",
    "bare",
    "is_molecule",
    "network",
    "on_network",
    "own_of",
    "plan",
    "recipe_of",
    "splits_of",
    "target_of",
    "with_encodings",
]


def splits_of(config: RunConfig) -> Splits:
    """The data of a run; the last two are kept, for the next run of the same process."""
    data, model = config.data, config.model
    encoded = model.positional_channels if model.positional is not None else 0
    if data.source is not None:
        return with_encodings(_own(config).splits, encoded)
    return _splits(data.name, data.seed, data.limit, encoded)


def own_of(config: RunConfig) -> OwnData | None:
    """What is known of a user's own data, beside its splits."""
    return None if config.data.source is None else _own(config)


def _own(config: RunConfig) -> OwnData:
    data = config.data
    source = str(data.source)
    if source_digest(source) != data.digest:
        raise InputError(
            f"in {source} what the run was made with",
            "other content, or none",
            "Train again: another content makes another run.",
        )
    return read_own(**data.model_dump(exclude={"digest"}))


def plan(config: RunConfig) -> dict[str, Any]:
    """What would be read, cut and trained: for `gduq train --dry-run`."""
    data, model, own = config.data, config.model, own_of(config)
    splits = splits_of(config)
    read = {"smiles": data.smiles, "ids": data.ids, "cut by": "" if own is None else own.by}
    learned = {"targets": splits.target_names, "units": splits.units, "classes": splits.class_names}
    cut = tuple(f"{name:<9} {len(view)}" for name, view in splits) if own is None else own.cut
    net = f"{model.conv}, {model.num_layers} layers of {model.hidden_channels}"
    trained = {"network": net, "method": config.method.kind, "epochs": config.training.epochs}
    known = {**read, "task": _inferred(config, splits).kind, **learned, **trained}
    return {
        "description": splits.description,
        **{name: value for name, value in known.items() if value},
        "cut": cut,
        "rejected": [] if own is None else [str(reject) for _, reject in own.rejects],
    }


def target_of(config: RunConfig, splits: Splits) -> Target | None:
    """What the outputs mean, with the names that the data brings; ``None``: class numbers, of as
    many classes as the network has outputs for."""
    found = _inferred(config, splits)
    if isinstance(found, Classes):
        return None if found.codes is None else found
    names, units = splits.target_names or None, splits.units or None
    return Labels(names=names) if isinstance(found, Labels) else Values(names=names, units=units)


def _inferred(config: RunConfig, splits: Splits) -> Target:
    own = own_of(config)
    if own is not None:
        return own.target
    y = torch.cat([view.target for view in all_views(splits).values()])
    return infer_target(y, len(splits.class_names) or None)


@lru_cache(maxsize=2)
def _splits(name: str, seed: int, limit: int | None, encoded: int) -> Splits:
    return with_encodings(_loaded(name, seed, limit), encoded)


def with_encodings(splits: Splits, channels: int) -> Splits:
    """The same splits with Laplacian encodings, where they are wanted and not there yet."""
    if not channels or splits.train.graphs[0].get("pe") is not None:
        return splits
    known: dict[int, Data] = {}
    views: dict[str, Any] = {split: _encoded(view, channels, known) for split, view in splits}
    severe = {split: _encoded(view, channels, known) for split, view in splits.severities.items()}
    return splits.with_(**views, severities=severe)


def _loaded(name: str, seed: int, limit: int | None) -> Splits:
    """As `gduq.data.load` has it, but a limit of more rows than there are means all of them.

    So that one limit serves all datasets of a table.
    """
    try:
        return load(name, seed=seed, limit=limit)
    except LimitError as error:
        if limit is not None and limit <= error.most:
            raise
        return load(name, seed=seed)


def _encoded(view: View, channels: int, known: dict[int, Data]) -> View:
    """The same rows, with Laplacian encodings on the graphs; one copy of a graph of many views."""
    if view.rows is None:
        graphs = view.graphs if isinstance(view.graphs, Packed) else Packed.pack(view.graphs)
        return View(add_laplacian(graphs, channels))
    return View([_with_encoding(graph, channels, known) for graph in view.graphs], view.rows)


def _with_encoding(graph: Data, channels: int, known: dict[int, Data]) -> Data:
    if id(graph) not in known:
        copy = graph.__copy__()
        copy.pe = laplacian_encoding(graph.edge_index, int(graph.num_nodes or 0), channels)
        known[id(graph)] = copy
    return known[id(graph)]


def all_views(splits: Splits) -> dict[str, View]:
    """Every split and severity that has rows, by name."""
    views = {**dict(splits), **splits.severities}
    return {name: view for name, view in views.items() if len(view)}


def network(config: RunConfig, splits: Splits, seed: int) -> nn.Module:
    """The backbone with widths from the data, initialised from a seed."""
    model, graph = config.model, splits.train.graphs[0]
    outputs = _outputs(config, splits)
    conv = model.conv
    if conv == "auto":
        conv = "bond" if is_molecule(graph) else "gin"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if conv == "bond":
            return BondGNN(outputs, model.hidden_channels, model.num_layers, model.dropout)
        channels = 0 if graph.get("x") is None else int(graph.x.size(1))
        if channels == 0 and model.positional != "laplacian":
            raise InputError(
                "model.positional = 'laplacian' for graphs without features",
                repr(model.positional),
            )
        if graph.get("edge_attr") is not None and conv == "gin":
            warn_user("the network does not read edge_attr: what edges say goes unused")
        options = model.model_dump(exclude={"hidden_channels"}) | {"conv": conv}
        if conv == "pna":
            options["degree"] = _degrees(splits.train)
        return GNN(
            channels,
            model.hidden_channels,
            outputs,
            task="node" if splits.train.task == "node" else "graph",
            **options,
        )


def is_molecule(graph: Data) -> bool:
    """Whether a graph is as PyG's ``from_smiles`` makes them."""
    x, bonds = graph.get("x"), graph.get("edge_attr")
    widths = [None if t is None or t.dim() != 2 else t.size(1) for t in (x, bonds)]
    return "smiles" in graph and widths == [len(ATOMS), len(BONDS)]


def _outputs(config: RunConfig, splits: Splits) -> int:
    """One per class, label or value."""
    y, target = splits.train.target, _inferred(config, splits)
    if isinstance(target, Classes):
        return target.num_classes
    return 1 if y.dim() == 1 else y.size(1)


def _degrees(view: View) -> list[int]:
    """How many nodes of the training graphs have 0, 1, 2, ... neighbours."""
    counts = torch.zeros(1, dtype=torch.long)
    for graph in view.batches():
        degree = torch.bincount(graph.edge_index[1], minlength=int(graph.num_nodes or 0))
        found = torch.bincount(degree)
        size = max(len(found), len(counts))
        counts = nn.functional.pad(counts, (0, size - len(counts)))
        counts += nn.functional.pad(found, (0, size - len(found)))
    return [int(count) for count in counts]


def recipe_of(config: RunConfig, rows: Rows) -> Recipe:
    """How the config anchors a network that answers for such rows."""
    method = config.method
    named = make_recipe(method.recipe_name, method.at, rows)
    return named.with_(**{name: getattr(method, name) for name in RECIPE_FIELDS})


def anchored(config: RunConfig, net: nn.Module, splits: Splits) -> Predictor:
    """The network with anchors, as the config has it."""
    return anchor(
        net,
        recipe=recipe_of(config, splits.train.task),
        seed=config.seed,
        like=next(iter(splits.train.batches(8))),
    )


def on_network(config: RunConfig, net: nn.Module, splits: Splits) -> Predictor:
    """A model that is to be trained on top of a network."""
    kind, seed = config.method.kind, config.seed
    if kind == "anchored":
        return anchored(config, net, splits)
    if kind == "heads":
        return HeadEnsemble(net, seed=seed)
    if kind == "laplace":
        return LastLayerLaplace(net, seed=seed)
    raise InputError("a method that is trained on top of a network", repr(kind))


def bare(model: Predictor) -> nn.Module:
    """The network of a plain model as a bundle holds it."""
    net = getattr(model, "net", None)
    if not isinstance(net, nn.Module) or isinstance(net, Predictor):
        raise InputError("method.pretrained_from a plain network", type(model).__name__)
    return net
