"""Which nodes or edges a `View` is about, checked: masks, numbers, node types, labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from gduq.errors import InputError
from gduq.graph import Graph, row_type

__all__ = ["as_rows", "edge_rows", "own_type"]


def own_type(graph: Graph, node_type: str | None) -> str | None:
    """The node type whose nodes are rows; ``None`` for a homogeneous graph."""
    if not isinstance(graph, HeteroData):
        if node_type is not None:
            raise InputError(f"a HeteroData for node_type={node_type!r}", type(graph).__name__)
        return None
    if node_type is None:
        return row_type(graph)
    if node_type not in graph.node_types:
        raise InputError(f"a node_type from {', '.join(graph.node_types)}", repr(node_type))
    return node_type


def edge_rows(graphs: Sequence[Graph], edges: Tensor | bool) -> Tensor:
    """The marked columns of ``edge_label_index``, see `as_rows`; ``True`` marks all of them."""
    wanted = "one homogeneous graph (Data) with edges to be judged"
    if len(graphs) > 1:
        do = "Join them with Batch.from_data_list(graphs)."
        raise InputError(wanted, f"{len(graphs)} graphs", do)
    if not isinstance(graphs[0], Data):
        do = "Convert it with .to_homogeneous(), or judge nodes with node_type=."
        raise InputError(wanted, type(graphs[0]).__name__, do)
    ends = graphs[0].get("edge_label_index")
    if not isinstance(ends, Tensor) or ends.dim() != 2 or ends.size(0) != 2:
        raise InputError(
            "edge_label_index [2, E] on the graph, the edges to be judged",
            "none" if ends is None else f"shape {list(torch.as_tensor(ends).shape)}",
            "Set it, or split with torch_geometric.transforms.RandomLinkSplit.",
        )
    if edges is True:
        return torch.ones(ends.size(1), dtype=torch.bool, device=ends.device)
    return as_rows(edges, ends.size(1), "edge")


def as_rows(mask: Any, count: int, what: str) -> Tensor:
    """A mask, or numbers, of nodes or edges: as a mask ``[count]``, or as numbers ``[m]`` where
    these are in another order than a mask has."""
    wanted = f"a boolean mask or {what} numbers"
    if isinstance(mask, str):
        raise InputError(wanted, repr(mask), f"Pass the tensor: data.{mask}.")
    rows: Tensor = torch.as_tensor(mask)
    if rows.dtype != torch.bool:
        if not rows.numel():  # an empty list has no dtype of its own
            rows = rows.long()
        if rows.dtype == torch.uint8 or rows.is_floating_point() or rows.is_complex():
            raise InputError(wanted, f"dtype {rows.dtype}", "Convert with .bool().")
        return _from_numbers(rows.long().flatten(), count, what)
    if rows.shape != (count,):
        several = rows.dim() == 2 and rows.size(0) == count
        raise InputError(
            f"a mask of {count} entries, one per {what}",
            f"shape {list(rows.shape)}",
            "Choose one split: mask[:, 0]."
            if several
            else f"Make it for this graph, or pass {what} numbers.",
        )
    return rows


def _from_numbers(numbers: Tensor, count: int, what: str) -> Tensor:
    if numbers.numel() and (int(numbers.min()) < 0 or int(numbers.max()) >= count):
        got = f"{int(numbers.min())} to {int(numbers.max())}"
        raise InputError(f"{what} numbers from 0 to {count - 1}", got)
    if numbers.unique().numel() < numbers.numel():
        do = "Drop duplicates; a mask of 0 and 1 needs .bool()."
        raise InputError(f"each {what} at most once", "a repeated one", do)
    if bool((numbers.diff() < 0).any()):
        return numbers
    return torch.zeros(count, dtype=torch.bool, device=numbers.device).index_fill_(0, numbers, True)
