"""Many graphs at once: `join` makes one batch of them, `Packed` keeps them in a few long tensors,
so that a mini-batch is a handful of gathers. Where graphs begin there are *offsets* ``[G + 1]``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, overload

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data, InMemoryDataset

from gduq.errors import InputError
from gduq.graphs.rows import Graph

__all__ = ["Packed", "cat_dim", "check_attributes", "join", "ragged", "to_ptr", "try_pack"]


def join(graphs: Sequence[Graph], numbers: Sequence[int] | None = None) -> Graph:
    """Several graphs in one batch, with what `gduq.data.View` wrote on them; ``numbers`` are what
    errors call them."""
    check_attributes(graphs, numbers)
    # Torch warns of unchecked sparse tensors unless told that they are meant to be.
    with torch.sparse.check_sparse_tensor_invariants(enable=False):
        joined: Graph = Batch.from_data_list(list(graphs))
    for word in ("row_kind", "row_type"):
        value = graphs[0].get(word)
        if value is not None:  # PyG would keep a list of equal words
            joined[word] = value
    return joined


def check_attributes(graphs: Sequence[Graph], numbers: Sequence[int] | None = None) -> None:
    """Raise for graphs of different attributes: joining them would lose some, or fail half-way."""
    keys = [set(graph.keys()) - {"num_nodes"} for graph in graphs]
    for name in sorted(set().union(*keys)):
        without = [i for i, found in enumerate(keys) if name not in found]
        if without:
            first = without[0] if numbers is None else numbers[without[0]]
            got = f"{len(without)} of {len(keys)} without {name!r}, first graph {first}"
            do = "Give it to all graphs, or take it from the others."
            raise InputError("graphs with equal attributes", got, do)


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


def _take(key: str, value: Tensor, rows: Tensor | slice) -> Tensor:
    """Some rows of an attribute, on the axis that graphs are joined on."""
    if isinstance(rows, slice):
        return value[..., rows] if cat_dim(key) else value[rows]
    return value.index_select(cat_dim(key), rows)


@dataclass(frozen=True, eq=False)
class Packed(Sequence[Data]):
    """Graphs of equal attributes, each attribute concatenated over all graphs.

    It is a sequence of ``Data``; a slice, a tensor or a list of numbers selects graphs without
    copying them. `pack` makes one of a list of ``Data``.

    Attributes:
        tensors: Attribute to its concatenated tensor (on the last axis for ``edge_index`` and
            everything PyG joins so); ``edge_index`` numbers nodes within a graph.
        ptrs: Attribute to the offsets ``[G + 1]`` at which its graphs start.
        node_ptr: The same of the nodes.
        texts: Attribute to its strings, one per graph.
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
    node_ptr: Tensor
    texts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    visible: Tensor | None = None
    class_names: tuple[str, ...] = ()
    target_names: tuple[str, ...] = ()

    @staticmethod
    def pack(graphs: Sequence[Data]) -> Packed:
        """Join plain ``Data`` objects of equal attributes (tensors, numbers or strings)."""
        graphs = list(graphs)
        if not graphs:
            raise InputError("at least one graph", "none")
        if {type(graph) for graph in graphs} != {Data}:
            raise InputError("plain Data objects", sorted({type(g).__name__ for g in graphs}))
        check_attributes(graphs)
        node_ptr = to_ptr(torch.tensor([int(graph.num_nodes or 0) for graph in graphs]))
        tensors, ptrs = dict[str, Tensor](), dict[str, Tensor]()
        texts = dict[str, Sequence[str]]()
        for key in (key for key in graphs[0].to_dict() if key != "num_nodes"):
            if "batch" in key or key == "ptr":
                raise InputError("single graphs", f"graphs with {key!r}")
            values = [graph[key] for graph in graphs]
            if all(isinstance(value, str) for value in values):
                texts[key] = values
                continue
            parts = _as_tensors(key, values)
            ptr = to_ptr(torch.tensor([part.size(cat_dim(key)) for part in parts]))
            ptrs[key] = node_ptr if torch.equal(ptr, node_ptr) else ptr
            tensors[key] = torch.cat(parts, dim=cat_dim(key))
        return Packed(tensors, ptrs, node_ptr, texts)

    def __len__(self) -> int:
        return self.node_ptr.numel() - 1 if self.visible is None else self.visible.numel()

    @overload
    def __getitem__(self, item: int) -> Data: ...
    @overload
    def __getitem__(self, item: slice | Tensor | Sequence[int]) -> Packed: ...

    def __getitem__(self, item: int | slice | Tensor | Sequence[int]) -> Data | Packed:
        if isinstance(item, (slice, Tensor, list, tuple)):
            index = item if isinstance(item, slice) else torch.as_tensor(item)
            return replace(self, visible=self.numbers[index])
        position = int(item)  # type: ignore[arg-type]
        if not -len(self) <= position < len(self):
            raise IndexError(f"graph {position} of {len(self)}")
        number = int(self.numbers[position])
        data = Data()
        for key, value in self.tensors.items():
            data[key] = _take(key, value, slice(*self.ptrs[key][number : number + 2].tolist()))
        for key, strings in self.texts.items():
            data[key] = strings[number]
        if not self._sized:
            data.num_nodes = int(self.node_ptr[number + 1] - self.node_ptr[number])
        return data

    @property
    def numbers(self) -> Tensor:
        """Which of the stored graphs are visible ``[m]``."""
        return torch.arange(len(self)) if self.visible is None else self.visible

    @property
    def num_nodes(self) -> Tensor:
        """Nodes of each graph ``[m]``."""
        return self.node_ptr.diff()[self.numbers]

    def column(self, key: str) -> Tensor:
        """One attribute over all visible graphs, concatenated."""
        if self.visible is None:
            return self.tensors[key]
        return _take(key, self.tensors[key], ragged(self.ptrs[key], self.visible)[0])

    def materialise(self) -> Packed:
        """The visible graphs only, in tensors of their own (``self`` when all are visible)."""
        if (index := self.visible) is None:
            return self
        node_ptr = ragged(self.node_ptr, index)[1]
        ptrs = {
            key: node_ptr if ptr is self.node_ptr else ragged(ptr, index)[1]
            for key, ptr in self.ptrs.items()
        }
        texts = {key: [all_[i] for i in index.tolist()] for key, all_ in self.texts.items()}
        tensors = {key: self.column(key) for key in self.tensors}
        return replace(
            self, tensors=tensors, ptrs=ptrs, node_ptr=node_ptr, texts=texts, visible=None
        )

    def with_columns(self, values: Mapping[str, Tensor], sizes: Tensor | None = None) -> Packed:
        """The visible graphs with other or further attributes, of ``sizes`` rows per graph (as many
        as nodes by default)."""
        packed = self.materialise()
        ptr = packed.node_ptr if sizes is None else to_ptr(sizes)
        ptr = packed.node_ptr if torch.equal(ptr, packed.node_ptr) else ptr
        ptrs = {**packed.ptrs, **dict.fromkeys(values, ptr)}
        return replace(packed, tensors={**packed.tensors, **values}, ptrs=ptrs)

    def collate(self, positions: Tensor | None = None) -> Batch:
        """Some (or all) visible graphs as one ``Batch``, as ``Batch.from_data_list`` makes it."""
        index = self.numbers if positions is None else self.numbers[positions]
        batch: Any = Batch(_base_cls=Data)
        node_rows, node_ptr = ragged(self.node_ptr, index)
        slices: dict[str, Tensor] = {}
        shifts: dict[str, Tensor | None] = {}
        for key, value in self.tensors.items():
            rows, slices[key], shifts[key] = node_rows, node_ptr, None
            if self.ptrs[key] is not self.node_ptr:
                rows, slices[key] = ragged(self.ptrs[key], index)
            found = _take(key, value, rows)
            if cat_dim(key):
                shifts[key], total = node_ptr[:-1], found.size(-1)
                each = slices[key].diff()
                found = found + node_ptr[:-1].repeat_interleave(each, output_size=total)
            batch[key] = found
        for key, strings in self.texts.items():
            batch[key] = [strings[i] for i in index.tolist()]
            slices[key], shifts[key] = torch.arange(index.numel() + 1), None
        total = int(node_ptr[-1])
        if not self._sized:
            batch._store._num_nodes, batch.num_nodes = node_ptr.diff().tolist(), total
        graphs = torch.arange(index.numel())
        batch.batch = graphs.repeat_interleave(node_ptr.diff(), output_size=total)
        batch.ptr = node_ptr
        batch._num_graphs, batch._slice_dict, batch._inc_dict = index.numel(), slices, shifts
        return batch

    @cached_property
    def _sized(self) -> bool:
        """Whether PyG can tell the number of nodes from the attributes alone."""
        ptrs = [self.ptrs[key] for key in ("x", "pos") if key in self.ptrs]
        return any(torch.equal(ptr, self.node_ptr) for ptr in ptrs)


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


def _as_tensors(key: str, values: list[Any]) -> list[Tensor]:
    """The values as tensors that can be joined."""
    if not all(isinstance(v, (Tensor, bool, int, float)) for v in values):
        raise InputError(f"tensors, numbers or strings as {key!r}", type(values[0]).__name__)
    tensors = [v.reshape(1) if v.dim() == 0 else v for v in map(torch.as_tensor, values)]
    first, kinds = tensors[0], set()
    for v in tensors:
        width = v.shape[:-1] if cat_dim(key) else v.shape[1:]
        kinds.add((v.dtype, v.layout, v.device, v.requires_grad, width))
    plain = first.layout == torch.strided and first.device.type == "cpu" and not first.requires_grad
    if len(kinds) > 1 or not plain or type(first) is not Tensor:
        raise InputError(f"dense tensors {key!r} of one dtype and width", str(kinds)[:200])
    return tensors
