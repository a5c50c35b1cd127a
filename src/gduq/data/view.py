"""`View`: labelled graphs, nodes or edges, seen alike by everything downstream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, Dataset, HeteroData

from gduq.data.masks import as_rows, edge_rows, own_type
from gduq.data.packed import TEXT, Packed, try_pack
from gduq.errors import InputError
from gduq.graph import Graph, Rows, as_labels, join, mark_rows, row_marks

__all__ = ["View"]


@dataclass(frozen=True, eq=False)
class View:
    """Labelled rows of some graphs: the graphs themselves, marked nodes, or edges to be judged.

    ==============================================  ============================================
    ``View(graphs)``                                rows are graphs, labels are ``y``
    ``View(data, mask)``                            rows are nodes, labels are ``y``
    ``View(hetero, mask, node_type="paper")``       rows are nodes of one type, labels are its ``y``
    ``View(data, edges=mask)``                      rows are the columns of ``edge_label_index``,
                                                    labels are ``edge_label``
    ==============================================  ============================================

    Graphs are packed into long tensors at the first `batches`: change them before, not after. The
    same rows of changed graphs are ``dataclasses.replace(view, graphs=changed)``.

    Args:
        graphs: A ``Data``, a ``HeteroData``, a list of them, a `Packed` set, or a PyG dataset.
        rows: For node tasks, a boolean mask over the nodes of all graphs, one after the other
            (or node numbers, each at most once, in any order: ``target`` and predictions keep it).
        edges: For edge tasks, a boolean mask over the columns of ``edge_label_index`` of the one
            graph (or their numbers in any order, or ``True`` for all of them), as PyG's
            ``RandomLinkSplit`` makes them.
        node_type: For a node task on ``HeteroData``, whose nodes are rows; all of them without
            ``rows``. It may be left out where only one type has ``y``.

    Example:
        >>> data = Data(x=torch.ones(4, 1), edge_index=torch.zeros(2, 0).long(), y=torch.arange(4))
        >>> view = View(data, rows=torch.tensor([True, False, True, False]))
        >>> len(view), view.task, view.target
        (2, 'node', tensor([0, 2]))
        >>> View(data, rows=[3, 0]).target
        tensor([3, 0])
        >>> view
        View(2 nodes in 1 graph(s))
        >>> data.edge_label_index, data.edge_label = torch.tensor([[0, 1], [2, 3]]), torch.ones(2)
        >>> View(data, edges=True)
        View(2 edges in 1 graph(s))
    """

    graphs: Sequence[Graph]
    rows: Tensor | None = None
    edges: Tensor | bool | None = None
    node_type: str | None = None

    def __post_init__(self) -> None:
        graphs = [self.graphs] if isinstance(self.graphs, (Data, HeteroData)) else self.graphs
        object.__setattr__(self, "graphs", graphs)
        if not (hasattr(graphs, "__len__") and hasattr(graphs, "__getitem__")):
            wanted = "a Data, a HeteroData, a list of graphs or a PyG dataset"
            raise InputError(wanted, type(graphs).__name__, "Of a loader, pass loader.dataset.")
        if len(graphs) == 0:
            raise InputError("at least one graph", "an empty list")
        if self.edges is not None:
            if self.rows is not None or self.node_type is not None:
                raise InputError("rows or edges in a View", "both", "Make one View of each.")
            object.__setattr__(self, "edges", edge_rows(graphs, self.edges))
        elif self.rows is not None or self.node_type is not None:
            object.__setattr__(self, "node_type", own_type(graphs[0], self.node_type))
            nodes = int(self._node_counts.sum())
            rows = torch.ones(nodes, dtype=torch.bool) if self.rows is None else self.rows
            object.__setattr__(self, "rows", as_rows(rows, nodes, "node"))

    def __repr__(self) -> str:
        inside = "" if self.task == "graph" else f" in {len(self.graphs)} graph(s)"
        kind = "" if self.node_type is None else f"'{self.node_type}' "
        return f"View({len(self)} {kind}{self.task}s{inside})"

    @property
    def task(self) -> Rows:
        """What the rows are."""
        if self.edges is not None:
            return "edge"
        return "graph" if self.rows is None else "node"

    @cached_property
    def mask(self) -> Tensor | None:
        """The rows among all nodes (of ``node_type``) or edges to be judged ``[n]``, boolean;
        ``None`` where rows are graphs."""
        given = self._chosen
        if given is None or given.dtype == torch.bool:
            return given
        none = torch.zeros(self._count, dtype=torch.bool, device=given.device)
        return none.index_fill_(0, given, True)

    @cached_property
    def numbers(self) -> Tensor:
        """The number ``[m]`` of each row among all graphs, nodes or edges, in the order given."""
        given = self._chosen
        if given is None:
            return torch.arange(len(self.graphs))
        return torch.nonzero(given).flatten() if given.dtype == torch.bool else given

    @property
    def order(self) -> Tensor | None:
        """Which of the rows that `batches` hand out each row is ``[m]``; ``None``: the same."""
        given = self._chosen
        sorts = given is not None and given.dtype != torch.bool
        return self.numbers.argsort().argsort() if sorts else None

    @property
    def _chosen(self) -> Tensor | None:
        return self.edges if isinstance(self.edges, Tensor) else self.rows

    @property
    def _count(self) -> int:
        """How many graphs, nodes or edges there are, rows or not."""
        if self.task == "graph":
            return len(self.graphs)
        if self.task == "node":
            return int(self._node_counts.sum())
        return int(self.graphs[0].edge_label_index.size(1))

    def __len__(self) -> int:
        return self.numbers.numel()

    @cached_property
    def target(self) -> Tensor:
        """Labels of the rows ``[m]`` (or ``[m, T]`` of several), as stored on the graphs."""
        y, rows = self._labels(), self._count
        if y.size(0) != rows:
            of_graphs = self.task == "graph"
            do = "Several labels of one graph are a y of shape [1, T]." if of_graphs else ""
            raise InputError(f"one label for each of the {rows} rows ({self.task}s)", y.size(0), do)
        y = y.squeeze(1) if y.dim() == 2 and y.size(1) == 1 else y
        return y if self.task == "graph" else y[self.numbers.to(y.device)]

    def _labels(self) -> Tensor:
        """Labels of all nodes, graphs or edges, marked or not ``[n, ...]``."""
        name = "edge_label" if self.task == "edge" else "y"
        if isinstance(self.graphs, Packed) and name in self.graphs.tensors:
            if self.graphs.deliver.get(name) == TEXT:
                as_labels(self.graphs[0][name], name)  # says what to do about text
            return self.graphs.column(name)
        found = [self._store(graph).get(name) for graph in self.graphs]
        if missing := sum(value is None for value in found):
            raise InputError(f"graphs with labels {name}", f"{missing} without")
        return torch.cat([as_labels(value, name) for value in found])

    def _store(self, graph: Graph) -> Any:
        """What holds labels and number of rows."""
        return graph if self.node_type is None else graph[self.node_type]

    @cached_property
    def _node_counts(self) -> Tensor:
        if isinstance(self.graphs, Packed):
            return self.graphs.num_nodes
        return torch.tensor([int(self._store(g).num_nodes or 0) for g in self.graphs])

    def take(self, index: Tensor) -> View:
        """Some of the rows, by their position in this view; row i is ``target[i]``."""
        index = torch.as_tensor(index)
        if self.task != "graph":
            taken = self.numbers[index]
            return replace(self, rows=taken) if self.task == "node" else replace(self, edges=taken)
        taken = torch.arange(len(self))[index]
        if isinstance(self.graphs, (Packed, Dataset)):
            return View(self.graphs[taken])
        return View([self.graphs[i] for i in taken.tolist()])

    # -- mini-batches --------------------------------------------------------------------------

    def batches(
        self,
        batch_size: int | None = None,
        shuffle: bool = False,
        generator: torch.Generator | None = None,
        shard: tuple[int, int] | None = None,
    ) -> Iterator[Graph]:
        """Mini-batches of graphs; a single graph comes as it is, the same object every time.

        Args:
            batch_size: Graphs per batch; ``None`` means 256. In a node task a batch without any
                marked node is left out.
            shuffle: Visit the graphs in a random order, drawn from ``generator``.
            generator: Needed with ``shuffle``.
            shard: ``(rank, world)`` deals every batch out to ``world`` processes: this one gets
                every world-th graph (graph task) or marked row, starting at ``rank``. All ranks
                get equally many batches and together every row once; they need generators of equal
                state. A last batch with fewer graphs than ranks joins the one before.
        """
        rank, world = _check_shard(shard, len(self))
        size = 256 if batch_size is None else batch_size
        if size < 1:
            raise InputError("batch_size >= 1", size)
        if len(self.graphs) == 1:
            yield self._single(rank, world)
            return
        parts = list(torch.split(self._order(shuffle, generator), max(size, world)))
        if len(parts) > 1 and parts[-1].numel() < world:
            parts[-2:] = [torch.cat(parts[-2:])]
        for part in parts:
            if self.rows is None:
                yield self._collate(part[rank::world])
            elif bool(self._has_rows[part].any()) or not len(self):
                yield self._thinned(self._collate(part), rank, world)

    @cached_property
    def _has_rows(self) -> Tensor:
        """Which graphs of a node task have a marked node ``[G]``."""
        parts = torch.split(torch.as_tensor(self.mask), self._node_counts.tolist())
        return torch.tensor([bool(part.any()) for part in parts])

    def _order(self, shuffle: bool, generator: torch.Generator | None) -> Tensor:
        if not shuffle:
            return torch.arange(len(self.graphs))
        if generator is None:
            do = "Pass generator=torch.Generator().manual_seed(0)."
            raise InputError("a generator with shuffle=True", "none", do)
        where = generator.device  # a CUDA generator draws there only
        return torch.randperm(len(self.graphs), generator=generator, device=where).cpu()

    def _collate(self, part: Tensor) -> Graph:
        if self._packed is not None:
            return self._packed.collate(part)
        graphs = [self._marked[i] for i in part.tolist()]
        _check_attributes(graphs, part.tolist())  # a dataset may make them at every visit
        return join(graphs)

    @cached_property
    def _singles(self) -> dict[tuple[int, int], Graph]:
        return {}

    def _single(self, rank: int, world: int) -> Graph:
        """The only graph: one object per shard, because caches downstream key on identity."""
        if (rank, world) not in self._singles:
            self._singles[rank, world] = self._thinned(self._marked[0], rank, world)
        return self._singles[rank, world]

    def _thinned(self, graph: Graph, rank: int, world: int) -> Graph:
        """The graph with every world-th of its marked rows only."""
        if world == 1:
            return graph
        copy, marks = graph.__copy__(), row_marks(graph)
        assert marks is not None  # a View marked them
        mine = torch.nonzero(marks).flatten()[rank::world]
        mine_only = torch.zeros_like(marks).index_fill_(0, mine, True)
        mark_rows(copy, mine_only, self.task, self.node_type)
        return copy

    @cached_property
    def _marked(self) -> Sequence[Graph]:
        """The graphs, each with its marks (`gduq.graph.mark_rows`). Made once, so caches hold."""
        if self.mask is None:
            return self.graphs
        if isinstance(self.graphs, Packed) and self.task == "node":
            packed = self.graphs.materialise()
            tensors = {**packed.tensors, "row_mask": self.mask}
            return replace(packed, tensors=tensors, layout={**packed.layout, "row_mask": "node"})
        copies = [graph.__copy__() for graph in self.graphs]
        sizes = self._node_counts.tolist() if self.task == "node" else [self.mask.numel()]
        for copy, mask in zip(copies, torch.split(self.mask, sizes), strict=True):
            mark_rows(copy, mask, self.task, self.node_type)
        return copies

    @cached_property
    def _packed(self) -> Packed | None:
        """The graphs in long tensors, or ``None`` where they must be joined one by one."""
        packed = try_pack(self._marked)
        if packed is None and isinstance(self._marked, (list, tuple)):
            _check_attributes(self._marked, list(range(len(self._marked))))
        return packed


def _check_attributes(graphs: Sequence[Graph], numbers: Sequence[int]) -> None:
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


def _check_shard(shard: tuple[int, int] | None, rows: int) -> tuple[int, int]:
    rank, world = shard or (0, 1)
    if not 0 <= rank < world:
        raise InputError("a shard (rank, world) with 0 <= rank < world", (rank, world))
    if world > max(rows, 1):
        raise InputError(f"at most {rows} processes, one per row", world)
    return rank, world
