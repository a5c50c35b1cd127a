"""What the library asks of a graph: sound tensors, which rows carry a label, how to walk many.

A *graph* is PyG's ``Data`` or ``Batch``. Two optional attributes mark the rows that count in a
node task: the ``batch_size`` that ``NeighborLoader`` stores (seed nodes first), or else
``row_mask`` (boolean, set by `gduq.data.View`).
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary
from torch_geometric.data import Batch, Data

from gduq.errors import InputError

__all__ = ["check_graph", "iterate", "label_rows", "num_graphs", "on_device", "repeat", "targets"]

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
        if "batch_size" in graph.keys():  # noqa: SIM118  (a property of the same name exists)
            return slice(None, int(graph["batch_size"]))
        mask = graph.get("row_mask")
        if mask is not None:
            return mask  # type: ignore[no-any-return]
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
    and ``channels`` columns, that ``edge_index`` is an integer ``[2, E]`` within range, and that
    ``edge_attr`` and ``edge_weight`` have one finite row an edge. No edges and isolated nodes are
    fine.

    Example:
        >>> check_graph(Data(x=torch.ones(3, 1), edge_index=torch.tensor([[0], [3]])))
        Traceback (most recent call last):
        ...
        gduq.errors.InputError: expected edge_index with node numbers from 0 to 2, got 0 to 3.
    """
    if torch.compiler.is_compiling():  # a compiled graph has no place for looks at values
        return
    if not isinstance(graph, Data):
        raise InputError("a torch_geometric Data or Batch", type(graph).__name__)
    for name in ("x", "edge_index", "batch", "edge_attr", "edge_weight"):
        _check_tensor(name, graph.get(name))
    nodes = graph.num_nodes if graph.keys() else 0
    if not nodes:
        raise InputError("a graph with at least one node", "none", "Drop empty graphs first.")
    _check_batch(graph, int(nodes))
    _check_edges(graph, int(nodes))
    x = graph.get("x")
    if x is not None:
        if x.dim() != 2 or x.size(0) != nodes:
            raise InputError(f"x of shape [{nodes}, d], one row a node", list(x.shape))
        if channels is not None and x.size(1) != channels:
            raise InputError(f"node features of width {channels}", x.size(1))
        _check_finite("x", x)


def _check_tensor(name: str, value: Any) -> None:
    if value is None or (isinstance(value, Tensor) and value.dim() > 0):
        return
    got = "a single number" if isinstance(value, Tensor) else type(value).__name__
    raise InputError(f"{name} as a tensor of one row or more dimensions", got)


def _check_batch(graph: Data, nodes: int) -> None:
    batch, graphs = graph.get("batch"), num_graphs(graph)
    if batch is None:
        return
    if batch.shape != (nodes,) or batch.dtype != torch.int64:
        raise InputError(
            f"a batch vector of {nodes} whole numbers, one a node",
            f"{batch.dtype} of shape {list(batch.shape)}",
        )
    if int(batch.min()) < 0 or int(batch.max()) >= graphs:
        raise InputError(
            f"graph numbers from 0 to {graphs - 1} in batch",
            f"{int(batch.min())} to {int(batch.max())}",
        )
    counts = torch.bincount(batch, minlength=graphs)
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
    for name in ("edge_attr", "edge_weight"):
        value = graph.get(name)
        if value is None:
            continue
        if value.size(0) != edges.size(1):
            raise InputError(
                f"{name} of {edges.size(1)} rows, one an edge", f"shape {list(value.shape)}"
            )
        _check_finite(name, value)


def _check_finite(name: str, value: Tensor) -> None:
    version = None if value.is_inference() else value._version
    if version is not None and _checked.get(value) == version:
        return
    _check_layout(name, value)
    entries = value.values() if value.layout == torch.sparse_csr else value
    if not bool(torch.isfinite(entries).all()):
        bad, whose = int((~torch.isfinite(entries)).sum()), "edge" if "edge" in name else "node"
        raise InputError(f"finite {whose} features", f"{bad} NaN or infinite value(s) in {name}")
    if version is not None:
        _checked[value] = version


