"""A graph: the rows a model answers for, which of them count, their labels, their structure, and
`check_graph`, which refuses what no model should see."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.data.storage import BaseStorage

from gduq.errors import InputError
from gduq.graphs.sparse import kept

__all__ = ["MASKS", "Graph", "Rows", "Store", "as_graph", "as_labels", "check_graph", "device_of",
           "label_edges", "label_rows", "mark_rows", "num_graphs", "num_rows", "on_device",
           "row_batch", "row_kind", "row_type", "structure_of", "targets"]  # fmt: skip

Graph: TypeAlias = Data | HeteroData  # a Batch is one of both
Store: TypeAlias = Graph | BaseStorage
Rows = Literal["node", "graph", "edge"]

_SAMPLED = ("batch_size", "input_id", "n_id", "e_id", "num_sampled_nodes")
MASKS = {"node": "row_mask", "edge": "edge_row_mask"}  # which rows count, as a View writes it
_MARKS = ("row_mask", "batch_size")  # of the nodes that count: by a View, by a NeighborLoader
_LABELS = (*_MARKS, "y")


# -- a graph as a whole --------------------------------------------------------------------------


def num_graphs(graph: Graph) -> int:
    """How many graphs a ``Data``, a ``HeteroData`` or a ``Batch`` holds."""
    if (ptr := graph.get("ptr")) is not None:
        return ptr.numel() - 1  # type: ignore[no-any-return]
    if isinstance(graph, Batch):
        return int(graph.num_graphs)
    batches = [store.batch for store in graph.node_stores if store.get("batch") is not None]
    return max((int(b.max()) + 1 for b in batches if b.numel()), default=0 if batches else 1)


def as_graph(graph: object) -> Graph:
    """Refuse what is no graph."""
    if not isinstance(graph, (Data, HeteroData)):
        raise InputError("a torch_geometric Data, HeteroData or Batch", type(graph).__name__)
    return graph


def _tensors(graph: Graph) -> Iterator[Tensor]:
    return (v for store in graph.stores for v in store.values() if isinstance(v, Tensor))


def device_of(graph: Graph) -> torch.device:
    """The device a graph's tensors are on (of the first one found; the CPU without any)."""
    return next((t.device for t in _tensors(graph)), torch.device("cpu"))


def on_device(graph: Graph, device: torch.device) -> Graph:
    """The graph on a device: itself if it is there, else a copy (PyG's own ``to`` moves it)."""
    there = all(t.device == device for t in _tensors(graph))
    return graph if there else copy.copy(graph).to(device)


# -- the rows a model answers for, and which of them count -----------------------------------------


def row_kind(graph: Graph) -> Rows | None:
    """What the labelled rows of a graph are, as far as its attributes show it; else ``None``."""
    of_graphs = graph.get("y") is not None  # or of the nodes of a Data
    if isinstance(graph, HeteroData):
        return "node" if len(_row_types(graph, _MARKS if of_graphs else _LABELS)) == 1 else None
    if graph.get("edge_row_mask") is not None:
        return "edge"
    if any(graph.get(mark) is not None for mark in _MARKS):
        return "node"
    return None if of_graphs or graph.get("edge_label_index") is None else "edge"


def row_type(graph: HeteroData) -> str:
    """The node type whose nodes are the rows of a ``HeteroData``: the one with a ``row_mask``
    (`gduq.data.View` sets it) or with seed nodes, else the only type with labels ``y``."""
    found = _row_types(graph, _LABELS)
    if len(found) == 1:
        return found[0]
    do = "Pass gduq.data.View(graph, mask, node_type=...)."
    raise InputError(f"labels y on one of {graph.node_types}", f"some on {found}", do)


def _row_types(graph: HeteroData, marks: Sequence[str]) -> list[str]:
    """The node types that have the first of the marks that any of them has."""
    found = ([name for name, store in graph.node_items() if mark in store] for mark in marks)
    return next(filter(None, found), [])


def _store(graph: Graph, rows: Rows | None) -> Store:
    """What holds the labels of the rows, and the marks that say which of them count."""
    of_type = rows == "node" and isinstance(graph, HeteroData)
    return graph[row_type(graph)] if of_type else graph


