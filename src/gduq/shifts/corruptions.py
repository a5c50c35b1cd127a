"""Corruptions with a severity from 0 (nothing) to 5 (half of it gone), each reproducible.

They take a `View` and give back a `View` with the same rows and labels. `LEVELS` holds the share at
each severity or, for noise, the standard deviation relative to each feature's own. Features that
number categories (`category_columns`) stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce

import torch
from torch import Tensor
from torch_geometric.data import Data

from gduq.data.packed import TEXT, Packed, to_ptr, try_pack
from gduq.data.view import View
from gduq.errors import InputError
from gduq.graph.sparse import csr_of_pointers
from gduq.shifts.domains import attribute
from gduq.whole import whole

__all__ = [
    "LEVELS",
    "category_columns",
    "edge_drop",
    "edge_rewire",
    "feature_mask",
    "feature_noise",
    "has_numeric_features",
]

LEVELS = (0.0, 0.05, 0.1, 0.2, 0.35, 0.5)
_KEEP = "edges kept"
_MOST_COLUMNS = 64  # more are words or other counts, not categories
_MOST_CATEGORIES = 256
_NO_EDGES = (
    "y", "x", "pos", "batch", "ptr", "row_mask", "edge_label", "edge_label_index", "edge_row_mask",
)  # fmt: skip
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

    So do the rows of attributes with one row per edge (never of ``y``, ``x``, ``pos``). Where an
    attribute could as well have one row per node or per graph, "edge" in its name marks it.

    Example:
        >>> path = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]])
        >>> graph = Data(x=torch.ones(5, 1), edge_index=torch.cat([path, path.flip(0)], 1))
        >>> edge_drop(View(graph), severity=5).graphs[0].edge_index.shape
        torch.Size([2, 4])
    """
    return _corrupt(view, severity, seed, _drop)


def edge_rewire(view: View, severity: int, seed: int = 0) -> View:
    """Give a random share of the edges a new, uniformly drawn end in the same graph.

    Both directions of an edge move together, self-loops stay. A new edge may coincide with another
    one or be a self-loop, as random wiring has it; edge attributes stay with their edge.
    """
    return _corrupt(view, severity, seed, _rewire)


def _corrupt(view: View, severity: int, seed: int, change: _Change) -> View:
    step = whole("severity", severity, 0, len(LEVELS) - 1)
    generator = torch.Generator().manual_seed(whole("seed", seed))
    if step == 0:
        return view
    if len(view.graphs) == 1:
        return replace(view, graphs=[_one(view.graphs[0], LEVELS[step], generator, change)])
    packed = try_pack(view.graphs)
    if packed is not None:
        changed = _changed(packed.materialise(), LEVELS[step], generator, change)
        return replace(view, graphs=changed)
    graphs = [graph.__copy__() for graph in view.graphs]  # but their features and edges do pack
    bare = _bare(graphs)
    _put_back(graphs, bare, _changed(bare, LEVELS[step], generator, change))
    return replace(view, graphs=graphs)


def _changed(packed: Packed, level: float, generator: torch.Generator, change: _Change) -> Packed:
    """All graphs at once, as one large graph, so noise and shares mean the same everywhere."""
    batch = packed.collate()
    changed = change(batch, level, generator)
    layout, ptrs, tensors = dict(packed.layout), dict(packed.ptrs), dict(packed.tensors)
    keep = changed.pop(_KEEP, None)
    if "edge_index" in changed:
        graph = batch.batch[changed["edge_index"][0]]
        ptrs["edges left"] = to_ptr(torch.bincount(graph, minlength=len(packed)))
        changed["edge_index"] = changed["edge_index"] - batch.ptr[graph]
        layout["edge_index"] = "edges left"
    if keep is not None:
        edges, nodes = packed.sizes("edge_index").tolist(), packed.num_nodes.tolist()
        for key in tensors:
            per_edge = _is_edge_level(key, packed.sizes(key).tolist(), edges, nodes)
            if per_edge and packed.deliver.get(key) != TEXT:
                tensors[key], layout[key] = tensors[key][keep], "edges left"
    deliver = {key: how for key, how in packed.deliver.items() if key not in changed}
    tensors |= changed
    return replace(packed, tensors=tensors, layout=layout, ptrs=ptrs, deliver=deliver)


