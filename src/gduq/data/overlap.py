"""Whether two views share rows, as far as the same objects or tensors show it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Subset
from torch_geometric.data import Dataset

from gduq.data.packed import Packed
from gduq.data.view import View
from gduq.graph import Graph

__all__ = ["overlap"]


def overlap(one: View, two: View) -> int:
    """How many rows are in both views.

    Example:
        >>> from torch_geometric.data import Data
        >>> graphs = [Data(x=torch.ones(2, 1)) for _ in range(5)]
        >>> overlap(View(graphs[:3]), View(graphs[2:]))
        1
    """
    if one.task != two.task:
        return 0
    if one.mask is not None and two.mask is not None:
        same = _same_graphs(one.graphs, two.graphs) and one.node_type == two.node_type
        return int((one.mask & two.mask).sum()) if same else 0
    return _shared_graphs(one.graphs, two.graphs)


def _same_graphs(one: Sequence[Graph], two: Sequence[Graph]) -> bool:
    """Whether the graphs are the same in the same order: so do their first ones say."""
    return one is two or (len(one) == len(two) and _same_graph(one[0], two[0]))


def _shared_graphs(one: Sequence[Graph], two: Sequence[Graph]) -> int:
    """How many graphs are in both."""
    if isinstance(one, Packed) and isinstance(two, Packed):
        if one.tensors is not two.tensors:
            return 0
        first, second = (
            torch.arange(len(g)) if g.visible is None else g.visible for g in (one, two)
        )
        return int(torch.isin(first.unique(), second).sum())
    if len(one) == len(two) == 1:
        return int(_same_graph(one[0], two[0]))
    return len(set(_keys(one)) & set(_keys(two)))


def _same_graph(one: Graph, two: Graph) -> bool:
    """One object, or copies that share all their tensors: PyG datasets hand out such ones."""
    if one is two:
        return True
    first, second = one.to_dict(), two.to_dict()
    values = _tensors(first)
    return bool(values) and values == _tensors(second)


def _tensors(values: Any, path: str = "") -> dict[str, int]:
    """The tensors in a nested dictionary, by path."""
    if isinstance(values, Tensor):
        return {path: id(values)}
    if not isinstance(values, dict):
        return {}
    return {
        k: v for name, part in values.items() for k, v in _tensors(part, f"{path}/{name}").items()
    }


def _keys(graphs: Any) -> list[Hashable]:
    """One key per graph; equal keys are one graph."""
    if isinstance(graphs, (list, tuple)):
        return [id(graph) for graph in graphs]
    if isinstance(graphs, Subset):
        keys = _keys(graphs.dataset)
        return [keys[i] for i in graphs.indices]
    # Slices of a PyG dataset in memory are copies of it that share what holds the graphs.
    whole = getattr(graphs, "_data", None)
    if isinstance(graphs, Dataset) and whole is not None:
        return [(id(whole), i) for i in graphs.indices()]
    return [(id(graphs), i) for i in range(len(graphs))]
