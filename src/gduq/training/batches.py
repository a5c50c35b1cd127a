"""What training reads: mini-batches of a View or of a loader."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import RandomSampler, SequentialSampler, Subset
from torch_geometric.data import Data, HeteroData, InMemoryDataset
from torch_geometric.loader import DataLoader
from torch_geometric.loader.dataloader import Collater

from gduq.errors import InputError, warn_user
from gduq.graphs import Graph, check_loader, label_rows, row_kind, targets
from gduq.graphs.packed import try_pack
from gduq.graphs.splits import overlap
from gduq.graphs.view import View
from gduq.prediction import Target, TargetSample
from gduq.training.checkpoint import short_hash

__all__ = ["Batches", "InferTarget", "Loader", "as_batches", "check_leak", "described",
           "even_size", "first_graph", "labels", "packed", "some", "truths",
           "warn_of_overlap"]  # fmt: skip

InferTarget = Callable[[TargetSample], Target]  # what the outputs of a network mean


@dataclass(frozen=True, eq=False)
class Loader:
    """A user's loader: its own batches, in an order that our generator decides where it can."""

    own: Any

    def batches(
        self,
        batch_size: int | None = None,
        shuffle: bool = False,
        generator: torch.Generator | None = None,
    ) -> Iterator[Graph]:
        loader, seed = self.own, 0 if generator is None else generator.initial_seed()
        for own in (loader, getattr(loader, "sampler", None)):
            if isinstance(drawn := getattr(own, "generator", None), torch.Generator):
                drawn.manual_seed(seed)  # so that a resumed run sees the same order
        for graph in loader:
            if not isinstance(graph, (Data, HeteroData)):
                do = "Use torch_geometric.loader.DataLoader."
                raise InputError("a loader that joins graphs", f"one of {type(graph).__name__}", do)
            yield graph

    @property
    def graphs(self) -> View | None:
        """The graphs that it joins as PyG does, all of them and each once, if they are in memory;
        else ``None``."""
        own = self.own
        if type(own) is not DataLoader or type(own.collate_fn) is not Collater:
            return None
        graphs, sampler = own.dataset, own.sampler
        in_order = type(sampler) is SequentialSampler
        once = in_order or (type(sampler) is RandomSampler and not sampler.replacement)
        kept = graphs
        while isinstance(kept, Subset):
            kept = kept.dataset
        complete = once and len(sampler) == len(graphs) and own.batch_size and not own.drop_last
        if not (complete and isinstance(kept, (list, tuple, InMemoryDataset))):
            return None
        first = graphs[0]  # what reads a Data of another class joins it in its own way
        return View(graphs) if type(first) is Data and row_kind(first) is None else None

    def of(self, graphs: Sequence[Graph]) -> Loader:
        """A loader like this one of other graphs, one after the other; see `graphs`."""
        own = self.own
        joined = {"follow_batch": own.follow_batch, "exclude_keys": own.exclude_keys}
        return Loader(DataLoader(graphs, own.batch_size, **joined))

    def in_order(self) -> Loader:
        """The same rows, in the same order each time; those that may change are kept in memory."""
        if self.graphs is not None:
            return self.of(self.graphs.graphs)
        if type(getattr(self.own, "sampler", None)) is SequentialSampler:
            return self
        return Loader([graph.clone() for graph in self.batches()])  # not what workers share


Batches = View | Loader  # what hands out mini-batches; `View.batches` describes the arguments


def as_batches(data: Any, name: str) -> Batches:
    """Whatever holds graphs, as something that hands out mini-batches.

    ``name`` is what the caller calls it, ``"train"`` or ``"val"``.
    """
    sequence = hasattr(data, "__len__") and hasattr(data, "__getitem__")
    if isinstance(data, HeteroData):
        wanted = f"the rows of a HeteroData that count in {name}"
        do = "Pass gduq.data.View(data, mask, node_type=...)."
        raise InputError(wanted, "the graph alone", do)
    if hasattr(data, "batch_sampler") or hasattr(data, "collate_fn"):
        check_loader(data)
        if len(data) == 0:
            raise InputError(f"at least one batch in {name}", "an empty loader")
        return Loader(data)
    if not isinstance(data, (View, Data)) and not sequence:
        wanted = f"a View, a Data, a list of graphs, a PyG dataset or a loader as {name}"
        raise InputError(wanted, type(data).__name__)
    view = data if isinstance(data, View) else _own_view(data, name)
    _check_view(view, name)
    return view


def packed(data: Batches) -> Batches:
    """The same rows, of graphs that are packed once where they can be."""
    if not isinstance(data, View) or len(data.graphs) == 1:
        return data
    found = data._packed if data.mask is None else try_pack(data.graphs)
    return data if found is None else replace(data, graphs=found)


def warn_of_overlap(train: Batches, val: Batches) -> None:
    """Say so where validation rows are training rows too, as far as the same objects show it."""
    one, two = _rows_of(train), _rows_of(val)
    if one is not None and two is not None and (shared := overlap(one, two)):
        warn_user(
            f"{shared} of {len(two)} validation rows are training rows too: the epoch chosen and "
            "the calibration will be overconfident (pass rows it is not trained on as val)"
        )


