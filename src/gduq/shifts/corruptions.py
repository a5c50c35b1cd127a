"""Corruptions with a severity from 0 (nothing) to 5 (half of it gone), each reproducible.

They take a `View` and give back a `View` with the same rows and labels. `LEVELS` holds the share at
each severity or, for noise, the standard deviation relative to each feature's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data

from gduq.data.packed import Packed, try_pack
from gduq.data.sparse import csr
from gduq.data.view import View
from gduq.errors import InputError

__all__ = ["LEVELS", "edge_drop", "edge_rewire", "feature_mask", "feature_noise"]

LEVELS = (0.0, 0.05, 0.1, 0.2, 0.35, 0.5)
_Change = Callable[[Data, float, torch.Generator], dict[str, Tensor]]


def feature_noise(view: View, severity: int, seed: int = 0) -> View:
    r"""Gaussian noise on the features.

    Feature j becomes :math:`x_j + \ell\,s_j\,\varepsilon` with level :math:`\ell`, its standard
    deviation :math:`s_j` over all nodes of the view (of a constant feature: its size), and
    :math:`\varepsilon \sim N(0, 1)`. Of sparse features only the stored entries are changed, with
    one :math:`s` for all, so they stay sparse.
    """
    return _corrupt(view, severity, seed, _noise)


def feature_mask(view: View, severity: int, seed: int = 0) -> View:
    """Set a random share of the feature entries (of sparse ones: of those stored) to zero."""
    return _corrupt(view, severity, seed, _mask)


def edge_drop(view: View, severity: int, seed: int = 0) -> View:
    """Take away a random share of the edges; both directions of an edge go together.

    Example:
        >>> path = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]])
        >>> graph = Data(x=torch.ones(5, 1), edge_index=torch.cat([path, path.flip(0)], 1))
        >>> edge_drop(View(graph), severity=5).graphs[0].edge_index.shape
        torch.Size([2, 4])
    """
    return _corrupt(view, severity, seed, _drop)


def edge_rewire(view: View, severity: int, seed: int = 0) -> View:
    """Give a random share of the edges a new, uniformly drawn end in the same graph.

    Both directions of an edge move together. A new edge may coincide with another one or be a
    self-loop, as random wiring has it; edge attributes stay with their edge.
    """
    return _corrupt(view, severity, seed, _rewire)


def _corrupt(view: View, severity: int, seed: int, change: _Change) -> View:
    if isinstance(severity, bool) or severity not in range(len(LEVELS)):
        raise InputError(f"a severity from 0 to {len(LEVELS) - 1}", repr(severity))
    if severity == 0:
        return view
    generator = torch.Generator().manual_seed(seed)
    level = LEVELS[severity]
    if len(view.graphs) == 1:
        graph = view.graphs[0]
        copy = graph.__copy__()
        for key, value in change(graph, level, generator).items():
            copy[key] = value
        return View(copy, view.rows)
    packed = try_pack(view.graphs)
    if packed is not None:
        return View(_change_packed(packed.materialise(), level, generator, change), view.rows)
    return View(_change_list(view.graphs, level, generator, change), view.rows)


def _change_packed(
    packed: Packed, level: float, generator: torch.Generator, change: _Change
) -> Packed:
    """All graphs at once, as one large graph."""
    batch = packed.collate()
    changed = change(batch, level, generator)
    layout, ptrs = dict(packed.layout), dict(packed.ptrs)
    if "edge_index" in changed:
        graph = batch.batch[changed["edge_index"][0]]
        count = torch.bincount(graph, minlength=len(packed))
        ptrs["edges left"] = torch.cat([count.new_zeros(1), count.cumsum(0)])
        changed["edge_index"] = changed["edge_index"] - batch.ptr[graph]
        layout |= dict.fromkeys(changed, "edges left")
    deliver = {key: how for key, how in packed.deliver.items() if key not in changed}
    tensors = {**packed.tensors, **changed}
    return replace(packed, tensors=tensors, layout=layout, ptrs=ptrs, deliver=deliver)


def _change_list(
    graphs: Sequence[Data], level: float, generator: torch.Generator, change: _Change
) -> list[Data]:
    copies = [graph.__copy__() for graph in graphs]
    for copy in copies:
        for key, value in change(copy, level, generator).items():
            copy[key] = value
    return copies


# -- changes of one (large) graph: attribute to its new value --------------------------------------


def _features(graph: Data) -> Tensor:
    x = graph.get("x")
    if x is None:
        raise InputError("graphs with features x", f"only {sorted(graph.keys())}")
    return x if x.is_floating_point() else x.float()  # type: ignore[no-any-return]


def _noise(graph: Data, level: float, generator: torch.Generator) -> dict[str, Tensor]:
    x = _features(graph)
    values = x.values() if x.layout == torch.sparse_csr else x
    spread = values.std(dim=0, correction=0)
    spread = torch.where(spread > 0, spread, values.mean(dim=0).abs())
    noise = torch.randn(values.shape, generator=generator, dtype=values.dtype)
    return {"x": _with_values(x, values + level * spread * noise)}


def _mask(graph: Data, level: float, generator: torch.Generator) -> dict[str, Tensor]:
    x = _features(graph)
    values = x.values() if x.layout == torch.sparse_csr else x
    keep = torch.rand(values.shape, generator=generator) >= level
    return {"x": _with_values(x, values * keep)}


def _with_values(x: Tensor, values: Tensor) -> Tensor:
    if x.layout != torch.sparse_csr:
        return values
    return csr(x.crow_indices(), x.col_indices(), values, x.shape)


def _pairs(graph: Data) -> tuple[Tensor, int]:
    """A number for each edge, the same for both directions, and how many there are."""
    low, high = graph.edge_index.min(dim=0).values, graph.edge_index.max(dim=0).values
    distinct, number = torch.unique(low * (graph.num_nodes or 0) + high, return_inverse=True)
    return number, distinct.numel()


def _drop(graph: Data, level: float, generator: torch.Generator) -> dict[str, Tensor]:
    number, count = _pairs(graph)
    gone = torch.randperm(count, generator=generator)[: round(level * count)]
    keep = torch.ones(count, dtype=torch.bool).index_fill_(0, gone, False)[number]
    edges = graph.edge_index.size(1)
    kept = {k: graph[k][keep] for k in sorted(graph.keys()) if _is_edge_level(graph, k, edges)}
    return {**kept, "edge_index": graph.edge_index[:, keep]}


def _is_edge_level(graph: Data, key: str, edges: int) -> bool:
    value = graph[key]
    if key == "edge_index" or not isinstance(value, Tensor) or value.dim() == 0:
        return False
    return value.size(0) == edges and bool(graph.is_edge_attr(key))


def _rewire(graph: Data, level: float, generator: torch.Generator) -> dict[str, Tensor]:
    number, count = _pairs(graph)
    moved = torch.randperm(count, generator=generator)[: round(level * count)]
    start, size = torch.zeros(count, dtype=torch.long), torch.full((count,), graph.num_nodes or 0)
    if isinstance(graph, Batch):
        owner = torch.zeros(count, dtype=torch.long)
        owner[number] = graph.batch[graph.edge_index[0]]
        start, size = graph.ptr[owner], graph.ptr.diff()[owner]
    draw = torch.rand(count, generator=generator, dtype=torch.float64)
    end = start + (draw * size).long()
    is_moved = torch.zeros(count, dtype=torch.bool).index_fill_(0, moved, True)[number]
    source, target = graph.edge_index
    first = source <= target  # the larger end of a pair moves, in both directions alike
    return {
        "edge_index": torch.stack(
            [
                torch.where(is_moved & ~first, end[number], source),
                torch.where(is_moved & first, end[number], target),
            ]
        )
    }