def _check_layout(name: str, value: Tensor) -> None:
    if value.layout == torch.strided:
        return
    if value.layout != torch.sparse_csr:
        raise InputError(
            f"{name} dense or sparse CSR", value.layout, "Convert with .to_sparse_csr()."
        )
    parts = (value.crow_indices(), value.col_indices(), value.values())
    try:
        torch.sparse_csr_tensor(*parts, size=value.shape, check_invariants=True)
    except RuntimeError as error:
        raise InputError(
            f"sparse {name} with sorted, distinct column numbers within its width",
            str(error).splitlines()[0],
            "Build it with torch's to_sparse_csr() or after scipy's sum_duplicates().",
        ) from error


def on_device(graph: Data, device: torch.device) -> Data:
    """The graph on a device: itself if it is there, else a copy (PyG's own ``to`` moves it)."""
    tensors = (value for _, value in graph if isinstance(value, Tensor))
    return graph if all(t.device == device for t in tensors) else copy.copy(graph).to(device)


def repeat(graph: Data, copies: int) -> Data:
    """``copies`` disjoint copies of a graph in one: what belongs to copy k comes in k-th place.

    Example:
        >>> twice = repeat(Data(x=torch.ones(2, 1), edge_index=torch.tensor([[0], [1]])), 2)
        >>> twice.edge_index.tolist(), twice.batch.tolist()
        ([[0, 2], [1, 3]], [0, 0, 1, 1])
    """
    if copies == 1:
        return graph
    batch, graphs, whole = graph.get("batch"), num_graphs(graph), copy.copy(graph)
    if "batch_size" in whole.keys():  # noqa: SIM118  (the seeds of later copies are not first)
        seeds = torch.arange(int(whole.num_nodes or 0)) < int(whole["batch_size"])
        whole.row_mask = seeds.to(whole.edge_index.device)
        del whole["batch_size"]
    joined = _join([whole] * copies)
    if batch is not None:  # a batch joined as if it were one graph
        offsets = torch.arange(copies, device=batch.device).repeat_interleave(batch.numel())
        joined.batch = batch.repeat(copies) + offsets * graphs
        sizes = torch.bincount(joined.batch, minlength=copies * graphs)
        joined.ptr = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
        joined._num_graphs = copies * graphs
    return joined


def _join(graphs: list[Data]) -> Data:
    # Torch warns of unchecked sparse tensors unless told that they are meant to be.
    with torch.sparse.check_sparse_tensor_invariants(enable=False):
        joined: Data = Batch.from_data_list(graphs)
        return joined


def iterate(data: Any, batch_size: int | None = None) -> Iterator[Data]:
    """Walk mini-batches of a View, a ``Data``, a list of graphs, a PyG dataset or a loader.

    Raises `InputError` where there is no graph at all, or something that is none.

    Example:
        >>> graphs = [Data(x=torch.ones(2, 1), edge_index=torch.zeros(2, 0).long())] * 5
        >>> [num_graphs(b) for b in iterate(graphs, batch_size=2)]
        [2, 2, 1]
    """
    if batch_size is not None and batch_size < 1:
        raise InputError("batch_size >= 1", batch_size)
    found = False
    for graph in _walk(data, batch_size or 256):
        yield _as_graph(graph)
        found = True
    if not found:
        raise InputError("at least one graph", f"an empty {type(data).__name__}")


def _walk(data: Any, batch_size: int) -> Iterator[Any]:
    if isinstance(data, Data):
        yield data
    elif isinstance(data, HasBatches):
        yield from data.batches(batch_size)
    elif hasattr(data, "batch_sampler") or hasattr(data, "collate_fn"):  # a loader
        yield from data
    elif hasattr(data, "__len__") and hasattr(data, "__getitem__") and not _named(data):
        if len(data) == 1:
            yield data[0]
            return
        if len(data) and isinstance(data[0], Data) and "batch_size" in data[0].keys():  # noqa: SIM118
            yield from (data[i] for i in range(len(data)))  # neighbourhoods stay apart
            return
        for start in range(0, len(data), batch_size):
            stop = min(start + batch_size, len(data))
            yield _join([_as_graph(data[i]) for i in range(start, stop)])
    elif isinstance(data, Iterable) and not _named(data):
        yield from data
    else:
        raise InputError(_GRAPHS, type(data).__name__)


def _named(data: Any) -> bool:
    return isinstance(data, (Mapping, str, bytes))


_GRAPHS = "a View, a Data, a list of graphs, a PyG dataset or a loader"


def _as_graph(graph: Any) -> Data:
    if not isinstance(graph, Data):
        raise InputError(_GRAPHS, f"{type(graph).__name__} in the place of a graph")
    return graph
