"""Shifted copies of validation rows: a stand-in for the shift that is to come."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import Tensor
from torch_geometric.data import HeteroData

from gduq.data.view import View
from gduq.shifts.corruptions import (
    edge_drop,
    edge_rewire,
    feature_mask,
    feature_noise,
    has_numeric_features,
)

__all__ = ["changes_of", "shifted_copies"]

_SEVERITIES = (3, 5)


def changes_of(view: View) -> list[Callable[..., View]]:
    """The corruptions of `gduq.shifts` that fit the graphs: those of edges where there are some,
    those of features where these are floats and not all of them number categories."""
    graph, found = view.graphs[0], list[Callable[..., View]]()
    if isinstance(graph.get("edge_index"), Tensor):
        found += [edge_drop, edge_rewire]
    x = graph.get("x")
    if isinstance(x, Tensor) and x.is_floating_point() and has_numeric_features(view):
        found += [feature_noise, feature_mask]
    return found


def shifted_copies(view: View, seed: int = 0) -> Iterator[View]:
    """The rows of a view, corrupted in every way of `gduq.shifts`, at severities 3 and 5.

    Rows, labels and positional encodings stay; of a node task the whole graph is corrupted. Of a
    heterogeneous graph there are no copies. ``seed`` is that of the first copy; each has its own.

    Example:
        >>> import torch
        >>> from torch_geometric.data import Data
        >>> ring = torch.arange(20)
        >>> graph = Data(x=torch.ones(20, 3), edge_index=torch.stack([ring, ring.roll(1)]), y=ring)
        >>> [len(copy) for copy in shifted_copies(View(graph, rows=ring < 7))]
        [7, 7, 7, 7, 7, 7, 7, 7]
    """
    if isinstance(view.graphs[0], HeteroData):
        return
    for change in changes_of(view):
        for severity in _SEVERITIES:
            yield change(view, severity, seed)
            seed += 1