def _is_edge_level(key: str, sizes: list[int], edges: list[int], nodes: list[int]) -> bool:
    """Whether an attribute of so many rows per graph has one per edge; where the numbers leave it
    open (as many nodes as edges in every graph, or one edge each), its name must say so."""
    if key in _NO_EDGES or "index" in key or sizes != edges:
        return False
    return "edge" in key or (sizes != nodes and any(size != 1 for size in sizes))


def _one(graph: Data, level: float, generator: torch.Generator, change: _Change) -> Data:
    """A single graph, which may be large: nothing is copied but what changes."""
    nodes, one = int(graph.num_nodes or 0), graph.__copy__()
    bare = Data(num_nodes=nodes, batch=torch.zeros(nodes, dtype=torch.long))
    bare.ptr = torch.tensor([0, nodes])
    if graph.get("x") is not None:
        bare.x = _entries(_features(graph)).detach()
    if graph.get("edge_index") is not None:
        bare.edge_index = graph.edge_index
    changed = change(bare, level, generator)
    if "x" in changed:
        dtype = graph.x.dtype if graph.x.is_floating_point() else changed["x"].dtype
        one.x = _with_values(graph.x, changed["x"].to(dtype))
    if _KEEP in changed:
        edges = [graph.edge_index.size(1)]
        for key, value in graph:
            rows = value.size(0) if isinstance(value, Tensor) and value.dim() > 0 else -1
            if _is_edge_level(key, [rows], edges, [nodes]):
                one[key] = value[changed[_KEEP]]
    if "edge_index" in changed:
        one.edge_index = changed["edge_index"]
    return one


# -- graphs that cannot be packed: sparse, or of different attributes ------------------------------


def _bare(graphs: Sequence[Data]) -> Packed:
    """Only the entries of their features, their edges, and a number per edge."""
    bare = [Data(num_nodes=int(graph.num_nodes or 0)) for graph in graphs]
    if all(graph.get("x") is not None for graph in graphs):
        values = [_entries(_features(graph)).detach() for graph in graphs]
        dtype = reduce(torch.promote_types, {value.dtype for value in values})
        for one, value in zip(bare, values, strict=True):
            one.x = value.to(dtype)
    if all(graph.get("edge_index") is not None for graph in graphs):
        for one, graph in zip(bare, graphs, strict=True):
            one.edge_index = graph.edge_index
            one.edge_number = torch.arange(graph.edge_index.size(1))
    return Packed.pack(bare)


def _put_back(graphs: Sequence[Data], before: Packed, after: Packed) -> None:
    """Write on the graphs, in place, what has changed."""
    if after.tensors.get("x") is not before.tensors.get("x"):
        for graph, new in zip(graphs, after, strict=True):
            values = new.x.to(graph.x.dtype) if graph.x.is_floating_point() else new.x
            graph.x = _with_values(graph.x, values)
        return
    nodes, edges = before.num_nodes.tolist(), before.sizes("edge_index").tolist()
    for key in {key for graph in graphs for key in graph.keys()}:  # noqa: SIM118
        having = [i for i, graph in enumerate(graphs) if key in graph]
        values = [graphs[i][key] for i in having]
        if not all(isinstance(value, Tensor) and value.dim() > 0 for value in values):
            continue
        counts = ([per[i] for i in having] for per in (edges, nodes))
        if _is_edge_level(key, [len(value) for value in values], *counts):
            for i, value in zip(having, values, strict=True):
                graphs[i][key] = value[after[i].edge_number]
    for graph, new in zip(graphs, after, strict=True):
        graph.edge_index = new.edge_index


def _entries(x: Tensor) -> Tensor:
    return x.values() if x.layout == torch.sparse_csr else x


def _with_values(x: Tensor, values: Tensor) -> Tensor:
    if x.layout != torch.sparse_csr:
        return values
    return csr_of_pointers(x.crow_indices(), x.col_indices(), values, x.shape)


# -- changes of one large graph: attribute to its new value ----------------------------------------


def _features(graph: Data) -> Tensor:
    x: Tensor = attribute("x")(graph)
    return x if x.is_floating_point() else x.float()


def category_columns(x: Tensor) -> Tensor:
    """Which columns of ``x`` number categories ``[d]``, such as those of PyG's ``from_smiles``.

    They hold whole numbers from -255 to 255, in a dense ``x`` of at most 64 columns. Columns of 0
    and 1 alone count as flags or one-hot features, unless another column numbers categories.

    Example:
        >>> category_columns(torch.tensor([[6.0, 1.0, 0.3], [8.0, 0.0, 0.7]]))
        tensor([ True,  True, False])
        >>> category_columns(torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
        tensor([False, False])
    """
    return _categories([x])


