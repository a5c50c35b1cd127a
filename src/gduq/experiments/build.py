"""From a config to data, networks and models."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch_geometric.data import Data

from gduq.anchoring import anchor
from gduq.baselines import MCDropout
from gduq.data import Packed, Splits, View, add_laplacian, laplacian_encoding, load
from gduq.data.view import SPLIT_NAMES
from gduq.errors import InputError
from gduq.experiments.config import ModelConfig, RunConfig
from gduq.nn import GNN

__all__ = [
    "all_views",
    "anchored",
    "mc_dropout",
    "network",
    "splits_of",
    "trainable",
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
    except InputError as error:
        most = limit is not None and limit >= len(SPLIT_NAMES)  # not fewer rows than splits
        if not most or not error.expected.startswith("a limit from"):
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
            task=splits.train.task,
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


def anchored(config: RunConfig, net: nn.Module) -> nn.Module:
    """The network with anchors, as the config has it."""
    method = config.method
    if method.head is not None and isinstance(net, GNN) and net.config["head"] != method.head:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            net = net.with_head(method.head)
    return anchor(
        net,
        at=method.at,
        num_anchors=method.num_anchors,
        anchors=method.anchors,
        scope=method.scope,
        init=method.init,
        freeze=method.freeze,
        seed=config.seed,
        temper=method.temper,
    )


def mc_dropout(config: RunConfig, net: nn.Module) -> nn.Module:
    """The network with dropout that stays on."""
    return MCDropout(net, num_samples=config.method.passes, seed=config.seed)


def trainable(config: RunConfig, splits: Splits, pretrained: Path | None) -> nn.Module:
    """The model to train: the plain network, or one with anchors around it."""
    from gduq.bundle import load as load_bundle

    if pretrained is None:
        net: nn.Module = network(config.model, splits, config.seed)
    else:
        net, _ = load_bundle(pretrained)
    return net if config.method.kind == "vanilla" else anchored(config, net)
