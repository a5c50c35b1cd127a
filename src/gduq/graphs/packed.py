"""Many graphs at once: `join` makes one batch of them, `Packed` keeps them in a few long tensors,
so that a mini-batch is a handful of gathers. Where graphs begin there are *offsets* ``[G + 1]``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, overload

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data, InMemoryDataset

from gduq.errors import InputError
from gduq.graphs.rows import Graph

__all__ = ["TEXT", "Packed", "cat_dim", "join", "ragged", "to_ptr", "try_pack"]

TEXT = "text"  # how a column of strings is delivered; it is stored as UTF-8 bytes


def join(graphs: Sequence[Graph]) -> Graph:
    """Several graphs in one batch, with what `gduq.data.View` wrote on them."""
    # Torch warns of unchecked sparse tensors unless told that they are meant to be.
    try:
        with torch.sparse.check_sparse_tensor_invariants(enable=False):
            joined: Graph = Batch.from_data_list(list(graphs))
    except KeyError as error:
        raise unequal(f"some without {error}") from None
    for word in ("row_kind", "row_type"):
        value = graphs[0].get(word)
        if value is not None:  # PyG would keep a list of equal words
            joined[word] = value
    return joined


def unequal(got: str) -> InputError:
    """The error for graphs that cannot be joined without losing an attribute."""
    do = "Give it to all graphs, or take it from the others."
    return InputError("graphs with equal attributes", got, do)


def to_ptr(sizes: Tensor) -> Tensor:
    """Offsets ``[G + 1]`` of parts of the given sizes."""
    return torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])


def cat_dim(key: str) -> int:
    """The axis on which PyG joins an attribute: the last for numbers of nodes, which shift when
    graphs are joined, else the first."""
    return -1 if "index" in key or key == "face" else 0


def ragged(ptr: Tensor, index: Tensor) -> tuple[Tensor | slice, Tensor]:
    """Rows of the graphs ``index`` and their new offsets; neighbours come as one slice."""
    starts = ptr[index]
    sizes = ptr[index + 1] - starts
    out = to_ptr(sizes)
    total = int(out[-1])
    if index.numel() and bool((index.diff() == 1).all()):
        return slice(int(starts[0]), int(starts[0]) + total), out
    shift = torch.repeat_interleave(starts - out[:-1], sizes, output_size=total)
    return shift + torch.arange(total), out


def _share_ptr(ptrs: dict[str, Tensor], key: str, ptr: Tensor) -> str:
    """The name of equal offsets that are there already, or a new one."""
    for name, known in ptrs.items():
        if torch.equal(known, ptr):
            return name
    ptrs[key] = ptr
    return key


def _take(key: str, value: Tensor, rows: Tensor | slice) -> Tensor:
    """Some rows of an attribute, on the axis that graphs are joined on."""
    if isinstance(rows, slice):
        return value[..., rows] if cat_dim(key) else value[rows]
    return value.index_select(cat_dim(key), rows)


@dataclass(frozen=True, eq=False)
class Packed(Sequence[Data]):
    """Graphs of equal attributes, each attribute concatenated over all graphs.

    It is a sequence of ``Data``; a slice, a tensor or a list of numbers selects graphs without
    copying them. Make one with `pack` from a list of ``Data``, or from long tensors with `build`.

    Attributes:
        tensors: Attribute to its concatenated tensor (on the last axis for ``edge_index`` and
            everything PyG joins so); ``edge_index`` numbers nodes within a graph.
        ptrs: Name to start offsets ``[G + 1]``; ``"node"`` is always there.
        layout: Attribute to the name of its offsets.
        deliver: Attribute to the dtype it is handed out in, where that is not the stored one
            (``"float32"`` for half-precision features, ``"int64"`` for 32-bit edges, ``"text"``).
        extras: Tensors kept (and cached) beside the graphs: split indices, domain values.
        visible: Numbers of the graphs that are visible ``[m]``, or ``None`` for all.
        class_names: Names of the classes in ``y``, where they are known.
        target_names: Names of the columns of ``y``, where they are known.

    Example:
        >>> edges = torch.tensor([[0, 1], [1, 0]])
        >>> graphs = [Data(x=torch.ones(2, 1) * i, edge_index=edges, y=i) for i in range(3)]
        >>> packed = Packed.pack(graphs)
        >>> len(packed), packed[-1].x.flatten().tolist()
        (3, [2.0, 2.0])
        >>> packed[[2, 0]].collate().edge_index.tolist()
        [[0, 1, 2, 3], [1, 0, 3, 2]]
    """

    tensors: Mapping[str, Tensor]
    ptrs: Mapping[str, Tensor]
    layout: Mapping[str, str]
    deliver: Mapping[str, str] = field(default_factory=dict)
    extras: Mapping[str, Tensor] = field(default_factory=dict)
    visible: Tensor | None = None
    class_names: tuple[str, ...] = ()
    target_names: tuple[str, ...] = ()

    @staticmethod
    def build(
        node_ptr: Tensor,
        edge_ptr: Tensor,
        edge_index: Tensor,
        *,
        nodes: Mapping[str, Tensor] | None = None,
        edges: Mapping[str, Tensor] | None = None,
        graphs: Mapping[str, Tensor] | None = None,
        extras: Mapping[str, Tensor] | None = None,
    ) -> Packed:
        """From long tensors: ``edge_index [2, E]`` numbered within each graph, and attributes per
        node ``[N, ...]``, per edge ``[E, ...]`` and per graph ``[G, ...]``."""
        every = torch.arange(node_ptr.numel())
        ptrs = {"node": node_ptr.long(), "edge": edge_ptr.long(), "graph": every}
        edges = {"edge_index": edge_index, **(edges or {})}
        groups = {"node": nodes or {}, "edge": edges, "graph": graphs or {}}
        tensors = {key: value for group in groups.values() for key, value in group.items()}
        layout = {key: name for name, group in groups.items() for key in group}
        deliver = {"edge_index": "int64"} if edge_index.dtype != torch.int64 else {}
        return Packed(tensors, ptrs, layout, deliver, extras or {})

    @staticmethod
    def pack(graphs: Sequence[Data]) -> Packed:
        """Join plain ``Data`` objects of equal attributes (tensors, numbers or strings)."""
        graphs = list(graphs)
        ptrs = {"node": to_ptr(torch.tensor([int(g.num_nodes or 0) for g in graphs]))}
        tensors: dict[str, Tensor] = {}
        layout: dict[str, str] = {}
        deliver: dict[str, str] = {}
        for key in _common_keys(graphs):
            values, how = _as_tensors(key, [g[key] for g in graphs])
            sizes = torch.tensor([v.size(cat_dim(key)) for v in values])
            layout[key] = _share_ptr(ptrs, key, to_ptr(sizes))
            tensors[key] = torch.cat(values, dim=cat_dim(key))
            if how:
                deliver[key] = how
        return Packed(tensors, ptrs, layout, deliver)

    @staticmethod
    def concatenate(parts: Sequence[Packed]) -> Packed:
        """The graphs of several sets with equal attributes in one, and their extras."""
        parts = [part.materialise() for part in parts]
        first = parts[0]
        ptrs = {"node": to_ptr(torch.cat([part.num_nodes for part in parts]))}
        layout = {
            key: _share_ptr(ptrs, key, to_ptr(torch.cat([part.sizes(key) for part in parts])))
            for key in first.layout
        }
        tensors = {
            key: torch.cat([part.tensors[key] for part in parts], dim=cat_dim(key))
            for key in first.tensors
        }
        extras = {key: torch.cat([part.extras[key] for part in parts]) for key in first.extras}
        return replace(first, tensors=tensors, ptrs=ptrs, layout=layout, extras=extras)

    def __len__(self) -> int:
        return self.ptrs["node"].numel() - 1 if self.visible is None else self.visible.numel()

    @overload
    def __getitem__(self, item: int) -> Data: ...
    @overload
    def __getitem__(self, item: slice | Tensor | Sequence[int]) -> Packed: ...

    def __getitem__(self, item: Any) -> Any:
        if isinstance(item, (slice, Tensor, list, tuple)):
            index = item if isinstance(item, slice) else torch.as_tensor(item)
            return replace(self, visible=self.numbers[index])
        position = int(item)
        if not -len(self) <= position < len(self):
            raise IndexError(f"graph {position} of {len(self)}")
        position %= len(self)
        graph = position if self.visible is None else int(self.visible[position])
        data = Data()
        bounds = {name: ptr[graph : graph + 2] for name, ptr in self.ptrs.items()}
        for key, value in self.tensors.items():
            start, stop = (ptr := bounds[self.layout[key]]).tolist()
            found = self._deliver(key, _take(key, value, slice(start, stop)), ptr - start)
            data[key] = found[0] if self.deliver.get(key) == TEXT else found
        if not self._sized:
            data.num_nodes = int(bounds["node"].diff())
        return data

    @property
    def numbers(self) -> Tensor:
        """Which of the stored graphs are visible ``[m]``."""
        return torch.arange(len(self)) if self.visible is None else self.visible

    @property
    def num_nodes(self) -> Tensor:
        """Nodes of each graph ``[m]``."""
        return self.sizes("node")

    def sizes(self, name: str) -> Tensor:
        """Rows each graph has under the offsets ``name`` (``"node"``, ...) or of an attribute."""
        sizes = self.ptrs[self.layout.get(name, name)].diff()
        return sizes if self.visible is None else sizes[self.visible]

    def column(self, key: str) -> Tensor:
        """One attribute over all visible graphs, concatenated, in its stored dtype."""
        if self.visible is None:
            return self.tensors[key]
        return _take(key, self.tensors[key], ragged(self.ptrs[self.layout[key]], self.visible)[0])

    def materialise(self) -> Packed:
        """The visible graphs only, in tensors of their own (``self`` when all are visible)."""
        if self.visible is None:
            return self
        ptrs = {name: ragged(ptr, self.visible)[1] for name, ptr in self.ptrs.items()}
        tensors = {key: self.column(key) for key in self.tensors}
        return replace(self, tensors=tensors, ptrs=ptrs, visible=None)

    def collate(self, positions: Tensor | None = None) -> Batch:
        """Some (or all) visible graphs as one ``Batch``, as ``Batch.from_data_list`` makes it."""
        index = self.numbers
        if positions is not None:
            index = positions if self.visible is None else self.visible[positions]
        batch: Any = Batch(_base_cls=Data)
        rows = {name: ragged(ptr, index) for name, ptr in self.ptrs.items()}
        node_ptr = rows["node"][1]
        slices: dict[str, Tensor] = {}
        shifts: dict[str, Tensor | None] = {}
        for key, value in self.tensors.items():
            where, slices[key] = rows[self.layout[key]]
            shifts[key] = node_ptr[:-1] if cat_dim(key) else None
            batch[key] = self._deliver(key, _take(key, value, where), slices[key], shifts[key])
        if not self._sized:
            batch._store._num_nodes = node_ptr.diff().tolist()
            batch.num_nodes = int(node_ptr[-1])
        batch.batch = torch.repeat_interleave(
            torch.arange(index.numel()), node_ptr.diff(), output_size=int(node_ptr[-1])
        )
        batch.ptr = node_ptr
        batch._num_graphs, batch._slice_dict, batch._inc_dict = index.numel(), slices, shifts
        return batch

    @property
    def _sized(self) -> bool:
        """Whether PyG can tell the number of nodes from the attributes alone."""
        return any(self.layout.get(key) == "node" for key in ("x", "pos"))

    def _deliver(self, key: str, value: Tensor, ptr: Tensor, shift: Tensor | None = None) -> Any:
        how = self.deliver.get(key)
        if how == TEXT:
            raw = bytes(value.numpy())
            return [raw[a:b].decode() for a, b in pairwise(ptr.tolist())]
        if how:
            value = value.to(getattr(torch, how))
        if shift is None:
            return value
        return value + torch.repeat_interleave(shift, ptr.diff(), output_size=value.size(-1))


def try_pack(graphs: Sequence[Data]) -> Packed | None:
    """The graphs packed, or ``None`` where they must be joined one by one: attributes differ, a
    transform may be random, or the set may be larger than memory."""
    if isinstance(graphs, Packed):
        return graphs
    changing = getattr(graphs, "transform", None) is not None
    if changing or not isinstance(graphs, (list, tuple, InMemoryDataset)):
        return None
    try:
        return Packed.pack(graphs)
    except InputError:
        return None


def _common_keys(graphs: Sequence[Data]) -> list[str]:
    if not graphs:
        raise InputError("at least one graph", "none")
    if {type(g) for g in graphs} != {Data}:
        raise InputError("plain Data objects", sorted({type(g).__name__ for g in graphs}))
    keys = {tuple(sorted(g.keys())) for g in graphs}
    if len(keys) > 1:
        raise unequal(str(sorted(keys)[:2]))
    found = [key for key in graphs[0].to_dict() if key != "num_nodes"]
    if batched := [key for key in found if "batch" in key or key == "ptr"]:
        raise InputError("single graphs", f"graphs with {batched}")
    return found


def _as_tensors(key: str, values: list[Any]) -> tuple[list[Tensor], str | None]:
    """The values as tensors that can be joined, and how to hand them out."""
    if all(isinstance(v, str) for v in values):
        return [torch.tensor(list(v.encode()), dtype=torch.uint8) for v in values], TEXT
    if not all(isinstance(v, (Tensor, bool, int, float)) for v in values):
        raise InputError(f"tensors, numbers or strings as {key!r}", type(values[0]).__name__)
    tensors = [v.reshape(1) if v.dim() == 0 else v for v in map(torch.as_tensor, values)]
    widths = (v.shape[:-1] if cat_dim(key) else v.shape[1:] for v in tensors)
    kinds = {
        (v.dtype, v.layout, v.device, v.requires_grad, width)
        for v, width in zip(tensors, widths, strict=True)
    }
    first = tensors[0]
    plain = first.layout == torch.strided and first.device.type == "cpu" and not first.requires_grad
    if len(kinds) > 1 or not plain or type(first) is not Tensor:
        raise InputError(f"dense tensors {key!r} of one dtype and width", str(kinds)[:200])
    return tensors, None
