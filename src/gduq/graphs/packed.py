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
from torch_geometric.data.collate import collate
from torch_geometric.index import ptr2index
from torch_geometric.utils import cumsum

from gduq.errors import InputError
from gduq.graphs.rows import Graph, as_graph
from gduq.graphs.sparse import ragged

__all__ = ["Packed", "cat_dim", "check_attributes", "join", "ragged", "try_pack"]


def join(graphs: Sequence[Graph]) -> Graph:
    """Several graphs in one batch."""
    check_attributes(graphs)
    # Torch warns of unchecked sparse tensors unless told that they are meant to be.
    with torch.sparse.check_sparse_tensor_invariants(enable=False):
        try:
            return Batch.from_data_list(list(graphs))
        except RuntimeError as error:
            raise InputError("attributes of like shapes, to join", str(error)[:200]) from error


def check_attributes(graphs: Sequence[Graph]) -> None:
    """Raise for graphs of different attributes: joining them would lose some, or fail half-way."""
    keys = [set(as_graph(graph).keys()) - {"num_nodes"} for graph in graphs]
    for name in sorted(set().union(*keys)):
        if without := [i for i, found in enumerate(keys) if name not in found]:
            got = f"{len(without)} of {len(keys)} without {name!r}, first at position {without[0]}"
            do = "Give it to all graphs, or take it from the others."
            raise InputError("graphs with equal attributes", got, do)


def cat_dim(key: str) -> int:
    """The axis on which PyG joins an attribute: the last for numbers of nodes, which shift when
    graphs are joined, else the first."""
    return -1 if "index" in key or key == "face" else 0


def _take(key: str, value: Tensor, rows: Tensor | slice) -> Tensor:
    """Some rows of an attribute, on the axis that graphs are joined on."""
    if isinstance(rows, slice):
        return value[..., rows] if cat_dim(key) else value[rows]
    return value.index_select(cat_dim(key), rows)


@dataclass(frozen=True, eq=False)
class Packed(Sequence[Data]):
    """Graphs of equal attributes, each attribute concatenated over all graphs; a sequence of
    ``Data``, of which a slice, a tensor or a list of numbers selects some without copying them.

    Attributes:
        tensors: Attribute to its concatenated tensor (on the last axis for ``edge_index`` and
            everything PyG joins so); ``edge_index`` numbers nodes within a graph.
        ptrs: Attribute to the offsets ``[G + 1]`` at which its graphs start.
        node_ptr: The same of the nodes.
        texts: Attribute to its strings, one per graph.
        visible: Numbers of the graphs that are visible ``[m]``, or ``None`` for all.
        class_names, target_names: Of the classes, and the columns, of ``y``, where known.

    Example:
        >>> edges = torch.tensor([[0, 1], [1, 0]])
        >>> packed = Packed.pack([Data(x=torch.ones(2, 1) * i, edge_index=edges) for i in range(3)])
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
        if {type(graph) for graph in graphs} != {Data}:
            raise InputError("plain Data objects", sorted({type(g).__name__ for g in graphs}))
        check_attributes(graphs)
        node_ptr = cumsum(torch.tensor([int(graph.num_nodes or 0) for graph in graphs]))
        try:
            joined, ptrs, _ = collate(Data, graphs, increment=False, add_batch=False)
        except (RuntimeError, TypeError, ValueError, AttributeError) as error:
            raise InputError("graphs that PyG's collate joins", str(error)[:200]) from error
        tensors, texts = dict[str, Tensor](), dict[str, Sequence[str]]()
        for key in ptrs:
            value, given = joined[key], [graph[key] for graph in graphs]
            kinds = {f"{type(v).__name__} {getattr(v, 'dtype', '')}" for v in given}
            plain = type(value) is Tensor and value.device.type == "cpu" and not value.requires_grad
            if kinds == {"str "}:
                texts[key] = value
            elif plain and len(kinds) == 1 and "batch" not in key:
                tensors[key] = value
            else:
                raise InputError(f"tensors, numbers or strings of one kind as {key!r}", kinds)
        same = {key: node_ptr if ptrs[key].equal(node_ptr) else ptrs[key] for key in tensors}
        return Packed(tensors, same, node_ptr, texts)

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
        number = int(self.numbers[int(item)])  # type: ignore[arg-type]
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

    def materialise(self, positions: Tensor | None = None) -> Packed:
        """The visible graphs only (all, or some of them), in tensors of their own."""
        if self.visible is None and positions is None:
            return self
        index = self.numbers if positions is None else self.numbers[positions]
        known = {id(ptr): ptr for ptr in (self.node_ptr, *self.ptrs.values())}
        found = {number: ragged(ptr, index) for number, ptr in known.items()}
        return replace(
            self,
            tensors={k: _take(k, v, found[id(self.ptrs[k])][0]) for k, v in self.tensors.items()},
            ptrs={key: found[id(ptr)][1] for key, ptr in self.ptrs.items()},
            node_ptr=found[id(self.node_ptr)][1],
            texts={key: [all_[i] for i in index.tolist()] for key, all_ in self.texts.items()},
            visible=None,
        )

    def with_columns(self, values: Mapping[str, Tensor], sizes: Tensor | None = None) -> Packed:
        """The visible graphs with other or further attributes, of ``sizes`` rows per graph (as many
        as nodes by default)."""
        packed = self.materialise()
        ptr = packed.node_ptr if sizes is None else cumsum(sizes)
        ptr = packed.node_ptr if torch.equal(ptr, packed.node_ptr) else ptr
        ptrs = {**packed.ptrs, **dict.fromkeys(values, ptr)}
        return replace(packed, tensors={**packed.tensors, **values}, ptrs=ptrs)

    def collate(self, positions: Tensor | None = None) -> Batch:
        """Some (or all) visible graphs as one ``Batch``, as ``Batch.from_data_list`` makes it."""
        part = self.materialise(positions)
        batch: Any = Batch(_base_cls=Data)
        count, total = len(part), int(part.node_ptr[-1])
        slices, shifts = dict(part.ptrs), dict[str, Tensor | None]()
        for key, value in part.tensors.items():
            batch[key], shifts[key] = value, None
            if cat_dim(key):
                shifts[key], sizes = part.node_ptr[:-1], part.ptrs[key].diff()
                shift = part.node_ptr[:-1].repeat_interleave(sizes, output_size=value.size(-1))
                batch[key] = value + shift
        for key, strings in part.texts.items():
            batch[key], slices[key], shifts[key] = strings, torch.arange(count + 1), None
        if not self._sized:
            batch._store._num_nodes, batch.num_nodes = part.node_ptr.diff().tolist(), total
        batch.batch = ptr2index(part.node_ptr, total)
        batch.ptr = part.node_ptr
        batch._num_graphs, batch._slice_dict, batch._inc_dict = count, slices, shifts
        return batch

    @cached_property
    def _sized(self) -> bool:
        """Whether PyG can tell the number of nodes from the attributes alone."""
        ptrs = [self.ptrs[key] for key in ("x", "pos") if key in self.ptrs]
        return any(torch.equal(ptr, self.node_ptr) for ptr in ptrs)


def try_pack(graphs: Sequence[Data]) -> Packed | None:
    """The graphs packed, or ``None`` where they must be joined one by one: they are no plain
    tensors, a transform may be random, or the set may be larger than memory."""
    if isinstance(graphs, Packed):
        return graphs
    changing = getattr(graphs, "transform", None) is not None
    if changing or not isinstance(graphs, (list, tuple, InMemoryDataset)):
        return None
    check_attributes(graphs := list(graphs))
    try:
        return Packed.pack(graphs)
    except InputError:
        return None
