"""Corruptions with a severity from 0 (nothing) to 5 (half of it gone), each reproducible.

They take a `View` and give back a `View` with the same rows and labels. `LEVELS` holds the share at
each severity or, for noise, the standard deviation relative to each feature's own. Features that
number categories (`category_columns`) stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from gduq._checks import check_int
from gduq.errors import InputError
from gduq.graphs import View
from gduq.graphs.packed import Packed, cat_dim, to_ptr
from gduq.graphs.sparse import csr_of_pointers

__all__ = [
    "LEVELS",
    "category_columns",
    "changes_of",
    "edge_drop",
    "edge_rewire",
    "feature_mask",
    "feature_noise",
    "shifted_copies",
]

LEVELS = (0.0, 0.05, 0.1, 0.2, 0.35, 0.5)
_SEVERITIES = (3, 5)  # of the copies that models are calibrated on
_MOST_COLUMNS = 64  # more are words or other counts, not categories
_MOST_CATEGORIES = 256
_MOST_ENTRIES = 1 << 26  # of dense features that are copied (256 MiB of single precision)
_NO_EDGES = (
    "y", "x", "pos", "batch", "ptr", "row_mask", "edge_label", "edge_label_index", "edge_row_mask",
)  # fmt: skip


def feature_noise(view: View, severity: int, seed: int = 0) -> View:
    r"""Gaussian noise on the features.

    Feature j becomes :math:`x_j + \ell\,s_j\,\varepsilon` with level :math:`\ell`, its standard
    deviation :math:`s_j` over all nodes of the view (of a constant feature: its size), and
    :math:`\varepsilon \sim N(0, 1)`. Of sparse features only the stored entries are changed, with
    one :math:`s` for all, so they stay sparse.
    """

    def noise(x: Tensor, level: float, generator: torch.Generator) -> Tensor:
        spread = x.std(dim=0, correction=0)
        spread = torch.where(spread > 0, spread, x.mean(dim=0).abs())
        drawn = torch.randn(x.shape, generator=generator, dtype=x.dtype)
        return drawn.mul_(level * spread).add_(x)

    return _change_features(view, severity, seed, noise)


def feature_mask(view: View, severity: int, seed: int = 0) -> View:
    """Set a random share of the feature entries (of sparse ones: of those stored) to zero."""

    def mask(x: Tensor, level: float, generator: torch.Generator) -> Tensor:
        return torch.rand(x.shape, generator=generator).ge_(level).to(x.dtype).mul_(x)

    return _change_features(view, severity, seed, mask)


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
    level, generator = _settings(severity, seed)
    if not level:
        return view
    graphs = _Columns(view.graphs)
    edges = _Edges.of(graphs)
    gone = torch.randperm(edges.count, generator=generator)[: round(level * edges.count)]
    keep = torch.ones(edges.count, dtype=torch.bool).index_fill_(0, gone, False)[edges.pair]
    sizes = to_ptr(keep.long())[to_ptr(edges.sizes)].diff()
    changed = {key: graphs.column(key)[keep] for key in _edge_level(graphs, edges.sizes)}
    changed["edge_index"] = graphs.column("edge_index")[:, keep]
    return replace(view, graphs=graphs.replaced(changed, sizes))


def edge_rewire(view: View, severity: int, seed: int = 0) -> View:
    """Give a random share of the edges a new, uniformly drawn end in the same graph.

    Both directions of an edge move together, self-loops stay. A new edge may coincide with another
    one or be a self-loop, as random wiring has it; edge attributes stay with their edge.
    """
    level, generator = _settings(severity, seed)
    if not level:
        return view
    graphs = _Columns(view.graphs)
    edges = _Edges.of(graphs)
    (source, target), count = edges.ends, edges.count
    loop = torch.zeros(count, dtype=torch.bool)
    loop[edges.pair] = source == target  # one direction only: moving it would leave half an edge
    free = torch.nonzero(~loop).flatten()
    order = torch.randperm(free.numel(), generator=generator)
    moved = free[order[: round(level * free.numel())]]
    start, nodes = torch.zeros(count, dtype=torch.long), torch.zeros(count, dtype=torch.long)
    start[edges.pair], nodes[edges.pair] = edges.start, edges.nodes
    draw = torch.rand(count, generator=generator, dtype=torch.float64)
    end = (start + (draw * nodes).long())[edges.pair]
    is_moved = torch.zeros(count, dtype=torch.bool).index_fill_(0, moved, True)[edges.pair]
    first = source <= target  # the larger end of a pair moves, in both directions alike
    new_source = torch.where(is_moved & ~first, end, source)
    ends = torch.stack([new_source, torch.where(is_moved & first, end, target)]) - edges.start
    return replace(view, graphs=graphs.replaced({"edge_index": ends}, edges.sizes))


def changes_of(view: View) -> list[Callable[..., View]]:
    """The corruptions that fit the graphs: those of edges where there are some, those of features
    where these are floats and not all of them number categories. Of dense features too large to
    copy (more than ``2**26`` entries) only the edges change."""
    graph, found = view.graphs[0], list[Callable[..., View]]()
    if isinstance(graph.get("edge_index"), Tensor):
        found += [edge_drop, edge_rewire]
    x = graph.get("x")
    if isinstance(x, Tensor) and x.is_floating_point():
        parts = _Columns(view.graphs).parts("x")
        if found and not x.is_sparse_csr and sum(p.numel() for p in parts) > _MOST_ENTRIES:
            return found
        fixed = category_columns(*parts)
        found += [feature_noise, feature_mask] if x.is_sparse_csr or not bool(fixed.all()) else []
    return found


def shifted_copies(view: View, seed: int = 0) -> Iterator[View]:
    """The rows of a view, corrupted in every way above, at severities 3 and 5: a stand-in for the
    shift that is to come.

    Rows, labels and positional encodings stay; of a node task the whole graph is corrupted. Of a
    heterogeneous graph there are no copies. ``seed`` is that of the first copy; each has its own.

    Example:
        >>> ring = torch.arange(20)
        >>> graph = Data(x=torch.ones(20, 3), edge_index=torch.stack([ring, ring.roll(1)]), y=ring)
        >>> [len(copy) for copy in shifted_copies(View(graph, rows=ring < 7))]
        [7, 7, 7, 7, 7, 7, 7, 7]
    """
    if isinstance(view.graphs[0], HeteroData):
        return
    graphs = view.graphs  # read once for all copies, which share what they do not change
    once = graphs.materialise() if isinstance(graphs, Packed) else list(graphs)
    view = replace(view, graphs=once)
    for change in changes_of(view):
        for severity in _SEVERITIES:
            yield change(view, severity, seed)
            seed += 1


def category_columns(*parts: Tensor) -> Tensor:
    """Which columns of the features number categories ``[d]``, such as those of PyG's
    ``from_smiles``; features may come in parts, one per graph.

    They hold whole numbers from -255 to 255, in a dense ``x`` of at most 64 columns. Columns of 0
    and 1 alone count as flags or one-hot features, unless another column numbers categories.

    Example:
        >>> category_columns(torch.tensor([[6.0, 1.0, 0.3], [8.0, 0.0, 0.7]]))
        tensor([ True,  True, False])
        >>> category_columns(torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
        tensor([False, False])
    """
    x = parts[0]
    none = torch.zeros(x.size(-1), dtype=torch.bool, device=x.device)
    if x.dim() != 2 or x.layout != torch.strided or x.size(1) > _MOST_COLUMNS:
        return none
    integral, above = ~none, none
    for x in parts:
        integral = integral & ((x == x.round()) & (x.abs() < _MOST_CATEGORIES)).all(dim=0)
        above = above | ((x > 1) | (x < 0)).any(dim=0)
    return integral if bool((integral & above).any()) else none


def _settings(severity: int, seed: int) -> tuple[float, torch.Generator]:
    step = check_int("severity", severity, 0, len(LEVELS) - 1)
    return LEVELS[step], torch.Generator().manual_seed(check_int("seed", seed))


class _Columns:
    """Attributes over all graphs, one after the other: of a packed set as they lie in it, else
    joined and cut again."""

    def __init__(self, graphs: Sequence[Data]) -> None:
        self.packed = graphs.materialise() if isinstance(graphs, Packed) else None
        self.graphs = list(graphs) if self.packed is None else []

    @property
    def nodes(self) -> Tensor:
        """Nodes of each graph ``[G]``."""
        if self.packed is not None:
            return self.packed.num_nodes
        return torch.tensor([int(graph.num_nodes or 0) for graph in self.graphs])

    def has(self, key: str) -> bool:
        if self.packed is not None:
            return key in self.packed.tensors
        return all(graph.get(key) is not None for graph in self.graphs)

    @property
    def keys(self) -> list[str]:
        """The attributes that are tensors with rows in every graph."""
        if self.packed is not None:
            return list(self.packed.tensors)
        keys = {key for graph in self.graphs for key in graph.keys()}  # noqa: SIM118
        values = {key: [g.get(key) for g in self.graphs] for key in sorted(keys)}
        return [k for k, v in values.items() if all(isinstance(x, Tensor) and x.dim() for x in v)]

    def sizes(self, key: str) -> Tensor:
        """Rows of each graph ``[G]``."""
        if self.packed is not None:
            return self.packed.ptrs[key].diff()
        return torch.tensor([graph[key].size(cat_dim(key)) for graph in self.graphs])

    def parts(self, key: str) -> list[Tensor]:
        """The attribute in parts; of sparse tensors the stored entries."""
        if self.packed is not None:
            return [self.packed.tensors[key]]
        values = [graph[key] for graph in self.graphs]
        return [v.values() if v.layout == torch.sparse_csr else v for v in values]

    def column(self, key: str) -> Tensor:
        parts = self.parts(key)
        return torch.cat(parts, dim=cat_dim(key)) if len(parts) > 1 else parts[0]

    def replaced(self, changed: Mapping[str, Tensor], sizes: Tensor) -> Sequence[Data]:
        """The graphs with other attributes, of as many rows each; nothing else is copied."""
        if self.packed is not None:
            known, ptr = self.packed, to_ptr(sizes)
            ptr = known.node_ptr if torch.equal(ptr, known.node_ptr) else ptr
            ptrs = {**known.ptrs, **dict.fromkeys(changed, ptr)}
            return replace(known, tensors={**known.tensors, **changed}, ptrs=ptrs)
        copies = [graph.__copy__() for graph in self.graphs]
        for key, column in changed.items():
            parts = column.split(sizes.tolist(), dim=cat_dim(key))
            for copy, new in zip(copies, parts, strict=True):
                old = copy[key]
                part = new.to(old.dtype) if old.is_floating_point() else new
                if old.layout == torch.sparse_csr:
                    part = csr_of_pointers(old.crow_indices(), old.col_indices(), part, old.shape)
                copy[key] = part
        return copies


def _change_features(
    view: View,
    severity: int,
    seed: int,
    change: Callable[[Tensor, float, torch.Generator], Tensor],
) -> View:
    """Change the features of all graphs at once, so that noise and shares mean the same everywhere;
    of sparse features the stored entries, of dense ones all columns but those of categories."""
    level, generator = _settings(severity, seed)
    if not level:
        return view
    graphs = _Columns(view.graphs)
    if not graphs.has("x"):
        raise InputError("graphs with an attribute 'x'", f"only {sorted(view.graphs[0].keys())}")
    x = graphs.column("x").detach()
    x = x if x.is_floating_point() else x.float()
    sizes = graphs.nodes if graphs.packed else torch.tensor([len(p) for p in graphs.parts("x")])
    if x.numel():  # of sparse features nothing may be stored
        fixed = category_columns(x)
        if bool(fixed.all()):
            do = "Use edge_drop or edge_rewire."
            raise InputError("features to change", "only numbers of categories", do)
        columns = torch.nonzero(~fixed).flatten()
        some = bool(fixed.any())
        x = (
            x.index_copy(1, columns, change(x[:, columns], level, generator))
            if some
            else change(x, level, generator)
        )
    return replace(view, graphs=graphs.replaced({"x": x}, sizes))


@dataclass(frozen=True)
class _Edges:
    """The edges of all graphs as those of one large graph.

    Attributes:
        ends: ``[2, E]``, nodes numbered over all graphs.
        sizes: Edges of each graph ``[G]``.
        start, nodes: Of the graph of each edge, its first node and how many it has ``[E]``.
        pair: A number for each edge ``[E]``, the same for both directions.
        count: How many such numbers there are.
    """

    ends: Tensor
    sizes: Tensor
    start: Tensor
    nodes: Tensor
    pair: Tensor
    count: int

    @classmethod
    def of(cls, graphs: _Columns) -> _Edges:
        if not graphs.has("edge_index"):
            raise InputError("graphs with an attribute 'edge_index'", "graphs without")
        nodes, sizes = graphs.nodes, graphs.sizes("edge_index")
        start = to_ptr(nodes)[:-1].repeat_interleave(sizes)
        ends = graphs.column("edge_index") + start
        low, high = ends.aminmax(dim=0)
        distinct, pair = torch.unique(low * int(nodes.sum()) + high, return_inverse=True)
        each = nodes.repeat_interleave(sizes)
        return cls(ends, sizes, start, each, pair, distinct.numel())


def _edge_level(graphs: _Columns, edges: Tensor) -> set[str]:
    """The attributes with one row per edge; where the numbers leave it open (as many nodes as edges
    in every graph, or one edge each), the name must say so."""
    found, nodes = set[str](), graphs.nodes
    for key in graphs.keys:
        if key in _NO_EDGES or "index" in key:
            continue
        sizes = graphs.sizes(key)
        clear = bool((sizes != nodes).any()) and bool((sizes != 1).any())
        if torch.equal(sizes, edges) and ("edge" in key or clear):
            found.add(key)
    return found
