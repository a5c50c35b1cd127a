"""What training reads: mini-batches of a View, of a frozen prefix's rows, or of a loader."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data.distributed import DistributedSampler
from torch_geometric.data import Data

from gduq.anchored import Anchored
from gduq.data.view import View
from gduq.errors import InputError
from gduq.graph import label_rows, num_graphs
from gduq.training.loss import class_numbers
from gduq.training.settings import known_by

__all__ = [
    "Batches",
    "Loader",
    "Rows",
    "as_batches",
    "cached",
    "check_range",
    "class_counts",
    "described",
    "even_size",
    "labels",
    "some",
]

Shard = tuple[int, int]


class Batches(Protocol):
    """Hands out mini-batches; `View.batches` describes the arguments."""

    def batches(
        self,
        batch_size: int | None = None,
        shuffle: bool = False,
        generator: torch.Generator | None = None,
        shard: Shard | None = None,
    ) -> Iterator[Data]: ...


@dataclass(frozen=True, eq=False)
class Rows:
    """Representations of graphs or labelled nodes, and their labels, behind a frozen prefix.

    Where the rest of the network needs no graph, a mini-batch is a choice of rows, and an epoch
    joins no graphs. So a head on a node task makes many steps an epoch, for the price of one.
    """

    state: tuple[Tensor, ...]  # [m, ...] each; the first is h
    y: Tensor

    def __len__(self) -> int:
        return self.y.size(0)

    def batches(
        self,
        batch_size: int | None = None,
        shuffle: bool = False,
        generator: torch.Generator | None = None,
        shard: Shard | None = None,
    ) -> Iterator[Data]:
        rank, world = shard or (0, 1)
        rows = len(self)
        order = torch.randperm(rows, generator=generator) if shuffle else torch.arange(rows)
        for part in order.to(self.y.device).split(max(batch_size or 256, world)):
            yield self._take(part[rank::world])

    def _take(self, index: Tensor) -> Data:
        parts = {f"cut_{i}": value[index] for i, value in enumerate(self.state)}
        return Data(y=self.y[index], num_nodes=index.numel(), **parts)


@dataclass(frozen=True, eq=False)
class Loader:
    """A user's loader: its own batches, in an order that our generator decides where it can."""

    loader: Any

    def batches(
        self,
        batch_size: int | None = None,
        shuffle: bool = False,
        generator: torch.Generator | None = None,
        shard: Shard | None = None,
    ) -> Iterator[Data]:
        loader = getattr(self.loader, "_dataloader", self.loader)  # Fabric's counts epochs itself
        sampler = getattr(loader, "sampler", None)
        if shard is not None and shard[1] > 1 and not isinstance(sampler, DistributedSampler):
            raise InputError(
                "a loader that gives every process its share",
                f"{type(loader).__name__} without a DistributedSampler",
                "Pass a View or a dataset, or fabric.setup_dataloaders(loader).",
            )
        seed = 0 if generator is None else generator.initial_seed()
        if isinstance(sampler, DistributedSampler):
            sampler.set_epoch(seed % 2**31)
        for own in {getattr(loader, "generator", None), getattr(sampler, "generator", None)}:
            if isinstance(own, torch.Generator):  # so that a resumed run sees the same order
                own.manual_seed(seed)
        yield from loader


def as_batches(data: Any, name: str) -> Batches:
    """Whatever holds graphs, as something that hands out mini-batches.

    Args:
        data: A View, a ``Data``, a list of them, a PyG dataset, or a loader.
        name: What the caller calls it, ``"train"`` or ``"val"``.
    """
    if isinstance(data, View):
        view = data
    elif isinstance(data, Data):
        view = View(copy.copy(data), _own_rows(data, name))
    elif hasattr(data, "batch_sampler") or hasattr(data, "collate_fn"):
        if len(data) == 0:
            raise InputError(f"at least one batch in {name}", "an empty loader")
        return Loader(data)
    elif hasattr(data, "__len__") and hasattr(data, "__getitem__"):
        if len(data) == 0:
            raise InputError(f"at least one graph in {name}", "an empty dataset")
        view = View(data, _own_rows(data[0], name) if len(data) == 1 else None)
    else:
        raise InputError(
            f"a View, a Data, a list of graphs, a PyG dataset or a loader as {name}",
            type(data).__name__,
        )
    _check_view(view, name)
    return view