def _rows_of(source: Batches) -> View | None:
    """The rows of training data; ``None`` for a loader that does not show them."""
    if isinstance(source, View):
        return source
    data, seeds = (getattr(source.own, name, None) for name in ("data", "input_data"))
    nodes = getattr(seeds, "node", None)
    if isinstance(nodes, Tensor) and isinstance(data, (Data, HeteroData)):  # NeighborLoader
        return View(data, nodes, node_type=getattr(seeds, "input_type", None))
    graphs: Any = getattr(source.own, "dataset", None)
    known = hasattr(graphs, "__len__") and hasattr(graphs, "__getitem__") and len(graphs)
    return View(graphs) if known and isinstance(graphs[0], (Data, HeteroData)) else None


def first_graph(data: Batches) -> Graph:
    """The first graph, or small batch of graphs, of training data."""
    return next(iter(data.batches(8)))


def _own_view(data: Any, name: str) -> View:
    """All graphs; of a lone graph all its nodes (or seed nodes) or judged edges, where it labels
    these."""
    graphs = [copy.copy(data)] if isinstance(data, Data) else data
    if len(graphs) == 0:
        raise InputError(f"at least one graph in {name}", "an empty dataset")
    graph = graphs[0]
    if len(graphs) > 1 or not isinstance(graph, Data):
        return View(graphs)
    if row_kind(graph) == "edge":
        return View(graphs, edges=True)
    if not _labels_nodes(graph):
        return View(graphs)
    check_leak(graph, name)
    return View(graphs, torch.arange(graph.y.size(0))[label_rows(graph, graph.y.size(0))])


def _labels_nodes(graph: Data) -> bool:
    y = graph.get("y")
    nodes = graph.num_nodes or 0
    return isinstance(y, Tensor) and y.dim() > 0 and y.size(0) == nodes and nodes > 1


def _check_view(view: View, name: str) -> None:
    first = view.graphs[0]
    if not isinstance(first, (Data, HeteroData)):
        raise InputError(f"torch_geometric Data objects in {name}", type(first).__name__)
    if view.task == "graph" and isinstance(first, Data):
        check_leak(first, name)
        if len(view.graphs) > 1 and "batch_size" in first.keys():  # noqa: SIM118
            got = "neighbourhoods with seed nodes (batch_size)"
            do = "Pass the loader, or DataLoader(batches, batch_size=None) from torch.utils.data."
            raise InputError(f"graphs in {name}", got, do)
    if len(view) == 0:
        raise InputError(f"at least one labelled row in {name}", "none", "Check the mask.")


def check_leak(graph: Graph, name: str) -> None:
    """Refuse a graph whose own mask says that not all of its labels are for training."""
    if not isinstance(graph, Data) or row_kind(graph) == "edge" or not _labels_nodes(graph):
        return
    chosen = "batch_size" in graph.keys() or graph.get("row_mask") is not None  # noqa: SIM118
    if graph.get("train_mask") is not None and not chosen:
        mask = "train_mask" if name == "train" else "val_mask"
        raise InputError(
            f"a choice of nodes for {name}",
            "a whole graph with a train_mask, whose test labels would be used too",
            f"Pass gduq.data.View(data, data.{mask}).",
        )


# -- labels --------------------------------------------------------------------------------------


def labels(graph: Graph, rows: int | None = None) -> Tensor:
    """The truth of the rows of a batch that count, ``[m, ...]``; of ``rows`` answers, if given."""
    y = targets(graph, rows)
    if y is None:
        raise InputError("graphs with labels y", "a batch without")
    return y


def truths(source: Batches, name: str) -> Tensor:
    """The truth of all rows, ``[m, ...]``."""
    if isinstance(source, View):
        found = source.target
    else:
        parts = []
        for graph in source.batches():
            check_leak(graph, name)
            parts.append(labels(graph).cpu())
        found = torch.cat(parts)
    if found.numel() == 0:
        raise InputError(f"at least one labelled row in {name}", "none")
    return found


def described(source: Batches, y: Tensor) -> str:
    """Rows in few words: by their labels, one after the other if their order is known."""
    known = y.tolist() if isinstance(source, View) else sorted(y.flatten().tolist())
    return f"{y.size(0)} rows ({short_hash(known)})"


def some(
    source: Batches, rows: int, batch_size: int, generator: torch.Generator
) -> Iterator[Graph]:
    """A few random batches with at least ``rows`` labelled rows, if there are as many."""
    seen = 0
    for graph in source.batches(batch_size, shuffle=True, generator=generator):
        yield graph
        seen += labels(graph).size(0)
        if seen >= rows:
            break


def even_size(source: Batches, batch_size: int) -> int:
    """A slightly larger batch size where the last batch would be tiny: BatchNorm over graphs needs
    two rows."""
    if not isinstance(source, View):
        return batch_size
    graphs, least = len(source.graphs), 4 if batch_size >= 8 else 2
    while batch_size < graphs and 0 < graphs % batch_size < least:
        batch_size += 1
    return batch_size
