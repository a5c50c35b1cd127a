"""Walking over many graphs, joining them, repeating them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    default_collate,
)
from torch_geometric.data import Batch, Data, HeteroData

from gduq.errors import InputError, warn_user
from gduq.graph.rows import Graph, Rows

__all__ = ["HasBatches", "HasRows", "check_loader", "iterate", "join"]

_GRAPHS = "a View, a Data, a HeteroData, a list of graphs, a PyG dataset or a loader"
_SHUFFLE = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
_WORDS = ("row_kind", "row_type")  # equal on all graphs that are joined


@runtime_checkable
class HasBatches(Protocol):
    """Anything that hands out mini-batches: `gduq.data.View` does."""

    def batches(self, batch_size: int | None = None) -> Iterator[Graph]: ...


@runtime_checkable
class HasRows(HasBatches, Protocol):
    """What also knows its rows by number, in an order of its own: a `gduq.data.View`."""

    @property
    def task(self) -> Rows: ...
    @property
    def numbers(self) -> Tensor: ...
    @property
    def order(self) -> Tensor | None: ...


def join(graphs: Sequence[Graph]) -> Graph:
    """Several graphs in one batch, with what `gduq.data.View` wrote on them."""
    # Torch warns of unchecked sparse tensors unless told that they are meant to be.
    try:
        with torch.sparse.check_sparse_tensor_invariants(enable=False):
            joined: Graph = Batch.from_data_list(list(graphs))
    except KeyError as error:
        raise InputError(
            "graphs with equal attributes",
            f"some without {error}",
            "Give it to all graphs, or take it from the others.",
        ) from None
    for word in _WORDS:
        value = graphs[0].get(word)
        if value is not None:  # PyG would keep a list of equal words
            joined[word] = value
    return joined


def iterate(data: Any, batch_size: int | None = None) -> Iterator[Graph]:
    """Walk mini-batches of a View, a graph, a list of graphs, a PyG dataset or a loader.

    Raises `InputError` where there is no graph at all, or something that is none.

    Example:
        >>> graphs = [Data(x=torch.ones(2, 1), edge_index=torch.zeros(2, 0).long())] * 5
        >>> [b.num_graphs for b in iterate(graphs, batch_size=2)]
        [2, 2, 1]
    """
    if batch_size is not None and batch_size < 1:
        raise InputError("batch_size >= 1", batch_size)
    graph = None
    for graph in _walk(data, batch_size or 256):
        yield _as_graph(graph)
    if graph is None:
        raise InputError("at least one graph", f"an empty {type(data).__name__}")


def _walk(data: Any, batch_size: int) -> Iterator[Any]:
    sequence = hasattr(data, "__len__") and hasattr(data, "__getitem__")
    if isinstance(data, (Data, HeteroData)):
        yield data
    elif isinstance(data, HasBatches):
        yield from data.batches(batch_size)
    elif hasattr(data, "batch_sampler") or hasattr(data, "collate_fn"):  # a loader
        check_loader(data)
        _warn_of_order(data)
        yield from data
    elif isinstance(data, (Mapping, str, bytes)) or not (sequence or isinstance(data, Iterable)):
        raise InputError(_GRAPHS, type(data).__name__)
    elif not sequence:
        yield from data
    elif len(data) == 1:
        yield data[0]
    elif len(data) and isinstance(data[0], Data) and "batch_size" in data[0].keys():  # noqa: SIM118
        yield from (data[i] for i in range(len(data)))  # neighbourhoods stay apart
    else:
        for start in range(0, len(data), batch_size):
            stop = min(start + batch_size, len(data))
            yield join([_as_graph(data[i]) for i in range(start, stop)])


def check_loader(loader: Any) -> None:
    """Refuse a loader that cannot join graphs: torch's own knows nothing of PyG."""
    if isinstance(loader, DataLoader) and loader.collate_fn is default_collate:
        raise InputError(
            "a loader that joins graphs",
            "torch.utils.data.DataLoader with torch's collate_fn",
            "Use torch_geometric.loader.DataLoader.",
        )


def _warn_of_order(loader: Any) -> None:
    """Say that rows will not come in the order of the dataset, or not all of them."""
    loader = getattr(loader, "_dataloader", loader)  # Fabric's
    if getattr(loader, "drop_last", False):
        warn_user("the loader has drop_last, so its last rows may be missing: pass drop_last=False")
    samplers = [getattr(loader, "sampler", None)]
    samplers.append(getattr(getattr(loader, "batch_sampler", None), "sampler", None))
    if any(isinstance(sampler, _SHUFFLE) for sampler in samplers):
        warn_user(
            "the loader shuffles, so rows do not come in the order of its dataset: "
            "pass the dataset itself, or a loader with shuffle=False"
        )


def _as_graph(graph: Any) -> Graph:
    if not isinstance(graph, (Data, HeteroData)):
        raise InputError(_GRAPHS, f"{type(graph).__name__} in the place of a graph")
    return graph
