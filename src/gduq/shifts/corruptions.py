"""Corruptions with a severity from 0 (nothing) to 5 (half of it gone), each reproducible.

They take a `View` and give back a `View` with the same rows and labels. `LEVELS` holds the share at
each severity or, for noise, the standard deviation relative to each feature's own. Features that
number categories (`category_columns`) stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.utils import cumsum

from gduq.errors import InputError, check_int
from gduq.graphs import View
from gduq.graphs.packed import Packed, cat_dim
from gduq.graphs.sparse import csr_of_pointers

__all__ = ["LEVELS", "category_columns", "changes_of", "edge_drop", "edge_rewire", "feature_mask",
           "feature_noise", "shifted_copies"]  # fmt: skip

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
    deviation :math:`s_j` over all nodes (of a constant feature: its size), and
    :math:`\varepsilon \sim N(0, 1)`; of sparse features the stored entries, with one :math:`s`.
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

    So do attributes with one row per edge. Where they could as well have one row per node or per
    graph, "edge" in the name marks them.

    Example:
        >>> path = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]])
        >>> graph = Data(x=torch.ones(5, 1), edge_index=torch.cat([path, path.flip(0)], 1))
        >>> edge_drop(View(graph), severity=5).graphs[0].edge_index.shape
        torch.Size([2, 4])
    """
    level, generator = _settings(severity, seed)
    if not level:
        return view
    columns = _columns(view.graphs)
    ends, sizes, pair, count = _edges(columns)
    gone = torch.randperm(count, generator=generator)[: round(level * count)]
    keep = torch.ones(count, dtype=torch.bool).index_fill_(0, gone, False)[pair]
    changed = {key: columns.tensors[key][keep] for key in _edge_attributes(columns)}
    left = cumsum(keep.long())[cumsum(sizes)].diff()
    return _changed(view, columns, {**changed, "edge_index": ends[:, keep]}, left)


def edge_rewire(view: View, severity: int, seed: int = 0) -> View:
    """Give a random share of the edges a new, uniformly drawn end in the same graph.

    Both directions of an edge move together, with their attributes; self-loops stay. A new edge may
    coincide with another one or be a self-loop.
    """
    level, generator = _settings(severity, seed)
    if not level:
        return view
    columns = _columns(view.graphs)
    (source, target), sizes, pair, count = _edges(columns)
    loop = torch.zeros(count, dtype=torch.bool)
    loop[pair] = source == target  # one direction only: moving it would leave half an edge
    free = torch.nonzero(~loop).flatten()
    order = torch.randperm(free.numel(), generator=generator)
    moved = free[order[: round(level * free.numel())]]
    nodes = torch.zeros(count, dtype=torch.long)
    nodes[pair] = columns.num_nodes.repeat_interleave(sizes)
    end = (torch.rand(count, generator=generator, dtype=torch.float64) * nodes).long()[pair]
    is_moved = torch.zeros(count, dtype=torch.bool).index_fill_(0, moved, True)[pair]
    first = source <= target  # the larger end of a pair moves, in both directions alike
    new_source = torch.where(is_moved & ~first, end, source)
    index = torch.stack([new_source, torch.where(is_moved & first, end, target)])
    return _changed(view, columns, {"edge_index": index}, sizes)


def changes_of(view: View) -> list[Callable[..., View]]:
    """The corruptions that fit the graphs: those of edges where there are some, those of features
    that are floats, not all of them numbers of categories, and not too large to copy (if dense)."""
    graph, found = view.graphs[0], list[Callable[..., View]]()
    if isinstance(graph.get("edge_index"), Tensor):
        found += [edge_drop, edge_rewire]
    if isinstance(x := graph.get("x"), Tensor) and x.is_floating_point():
        every = _columns(view.graphs).tensors["x"]
        if found and not x.is_sparse_csr and every.numel() > _MOST_ENTRIES:
            return found
        if x.is_sparse_csr or not category_columns(every).all():
            found += [feature_noise, feature_mask]
    return found


def shifted_copies(view: View, seed: int = 0) -> Iterator[View]:
    """The rows of a view, corrupted in every way above, at severities 3 and 5: a stand-in for the
    shift to come. ``seed`` is that of the first copy; each has its own.

    Rows, labels and positional encodings stay; of a node task the whole graph is corrupted. Of a
    heterogeneous graph there are no copies.

    Example:
        >>> ring = torch.arange(20)
        >>> graph = Data(x=torch.ones(20, 3), edge_index=torch.stack([ring, ring.roll(1)]), y=ring)
        >>> [len(copy) for copy in shifted_copies(View(graph, rows=ring < 7))]
        [7, 7, 7, 7, 7, 7, 7, 7]
    """
    if isinstance(view.graphs[0], HeteroData):
        return
    # read once for all copies, which share what they do not change
    graphs = view.graphs
    view = replace(view, graphs=graphs.materialise() if isinstance(graphs, Packed) else [*graphs])
    for change in changes_of(view):
        for severity in _SEVERITIES:
            yield change(view, severity, seed)
            seed += 1


