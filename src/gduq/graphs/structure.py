"""How large and how dense: a few plain numbers of every row, told from the graph alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.utils import to_edge_index

from gduq.graphs.rows import Graph, Rows, device_of, label_rows, num_graphs, row_type

__all__ = ["structure_of"]

_SAMPLED = ("batch_size", "input_id", "n_id", "e_id", "num_sampled_nodes")


def structure_of(graph: Graph, rows: Rows | None) -> Tensor | None:
    """Logarithms ``[m, s]`` of a few counts, for the rows that count, in double precision.

    * A graph: of 1 + its nodes, and of 1 + edges per node.
    * A node: of 1 + the edges that end in it.
    * An edge to be judged: the smaller one of its two ends.

    In a ``HeteroData`` nodes and edges of all types count. Each row is told from its own graph, so
    its mates in a batch do not matter.

    ``None`` where it cannot be told: unknown ``rows``, no ``edge_index`` and no ``adj_t``, edges to
    be judged in a ``HeteroData``, or a sampled neighbourhood (by the marks of PyG's loaders), whose
    degrees are those of the sample.

    Example:
        >>> star = Data(x=torch.ones(4, 1), edge_index=torch.tensor([[1, 2, 3], [0, 0, 0]]))
        >>> structure_of(star, "node").exp() - 1
        tensor([[3.],
                [0.],
                [0.],
                [0.]], dtype=torch.float64)
    """
    if rows is None or any(mark in store for store in graph.stores for mark in _SAMPLED):
        return None
    if rows == "edge" and graph.get("edge_label_index") is None:
        return None
    one = isinstance(graph, Data)
    nodes: dict[Any, Any] = {"": graph} if one else dict(graph.node_items())
    edges: dict[Any, Any] = {("",): graph} if one else dict(graph.edge_items())
    double: dict[str, Any] = {"dtype": torch.float64, "device": device_of(graph)}
    degrees = {k: torch.zeros(s.num_nodes if s else 0, **double) for k, s in nodes.items()}
    for kind, store in edges.items():
        ends = _ends(store)
        if ends is None:
            return None
        each = torch.ones_like(ends, dtype=torch.float64)
        degrees[kind[-1]] = degrees[kind[-1]].index_add(0, ends, each)
    if rows == "graph":
        found = _of_graphs(num_graphs(graph), nodes, degrees)
    else:
        found = degrees[row_type(graph) if isinstance(graph, HeteroData) else ""]
        found = found.log1p().unsqueeze(1)
        if rows == "edge":
            found = found[graph.edge_label_index].amin(dim=0)
    return found[label_rows(graph, found.size(0))]


def _ends(store: Any) -> Tensor | None:
    """The node that each edge ends in ``[E]``; ``None`` where edges are not known."""
    edges = store.get("edge_index")
    if edges is not None:
        return edges[1]  # type: ignore[no-any-return]
    adjacency = store.get("adj_t")
    if adjacency is None or getattr(adjacency, "layout", None) is torch.strided:
        return None
    ends: Tensor = to_edge_index(adjacency)[0][0]
    return ends


def _of_graphs(count: int, nodes: dict[Any, Any], degrees: dict[Any, Tensor]) -> Tensor:
    """Sizes and mean degrees ``[G, 2]``."""
    sizes = edges = next(iter(degrees.values())).new_zeros(count)
    for kind, degree in degrees.items():
        batch = nodes[kind].get("batch")
        if batch is None:
            batch = torch.zeros_like(degree, dtype=torch.int64)
        sizes = sizes.index_add(0, batch, torch.ones_like(degree))
        edges = edges.index_add(0, batch, degree)
    return torch.stack([sizes.log1p(), (edges / sizes.clamp_min(1.0)).log1p()], dim=1)
