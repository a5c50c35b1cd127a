"""From a config to data, networks and models."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import PNAConv

from gduq.anchoring import anchor
from gduq.anchoring.recipe import make_recipe
from gduq.data import Packed, Splits, View, add_laplacian, laplacian_encoding, load
from gduq.data.source import OwnData, read_own, source_digest
from gduq.errors import InputError, warn_user
from gduq.models import HeadEnsemble, LastLayerLaplace, as_predictor
from gduq.models.predictor import Predictor
from gduq.nn import GNN, BondGNN
from gduq.nn.bond_gnn import ATOMS, BONDS
from gduq.prediction import Classes, Target, infer_target
from gduq.runs.config import RECIPE_FIELDS, RunConfig

__all__ = ["all_views", "network", "on_network", "own_of", "plan", "splits_of", "target_of",
           "with_encodings"]  # fmt: skip

_load = lru_cache(maxsize=2)(load)  # for the next run of the same process


def splits_of(config: RunConfig) -> Splits:
    """The data of a run."""
    data, model, own = config.data, config.model, own_of(config)
    splits = _load(data.name, seed=data.seed, limit=data.limit) if own is None else own.splits
    return with_encodings(splits, 0 if model.positional is None else model.positional_channels)


def own_of(config: RunConfig) -> OwnData | None:
    """What is known of a user's own data, beside its splits."""
    data = config.data
    if data.source is None:
        return None
    if source_digest(data.source) != data.digest:
        do = "Train again: another content makes another run."
        raise InputError(f"in {data.source} what the run was made with", "other content", do)
    return read_own(**data.model_dump(exclude={"digest"}))


def plan(config: RunConfig) -> dict[str, Any]:
    """What would be read, cut and trained: for `gduq train --dry-run`."""
    data, model, own = config.data, config.model, own_of(config)
    splits = splits_of(config)
    known = {
        "smiles": data.smiles,
        "ids": data.ids,
        "cut by": "" if own is None else own.by,
        "task": target_of(config, splits).kind,
        "targets": splits.target_names,
        "units": splits.units,
        "classes": splits.class_names,
        "network": f"{model.conv}, {model.num_layers} layers of {model.hidden_channels}",
        "method": config.method.kind,
        "epochs": config.training.epochs,
    }
    return {
        "description": splits.description,
        **{name: value for name, value in known.items() if value},
        "cut": [f"{n:<9} {len(view)}" for n, view in splits] if own is None else own.cut,
        "rejected": [] if own is None else [str(reject) for _, reject in own.rejects],
    }


def target_of(config: RunConfig, splits: Splits) -> Target:
    """What the outputs mean, with the names and units that the data brings."""
    own = own_of(config)
    if own is not None:
        found = own.target
    else:
        y = torch.cat([view.target for view in all_views(splits).values()])
        found = infer_target(y, len(splits.class_names) or None)
    given = {"names": splits.target_names, "units": splits.units}
    known = {} if isinstance(found, Classes) else given  # which has names of its own
    return replace(found, **{k: v for k, v in known.items() if v and hasattr(found, k)})


@lru_cache(maxsize=2)
def with_encodings(splits: Splits, channels: int) -> Splits:
    """The same splits with Laplacian encodings, where they are wanted and not there yet."""
    if not channels or splits.train.graphs[0].get("pe") is not None:
        return splits
    known: dict[int, Data] = {}  # one copy of a graph of many views

    def encoded(view: View) -> View:
        if view.rows is None:
            graphs = view.graphs if isinstance(view.graphs, Packed) else Packed.pack(view.graphs)
            return View(add_laplacian(graphs, channels))
        for graph in view.graphs:
            if id(graph) not in known:
                known[id(graph)] = copy = graph.__copy__()
                copy.pe = laplacian_encoding(graph.edge_index, int(graph.num_nodes or 0), channels)
        return View([known[id(graph)] for graph in view.graphs], view.rows)

    severe = {split: encoded(view) for split, view in splits.severities.items()}
    return splits.with_(**{split: encoded(view) for split, view in splits}, severities=severe)


def all_views(splits: Splits) -> dict[str, View]:
    """Every split and severity that has rows, by name."""
    views = {**dict(splits), **splits.severities}
    return {name: view for name, view in views.items() if len(view)}


def network(config: RunConfig, splits: Splits) -> nn.Module:
    """The backbone with widths from the data, initialised from the seed."""
    model, graph, y = config.model, splits.train.graphs[0], splits.train.target
    columns = 1 if y.dim() == 1 else y.size(1)
    outputs = getattr(target_of(config, splits), "num_classes", columns)
    x, bonds, conv = graph.get("x"), graph.get("edge_attr"), model.conv
    if conv == "auto":
        widths = [None if t is None or t.dim() != 2 else t.size(1) for t in (x, bonds)]
        molecules = "smiles" in graph and widths == [len(ATOMS), len(BONDS)]  # as of from_smiles
        conv = "bond" if molecules else "gin"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        if conv == "bond":
            return BondGNN(outputs, model.hidden_channels, model.num_layers, model.dropout)
        if x is None and model.positional != "laplacian":
            expected = "model.positional = 'laplacian' for graphs without features"
            raise InputError(expected, repr(model.positional))
        if bonds is not None and conv == "gin":
            warn_user("the network does not read edge_attr: what edges say goes unused")
        options = model.model_dump(exclude={"hidden_channels"}) | {"conv": conv}
        if conv == "pna":
            options["degree"] = PNAConv.get_degree_histogram(splits.train.batches()).tolist()
        return GNN(
            0 if x is None else int(x.size(1)),
            model.hidden_channels,
            outputs,
            task="node" if splits.train.task == "node" else "graph",
            **options,
        )


def on_network(config: RunConfig, net: nn.Module, splits: Splits) -> Predictor:
    """The model that is to be trained, on a network that may be trained already."""
    method = config.method
    if method.kind == "vanilla":
        return as_predictor(net)
    if method.kind == "heads":
        return HeadEnsemble(net, seed=config.seed)
    if method.kind == "laplace":
        return LastLayerLaplace(net)
    named = make_recipe(method.recipe_name, method.at, splits.train.task)
    recipe = named.with_(**{name: getattr(method, name) for name in RECIPE_FIELDS})
    like = next(iter(splits.train.batches(8)))
    return anchor(net, recipe=recipe, seed=config.seed, like=like)