def _categories(parts: Sequence[Tensor]) -> Tensor:
    """The same for features in parts, one per graph."""
    x = parts[0]
    none = torch.zeros(x.size(-1), dtype=torch.bool, device=x.device)
    if x.dim() != 2 or x.layout != torch.strided or x.size(1) > _MOST_COLUMNS:
        return none
    whole, above = ~none, none
    for x in parts:
        whole = whole & ((x == x.round()) & (x.abs() < _MOST_CATEGORIES)).all(dim=0)
        above = above | ((x > 1) | (x < 0)).any(dim=0)
    return whole if bool((whole & above).any()) else none


def has_numeric_features(view: View) -> bool:
    """Whether some feature of the graphs is not the number of a category."""
    graphs = view.graphs
    if isinstance(graphs, Packed):  # of which some may be hidden
        graphs = [graphs.materialise()]
    parts = [g.tensors["x"] if isinstance(g, Packed) else g.x for g in graphs]
    return not bool(_categories(parts).all())


def _numeric(x: Tensor) -> Tensor | None:
    """The columns that may change ``[j]``; ``None`` for all of them."""
    fixed = category_columns(x)
    if bool(fixed.all()):
        raise InputError(
            "features to change", "only numbers of categories", "Use edge_drop or edge_rewire."
        )
    return torch.nonzero(~fixed).flatten() if bool(fixed.any()) else None


def _noise(graph: Data, level: float, generator: torch.Generator) -> dict[str, Tensor]:
    def noised(x: Tensor) -> Tensor:
        spread = x.std(dim=0, correction=0)
        spread = torch.where(spread > 0, spread, x.mean(dim=0).abs())
        noise = torch.randn(x.shape, generator=generator, dtype=x.dtype)
        return noise.mul_(level * spread).add_(x)

    return _on_numeric(graph, noised)


def _mask(graph: Data, level: float, generator: torch.Generator) -> dict[str, Tensor]:
    def masked(x: Tensor) -> Tensor:
        return torch.rand(x.shape, generator=generator).ge_(level).to(x.dtype).mul_(x)

    return _on_numeric(graph, masked)


def _on_numeric(graph: Data, change: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    """The features with a change of all columns but those that number categories."""
    x = _features(graph)
    if not x.numel():  # sparse, and nothing stored
        return {"x": x}
    columns = _numeric(x)
    if columns is None:
        return {"x": change(x)}
    return {"x": x.index_copy(1, columns, change(x[:, columns]))}


def _pairs(graph: Data) -> tuple[Tensor, int]:
    """A number for each edge, the same for both directions, and how many there are."""
    ends: Tensor = attribute("edge_index")(graph)
    low, high = ends.min(dim=0).values, ends.max(dim=0).values
    distinct, number = torch.unique(low * (graph.num_nodes or 0) + high, return_inverse=True)
    return number, distinct.numel()


def _drop(graph: Data, level: float, generator: torch.Generator) -> dict[str, Tensor]:
    number, count = _pairs(graph)
    gone = torch.randperm(count, generator=generator)[: round(level * count)]
    keep = torch.ones(count, dtype=torch.bool).index_fill_(0, gone, False)[number]
    return {"edge_index": graph.edge_index[:, keep], _KEEP: keep}


def _rewire(graph: Data, level: float, generator: torch.Generator) -> dict[str, Tensor]:
    number, count = _pairs(graph)
    source, target = graph.edge_index
    loop = torch.zeros(count, dtype=torch.bool)
    loop[number] = source == target  # has one direction only, so moving it would leave half an edge
    free = torch.nonzero(~loop).flatten()
    order = torch.randperm(free.numel(), generator=generator)
    moved = free[order[: round(level * free.numel())]]
    owner = torch.zeros(count, dtype=torch.long)
    owner[number] = graph.batch[source]
    draw = torch.rand(count, generator=generator, dtype=torch.float64)
    end = (graph.ptr[owner] + (draw * graph.ptr.diff()[owner]).long())[number]
    is_moved = torch.zeros(count, dtype=torch.bool).index_fill_(0, moved, True)[number]
    first = source <= target  # the larger end of a pair moves, in both directions alike
    new_source = torch.where(is_moved & ~first, end, source)
    return {"edge_index": torch.stack([new_source, torch.where(is_moved & first, end, target)])}
