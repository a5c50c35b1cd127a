"""A graph as a whole, and the rows a model answers for: what they are, which count, labels."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Batch, Data, HeteroData

from gduq.errors import InputError

__all__ = ["Graph", "Rows", "as_labels", "device_of", "label_rows", "mark_rows", "num_graphs",
           "num_rows", "on_device", "row_batch", "row_kind", "row_marks", "row_type",
           "targets"]  # fmt: skip

Graph: TypeAlias = Data | HeteroData  # a Batch is one of both
Rows = Literal["node", "graph", "edge"]


# -- a graph as a whole --------------------------------------------------------------------------


def num_graphs(graph: Graph) -> int:
    """How many graphs a ``Data``, a ``HeteroData`` or a ``Batch`` holds."""
    ptr = graph.get("ptr") if isinstance(graph, Data) else None
    if ptr is not None:
        return ptr.numel() - 1  # type: ignore[no-any-return]
    if isinstance(graph, Batch):
        return int(graph.num_graphs)
    stores = graph.node_stores if isinstance(graph, HeteroData) else [graph]
    batches = [store.batch for store in stores if store.get("batch") is not None]
    return max((int(b.max()) + 1 for b in batches if b.numel()), default=0 if batches else 1)


def _tensors(graph: Graph) -> Iterator[Tensor]:
    return (v for store in graph.stores for v in store.values() if isinstance(v, Tensor))


def device_of(graph: Graph) -> torch.device:
    """The device a graph's tensors are on (of the first one found; the CPU without any)."""
    return next((t.device for t in _tensors(graph)), torch.device("cpu"))


def on_device(graph: Graph, device: torch.device) -> Graph:
    """The graph on a device: itself if it is there, else a copy (PyG's own ``to`` moves it)."""
    there = all(t.device == device for t in _tensors(graph))
    return graph if there else copy.copy(graph).to(device)


# -- what the rows are ---------------------------------------------------------------------------


def row_kind(graph: Graph) -> Rows | None:
    """What the labelled rows of a graph are, as far as it says so itself; else ``None``.

    Example:
        >>> graph = Data(x=torch.ones(3, 1), row_mask=torch.tensor([True, False, True]))
        >>> row_kind(graph), row_kind(Data(x=torch.ones(3, 1)))
        ('node', None)
    """
    word = _word(graph, "row_kind")
    if word is not None:
        return word  # type: ignore[return-value]
    if isinstance(graph, HeteroData):
        labelled = graph.get("y") is None and len(_labelled_types(graph)) == 1
        return "node" if labelled or _word(graph, "row_type") is not None else None
    if graph.get("row_mask") is not None or "batch_size" in graph.keys():  # noqa: SIM118
        return "node"
    of_edges = graph.get("edge_label_index") is not None and graph.get("y") is None
    return "edge" if of_edges else None


def row_type(graph: HeteroData) -> str:
    """The node type whose nodes are the rows of a ``HeteroData``: ``graph.row_type`` where that was
    set (`gduq.data.View` sets it), else the only type with labels ``y``."""
    word = _word(graph, "row_type")
    found = _labelled_types(graph)
    if word is not None and word in graph.node_types:
        return word
    if word is None and len(found) == 1:
        return found[0]
    raise InputError(
        f"row_type to name one of the node types {', '.join(graph.node_types)}",
        f"labels y on {', '.join(found) or 'none of them'}" if word is None else repr(word),
        "Pass gduq.data.View(graph, mask, node_type=...).",
    )


def _labelled_types(graph: HeteroData) -> list[str]:
    return [name for name, store in graph.node_items() if "y" in store]


def _word(graph: Graph, name: str) -> str | None:
    """A word written on a graph; a batch holds one per graph."""
    value = graph.get(name)
    value = value[0] if isinstance(value, list) and value else value
    return value if isinstance(value, str) else None


def _rows_store(graph: Graph) -> Any:
    """What holds the attributes of the nodes that are rows."""
    return graph[row_type(graph)] if isinstance(graph, HeteroData) else graph


def num_rows(graph: Graph, rows: Rows) -> int:
    """How many rows of a kind there are, with or without a label."""
    if rows == "graph":
        return num_graphs(graph)
    if rows == "node":
        return _rows_store(graph).num_nodes or 0
    return _label_edges(graph).size(1)