def _own_rows(graph: Any, name: str) -> Tensor | None:
    """All nodes, or the seed nodes of a neighbourhood, where a lone graph labels nodes."""
    if not isinstance(graph, Data) or not _labels_nodes(graph):
        return None
    _check_leak(graph, name)
    return torch.arange(graph.y.size(0))[label_rows(graph, graph.y.size(0))]


def _labels_nodes(graph: Data) -> bool:
    y = graph.get("y")
    nodes = graph.num_nodes or 0
    return isinstance(y, Tensor) and y.dim() > 0 and y.size(0) == nodes and nodes > 1


def _check_view(view: View, name: str) -> None:
    first = view.graphs[0]
    if not isinstance(first, Data):
        raise InputError(f"torch_geometric Data objects in {name}", type(first).__name__)
    if view.rows is None:
        _check_leak(first, name)
        if len(view.graphs) > 1 and "batch_size" in first.keys():  # noqa: SIM118
            raise InputError(
                f"graphs in {name}",
                "neighbourhoods with seed nodes (batch_size)",
                "Pass the loader, or DataLoader(batches, batch_size=None) from torch.utils.data.",
            )
    if len(view) == 0:
        raise InputError(f"at least one labelled row in {name}", "none", "Check the mask.")


def _check_leak(graph: Data, name: str) -> None:
    """Refuse a graph whose own mask says that not all of its labels are for training."""
    masked = graph.get("train_mask") is not None and _labels_nodes(graph)
    seeds = "batch_size" in graph.keys()  # noqa: SIM118
    if masked and not seeds and graph.get("row_mask") is None:
        mask = "train_mask" if name == "train" else "val_mask"
        raise InputError(
            f"a choice of nodes for {name}",
            "a whole graph with a train_mask, whose test labels would be used too",
            f"Pass gduq.data.View(data, data.{mask}).",
        )


# -- labels --------------------------------------------------------------------------------------


def labels(graph: Data) -> Tensor:
    """The labels of a batch, ``[m]`` or ``[m, 1]``."""
    y = graph.get("y")
    if y is None:
        raise InputError("graphs with labels y", "a batch without")
    y = torch.as_tensor(y)
    y = y.unsqueeze(0) if y.dim() == 0 else y
    return y[label_rows(graph, y.size(0))]


def class_counts(source: Batches, name: str) -> Tensor:
    """How many rows each class has ``[highest class + 1]``."""
    if isinstance(source, (View, Rows)):
        found = class_numbers(source.target if isinstance(source, View) else source.y)
    else:
        parts = []
        for graph in source.batches():
            _check_leak(graph, name)
            parts.append(class_numbers(labels(graph)).cpu())
        found = torch.cat(parts)
    if found.numel() == 0:
        raise InputError(f"at least one labelled row in {name}", "none")
    return torch.bincount(found)


def described(source: Batches, name: str) -> str:
    """Rows in few words: by their labels, one after the other if their order is known."""
    if isinstance(source, View):
        return known_by(len(source), source.target.tolist())
    counts = class_counts(source, name)
    return known_by(int(counts.sum()), counts.tolist())


def check_range(counts: Tensor, classes: int, name: str) -> None:
    """Raise if there are labels that no class of the model stands for."""
    if counts.numel() > classes:
        raise InputError(
            f"labels from 0 to {classes - 1} in {name}, one a class of the model",
            f"labels up to {counts.numel() - 1}",
            "Build the model with more out_channels, or renumber the classes.",
        )


def some(
    source: Batches, rows: int, batch_size: int, generator: torch.Generator | None
) -> list[Data]:
    """A few random batches with at least ``rows`` labelled rows, if there are as many."""
    found, seen = [], 0
    for graph in source.batches(max(batch_size, rows), shuffle=True, generator=generator):
        found.append(graph)
        seen += labels(graph).size(0)
        if seen >= rows:
            break
    return found


