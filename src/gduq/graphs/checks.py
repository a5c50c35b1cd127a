"""`check_graph`: refuses a graph that no model should see, and says what is wrong with it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary
from torch_geometric.data import Data, HeteroData

from gduq.errors import InputError
from gduq.graphs.rows import num_graphs, row_kind, row_type

__all__ = ["check_ends", "check_graph"]

_checked: WeakIdKeyDictionary = WeakIdKeyDictionary()  # feature tensor -> its version when checked


def check_graph(graph: Any, channels: int | None = None, finite: bool = True) -> None:
    """Raise `InputError` for a graph no model should see.

    Checks that there are nodes (in every graph of a batch), that ``x`` has one finite row per node
    and ``channels`` columns, that ``edge_index`` is an integer ``[2, E]`` within range, and that
    ``edge_attr`` and ``edge_weight`` have one finite row per edge; in a ``HeteroData`` the same
    for every type (``channels`` counts for the type whose nodes are the rows). No edges and
    isolated nodes are fine. With ``finite=False`` features may be NaN or infinite.

    Example:
        >>> check_graph(Data(x=torch.ones(3, 1), edge_index=torch.tensor([[0], [3]])))
        Traceback (most recent call last):
        ...
        gduq.errors.InputError: expected edge_index with node numbers from 0 to 2, got 0 to 3.
    """
    if torch.compiler.is_compiling():  # a compiled graph has no place for looks at values
        return
    if not isinstance(graph, (Data, HeteroData)):
        raise InputError("a torch_geometric Data, HeteroData or Batch", type(graph).__name__)
    one = isinstance(graph, Data)  # type of nodes, and of edges
    nodes = {"": graph} if one else dict(graph.node_items())
    edges = {("", ""): graph} if one else dict(graph.edge_items())
    for kind, store in (nodes if one else {**nodes, **edges}).items():
        for name in ("x", "edge_index", "batch", "edge_attr", "edge_weight"):
            _check_tensor(name + _of(kind), store.get(name))
    counts = {kind: int(store.num_nodes or 0) if store else 0 for kind, store in nodes.items()}
    if not any(counts.values()):
        raise InputError("a graph with at least one node", "none", "Drop empty graphs first.")
    if one:
        _check_batch(graph, counts[""])
        if graph.get("edge_index") is None and graph.get("adj_t") is None:
            raise InputError("a graph with edge_index", f"only {sorted(graph.keys())}")
        _check_label_edges(graph, counts[""])
    for kind, store in nodes.items():
        known = channels is not None and (one or kind == row_type(graph))
        _check_features(store, counts[kind], channels if known else None, _of(kind), finite)
    for kind, store in edges.items():
        missing = [end for end in (kind[0], kind[-1]) if end not in counts]
        if missing:
            raise InputError(f"nodes of type '{missing[0]}', which {kind} joins", "none")
        _check_edges(store, (counts[kind[0]], counts[kind[-1]]), _of(kind), finite)


def _of(kind: str | tuple[str, ...]) -> str:
    return f" of {kind!r}" if any(kind) else ""


def _check_features(store: Any, nodes: int, channels: int | None, of: str, finite: bool) -> None:
    x = store.get("x")
    if x is None:
        return
    if x.dim() != 2 or x.size(0) != nodes:
        raise InputError(f"x{of} of shape [{nodes}, d], one row per node", list(x.shape))
    if channels is not None and x.size(1) != channels:
        raise InputError(f"node features{of} of width {channels}", x.size(1))
    if finite:
        _check_finite("x" + of, x, "node")


def _check_label_edges(graph: Data, nodes: int) -> None:
    """Edges to be judged are edges, and have one label and one mark."""
    ends = graph.get("edge_label_index")
    if ends is None:
        return
    check_ends("edge_label_index", ends, (nodes, nodes))
    for name in ("edge_label", "edge_row_mask") if row_kind(graph) == "edge" else ():
        value, edges = graph.get(name), ends.size(1)
        if value is not None and len(value) != edges:
            raise InputError(f"{name} of {edges} rows, one per edge to be judged", len(value))


def _check_tensor(name: str, value: Any) -> None:
    if value is None or (isinstance(value, Tensor) and value.dim() > 0):
        return
    got = "a single number" if isinstance(value, Tensor) else type(value).__name__
    raise InputError(f"{name} as a tensor of one or more dimensions", got)


def _check_batch(graph: Data, nodes: int) -> None:
    batch, graphs = graph.get("batch"), num_graphs(graph)
    if batch is None:
        return
    if batch.shape != (nodes,) or batch.dtype != torch.int64:
        got = f"{batch.dtype} of shape {list(batch.shape)}"
        raise InputError(f"a batch vector of {nodes} whole numbers, one per node", got)
    low, high = int(batch.min()), int(batch.max())
    if low < 0 or high >= graphs:
        raise InputError(f"graph numbers from 0 to {graphs - 1} in batch", f"{low} to {high}")
    empty = torch.nonzero(torch.bincount(batch, minlength=graphs) == 0).flatten().tolist()
    if empty:
        got = f"{len(empty)} empty graph(s) in the batch, first at position {empty[0]}"
        raise InputError("graphs with at least one node", got, "Drop empty graphs first.")


def _check_edges(store: Any, nodes: tuple[int, int], of: str, finite: bool) -> None:
    """``nodes`` are the numbers of nodes that the first and second ends may be."""
    edges = store.get("edge_index")
    if edges is None:
        return
    check_ends("edge_index" + of, edges, nodes)
    for name in ("edge_attr", "edge_weight"):
        value = store.get(name)
        if value is None:
            continue
        if value.size(0) != edges.size(1):
            got = f"shape {list(value.shape)}"
            raise InputError(f"{name}{of} of {edges.size(1)} rows, one per edge", got)
        if finite:
            _check_finite(name + of, value, "edge")


def check_ends(name: str, edges: Tensor, nodes: tuple[int, int]) -> None:
    """Raise unless edges are ``[2, E]`` and their ends are among so many first and second nodes."""
    if edges.dim() != 2 or edges.size(0) != 2:
        raise InputError(f"{name} of shape [2, E]", list(edges.shape))
    if edges.dtype != torch.int64:
        raise InputError(f"{name} of dtype int64", edges.dtype, "Convert with .long().")
    if not edges.numel():
        return
    parts = ((edges, nodes[0]),) if nodes[0] == nodes[1] else zip(edges, nodes, strict=True)
    for ends, limit in parts:
        low, high = int(ends.min()), int(ends.max())
        if low < 0 or high >= limit:
            span = f"from 0 to {limit - 1}" if limit else "of a type that has nodes"
            raise InputError(f"{name} with node numbers {span}", f"{low} to {high}")


def _check_finite(name: str, value: Tensor, whose: str) -> None:
    version = None if value.is_inference() else value._version
    if version is not None and _checked.get(value) == version:
        return
    _check_layout(name, value)
    entries = value.values() if value.layout == torch.sparse_csr else value
    # the smallest and largest entry are NaN where any is, and take no memory to find
    ends = entries.aminmax() if entries.numel() and entries.is_floating_point() else ()
    if not all(bool(end.isfinite()) for end in ends):
        bad = int((~torch.isfinite(entries)).sum())
        raise InputError(f"finite {whose} features", f"{bad} NaN or infinite value(s) in {name}")
    if version is not None:
        _checked[value] = version


def _check_layout(name: str, value: Tensor) -> None:
    if value.layout == torch.strided:
        return
    if value.layout != torch.sparse_csr:
        do = "Convert with .to_sparse_csr()."
        raise InputError(f"{name} dense or sparse CSR", value.layout, do)
    parts = (value.crow_indices(), value.col_indices(), value.values())
    try:
        torch.sparse_csr_tensor(*parts, size=value.shape, check_invariants=True)
    except RuntimeError as error:
        raise InputError(
            f"sparse {name} with sorted, distinct column numbers within its width",
            str(error).splitlines()[0],
            "Build it with torch's to_sparse_csr() or after scipy's sum_duplicates().",
        ) from error