def _label_edges(graph: Graph) -> Tensor:
    ends = graph.get("edge_label_index")
    if ends is None:
        raise InputError(
            "a graph with edge_label_index [2, E], the edges to be judged",
            type(graph).__name__ + " without",
            "Set it, or split with torch_geometric.transforms.RandomLinkSplit.",
        )
    return ends  # type: ignore[no-any-return]


def row_batch(graph: Graph, rows: Rows, n: int) -> Tensor:
    """The number of the graph that each of ``n`` rows belongs to, ``[n]``; an edge belongs to that
    of its first end."""
    store = graph if rows != "node" else _rows_store(graph)
    batch = None if rows == "graph" else store.get("batch")
    if batch is not None and rows == "edge":
        batch = batch[_label_edges(graph)[0]]
    if batch is None:
        make = torch.arange if rows == "graph" else torch.zeros
        batch = make(n, dtype=torch.int64, device=device_of(graph))
    if batch.numel() != n:
        raise InputError(f"{batch.numel()} rows, one per {rows}", n)
    return batch


# -- which rows count ----------------------------------------------------------------------------


def mark_rows(graph: Graph, mask: Tensor, rows: Rows, node_type: str | None = None) -> None:
    """Write on a graph, in place, which of its rows count.

    ``mask`` ``[n]`` is boolean, with one entry per node (of ``node_type``) or per judged edge.
    """
    if rows == "edge":
        graph.edge_row_mask, graph.row_kind = mask, "edge"
    elif isinstance(graph, HeteroData):
        graph[node_type].row_mask, graph.row_type = mask, node_type
    else:
        graph.row_mask = mask


def row_marks(graph: Graph) -> Tensor | None:
    """The mask that `mark_rows` wrote on a graph, or ``None``."""
    kind = row_kind(graph)
    if kind == "edge":
        return graph.get("edge_row_mask")  # type: ignore[no-any-return]
    return _rows_store(graph).get("row_mask") if kind == "node" else None


def label_rows(graph: Graph, rows: int) -> Tensor | slice:
    """Which of a model's ``rows`` output rows carry a label.

    Example:
        >>> label_rows(Data(x=torch.ones(3, 1), batch_size=2), rows=3)
        slice(None, 2, None)
    """
    kind = row_kind(graph)
    if kind is None or rows != num_rows(graph, kind):
        return slice(None)
    if kind == "node":
        store = _rows_store(graph)
        if "batch_size" in store.keys():  # noqa: SIM118  (a property of the same name exists)
            return slice(None, int(store["batch_size"]))
    mask = row_marks(graph)
    return slice(None) if mask is None else mask


# -- labels --------------------------------------------------------------------------------------


def targets(graph: Graph, labelled: int | None = None) -> Tensor | None:
    """The labels of the rows that count ``[m, ...]``, or ``None``: ``edge_label`` of edges, else
    ``y``. Raises unless there are as many as the ``labelled`` rows a model answered for."""
    kind = row_kind(graph)
    name = "edge_label" if kind == "edge" else "y"
    value = (_rows_store(graph) if kind == "node" else graph).get(name)
    if value is None:
        return None
    y = as_labels(value, name)
    found = y[label_rows(graph, y.size(0))]
    if labelled is not None and found.size(0) != labelled:
        each = found.size(0) // max(labelled, 1)
        several = y.dim() == 1 and min(each, labelled) > 1 and found.size(0) == each * labelled
        raise InputError(
            f"one label for each of the {labelled} rows the model answers for",
            f"{name} of shape {list(y.shape)}",
            f"If each graph has {each} values or labels, give it {name} of shape [1, {each}]: "
            f"graph.{name}.view(1, {each})."
            if several
            else f"Check the task of the model (node, graph or edge) and graph.{name}; "
            "gduq.data.View says which rows count.",
        )
    return found


def as_labels(y: Any, name: str = "y") -> Tensor:
    """Labels as stored on a graph, as a tensor of at least one row; text is refused.

    Example:
        >>> as_labels(3), as_labels([0, 1])
        (tensor([3]), tensor([0, 1]))
    """
    first = y
    while isinstance(first, (list, tuple, np.ndarray)) and len(first):
        first = first[0]
    if isinstance(first, (str, bytes)):
        raise InputError(
            f"class numbers 0, 1, ... in {name}",
            f"text, such as {first!r}",
            f"Number the classes: graph.{name} = class_names.index(name).",
        )
    try:
        found = torch.as_tensor(y)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"numbers in {name}", type(first).__name__) from error
    return found.unsqueeze(0) if found.dim() == 0 else found