def num_rows(graph: Graph, rows: Rows) -> int:
    """How many rows of a kind there are, with or without a label."""
    if rows == "graph":
        return num_graphs(graph)
    return label_edges(graph).size(1) if rows == "edge" else _store(graph, rows).num_nodes or 0


def label_edges(graph: Graph) -> Tensor:
    """The edges to be predicted ``[2, E]``."""
    ends = graph.get("edge_label_index")
    if isinstance(ends, Tensor) and ends.dim() == 2 and ends.size(0) == 2:
        return ends
    got = list(ends.shape) if isinstance(ends, Tensor) else type(ends).__name__
    do = "Set it, or split with torch_geometric.transforms.RandomLinkSplit."
    raise InputError("edge_label_index [2, E] on the graph, the edges to predict", got, do)


def row_batch(graph: Graph, rows: Rows, n: int) -> Tensor:
    """The number of the graph that each of ``n`` rows belongs to, ``[n]``; an edge belongs to that
    of its first end."""
    batch = None if rows == "graph" else _store(graph, rows).get("batch")
    if batch is not None and rows == "edge":
        batch = batch[label_edges(graph)[0]]
    if batch is None:
        make = torch.arange if rows == "graph" else torch.zeros
        batch = make(n, dtype=torch.int64, device=device_of(graph))
    if batch.numel() != n:
        raise InputError(f"{batch.numel()} rows, one per {rows}", n)
    return batch


def mark_rows(graph: Graph, mask: Tensor, rows: Rows, node_type: str | None = None) -> None:
    """Write on a graph, in place, which of its rows count.

    ``mask`` ``[n]`` is boolean, with one entry per node (of ``node_type``) or per edge to predict.
    """
    if isinstance(graph, HeteroData):  # one type has rows
        for store in graph.node_stores:
            store.pop("row_mask", None)
    (graph if node_type is None else graph[node_type])[MASKS[rows]] = mask


def label_rows(graph: Graph, rows: int) -> Tensor | slice:
    """Which of a model's ``rows`` output rows carry a label: seed nodes, or what a mask marks.

    Example:
        >>> label_rows(Data(x=torch.ones(3, 1), batch_size=2), rows=3)
        slice(None, 2, None)
    """
    kind = row_kind(graph)
    if kind is None or rows != num_rows(graph, kind):
        return slice(None)
    store = _store(graph, kind)
    seeds = store.get("batch_size") if kind == "node" else None
    chosen = store.get(MASKS[kind]) if seeds is None else slice(None, int(seeds))
    return slice(None) if chosen is None else chosen


# -- labels --------------------------------------------------------------------------------------


def targets(graph: Graph, labelled: int | None = None) -> Tensor | None:
    """The labels of the rows that count ``[m, ...]``, or ``None``: ``edge_label`` of edges, else
    ``y``. Raises unless there are as many as the ``labelled`` rows a model answered for."""
    kind = row_kind(graph)
    name = "edge_label" if kind == "edge" else "y"
    value = _store(graph, kind).get(name)
    if value is None:
        return None
    y = as_labels(value, name)
    found = y[label_rows(graph, y.size(0))]
    if labelled is not None and found.size(0) != labelled:
        raise InputError(
            f"one label for each of the {labelled} rows the model answers for",
            f"{name} of shape {list(y.shape)}",
            f"Check the task of the model (node, graph or edge) and graph.{name}: gduq.data.View "
            f"says which rows count, T labels of one row are {name} of shape [1, T].",
        )
    return found


def as_labels(y: object, name: str = "y") -> Tensor:
    """Labels as stored on a graph, as a tensor of at least one row; text is refused."""
    try:
        found = torch.as_tensor(y)
    except (TypeError, ValueError, RuntimeError) as error:
        do = f"Number the classes: graph.{name} = class_names.index(name)."
        raise InputError(f"numbers in {name}", f"{type(y).__name__} {y!r:.40}", do) from error
    return found.unsqueeze(0) if found.dim() == 0 else found


# -- structure -----------------------------------------------------------------------------------


