"""Whatever holds graphs, as something that hands out mini-batches: `as_batches` and `iterate`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias, cast

import torch
from torch import Tensor
from torch.utils.data import IterableDataset, Subset, default_collate, sampler
from torch_geometric.data import Data, Dataset, HeteroData, InMemoryDataset
from torch_geometric.loader import DataLoader
from torch_geometric.loader.dataloader import Collater

from gduq.errors import InputError, warn_user
from gduq.graphs.rows import Graph, as_graph, row_kind
from gduq.graphs.view import View, is_sequence

__all__ = ["Batches", "Graphs", "Loader", "as_batches", "iterate"]

Graphs: TypeAlias = View | Graph | Iterable[Graph] | Dataset
_SHUFFLE = (sampler.RandomSampler, sampler.SubsetRandomSampler, sampler.WeightedRandomSampler)


@dataclass(frozen=True, eq=False)
class Loader:
    """A user's loader, or stream of graphs: its own batches in its own order, which our generator
    decides where it can."""

    own: Iterable[object]

    def batches(
        self,
        batch_size: int | None = None,
        shuffle: bool = False,
        generator: torch.Generator | None = None,
    ) -> Iterator[Graph]:
        seed = 0 if generator is None else generator.initial_seed()
        for owner in (self.own, getattr(self.own, "sampler", None)):
            if isinstance(drawn := getattr(owner, "generator", None), torch.Generator):
                drawn.manual_seed(seed)  # so that a resumed run sees the same order
        yield from _at_least_one(self.own)

    @property
    def rows(self) -> View | None:
        """Its rows, where it shows them: the seed nodes of a ``NeighborLoader``, or a dataset."""
        data, seeds = (getattr(self.own, name, None) for name in ("data", "input_data"))
        nodes = getattr(seeds, "node", None)
        if isinstance(nodes, Tensor) and isinstance(data, (Data, HeteroData)):
            return View(data, nodes, node_type=getattr(seeds, "input_type", None))
        graphs: object = getattr(self.own, "dataset", None)
        if isinstance(graphs, IterableDataset) or not is_sequence(graphs):
            return None
        return View(graphs) if len(graphs) else None

    @property
    def is_plain(self) -> bool:
        """Whether it joins graphs as PyG does, all of them and each once, and they are in memory
        and say nothing of rows."""
        own = cast(DataLoader, self.own)
        if type(own) is not DataLoader or type(own.collate_fn) is not Collater:
            return False
        kept, drawn = own.dataset, own.sampler
        while isinstance(kept, Subset):
            kept = kept.dataset
        in_memory = isinstance(kept, (list, tuple, InMemoryDataset))
        once = type(drawn) is sampler.RandomSampler and not drawn.replacement
        once |= type(drawn) is sampler.SequentialSampler
        complete = once and len(drawn) == len(own.dataset) and not own.drop_last
        as_they_are = own.batch_size and not own.follow_batch and not own.exclude_keys
        sound = in_memory and complete and as_they_are and len(own.dataset)
        first = own.dataset[0] if sound else None  # another class is joined in its own way
        return type(first) is Data and row_kind(first) is None


Batches = View | Loader  # what hands out mini-batches; `View.batches` describes the arguments


def as_batches(data: object) -> Batches:
    """A View, a graph, a list of graphs, a PyG dataset, a loader or a stream of graphs, as
    something that hands out mini-batches; sampled neighbourhoods stay apart."""
    if isinstance(data, (View, Loader)):
        return data
    if hasattr(data, "batch_sampler") or hasattr(data, "collate_fn"):
        if getattr(data, "collate_fn", None) is default_collate:
            do = "Use torch_geometric.loader.DataLoader."
            raise InputError("a loader that joins graphs", "one with torch's collate_fn", do)
        return Loader(cast(DataLoader, data))
    if isinstance(data, (Data, HeteroData)):
        return View(data)
    if is_sequence(data):
        sampled = len(data) > 1 and isinstance(data[0], Data) and "batch_size" in data[0]
        return Loader(data) if sampled else View(data)
    if isinstance(data, Iterable) and not isinstance(data, (dict, str, bytes)):
        return Loader(data)
    wanted = "a View, a Data, a HeteroData, a list of graphs, a PyG dataset or a loader"
    raise InputError(wanted, type(data).__name__)


def iterate(data: Graphs | Batches, batch_size: int | None = None) -> Iterator[Graph]:
    """Walk mini-batches of whatever `as_batches` takes; a loader keeps its own.

    Example:
        >>> graphs = [Data(x=torch.ones(2, 1), edge_index=torch.zeros(2, 0).long())] * 5
        >>> [b.num_graphs for b in iterate(graphs, batch_size=2)]
        [2, 2, 1]
    """
    source = as_batches(data)
    if isinstance(source, Loader) and source is not data:
        owners = (data, getattr(data, "batch_sampler", None))
        if any(isinstance(getattr(owner, "sampler", None), _SHUFFLE) for owner in owners):
            what = "the loader shuffles, so rows do not come in the order of its dataset"
            warn_user(f"{what}: pass the dataset itself, or a loader with shuffle=False")
        if getattr(data, "drop_last", False):
            what = "the loader has drop_last, so its last rows may be missing"
            warn_user(f"{what}: pass drop_last=False")
        return _at_least_one(source.own)  # its generator is the caller's
    return _at_least_one(source.batches(batch_size))


def _at_least_one(graphs: Iterable[object]) -> Iterator[Graph]:
    graph = None
    for graph in graphs:
        yield as_graph(graph)
    if graph is None:
        raise InputError("at least one graph", f"an empty {type(graphs).__name__}")