def even_size(source: Batches, batch_size: int, world: int) -> int:
    """A slightly larger batch size where the last batch would be tiny: BatchNorm over graphs needs
    two rows in every process. One and two processes get the same size."""
    if isinstance(source, Loader):
        return batch_size
    graphs = len(source.graphs) if isinstance(source, View) else len(source)  # type: ignore[arg-type]
    least = 2 * max(2, world) if batch_size >= 8 else 2
    while batch_size < graphs and 0 < graphs % batch_size < least:
        batch_size += 1
    return batch_size


# -- a frozen prefix -----------------------------------------------------------------------------


def cached(model: torch.nn.Module, source: Batches) -> Batches:
    """The same rows with the frozen prefix already run, where that can be done once for all.

    Loaders, and datasets whose transform may be random, are left as they are.
    """
    if not isinstance(model, Anchored) or not model.frozen or not isinstance(source, View):
        return source
    if getattr(source.graphs, "transform", None) is not None:
        return source
    device, states, counts = model.linear.weight.device, [], []
    for graph in source.batches():
        states.append(_state(model.cached(graph.to(device))))
        counts.append([count(graph) for count in _COUNTS])
    if not states[0] or any(t.layout != torch.strided for t in states[0]):
        return source
    whole = tuple(torch.cat(column) for column in zip(*states, strict=True))
    alone = _rows_alone(model, source, whole)
    if alone is not None:
        return alone
    rows = [[state[i].size(0) for state in states] for i in range(len(whole))]
    sizes = [_sizes(source, counts, column) for column in rows]
    known = [s for s in sizes if s is not None]
    return _split(model, source, whole, known) if len(known) == len(sizes) else source


def _state(graph: Data) -> list[Tensor]:
    state: list[Tensor] = []
    while (value := graph.get(f"cut_{len(state)}")) is not None:
        state.append(value)
    return state


def _rows_alone(model: Anchored, source: View, state: Sequence[Tensor]) -> Rows | None:
    """The labelled rows, where the rest of the network reads each by itself."""
    if model.cut.needs_graph or (model.scope == "graph" and source.rows is not None
                                 and len(source.graphs) > 1):  # fmt: skip
        return None
    size = len(source.graphs) if source.rows is None else source.rows.numel()
    if any(value.size(0) != size for value in state):
        return None
    target, device = source.target, state[0].device
    if source.rows is not None:
        state = [value[source.rows.to(device)] for value in state]
    found = Rows(tuple(state), target.to(device))
    return found if all(value.size(0) == len(found) for value in state) else None


def _split(
    model: Anchored, source: View, whole: Sequence[Tensor], sizes: Sequence[list[int]]
) -> View:
    """Graphs with their own rows of the state, to be shuffled and joined anew."""
    graphs = [copy.copy(graph) for graph in source.graphs]
    if not model.cut.needs_graph:
        graphs = [Data(y=graph.get("y"), num_nodes=graph.num_nodes) for graph in graphs]
    for i, value in enumerate(whole):
        for graph, rows in zip(graphs, value.cpu().split(sizes[i]), strict=True):
            graph[f"cut_{i}"] = rows
    return View(graphs, source.rows)


_COUNTS: tuple[Callable[[Data], int], ...] = (
    lambda graph: int(graph.num_nodes or 0),
    lambda graph: int(graph.num_edges),
    num_graphs,
)


def _sizes(source: View, counts: Sequence[list[int]], rows: Sequence[int]) -> list[int] | None:
    """How many rows each graph has of a tensor with so many ``rows`` a batch: one a node, an edge
    or a graph. ``None`` where that leaves two readings open."""
    found: list[list[int]] = []
    for i, count in enumerate(_COUNTS):
        if [batch[i] for batch in counts] == list(rows):
            sizes = [count(graph) for graph in source.graphs]
            if sizes not in found:
                found.append(sizes)
    return found[0] if len(found) == 1 else None
