"""`View` and `Splits`: node masks and lists of graphs, seen alike by everything downstream."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from typing import Literal

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data, Dataset

from gduq.data.packed import Packed, try_pack
from gduq.errors import InputError

__all__ = ["SPLIT_NAMES", "Splits", "View"]

SPLIT_NAMES = ("train", "id_val", "id_test", "ood_val", "ood_test")


@dataclass(frozen=True, eq=False)
class View:
    """Labelled rows of some graphs: graphs (graph task) or marked nodes of them (node task).

    Lists of graphs with equal attributes are packed into long tensors at the first `batches`, so
    change the graphs before that, not after.

    Args:
        graphs: A ``Data``, a list of them, a `Packed` set, or a PyG dataset.
        rows: For node tasks, a boolean mask over the nodes of all graphs, one after the other
            (or a tensor of node numbers). ``None`` means a graph task: one row a graph.

    Example:
        >>> data = Data(x=torch.ones(4, 1), edge_index=torch.zeros(2, 0).long(), y=torch.arange(4))
        >>> view = View(data, rows=torch.tensor([True, False, True, False]))
        >>> len(view), view.task, view.target
        (2, 'node', tensor([0, 2]))
        >>> view
        View(2 nodes in 1 graph(s))
    """

    graphs: Sequence[Data]
    rows: Tensor | None = None

    def __post_init__(self) -> None:
        graphs = [self.graphs] if isinstance(self.graphs, Data) else self.graphs
        object.__setattr__(self, "graphs", graphs)
        if len(graphs) == 0:
            raise InputError("at least one graph", "an empty list")
        if self.rows is not None:
            nodes = int(_node_counts(graphs).sum())
            object.__setattr__(self, "rows", _as_mask(self.rows, nodes))

    def __repr__(self) -> str:
        inside = "" if self.rows is None else f" in {len(self.graphs)} graph(s)"
        return f"View({len(self)} {self.task}s{inside})"

    @property
    def task(self) -> Literal["node", "graph"]:
        return "graph" if self.rows is None else "node"

    def __len__(self) -> int:
        return len(self.graphs) if self.rows is None else int(self.rows.sum())

    @cached_property
    def target(self) -> Tensor:
        """Labels of the rows ``[m]``, as stored in ``y``."""
        if isinstance(self.graphs, Packed):
            if "y" not in self.graphs.tensors:
                raise InputError("graphs with labels y", f"{len(self.graphs)} without")
            y = self.graphs.column("y").reshape(-1)
            return y if self.rows is None else y[self.rows]
        found = [g.y for g in self.graphs if g.get("y") is not None]
        if len(found) < len(self.graphs):
            raise InputError("graphs with labels y", f"{len(self.graphs) - len(found)} without")
        y = torch.cat([torch.as_tensor(value).reshape(-1) for value in found])
        return y if self.rows is None else y[self.rows]

    def take(self, index: Tensor) -> View:
        """Some of the rows, by their position in this view; row i is ``target[i]``."""
        index = torch.as_tensor(index)
        if self.rows is not None:
            taken = torch.nonzero(self.rows).flatten()[index]
            if taken.unique().numel() < taken.numel():
                raise InputError("each node at most once", "a repeated one", "Drop duplicates.")
            return View(self.graphs, taken)
        if isinstance(self.graphs, (Packed, Dataset)):
            return View(self.graphs[torch.arange(len(self))[index]])
        return View([self.graphs[i] for i in torch.arange(len(self))[index].tolist()])

    # -- mini-batches --------------------------------------------------------------------------

    def batches(
        self,
        batch_size: int | None = None,
        shuffle: bool = False,
        generator: torch.Generator | None = None,
        shard: tuple[int, int] | None = None,
    ) -> Iterator[Data]:
        """Mini-batches of graphs; a single graph comes as it is, the same object every time.

        Args:
            batch_size: Graphs a batch; ``None`` means 256. In a node task a batch without any
                marked node is left out.
            shuffle: Visit the graphs in a random order, drawn from ``generator``.
            generator: Needed with ``shuffle``.
            shard: ``(rank, world)`` deals every batch out to ``world`` processes: this one gets
                every world-th graph (graph task) or every world-th marked row (node task), starting
                at ``rank``. All ranks get equally many batches and together every row once; they
                need generators of equal state. A last batch with fewer graphs than ranks joins the
                one before.
        """
        rank, world = _check_shard(shard, len(self))
        size = 256 if batch_size is None else batch_size
        if size < 1:
            raise InputError("batch_size >= 1", size)
        if len(self.graphs) == 1:
            yield self._single(rank, world)
            return
        for part in _parts(self._order(shuffle, generator), max(size, world), world):
            if self.rows is None:
                yield self._collate(part[rank::world])
            elif bool(self._has_rows[part].any()) or not len(self):
                yield _thinned(self._collate(part), rank, world)

    @cached_property
    def _has_rows(self) -> Tensor:
        """Which graphs of a node task have a marked node ``[G]``."""
        parts = torch.split(torch.as_tensor(self.rows), _node_counts(self.graphs).tolist())
        return torch.tensor([bool(part.any()) for part in parts])

    def _order(self, shuffle: bool, generator: torch.Generator | None) -> Tensor:
        if not shuffle:
            return torch.arange(len(self.graphs))
        if generator is None:
            raise InputError(
                "a generator with shuffle=True",
                "none",
                "Pass generator=torch.Generator().manual_seed(0).",
            )
        return torch.randperm(len(self.graphs), generator=generator)

    def _collate(self, part: Tensor) -> Data:
        if self._packed is not None:
            return self._packed.collate(part)
        graphs = [self._marked[i] for i in part.tolist()]
        _check_attributes(graphs, part.tolist())  # a dataset may make them at every visit
        return Batch.from_data_list(graphs)

    @cached_property
    def _singles(self) -> dict[tuple[int, int], Data]:
        return {}

    def _single(self, rank: int, world: int) -> Data:
        """The only graph: one object a shard, because caches downstream key on identity."""
        if (rank, world) not in self._singles:
            self._singles[rank, world] = _thinned(self._marked[0], rank, world)
        return self._singles[rank, world]

    @cached_property
    def _marked(self) -> Sequence[Data]:
        """The graphs; for a node task each with its ``row_mask``. Made once, so caches hold."""
        if self.rows is None:
            return self.graphs
        if isinstance(self.graphs, Packed):
            packed = self.graphs.materialise()
            tensors = {**packed.tensors, "row_mask": self.rows}
            return replace(packed, tensors=tensors, layout={**packed.layout, "row_mask": "node"})
        copies = [graph.__copy__() for graph in self.graphs]
        sizes = _node_counts(copies).tolist()
        for copy, mask in zip(copies, torch.split(self.rows, sizes), strict=True):
            copy.row_mask = mask
        return copies

    @cached_property
    def _packed(self) -> Packed | None:
        """The graphs in long tensors, or ``None`` where they must be joined one by one."""
        packed = try_pack(self._marked)
        if packed is None and isinstance(self._marked, (list, tuple)):
            _check_attributes(self._marked, list(range(len(self._marked))))
        return packed


@dataclass(frozen=True, eq=False)
class Splits:
    """A dataset cut for training and for judging under shift.

    ``id_val``, ``ood_val`` ... may be ``None`` where a dataset has none. ``domains`` maps a split
    name to the domain value of each of its rows; ``sources`` says where every file came from;
    ``severities`` holds further test views of growing shift, such as ``"rotation=10"``.
    """

    train: View
    id_val: View | None = None
    id_test: View | None = None
    ood_val: View | None = None
    ood_test: View | None = None
    name: str = ""
    description: str = ""
    class_names: tuple[str, ...] = ()
    domains: Mapping[str, Tensor] = field(default_factory=dict)
    sources: tuple[str, ...] = ()
    severities: Mapping[str, View] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for (a, one), (b, two) in combinations(self, 2):
            if one.task != two.task or (one is two and one.task == "graph"):
                continue  # one view of graphs in two places is no slip but meant
            what = "node masks" if one.task == "node" else "splits"
            both = _overlap(one, two)
            if both:
                raise InputError(
                    f"{what} that do not overlap", f"{both} {one.task}(s) in both {a} and {b}"
                )

    def __repr__(self) -> str:
        return f"Splits({self.name!r}: {', '.join(f'{k} {v!r}' for k, v in self)})"

    def __iter__(self) -> Iterator[tuple[str, View]]:
        """The splits that exist, by name, training first."""
        for name in SPLIT_NAMES:
            view = getattr(self, name)
            if view is not None:
                yield name, view

    def with_(self, **changes: object) -> Splits:
        """A copy with some fields changed."""
        return replace(self, **changes)  # type: ignore[arg-type]


def _overlap(one: View, two: View) -> int:
    """Rows that two views share, as far as the same objects or tensors show it."""
    if one.rows is not None and two.rows is not None:
        return int((one.rows & two.rows).sum()) if _same(one.graphs, two.graphs) else 0
    if isinstance(one.graphs, Packed) and isinstance(two.graphs, Packed):
        if one.graphs.tensors is not two.graphs.tensors:
            return 0
        first, second = (
            torch.arange(len(g)) if g.visible is None else g.visible
            for g in (one.graphs, two.graphs)
        )
        return int(torch.isin(first.unique(), second).sum())
    if isinstance(one.graphs, (list, tuple)) and isinstance(two.graphs, (list, tuple)):
        return len({id(g) for g in one.graphs} & {id(g) for g in two.graphs})
    return len(one.graphs) if one.graphs is two.graphs else 0


def _check_attributes(graphs: Sequence[Data], numbers: Sequence[int]) -> None:
    """Joining graphs of different attributes would lose some of them, or fail half-way."""
    keys = [set(graph.keys()) - {"num_nodes"} for graph in graphs]
    for name in sorted(set().union(*keys)):
        without = [i for i, found in zip(numbers, keys, strict=True) if name not in found]
        if without:
            raise InputError(
                "graphs with equal attributes",
                f"{len(without)} of {len(keys)} without {name!r}, first graph {without[0]}",
                "Give it to all graphs, or take it from the others.",
            )


def _same(one: Sequence[Data], two: Sequence[Data]) -> bool:
    return one is two or (len(one) == len(two) and one[0] is two[0])


def _node_counts(graphs: Sequence[Data]) -> Tensor:
    if isinstance(graphs, Packed):
        return graphs.num_nodes
    return torch.tensor([int(g.num_nodes or 0) for g in graphs])


def _parts(order: Tensor, size: int, world: int) -> list[Tensor]:
    parts = list(torch.split(order, size))
    if len(parts) > 1 and parts[-1].numel() < world:
        parts[-2:] = [torch.cat(parts[-2:])]
    return parts


def _thinned(graph: Data, rank: int, world: int) -> Data:
    """The graph with every world-th of its marked rows only."""
    if world == 1:
        return graph
    copy = graph.__copy__()
    mine = torch.nonzero(graph.row_mask).flatten()[rank::world]
    copy.row_mask = torch.zeros_like(graph.row_mask).index_fill_(0, mine, True)
    return copy


def _check_shard(shard: tuple[int, int] | None, rows: int) -> tuple[int, int]:
    rank, world = shard or (0, 1)
    if not 0 <= rank < world:
        raise InputError("a shard (rank, world) with 0 <= rank < world", (rank, world))
    if world > max(rows, 1):
        raise InputError(f"at most {rows} processes, one a row", world)
    return rank, world


def _as_mask(rows: Tensor, nodes: int) -> Tensor:
    rows = torch.as_tensor(rows)
    if rows.dtype != torch.bool:
        if rows.numel() and (int(rows.min()) < 0 or int(rows.max()) >= nodes):
            raise InputError(f"node numbers from 0 to {nodes - 1}", f"up to {int(rows.max())}")
        rows = torch.zeros(nodes, dtype=torch.bool).index_fill_(0, rows.long(), True)
    if rows.shape != (nodes,):
        raise InputError(f"a mask of {nodes} entries, one a node", list(rows.shape))
    return rows
