"""What the library asks of a graph: sound tensors, which rows carry a label, how to walk many.

A *graph* is PyG's ``Data`` or ``Batch``. Two optional attributes mark the rows that count in a
node task: ``row_mask`` (boolean, set by `gduq.data.View`), and the ``batch_size`` that
``NeighborLoader`` stores (seed nodes first).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary
from torch_geometric.data import Batch, Data

from gduq.errors import InputError

__all__ = ["check_graph", "iterate", "label_rows", "num_graphs", "repeat", "targets"]

_checked: WeakIdKeyDictionary = WeakIdKeyDictionary()  # feature tensor -> its version when checked


@runtime_checkable
class HasBatches(Protocol):
    """Anything that hands out mini-batches: `gduq.data.View` does."""

    def batches(self, batch_size: int | None = None) -> Iterator[Data]: ...


def num_graphs(graph: Data) -> int:
    """How many graphs a ``Data`` or ``Batch`` holds.

    Example:
        >>> num_graphs(Data(x=torch.ones(3, 1)))
        1
    """
    ptr = graph.get("ptr") if isinstance(graph, Data) else None
    if ptr is not None:
        return int(ptr.numel()) - 1
    if isinstance(graph, Batch):
        return int(graph.num_graphs)
    batch = graph.get("batch")
    return 1 if batch is None else int(batch.max()) + 1 if batch.numel() else 0


def label_rows(graph: Data, rows: int) -> Tensor | slice:
    """Which of a model's ``rows`` output rows carry a label.

    Example:
        >>> label_rows(Data(x=torch.ones(3, 1), batch_size=2), rows=3)
        slice(None, 2, None)
    """
    if rows == graph.num_nodes:
        mask = graph.get("row_mask")
        if mask is not None:
            return mask  # type: ignore[no-any-return]
        if "batch_size" in graph.keys():  # noqa: SIM118  (a property of the same name exists)
            return slice(None, int(graph["batch_size"]))
    return slice(None)


def targets(graph: Data, labelled: int) -> Tensor | None:
    """The labels of the ``labelled`` rows a model answered for, ``[m]`` or ``[m, 1]``, or ``None``.

    Example:
        >>> targets(Data(x=torch.ones(3, 1), y=torch.arange(3), batch_size=2), labelled=2)
        tensor([0, 1])
    """
    y = graph.get("y")
    if y is None:
        return None
    y = torch.as_tensor(y)
    y = y.unsqueeze(0) if y.dim() == 0 else y
    found = y[label_rows(graph, y.size(0))]
    if found.size(0) != labelled:
        raise InputError(
            f"one label for each of the {labelled} rows the model answers for",
            f"y of shape {list(y.shape)}",
            "Check the task of the model (node or graph) and graph.y.",
        )
    return found


def check_graph(graph: Any, channels: int | None = None) -> None:
    """Raise `InputError` for a graph no model should see.

    Checks that there are nodes (in every graph of a batch), that ``x`` has one finite row a node
    and ``channels`` columns, and that ``edge_index`` is an integer ``[2, E]`` within range. No
    edges and isolated nodes are fine.
    """
    if not isinstance(graph, Data):
        raise InputError("a torch_geometric Data or Batch", type(graph).__name__)
    nodes = graph.num_nodes
    if not nodes:
        raise InputError("a graph with at least one node", "none", "Drop empty graphs first.")
    _check_sizes(graph)
    _check_edges(graph, int(nodes))
    x = graph.get("x")
    if x is not None:
        _check_features(x, int(nodes), channels)


def _check_sizes(graph: Data) -> None:
    batch = graph.get("batch")
    if batch is None:
        return
    if batch.numel() != graph.num_nodes:
        raise InputError(f"a batch vector of {graph.num_nodes} entries, one a node", batch.numel())
    counts = torch.bincount(batch, minlength=num_graphs(graph))
    if not counts.all():
        empty = torch.nonzero(counts == 0).flatten().tolist()
        raise InputError(
            "graphs with at least one node",
            f"{len(empty)} empty graph(s) in the batch, first at position {empty[0]}",
            "Drop empty graphs first.",
        )


def _check_edges(graph: Data, nodes: int) -> None:
    edges = graph.get("edge_index")
    if edges is None:
        if graph.get("adj_t") is not None:
            return
        raise InputError("a graph with edge_index", f"only {sorted(graph.keys())}")
    if edges.dim() != 2 or edges.size(0) != 2:
        raise InputError("edge_index of shape [2, E]", list(edges.shape))
    if edges.dtype != torch.int64:
        raise InputError("edge_index of dtype int64", edges.dtype, "Convert with .long().")
    if edges.numel() and (int(edges.min()) < 0 or int(edges.max()) >= nodes):
        raise InputError(
            f"edge_index with node numbers from 0 to {nodes - 1}",
            f"{int(edges.min())} to {int(edges.max())}",
        )


def _check_features(x: Tensor, nodes: int, channels: int | None) -> None:
    if x.dim() != 2 or x.size(0) != nodes:
        raise InputError(f"x of shape [{nodes}, d], one row a node", list(x.shape))
    if channels is not None and x.size(1) != channels:
        raise InputError(f"node features of width {channels}", x.size(1))
    version = x._version
    if _checked.get(x) == version:
        return
    values = x.values() if x.layout == torch.sparse_csr else x
    if values.layout == torch.strided and not bool(torch.isfinite(values).all()):
        bad = int((~torch.isfinite(values)).sum())
        raise InputError("finite node features", f"{bad} NaN or infinite value(s) in x")
    _checked[x] = version


def repeat(graph: Data, copies: int) -> Data:
    """``copies`` disjoint copies of a graph in one: what belongs to copy k comes in k-th place."""
    if copies == 1:
        return graph
    parts = graph.to_data_list() if isinstance(graph, Batch) else [graph]
    return Batch.from_data_list(parts * copies)


def iterate(data: Any, batch_size: int | None = None) -> Iterator[Data]:
    """Walk mini-batches of a View, a ``Data``, a list of graphs, a PyG dataset or a loader.

    Example:
        >>> graphs = [Data(x=torch.ones(2, 1), edge_index=torch.zeros(2, 0).long())] * 5
        >>> [num_graphs(b) for b in iterate(graphs, batch_size=2)]
        [2, 2, 1]
    """
    if isinstance(data, HasBatches):
        yield from data.batches(batch_size)
    elif isinstance(data, Data):
        yield data
    elif hasattr(data, "batch_sampler") or hasattr(data, "collate_fn"):  # a loader
        yield from data
    elif hasattr(data, "__len__") and hasattr(data, "__getitem__"):
        if len(data) == 0:
            raise InputError("at least one graph", "an empty dataset")
        if len(data) == 1:
            yield data[0]
            return
        size = batch_size or 256
        for start in range(0, len(data), size):
            graphs = [data[i] for i in range(start, min(start + size, len(data)))]
            yield Batch.from_data_list(graphs)
    elif isinstance(data, Iterable):
        yield from data
    else:
        raise InputError(
            "a View, a Data, a list of graphs, a PyG dataset or a loader", type(data).__name__
        )