def structure_of(graph: Graph, rows: Rows | None) -> Tensor | None:
    """Logarithms ``[m, s]`` of a few counts, for the rows that count, in double precision.

    They are, plus 1: of a graph its nodes, and its edges per node; of a node the edges that end in
    it; of an edge to predict the smaller number of its two ends. In a ``HeteroData`` all types of
    nodes and edges count. Mates in a batch do not matter.

    ``None`` where they are not known: of unknown ``rows``, without ``edge_index``, of edges in a
    ``HeteroData``, and in a sampled neighbourhood (by the marks of PyG's loaders).

    Example:
        >>> star = Data(x=torch.ones(4, 1), edge_index=torch.tensor([[1, 2, 3], [0, 0, 0]]))
        >>> structure_of(star, "node").expm1().flatten().tolist()
        [3.0, 0.0, 0.0, 0.0]
    """
    unknown = rows is None or (rows == "edge" and graph.get("edge_label_index") is None)
    if unknown or any(mark in store for store in graph.stores for mark in _SAMPLED):
        return None
    nodes, edges = _by_type(graph)
    none = torch.zeros(0, dtype=torch.float64, device=device_of(graph))
    degrees = {k: none.new_zeros(s.num_nodes if s else 0) for k, s in nodes.items()}
    for kind, store in edges.items():
        if (ends := store.get("edge_index")) is None:
            return None
        ones = torch.ones_like(ends[1], dtype=torch.float64)
        degrees[kind[-1]] = degrees[kind[-1]].index_add(0, ends[1], ones)
    if rows == "graph":
        sums = none.new_zeros(num_graphs(graph), 2)  # nodes and edges
        for name, each in degrees.items():
            batch = nodes[name].get("batch")
            batch = torch.zeros_like(each, dtype=torch.int64) if batch is None else batch
            sums = sums.index_add(0, batch, torch.stack([torch.ones_like(each), each], 1))
        found = torch.stack([sums[:, 0], sums[:, 1] / sums[:, 0].clamp_min(1.0)], dim=1)
    else:
        found = degrees[row_type(graph) if isinstance(graph, HeteroData) else ""].unsqueeze(1)
        found = found[label_edges(graph)].amin(dim=0) if rows == "edge" else found
    return found.log1p()[label_rows(graph, found.size(0))]


def _by_type(graph: Graph) -> tuple[dict[str, Store], dict[tuple[str, ...], Store]]:
    """What holds the nodes, and the edges, of every type; a ``Data`` has one type without name."""
    if isinstance(graph, Data):
        return {"": graph}, {("", ""): graph}
    return dict(graph.node_items()), dict(graph.edge_items())


# -- is it sound? --------------------------------------------------------------------------------


def check_graph(graph: object, channels: int | None = None, finite: bool = True) -> None:
    """Raise `InputError` for a graph no model should see.

    Every graph has nodes; ``x`` has one row per node and ``channels`` columns, ``edge_index`` is an
    integer ``[2, E]`` within range, ``edge_attr`` and ``edge_weight`` have one row per edge, all
    without NaN where ``finite``; in a ``HeteroData`` the same for every type (``channels`` for that
    of the rows). No edges and isolated nodes are fine.

    Example:
        >>> check_graph(Data(x=torch.ones(3, 1), edge_index=torch.tensor([[0], [3]])))
        Traceback (most recent call last):
        ...
        gduq.errors.InputError: expected edge_index with node numbers from 0 to 2, got 0 to 3.
    """
    if torch.compiler.is_compiling():  # a compiled graph has no place for looks at values
        return
    nodes, edges = _by_type(graph := as_graph(graph))
    for store in nodes.values():
        if not isinstance(x := store.get("x"), Tensor | None):
            raise InputError("x as a tensor [n, d]", type(x).__name__)
    counts = {kind: int(store.num_nodes or 0) if store else 0 for kind, store in nodes.items()}
    if not any(counts.values()):
        raise InputError("a graph with at least one node", "none", "Drop empty graphs first.")
    if isinstance(graph, Data):
        _check_batch(graph, counts[""])
        if graph.get("edge_index") is None and graph.get("adj_t") is None:
            raise InputError("a graph with edge_index", f"only {sorted(graph.keys())}")
    for kind, store in nodes.items():
        of = f" of {kind!r}" if kind else ""
        x = _check_rows("x" + of, store.get("x"), counts[kind], "node", finite)
        known = channels is not None and (kind == "" or kind == row_type(graph))
        if x is not None and (x.dim() != 2 or (known and x.size(1) != channels)):
            width = channels if known else "d"
            raise InputError(f"x{of} of shape [{counts[kind]}, {width}]", list(x.shape))
    labels = ("edge_label", "edge_row_mask") if row_kind(graph) == "edge" else ()
    for ends, store in edges.items():
        of = f" of {ends!r}" if any(ends) else ""
        if missing := {ends[0], ends[-1]} - set(counts):
            raise InputError(f"nodes of type '{missing.pop()}', which {ends} joins", "none")
        for name, rows in (
            ("edge_index", ("edge_attr", "edge_weight")),
            ("edge_label_index", labels),
        ):
            if (index := store.get(name)) is None:
                continue
            _check_ends(name + of, index, (counts[ends[0]], counts[ends[-1]]))
            for row in rows:
                value = store.get(row)
                _check_rows(row + of, value, index.size(1), "edge", finite and rows != labels)


