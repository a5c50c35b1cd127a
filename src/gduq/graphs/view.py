"""`View`: labelled graphs, nodes or edges, the same to everything downstream; `iterate` walks
mini-batches of one, and of all else that holds graphs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    default_collate,
)
from torch_geometric.data import Data, Dataset, HeteroData

from gduq.errors import InputError, warn_user
from gduq.graphs.packed import Packed, check_attributes, join, try_pack
from gduq.graphs.rows import Graph, Rows, as_labels, mark_rows, row_type

__all__ = ["View", "check_loader", "iterate"]

_BATCH = 256  # graphs in a batch, unless told otherwise
_GRAPHS = "a View, a Data, a HeteroData, a list of graphs, a PyG dataset or a loader"
_SHUFFLE = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)


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
            object.__setattr__(self, "edges", _edge_rows(graphs, self.edges))
        elif self.rows is not None or self.node_type is not None:
            object.__setattr__(self, "node_type", _own_type(graphs[0], self.node_type))
            nodes = int(self._node_counts.sum())
            rows = torch.ones(nodes, dtype=torch.bool) if self.rows is None else self.rows
            object.__setattr__(self, "rows", _as_rows(rows, nodes, "node"))

    def __repr__(self) -> str:
        inside = "" if self.task == "graph" else f" in {len(self.graphs)} graph(s)"
        kind = "" if self.node_type is None else f"'{self.node_type}' "
        return f"View({len(self)} {kind}{self.task}s{inside})"

    def __len__(self) -> int:
        return self.numbers.numel()

    @property
    def task(self) -> Rows:
        """What the rows are."""
        if self.edges is not None:
            return "edge"
        return "graph" if self.rows is None else "node"

    @property
    def _chosen(self) -> Tensor | None:
        return self.edges if isinstance(self.edges, Tensor) else self.rows

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
    def _count(self) -> int:
        """How many graphs, nodes or edges there are, rows or not."""
        if self.task == "graph":
            return len(self.graphs)
        if self.task == "node":
            return int(self._node_counts.sum())
        return int(self.graphs[0].edge_label_index.size(1))

    @cached_property
    def _node_counts(self) -> Tensor:
        if isinstance(self.graphs, Packed):
            return self.graphs.num_nodes
        return torch.tensor([int(self._store(g).num_nodes or 0) for g in self.graphs])

    def _store(self, graph: Graph) -> Any:
        """What holds labels and number of rows."""
        return graph if self.node_type is None else graph[self.node_type]

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
            return self.graphs.column(name)
        found = [self._store(graph).get(name) for graph in self.graphs]
        if missing := sum(value is None for value in found):
            raise InputError(f"graphs with labels {name}", f"{missing} without")
        return torch.cat([as_labels(value, name) for value in found])

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

    def batches(
        self,
        batch_size: int | None = None,
        shuffle: bool = False,
        generator: torch.Generator | None = None,
    ) -> Iterator[Graph]:
        """Mini-batches of graphs; a single graph comes as it is, the same object every time.

        Args:
            batch_size: Graphs per batch; ``None`` means 256. In a node task a batch without any
                marked node is left out.
            shuffle: Visit the graphs in a random order, drawn from ``generator``.
            generator: Needed with ``shuffle``.
        """
        size = _BATCH if batch_size is None else batch_size
        if size < 1:
            raise InputError("batch_size >= 1", size)
        if len(self.graphs) == 1:
            yield self._marked[0]
            return
        order = torch.arange(len(self.graphs))
        if shuffle:
            if generator is None:
                do = "Pass generator=torch.Generator().manual_seed(0)."
                raise InputError("a generator with shuffle=True", "none", do)
            where = generator.device  # a CUDA generator draws there only
            order = torch.randperm(len(order), generator=generator, device=where).cpu()
        for part in order.split(size):
            if self.rows is None or bool(self._has_rows[part].any()) or not len(self):
                yield self._collate(part)

    @cached_property
    def _has_rows(self) -> Tensor:
        """Which graphs of a node task have a marked node ``[G]``."""
        parts = torch.split(torch.as_tensor(self.mask), self._node_counts.tolist())
        return torch.tensor([bool(part.any()) for part in parts])

    def _collate(self, part: Tensor) -> Graph:
        if self._packed is not None:
            return self._packed.collate(part)
        return join([self._marked[i] for i in part.tolist()], part.tolist())

    @cached_property
    def _marked(self) -> Sequence[Graph]:
        """The graphs, each with its marks (`gduq.graphs.mark_rows`). Made once, so caches hold."""
        if self.mask is None:
            return [self.graphs[0]] if len(self.graphs) == 1 else self.graphs
        if isinstance(self.graphs, Packed) and len(self.graphs) > 1:
            return self.graphs.with_columns({"row_mask": self.mask})
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
            check_attributes(self._marked)
        return packed


# -- which nodes or edges a view is about: masks, numbers, node types ------------------------------


def _own_type(graph: Graph, node_type: str | None) -> str | None:
    """The node type whose nodes are rows; ``None`` for a homogeneous graph."""
    if not isinstance(graph, HeteroData):
        if node_type is not None:
            raise InputError(f"a HeteroData for node_type={node_type!r}", type(graph).__name__)
        return None
    if node_type is None:
        return row_type(graph)
    if node_type not in graph.node_types:
        raise InputError(f"a node_type from {', '.join(graph.node_types)}", repr(node_type))
    return node_type


def _edge_rows(graphs: Sequence[Graph], edges: Tensor | bool) -> Tensor:
    """The marked columns of ``edge_label_index``, see `_as_rows`; ``True`` marks all of them."""
    if len(graphs) > 1 or not isinstance(graphs[0], Data):
        raise InputError(
            "one homogeneous graph (Data) with edges to be judged",
            f"{len(graphs)} graph(s), the first a {type(graphs[0]).__name__}",
            "Join graphs with Batch.from_data_list(graphs); convert with .to_homogeneous().",
        )
    ends = graphs[0].get("edge_label_index")
    if not isinstance(ends, Tensor) or ends.dim() != 2 or ends.size(0) != 2:
        raise InputError(
            "edge_label_index [2, E] on the graph, the edges to be judged",
            "none" if ends is None else f"shape {list(torch.as_tensor(ends).shape)}",
            "Set it, or split with torch_geometric.transforms.RandomLinkSplit.",
        )
    if edges is True:
        return torch.ones(ends.size(1), dtype=torch.bool, device=ends.device)
    return _as_rows(edges, ends.size(1), "edge")


def _as_rows(mask: Any, count: int, what: str) -> Tensor:
    """A mask, or numbers, of nodes or edges: as a mask ``[count]``, or as numbers ``[m]`` where
    these are in another order than a mask has."""
    wanted = f"a boolean mask or {what} numbers"
    if isinstance(mask, str):
        raise InputError(wanted, repr(mask), f"Pass the tensor: data.{mask}.")
    rows: Tensor = torch.as_tensor(mask)
    if rows.dtype == torch.bool:
        if rows.shape != (count,):
            do = f"Make it for this graph, or pass {what} numbers; of several splits: mask[:, 0]."
            got = f"shape {list(rows.shape)}"
            raise InputError(f"a mask of {count} entries, one per {what}", got, do)
        return rows
    if not rows.numel():  # an empty list has no dtype of its own
        rows = rows.long()
    if rows.dtype == torch.uint8 or rows.is_floating_point() or rows.is_complex():
        raise InputError(wanted, f"dtype {rows.dtype}", "Convert with .bool().")
    rows = rows.long().flatten()
    if rows.numel() and (int(rows.min()) < 0 or int(rows.max()) >= count):
        got = f"{int(rows.min())} to {int(rows.max())}"
        raise InputError(f"{what} numbers from 0 to {count - 1}", got)
    if rows.unique().numel() < rows.numel():
        do = "Drop duplicates; a mask of 0 and 1 needs .bool()."
        raise InputError(f"each {what} at most once", "a repeated one", do)
    if bool((rows.diff() < 0).any()):
        return rows
    return torch.zeros(count, dtype=torch.bool, device=rows.device).index_fill_(0, rows, True)


# -- mini-batches of anything that holds graphs ----------------------------------------------------


def iterate(data: Any, batch_size: int | None = None) -> Iterator[Graph]:
    """Walk mini-batches of a View, a graph, a list of graphs, a PyG dataset or a loader.

    Raises `InputError` where there is no graph at all, or something that is none.

    Example:
        >>> graphs = [Data(x=torch.ones(2, 1), edge_index=torch.zeros(2, 0).long())] * 5
        >>> [b.num_graphs for b in iterate(graphs, batch_size=2)]
        [2, 2, 1]
    """
    if batch_size is not None and batch_size < 1:
        raise InputError("batch_size >= 1", batch_size)
    graph = None
    for graph in _walk(data, batch_size or _BATCH):
        yield _as_graph(graph)
    if graph is None:
        raise InputError("at least one graph", f"an empty {type(data).__name__}")


def _walk(data: Any, batch_size: int) -> Iterator[Any]:
    sequence = hasattr(data, "__len__") and hasattr(data, "__getitem__")
    if isinstance(data, (Data, HeteroData)):
        yield data
    elif isinstance(data, View) or hasattr(data, "batches"):  # or a loader that `fit` was given
        yield from data.batches(batch_size)
    elif hasattr(data, "batch_sampler") or hasattr(data, "collate_fn"):  # a loader
        check_loader(data)
        _warn_of_order(data)
        yield from data
    elif isinstance(data, (Mapping, str, bytes)) or not (sequence or isinstance(data, Iterable)):
        raise InputError(_GRAPHS, type(data).__name__)
    elif not sequence:
        yield from data
    elif len(data) == 1:
        yield data[0]
    elif len(data) and isinstance(data[0], Data) and "batch_size" in data[0].keys():  # noqa: SIM118
        yield from (data[i] for i in range(len(data)))  # neighbourhoods stay apart
    else:
        for start in range(0, len(data), batch_size):
            stop = min(start + batch_size, len(data))
            yield join([_as_graph(data[i]) for i in range(start, stop)])


def check_loader(loader: Any) -> None:
    """Refuse a loader that cannot join graphs: torch's own knows nothing of PyG."""
    if isinstance(loader, DataLoader) and loader.collate_fn is default_collate:
        raise InputError(
            "a loader that joins graphs",
            "torch.utils.data.DataLoader with torch's collate_fn",
            "Use torch_geometric.loader.DataLoader.",
        )


def _warn_of_order(loader: Any) -> None:
    """Say that rows will not come in the order of the dataset, or not all of them."""
    if getattr(loader, "drop_last", False):
        warn_user("the loader has drop_last, so its last rows may be missing: pass drop_last=False")
    samplers = [getattr(loader, "sampler", None)]
    samplers.append(getattr(getattr(loader, "batch_sampler", None), "sampler", None))
    if any(isinstance(sampler, _SHUFFLE) for sampler in samplers):
        warn_user(
            "the loader shuffles, so rows do not come in the order of its dataset: "
            "pass the dataset itself, or a loader with shuffle=False"
        )


def _as_graph(graph: Any) -> Graph:
    if not isinstance(graph, (Data, HeteroData)):
        raise InputError(_GRAPHS, f"{type(graph).__name__} in the place of a graph")
    return graph
