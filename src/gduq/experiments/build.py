"""From a config to data, networks and models."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import nn
from torch_geometric.data import Data

from gduq.anchoring import Recipe, anchor
from gduq.anchoring.recipe import make_recipe
from gduq.baselines import HeadEnsemble, LastLayerLaplace
from gduq.data import Packed, Splits, View, add_laplacian, laplacian_encoding, load
from gduq.data.subset import LimitError
from gduq.errors import InputError
from gduq.experiments.config import ModelConfig, RunConfig
from gduq.experiments.method import RECIPE_FIELDS
from gduq.graph import Rows
from gduq.nn import GNN
from gduq.prediction.predictor import Predictor

__all__ = [
    "all_views",
    "anchored",
    "bare",
    "network",
    "on_network",
    "recipe_of",
    "splits_of",
    "with_encodings",
]


def splits_of(config: RunConfig) -> Splits:
    """The data of a run; the last two are kept, for the next run of the same process."""
    data, model = config.data, config.model
    encoded = model.positional_channels if model.positional is not None else 0
    return _splits(data.name, data.seed, data.limit, encoded)


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


def network(model: ModelConfig, splits: Splits, seed: int) -> GNN:
    """The backbone with widths from the data, initialised from a seed."""
    graph = splits.train.graphs[0]
    channels = 0 if graph.get("x") is None else int(graph.x.size(1))
    if channels == 0 and model.positional != "laplacian":
        raise InputError(
            "model.positional = 'laplacian' for graphs without features",
            repr(model.positional),
        )
    options = model.model_dump(exclude={"hidden_channels"})
    if model.conv == "pna":
        options["degree"] = _degrees(splits.train)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return GNN(
            channels,
            model.hidden_channels,
            _classes(splits),
            task="node" if splits.train.task == "node" else "graph",
            **options,
        )


def _classes(splits: Splits) -> int:
    if splits.class_names:
        return len(splits.class_names)
    return 1 + max(int(view.target.max()) for view in all_views(splits).values())


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
