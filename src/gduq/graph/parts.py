"""A graph as a whole: how many graphs it holds, which device it is on."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import TypeAlias

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data, HeteroData

__all__ = ["Graph", "device_of", "num_graphs", "on_device"]

Graph: TypeAlias = Data | HeteroData  # a Batch is one of both


def num_graphs(graph: Graph) -> int:
    """How many graphs a ``Data``, a ``HeteroData`` or a ``Batch`` holds.

    Example:
        >>> num_graphs(Data(x=torch.ones(3, 1)))
        1
    """
    if isinstance(graph, HeteroData):
        return _num_hetero_graphs(graph)
    ptr = graph.get("ptr") if isinstance(graph, Data) else None
    if ptr is not None:
        return ptr.numel() - 1  # type: ignore[no-any-return]
    if isinstance(graph, Batch):
        return int(graph.num_graphs)
    batch = graph.get("batch")
    return 1 if batch is None else int(batch.max()) + 1 if batch.numel() else 0


def _num_hetero_graphs(graph: HeteroData) -> int:
    if isinstance(graph, Batch):
        return int(graph.num_graphs)
    batches = [store.batch for store in graph.node_stores if "batch" in store]
    return max((int(b.max()) + 1 for b in batches if b.numel()), default=0 if batches else 1)


def _tensors(graph: Graph) -> Iterator[Tensor]:
    return (v for store in graph.stores for v in store.values() if isinstance(v, Tensor))


def device_of(graph: Graph) -> torch.device:
    """The device a graph's tensors are on (of the first one found; the CPU without any).

    Example:
        >>> device_of(Data(x=torch.ones(3, 1)))
        device(type='cpu')
    """
    return next((t.device for t in _tensors(graph)), torch.device("cpu"))


def on_device(graph: Graph, device: torch.device) -> Graph:
    """The graph on a device: itself if it is there, else a copy (PyG's own ``to`` moves it)."""
    there = all(t.device == device for t in _tensors(graph))
    return graph if there else copy.copy(graph).to(device)
