"""`View`: labelled graphs, nodes or edges, the same to everything downstream; `Splits`: views by
name, no row in two of them."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from typing import TypeGuard

import torch
from torch import Tensor
from torch.utils.data import Subset
from torch_geometric.data import Data, Dataset, HeteroData

from gduq.errors import InputError
from gduq.graphs.packed import Packed, join, try_pack
from gduq.graphs.rows import MASKS, Graph, Rows, Store, as_labels, mark_rows, num_rows, row_type

__all__ = ["SPLIT_NAMES", "Splits", "View", "is_sequence", "overlap"]

SPLIT_NAMES = ("train", "id_val", "id_test", "ood_val", "ood_test")

_BATCH = 256  # graphs in a batch, unless told otherwise


@dataclass(frozen=True, eq=False)
class View:
    """Labelled rows of some graphs: the graphs themselves, marked nodes, or edges to predict.

    ``View(graphs)`` has graphs as rows and ``y`` as labels, ``View(data, mask)`` nodes and their
    ``y``, ``View(data, edges=mask)`` the columns of ``edge_label_index`` and ``edge_label``.

    Graphs are packed into long tensors at the first `batches`: change them before, not after. The
    same rows of changed graphs are ``dataclasses.replace(view, graphs=changed)``.

    Args:
        graphs: A ``Data``, a ``HeteroData``, a list of them, a `Packed` set, or a PyG dataset.
        rows: For node tasks, a boolean mask over the nodes of all graphs, one after the other
            (or node numbers, each at most once, in any order: ``target`` and predictions keep it).
        edges: For edge tasks, the same over the columns of ``edge_label_index`` of all graphs, as
            PyG's ``RandomLinkSplit`` makes them; ``True`` for all of them.
        node_type: For a node task on ``HeteroData``, whose nodes are rows; all of them without
            ``rows``. It may be left out where only one type has ``y``.

    Example:
        >>> data = Data(x=torch.ones(4, 1), edge_index=torch.zeros(2, 0).long(), y=torch.arange(4))
        >>> view = View(data, rows=torch.tensor([True, False, True, False]))
        >>> view, view.task, view.target
        (View(2 nodes in 1 graph(s)), 'node', tensor([0, 2]))
        >>> View(data, rows=[3, 0]).target
        tensor([3, 0])
    """

    graphs: Sequence[Graph]
    rows: Tensor | None = None
    edges: Tensor | bool | None = None
    node_type: str | None = None

    def __post_init__(self) -> None:
        graphs = [self.graphs] if isinstance(self.graphs, (Data, HeteroData)) else self.graphs
        object.__setattr__(self, "graphs", graphs)
        if not is_sequence(graphs):
            wanted = "a Data, a HeteroData, a list of graphs or a PyG dataset"
            raise InputError(wanted, type(graphs).__name__, "Of a loader, pass loader.dataset.")
        if len(graphs) == 0:
            raise InputError("at least one graph", f"an empty {type(graphs).__name__}")
        if self.edges is not None and (self.rows is not None or self.node_type is not None):
            raise InputError("rows or edges in a View", "both", "Make one View of each.")
        if self.rows is not None or self.node_type is not None:
            infer = isinstance(graphs[0], HeteroData) and self.node_type is None
            kind = row_type(graphs[0]) if infer else self.node_type
            if kind not in (types := getattr(graphs[0], "node_types", [None])):
                raise InputError(f"a node_type from {types}", repr(kind))
            object.__setattr__(self, "node_type", kind)
            object.__setattr__(self, "rows", True if self.rows is None else self.rows)
        for name in ("rows", "edges"):
            if (given := getattr(self, name)) is not None:
                object.__setattr__(self, name, _as_rows(given, int(self._sizes.sum()), self.task))

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

    @cached_property
    def numbers(self) -> Tensor:
        """The number ``[m]`` of each row among all graphs, nodes or edges, in the order given."""
        given = self.rows if self.edges is None else self.edges
        if not isinstance(given, Tensor):
            return torch.arange(len(self.graphs))
        return given.nonzero().flatten() if given.dtype == torch.bool else given

    @cached_property
    def mask(self) -> Tensor | None:
        """The rows among all nodes (of ``node_type``) or ``edge_label_index`` ``[n]``, boolean;
        ``None`` where rows are graphs."""
        if self.task == "graph":
            return None
        none = torch.zeros(int(self._sizes.sum()), dtype=torch.bool, device=self.numbers.device)
        return none.index_fill_(0, self.numbers, True)

    @property
    def order(self) -> Tensor | None:
        """Which of the rows that `batches` hand out each row is ``[m]``; ``None``: the same."""
        ranks = self.numbers.argsort().argsort()
        return ranks if bool((ranks.diff() < 0).any()) else None

    @cached_property
    def _sizes(self) -> Tensor:
        """How many rows each graph could have, marked or not ``[G]``."""
        if self.task == "graph":
            return torch.ones(len(self.graphs), dtype=torch.int64)
        if self.task == "edge":
            return torch.tensor([num_rows(graph, "edge") for graph in self.graphs])
        if isinstance(self.graphs, Packed):
            return self.graphs.num_nodes
        return torch.tensor([int(self._store(g).num_nodes or 0) for g in self.graphs])

    def _store(self, graph: Graph) -> Store:
        """What holds labels and number of rows."""
        return graph if self.node_type is None else graph[self.node_type]

    @cached_property
    def target(self) -> Tensor:
        """Labels of the rows ``[m]`` (or ``[m, T]`` of several), as stored on the graphs."""
        name = "edge_label" if self.task == "edge" else "y"
        if isinstance(self.graphs, Packed) and name in self.graphs.tensors:
            y = self.graphs.column(name)
        else:
            found = [self._store(graph).get(name) for graph in self.graphs]
            if missing := sum(value is None for value in found):
                raise InputError(f"graphs with labels {name}", f"{missing} without")
            y = torch.cat([as_labels(value, name) for value in found])
        if y.size(0) != (rows := int(self._sizes.sum())):
            do = f"T labels of one {self.task} are {name} of shape [1, T]."
            raise InputError(f"one label for each of the {rows} rows ({self.task}s)", y.size(0), do)
        y = y.squeeze(1) if y.dim() == 2 and y.size(1) == 1 else y
        return y if self.task == "graph" else y[self.numbers.to(y.device)]

    def take(self, index: Tensor) -> View:
        """Some of the rows, by their position in this view; row i is ``target[i]``."""
        taken = self.numbers[torch.as_tensor(index)]
        if self.task != "graph":
            return replace(self, rows=taken) if self.task == "node" else replace(self, edges=taken)
        if isinstance(self.graphs, (Packed, Dataset)):
            return View(self.graphs[taken])
        return View([self.graphs[i] for i in taken.tolist()])

    def batches(
        self,
        batch_size: int | None = None,
        shuffle: bool = False,
        generator: torch.Generator | None = None,
    ) -> Iterator[Graph]:
        """Mini-batches of graphs (``None``: 256 of them), with ``shuffle`` in a random order drawn
        from ``generator`` (or torch's own). A single graph comes as it is, the same object every
        time; graphs without a row are left out."""
        size = _BATCH if batch_size is None else batch_size
        if size < 1:
            raise InputError("batch_size >= 1", size)
        if len(self.graphs) == 1:
            yield self._marked[0]
            return
        order = self._with_rows
        if shuffle:
            where = None if generator is None else generator.device  # CUDA's draws there only
            order = order[torch.randperm(len(order), generator=generator, device=where).cpu()]
        for part in order.split(size):
            if self._packed is not None:
                yield self._packed.collate(part)
            else:
                yield join([self._marked[i] for i in part.tolist()])

    @cached_property
    def _with_rows(self) -> Tensor:
        """The numbers of the graphs that have a row; all of them where none has."""
        every = torch.arange(len(self.graphs))
        if self.mask is None or not len(self):
            return every
        owners: Tensor = every.repeat_interleave(self._sizes)[self.mask.cpu()].unique()
        return owners

    @cached_property
    def _marked(self) -> Sequence[Graph]:
        """The graphs, each with its marks (`gduq.graphs.mark_rows`). Made once, so caches hold."""
        if self.mask is None:
            return [self.graphs[0]] if len(self.graphs) == 1 else self.graphs
        if isinstance(self.graphs, Packed) and len(self.graphs) > 1:
            return self.graphs.with_columns({MASKS[self.task]: self.mask}, self._sizes)
        copies = [graph.__copy__() for graph in self.graphs]
        for copy, mask in zip(copies, self.mask.split(self._sizes.tolist()), strict=True):
            mark_rows(copy, mask, self.task, self.node_type)
        return copies

    @cached_property
    def _packed(self) -> Packed | None:
        """The graphs in long tensors, or ``None`` where they must be joined one by one."""
        return try_pack(self._marked)


# -- which nodes or edges a view is about: masks, numbers, node types ------------------------------


def is_sequence(data: object) -> TypeGuard[Sequence[Graph]]:
    """Whether graphs can be counted and taken by their number."""
    indexed = hasattr(data, "__len__") and hasattr(data, "__getitem__")
    return indexed and not isinstance(data, (Mapping, str, bytes))


def _as_rows(given: object, count: int, what: str) -> Tensor:
    """A mask, or numbers, of nodes or edges (``True``: all of them): as a mask ``[count]``, or as
    numbers ``[m]`` where these are in another order than a mask has."""
    wanted = f"a boolean mask of {count} {what}s, or distinct numbers from 0 to {count - 1}"
    if isinstance(given, str):
        raise InputError(wanted, repr(given), f"Pass the tensor: data.{given}.")
    rows: Tensor = torch.ones(count, dtype=torch.bool) if given is True else torch.as_tensor(given)
    if isinstance(given, (list, tuple)) and not given:  # it has no dtype of its own
        rows = rows.long()
    if rows.dtype == torch.bool and rows.shape == (count,):
        return rows
    got = f"{rows.dtype} of shape {list(rows.shape)}"
    if rows.dtype in (torch.int64, torch.int32, torch.int16):
        rows = rows.long().flatten()
        mask = torch.zeros(count, dtype=torch.bool, device=rows.device)
        inside = not rows.numel() or (int(rows.min()) >= 0 and int(rows.max()) < count)
        if inside and int(mask.index_fill_(0, rows, True).sum()) == rows.numel():
            return rows if bool((rows.diff() < 0).any()) else mask
        got = f"{rows.numel()} numbers from {int(rows.min())} to {int(rows.max())}"
    do = "A mask of 0 and 1 needs .bool(); of the masks of several splits take mask[:, 0]."
    raise InputError(wanted, got, do)


# -- splits ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Splits:
    """A dataset cut for training and for judging under shift.

    Splits may be ``None`` where a dataset has none. ``domains`` maps a split to the domain value of
    each of its rows; ``severities`` holds further test views of growing shift, such as
    ``"rotation=10"``; ``target_names`` and ``units`` have one word per target column, where known.
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
    severities: Mapping[str, View] = field(default_factory=dict)
    target_names: tuple[str, ...] = ()
    units: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for (a, one), (b, two) in combinations(self, 2):
            if one is two and one.task == "graph":
                continue  # one view of graphs in two places is no slip but meant
            if both := overlap(one, two):
                got = f"{both} {one.task}(s) in both {a} and {b}"
                raise InputError("splits that do not overlap", got)

    def __repr__(self) -> str:
        return f"Splits({self.name!r}: {', '.join(f'{k} {v!r}' for k, v in self)})"

    def __iter__(self) -> Iterator[tuple[str, View]]:
        """The splits that exist, by name, training first."""
        for name in SPLIT_NAMES:
            if (view := getattr(self, name)) is not None:
                yield name, view

    def with_(self, **changes: object) -> Splits:
        """A copy with some fields changed."""
        return replace(self, **changes)  # type: ignore[arg-type]


def overlap(one: View, two: View) -> int:
    """How many rows are in both views, as far as the same objects or tensors show it."""
    if (one.task, one.node_type) != (two.task, two.node_type):
        return 0
    a, b = _keys(one.graphs), _keys(two.graphs)
    if one.task == "graph":
        return len(set(a) & set(b))
    return int(torch.isin(one.numbers, two.numbers).sum()) if a == b else 0


def _keys(graphs: Sequence[Graph] | Subset[Graph]) -> list[Hashable]:
    """One key per graph; equal keys are one graph."""
    if isinstance(graphs, Packed):
        return [(id(graphs.tensors), i) for i in graphs.numbers.tolist()]
    if isinstance(graphs, Subset):
        keys = _keys(graphs.dataset)  # type: ignore[arg-type]
        return [keys[i] for i in graphs.indices]
    if isinstance(graphs, (list, tuple)) and len(graphs) > 1:
        return [id(graph) for graph in graphs]
    if isinstance(graphs, (list, tuple)):  # PyG's datasets of one graph hand out copies of it
        return [tuple(id(value) for store in graphs[0].stores for value in store.values())]
    # Slices of a PyG dataset in memory are copies of it that share what holds the graphs.
    if isinstance(graphs, Dataset) and (data := getattr(graphs, "_data", None)) is not None:
        return [(id(data), i) for i in graphs.indices()]
    return [(id(graphs), i) for i in range(len(graphs))]
