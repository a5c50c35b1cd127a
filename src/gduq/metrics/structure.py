"""What a graph says about each labelled row: degree, size, homophily, distance to training."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gduq.errors import InputError

__all__ = ["degree", "distance", "graph_columns", "homophily", "size"]


def graph_columns(data: Any, train: Any = None) -> dict[str, Tensor]:
    """`degree` and `size`, for nodes with labels also `homophily`, for `subgroups`; ``[m]`` each.

    Args:
        data: A `gduq.data.View`, a graph (PyG ``Data``) whose ``row_mask`` marks the rows, or a
            list of graphs: a graph task, one row per graph.
        train: The training nodes of the same graph (a View, mask or numbers); adds `distance`.

    Example:
        >>> from torch_geometric.data import Data
        >>> path = Data(edge_index=torch.tensor([[0, 1, 2], [1, 2, 3]]), num_nodes=4)
        >>> path.row_mask = torch.tensor([False, True, True, True])
        >>> graph_columns(path, train=torch.tensor([0]))["distance"]
        tensor([1., 2., 3.], dtype=torch.float64)
    """
    columns = {"degree": degree(data), "size": size(data)}
    graphs, rows = _parts(data)
    if rows is not None:
        if all(_node_labels(g) is not None for g in graphs):
            columns["homophily"] = homophily(data)
        if train is not None:
            columns["distance"] = distance(data, train)
    return columns


def degree(data: Any) -> Tensor:
    """Neighbours of each node ``[m]``; for a graph task their mean over the graph."""
    graphs, rows = _parts(data)
    counts = [neighbours(g)[0].bincount(minlength=_nodes(g)).double() for g in graphs]
    if rows is None:
        return torch.stack([c.mean() for c in counts])
    return torch.cat(counts)[rows]


def size(data: Any) -> Tensor:
    """Number of nodes of the graph each row is, or lies in ``[m]``."""
    graphs, rows = _parts(data)
    sizes = torch.tensor([_nodes(g) for g in graphs], dtype=torch.float64)
    return sizes if rows is None else sizes.repeat_interleave(sizes.long())[rows]


def homophily(data: Any) -> Tensor:
    """Share of each node's neighbours that carry its label ``[m]``; NaN without neighbours."""
    graphs, rows = _parts(data)
    if rows is None:
        raise InputError("a node task", "a graph task", "Homophily compares labels of nodes.")
    shares = []
    for graph in graphs:
        labels = _node_labels(graph)
        if labels is None:
            raise InputError("graphs with a label for each node", "y missing or of another size")
        (source, other), nodes = neighbours(graph), _nodes(graph)
        same = (labels[source] == labels[other]).double()
        total = torch.zeros(nodes, dtype=torch.float64).index_add_(0, source, same)
        shares.append(total / source.bincount(minlength=nodes))
    return torch.cat(shares)[rows]


def distance(data: Any, train: Any) -> Tensor:
    """Steps from each node to the nearest training node ``[m]``; infinite if there is no path."""
    from scipy.sparse import coo_array, csgraph

    graphs, rows = _parts(data)
    if rows is None or len(graphs) != 1:
        raise InputError("nodes of one graph", "a graph task or several graphs")
    (here, there), nodes = neighbours(graphs[0]), _nodes(graphs[0])
    start = _mask(getattr(train, "rows", train), nodes).nonzero().flatten().numpy()
    links = coo_array((torch.ones(len(here)).numpy(), (here, there)), shape=(nodes, nodes)).tocsr()
    steps = csgraph.dijkstra(links, indices=start, unweighted=True, min_only=True)
    return torch.from_numpy(steps)[rows]


def _parts(data: Any) -> tuple[list[Any], Tensor | None]:
    """The graphs and, for a node task, the mask of rows over all their nodes."""
    _check_kind(data)
    if hasattr(data, "graphs"):
        return list(data.graphs), data.rows
    if hasattr(data, "ptr"):  # a batch of graphs
        return data.to_data_list(), getattr(data, "row_mask", None)
    if hasattr(data, "edge_index"):
        mask = getattr(data, "row_mask", None)
        everything = torch.ones(_nodes(data), dtype=torch.bool)
        return [data], everything if mask is None else mask
    graphs = list(data)
    if not graphs or not all(hasattr(g, "edge_index") for g in graphs):
        raise InputError("a View, a graph or a list of graphs", type(data).__name__)
    return graphs, None


def _check_kind(data: Any) -> None:
    """Rows that are edges, or nodes of one type, have no degree or size of their own here."""
    edges = getattr(data, "task", None) == "edge" or getattr(data, "row_kind", None) == "edge"
    typed = getattr(data, "node_type", None) is not None or hasattr(data, "node_types")
    if edges or typed:
        kind = "edges" if edges else "a heterogeneous graph"
        raise InputError("graphs, or nodes of a homogeneous graph, for graph columns", kind)


def _nodes(graph: Any) -> int:
    return int(graph.num_nodes)


def _node_labels(graph: Any) -> Tensor | None:
    labels = getattr(graph, "y", None)
    if labels is None or labels.dim() == 0 or labels.size(0) != _nodes(graph):
        return None
    first: Tensor = labels.reshape(_nodes(graph), -1)[:, 0]
    return first


def neighbours(graph: Any) -> tuple[Tensor, Tensor]:
    """Both directions of every edge once, without loops."""
    from torch_geometric.utils import remove_self_loops, to_undirected

    if graph.edge_index is None:
        raise InputError("a graph with edge_index", "none")
    here, there = to_undirected(remove_self_loops(graph.edge_index)[0], num_nodes=_nodes(graph))
    return here, there


def _mask(given: Any, nodes: int) -> Tensor:
    rows: Tensor = torch.as_tensor(given)
    if rows.dtype != torch.bool:
        if rows.numel() and (int(rows.min()) < 0 or int(rows.max()) >= nodes):
            raise InputError(f"node numbers from 0 to {nodes - 1}", f"up to {int(rows.max())}")
        rows = torch.zeros(nodes, dtype=torch.bool).index_fill_(0, rows.long(), True)
    if rows.shape != (nodes,):
        raise InputError(f"a mask of {nodes} entries, one per node", list(rows.shape))
    if not rows.any():
        raise InputError("at least one training node", "none")
    return rows
