"""`DatasetRows`: the rows of anybody's data, which a cut numbers and `Splits` are made of.

``data`` is a ``Data`` (node task), or a list of ``Data`` or a PyG dataset (graph task; node task if
it holds a single graph). ``task="node"`` makes a list of graphs a node task.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from gduq.data.packed import Packed, try_pack
from gduq.data.splits import Splits
from gduq.data.view import View
from gduq.errors import InputError
from gduq.shifts import cuts
from gduq.shifts.cuts import as_labels, as_values

__all__ = ["DatasetRows", "Graphs", "Task", "attribute"]

Task = Literal["node", "graph"]
Graphs: TypeAlias = "Data | Sequence[Data]"


class DatasetRows:
    """The rows of a dataset, whatever its form: what a cut numbers."""

    def __init__(self, data: Graphs, task: Task | None = None) -> None:
        self.graphs: Sequence[Data] = [data] if isinstance(data, Data) else data
        if not hasattr(self.graphs, "__getitem__") or not hasattr(self.graphs, "__len__"):
            raise InputError("a Data, a list of graphs or a PyG dataset", type(data).__name__)
        if len(self.graphs) == 0:
            raise InputError("at least one graph", "none")
        self._given = self.graphs  # packing would round Python's floats
        self.task: Task = task or ("node" if len(self.graphs) == 1 else "graph")
        if self.task == "graph":
            self.graphs = try_pack(self.graphs) or self.graphs

    @property
    def sizes(self) -> Tensor:
        """Nodes of each graph."""
        if isinstance(self.graphs, Packed):
            return self.graphs.num_nodes
        return torch.tensor([int(g.num_nodes or 0) for g in self.graphs])

    def __len__(self) -> int:
        return int(self.sizes.sum()) if self.task == "node" else len(self.graphs)

    def truth(self) -> Tensor:
        """Targets of all rows ``[n]`` or ``[n, T]``, as stored on the graphs."""
        every = torch.ones(len(self), dtype=torch.bool) if self.task == "node" else None
        return View(self.graphs, every).target

    def labels(self) -> Tensor:
        """Integer labels, one per row."""
        return as_labels(self.truth())

    def scalar(self, function: Callable[[Data], Any]) -> Tensor:
        """One number per row; of text and dates (a graph task) their rank."""
        found: list[Any] = []
        for graph in self._given:
            value = function(graph)
            if self.task == "graph" and not isinstance(value, (Tensor, np.ndarray, list, tuple)):
                found.append(value)
                continue
            row = value.detach() if isinstance(value, Tensor) else np.asarray(value)
            row = torch.as_tensor(row).reshape(-1)
            if self.task == "graph":
                found.append(row.item() if row.numel() == 1 else row.double().mean().item())
            elif row.numel() != graph.num_nodes:
                raise InputError(f"one value for each of {graph.num_nodes} nodes", row.numel())
            else:
                found.append(row)
        return torch.cat(found) if self.task == "node" else as_values(found)

    def splits(self, cut: cuts.Cut, values: Tensor, *, name: str, description: str) -> Splits:
        """`Splits` of the rows in a cut, with the domain value of each."""
        if self.task == "node":  # a mask keeps the order of the nodes
            cut = {split: rows.sort().values for split, rows in cut.items()}
            views = {split: View(self.graphs, rows) for split, rows in cut.items()}
        else:
            everything = View(self.graphs)
            views = {split: everything.take(rows) for split, rows in cut.items()}
        domains = {split: values[rows] for split, rows in cut.items()}
        fields: dict[str, Any] = dict(views)
        if isinstance(self.graphs, Packed):
            known = self.graphs
            fields |= {"class_names": known.class_names, "target_names": known.target_names}
        return Splits(**fields, name=name, description=description, domains=domains)


def attribute(name: str) -> Callable[[Data], Any]:
    """Reads an attribute of a graph; a graph without it raises `InputError`."""

    def read(graph: Data) -> Any:
        if name not in graph:
            raise InputError(f"graphs with an attribute {name!r}", f"only {sorted(graph.keys())}")
        return graph[name]

    return read