def _check_batch(graph: Data, nodes: int) -> None:
    """Raise unless ``batch`` gives every node a graph, and every graph a node."""
    batch = _check_rows("batch", graph.get("batch"), nodes, "node", finite=False)
    if batch is None:
        return
    if batch.dim() != 1 or batch.dtype != torch.int64:
        got = f"{batch.dtype} of shape {list(batch.shape)}"
        raise InputError(f"a batch vector of {nodes} whole numbers, one per node", got)
    _check_range("batch with graph numbers", batch, graphs := num_graphs(graph))
    empty = torch.nonzero(torch.bincount(batch, minlength=graphs) == 0).flatten().tolist()
    if empty:
        got = f"{len(empty)} empty graph(s) in the batch, first at position {empty[0]}"
        raise InputError("graphs with at least one node", got, "Drop empty graphs first.")


def _check_ends(name: str, edges: object, nodes: tuple[int, int]) -> None:
    """Raise unless edges are ``[2, E]`` and their ends are among so many first and second nodes."""
    if not isinstance(edges, Tensor) or edges.dim() != 2 or edges.size(0) != 2:
        got = list(edges.shape) if isinstance(edges, Tensor) else type(edges).__name__
        raise InputError(f"{name} of shape [2, E]", got)
    if edges.dtype != torch.int64:
        raise InputError(f"{name} of dtype int64", edges.dtype, "Convert with .long().")
    parts = ((edges, nodes[0]),) if nodes[0] == nodes[1] else zip(edges, nodes, strict=True)
    for ends, count in parts:
        _check_range(f"{name} with node numbers", ends, count)


def _check_range(what: str, numbers: Tensor, count: int) -> None:
    low, high = (int(end) for end in numbers.aminmax()) if numbers.numel() else (0, -1)
    if low < 0 or high >= count:
        raise InputError(f"{what} from 0 to {count - 1}", f"{low} to {high}")


def _check_rows(name: str, value: object, rows: int, whose: str, finite: bool) -> Tensor | None:
    """A tensor, if there is one; raise unless it has one row per node or edge, and no NaN. It is
    looked through once, until it changes."""
    if value is None:
        return None
    if not isinstance(value, Tensor) or value.dim() == 0 or value.size(0) != rows:
        got = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise InputError(f"{name} of {rows} rows, one per {whose}", got)
    if finite:
        kept(value, "finite", lambda: _check_finite(name, value))
    return value


def _check_finite(name: str, value: Tensor) -> None:
    entries = value
    if value.layout == torch.sparse_csr:
        parts = (value.crow_indices(), value.col_indices(), entries := value.values())
        try:
            torch.sparse_csr_tensor(*parts, size=value.shape, check_invariants=True)
        except RuntimeError as error:
            what = f"sparse {name} with sorted, distinct column numbers within its width"
            do = "Build it with torch's to_sparse_csr() or after scipy's sum_duplicates()."
            raise InputError(what, str(error).splitlines()[0], do) from error
    elif value.layout != torch.strided:
        do = "Convert with .to_sparse_csr()."
        raise InputError(f"{name} dense or sparse CSR", value.layout, do)
    # the smallest and largest entry are NaN where any is, and take no memory to find
    ends = entries.aminmax() if entries.numel() and entries.is_floating_point() else ()
    if not all(bool(end.isfinite()) for end in ends):
        bad = int((~torch.isfinite(entries)).sum())
        raise InputError(f"finite numbers in {name}", f"{bad} NaN or infinite value(s)")