def category_columns(x: Tensor) -> Tensor:
    """Which columns of the features number categories ``[d]``, such as those of ``from_smiles``.

    They hold whole numbers from -255 to 255, in a dense ``x`` of at most 64 columns. Columns of 0
    and 1 alone count as flags or one-hot features, unless another column numbers categories.

    Example:
        >>> category_columns(torch.tensor([[6.0, 1.0, 0.3], [8.0, 0.0, 0.7]]))
        tensor([ True,  True, False])
    """
    if x.dim() == 2 and x.layout == torch.strided and x.size(1) <= _MOST_COLUMNS:
        integral = ((x == x.round()) & (x.abs() < _MOST_CATEGORIES)).all(dim=0)
        if bool((integral & ((x > 1) | (x < 0)).any(dim=0)).any()):
            return integral
    return torch.zeros(x.size(-1), dtype=torch.bool, device=x.device)


def _settings(severity: int, seed: int) -> tuple[float, torch.Generator]:
    step = check_int("severity", severity, 0, len(LEVELS) - 1)
    return LEVELS[step], torch.Generator().manual_seed(check_int("seed", seed))


def _change_features(
    view: View, severity: int, seed: int, change: Callable[[Tensor, float, torch.Generator], Tensor]
) -> View:
    """Change the features of all graphs at once, so that noise and shares mean the same everywhere;
    of sparse features the stored entries, of dense ones all columns but those of categories."""
    level, generator = _settings(severity, seed)
    if not level:
        return view
    columns = _columns(view.graphs)
    x, sizes = _column(columns, "x")
    x = x.detach() if x.is_floating_point() else x.float()
    fixed = category_columns(x)
    if x.numel() and bool(fixed.all()):
        do = "Use edge_drop or edge_rewire."
        raise InputError("features to change", "only numbers of categories", do)
    if x.numel() and bool(fixed.any()):
        free = torch.nonzero(~fixed).flatten()
        x = x.index_copy(1, free, change(x[:, free], level, generator))
    elif x.numel():  # of sparse features nothing may be stored
        x = change(x, level, generator)
    return _changed(view, columns, {"x": x}, sizes)


def _edges(columns: Packed) -> tuple[Tensor, Tensor, Tensor, int]:
    """The ends of all edges ``[2, E]``, how many each graph has ``[G]``, a number for both
    directions of an edge ``[E]``, and how many such pairs there are."""
    ends, sizes = _column(columns, "edge_index")
    low, high = (ends + columns.node_ptr[:-1].repeat_interleave(sizes)).aminmax(dim=0)
    distinct, pair = torch.unique(low * int(columns.node_ptr[-1]) + high, return_inverse=True)
    return ends, sizes, pair, distinct.numel()


def _edge_attributes(columns: Packed) -> list[str]:
    """The attributes with one row per edge; where the numbers leave it open (as many nodes as edges
    in every graph, or one edge each), the name must say so."""
    found, edges = list[str](), columns.ptrs["edge_index"].diff()
    for key, ptr in columns.ptrs.items():
        if key in _NO_EDGES or "index" in key:
            continue
        sizes = ptr.diff()
        clear = bool((sizes != columns.num_nodes).any()) and bool((sizes != 1).any())
        if torch.equal(sizes, edges) and ("edge" in key or clear):
            found.append(key)
    return found


def _columns(graphs: Sequence[Data]) -> Packed:
    """The attributes of all graphs, one graph after the other; of sparse ones the stored entries.
    Of graphs that cannot be packed it holds the tensors that all of them have."""
    if isinstance(graphs, Packed):
        return graphs.materialise()
    tensors, ptrs = dict[str, Tensor](), dict[str, Tensor]()
    for key in graphs[0].to_dict():
        values = [graph.get(key) for graph in graphs]
        if all(isinstance(value, Tensor) and value.dim() for value in values):
            values = [v.values() if v.layout == torch.sparse_csr else v for v in values]
            tensors[key] = torch.cat(values, dim=cat_dim(key)) if len(values) > 1 else values[0]
            ptrs[key] = cumsum(torch.tensor([value.size(cat_dim(key)) for value in values]))
    nodes = torch.tensor([int(graph.num_nodes or 0) for graph in graphs])
    return Packed(tensors, ptrs, cumsum(nodes))


def _column(columns: Packed, key: str) -> tuple[Tensor, Tensor]:
    """An attribute of all graphs, and how many rows of it each has ``[G]``."""
    if key not in columns.tensors:
        raise InputError(f"graphs with an attribute {key!r}", f"only {sorted(columns.tensors)}")
    return columns.tensors[key], columns.ptrs[key].diff()


def _changed(view: View, columns: Packed, changed: Mapping[str, Tensor], sizes: Tensor) -> View:
    """The view with other attributes, of as many rows per graph; nothing else is copied."""
    if isinstance(view.graphs, Packed):
        return replace(view, graphs=columns.with_columns(changed, sizes))
    copies = [graph.__copy__() for graph in view.graphs]
    for key, column in changed.items():
        parts = column.split(sizes.tolist(), dim=cat_dim(key))
        for copy, new in zip(copies, parts, strict=True):
            old = copy[key]
            part = new.to(old.dtype) if old.is_floating_point() else new
            if old.layout == torch.sparse_csr:
                part = csr_of_pointers(old.crow_indices(), old.col_indices(), part, old.shape)
            copy[key] = part
    return replace(view, graphs=copies)
