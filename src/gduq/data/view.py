"""`View` and `Splits`: node masks and lists of graphs, seen alike by everything downstream."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data

from gduq.errors import InputError

__all__ = ["SPLIT_NAMES", "Splits", "View"]

SPLIT_NAMES = ("train", "id_val", "id_test", "ood_val", "ood_test")


@dataclass(frozen=True, eq=False)
class View:
    """Labelled rows of some graphs: graphs (graph task) or marked nodes of them (node task).

    Args:
        graphs: A ``Data``, a list of them, or a PyG dataset.
        rows: For node tasks, a boolean mask over the nodes of all graphs, one after the other
            (or a tensor of node numbers). ``None`` means a graph task: one row a graph.

    Example:
        >>> data = Data(x=torch.ones(4, 1), edge_index=torch.zeros(2, 0).long(), y=torch.arange(4))
        >>> view = View(data, rows=torch.tensor([True, False, True, False]))
        >>> len(view), view.task, view.target
        (2, 'node', tensor([0, 2]))
    """

    graphs: Sequence[Data]
    rows: Tensor | None = None

    def __post_init__(self) -> None:
        graphs = [self.graphs] if isinstance(self.graphs, Data) else self.graphs
        object.__setattr__(self, "graphs", graphs)
        if len(graphs) == 0:
            raise InputError("at least one graph", "an empty list")
        if self.rows is not None:
            nodes = sum(int(g.num_nodes or 0) for g in graphs)
            object.__setattr__(self, "rows", _as_mask(self.rows, nodes))

    @property
    def task(self) -> Literal["node", "graph"]:
        return "graph" if self.rows is None else "node"

    def __len__(self) -> int:
        return len(self.graphs) if self.rows is None else int(self.rows.sum())

    @cached_property
    def target(self) -> Tensor:
        """Labels of the rows ``[m]``, as stored in ``y``."""
        labels = [torch.as_tensor(g.y).reshape(-1) for g in self.graphs if g.get("y") is not None]
        if len(labels) < len(self.graphs):
            raise InputError("graphs with labels y", f"{len(self.graphs) - len(labels)} without")
        y = torch.cat(labels)
        return y if self.rows is None else y[self.rows]

    @cached_property
    def _marked(self) -> list[Data]:
        """The graphs of a node task, each with its ``row_mask``; made once, so caches hold."""
        assert self.rows is not None
        marked, start = [], 0
        for graph in self.graphs:
            nodes = int(graph.num_nodes or 0)
            copy = graph.__copy__()
            copy.row_mask = self.rows[start : start + nodes]
            marked.append(copy)
            start += nodes
        return marked

    def batches(
        self,
        batch_size: int | None = None,
        shuffle: bool = False,
        generator: torch.Generator | None = None,
    ) -> Iterator[Data]:
        """Mini-batches of graphs; a single graph comes as it is. ``None`` means 256 graphs."""
        graphs = self.graphs if self.rows is None else self._marked
        if len(graphs) == 1:
            yield graphs[0]
            return
        order = (
            torch.randperm(len(graphs), generator=generator)
            if shuffle
            else torch.arange(len(graphs))
        )
        for part in order.split(batch_size or 256):
            yield Batch.from_data_list([graphs[i] for i in part.tolist()])


@dataclass(frozen=True, eq=False)
class Splits:
    """A dataset cut for training and for judging under shift.

    ``id_val``, ``ood_val`` ... may be ``None`` where a dataset has none. ``domains`` maps a split
    name to the domain value of each of its rows; ``sources`` says where every file came from.
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

    def __iter__(self) -> Iterator[tuple[str, View]]:
        """The splits that exist, by name, training first."""
        for name in SPLIT_NAMES:
            view = getattr(self, name)
            if view is not None:
                yield name, view

    def with_(self, **changes: object) -> Splits:
        """A copy with some fields changed."""
        return replace(self, **changes)  # type: ignore[arg-type]


def _as_mask(rows: Tensor, nodes: int) -> Tensor:
    rows = torch.as_tensor(rows)
    if rows.dtype != torch.bool:
        if rows.numel() and (int(rows.min()) < 0 or int(rows.max()) >= nodes):
            raise InputError(f"node numbers from 0 to {nodes - 1}", f"up to {int(rows.max())}")
        rows = torch.zeros(nodes, dtype=torch.bool).index_fill_(0, rows.long(), True)
    if rows.shape != (nodes,):
        raise InputError(f"a mask of {nodes} entries, one a node", list(rows.shape))
    return rows
