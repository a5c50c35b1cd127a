"""Shifts of anybody's data along a scalar: choose what should differ, get `Splits`.

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
from gduq.shifts import cuts as _cuts
from gduq.shifts.cuts import Values, as_labels, as_values

__all__ = ["DatasetRows", "Graphs", "Task", "attribute", "by", "degree", "feature", "size",
           "target", "time"]  # fmt: skip

Task = Literal["node", "graph"]
Graphs: TypeAlias = "Data | Sequence[Data]"
Kind = Literal["covariate", "concept", "no_shift", "tails"]
_DESCRIBED = {
    "covariate": "Covariate shift of {}: training and test hold different values.",
    "tails": "Shift of {}: training on the low values, testing on the highest.",
    "concept": "Concept shift of {}: its correlation with the label turns round.",
    "no_shift": "No shift: a uniform cut.",
}


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

    def splits(self, cut: _cuts.Cut, values: Tensor, *, name: str, description: str) -> Splits:
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


def by(
    data: Graphs | DatasetRows,
    values: Values,
    kind: Kind = "covariate",
    *,
    seed: int = 0,
    task: Task | None = None,
    name: str = "",
    **options: Any,
) -> Splits:
    """Cut a dataset along any domain: one value per row.

    Args:
        data: The dataset, see the module.
        values: One number, string or date per row (graph or node).
        kind: ``"covariate"`` (`gduq.shifts.covariate`), ``"concept"``, ``"tails"``, ``"no_shift"``.
        seed: Of the random draws.
        task: ``"node"`` or ``"graph"``; ``None``: as the module says.
        name: Name of the result.
        options: Further arguments of the cut, such as ``descending=True``.

    Example:
        >>> edges = torch.zeros(2, 0).long()
        >>> graphs = [Data(edge_index=edges, num_nodes=1, y=i % 2) for i in range(20)]
        >>> splits = by(graphs, torch.arange(20), holdout=0.1)
        >>> {name: len(view) for name, view in splits}
        {'train': 8, 'id_val': 2, 'id_test': 2, 'ood_val': 4, 'ood_test': 4}
        >>> splits.domains["ood_test"]
        tensor([16, 17, 18, 19])
    """
    return _by(DatasetRows(data, task), values, kind, seed, name, options)


def _by(
    rows: DatasetRows, values: Values, kind: Kind, seed: int, name: str, options: dict[str, Any]
) -> Splits:
    values = as_values(values)
    if len(values) != len(rows):
        raise InputError(f"one domain value for each of the {len(rows)} rows", len(values))
    if kind not in _DESCRIBED:
        raise InputError("a kind from covariate, concept, tails, no_shift", repr(kind))
    given: tuple[Any, ...] = (len(rows),) if kind == "no_shift" else (values,)
    if kind == "concept":
        given = (values, rows.labels())
    cut = getattr(_cuts, kind)(*given, seed=seed, **options)
    description = _DESCRIBED[kind].format(name or "the given values")
    return rows.splits(cut, values, name=name, description=description)


def size(data: Graphs, kind: Kind = "tails", *, seed: int = 0, **options: Any) -> Splits:
    """By number of nodes: as in the paper, train on the smaller half, test on the largest tenth."""
    rows = DatasetRows(data, "graph")
    return _by(rows, rows.sizes, kind, seed, "size", options)


def target(
    data: Graphs,
    quantile: tuple[float, float] = (0.5, 0.9),
    *,
    column: int = 0,
    holdout: float = 0.15,
    seed: int = 0,
    task: Task | None = None,
) -> Splits:
    """By the target itself: train on low values, test on the highest, never seen before.

    Rows without the value are left out.

    Args:
        data: The dataset; its targets are values.
        quantile: Training holds values up to the first quantile, ``ood_test`` those from the
            second on, ``ood_val`` those between.
        column: Which of several targets.
        holdout: Size of ``id_val``, and of ``id_test``, as a share of the low values.
        seed: Of their draw.
        task: See `by`.

    Example:
        >>> edges = torch.zeros(2, 0).long()
        >>> graphs = [Data(edge_index=edges, num_nodes=1, y=i / 10) for i in range(40)]
        >>> splits = target(graphs, quantile=(0.6, 0.8))
        >>> len(splits.train), splits.ood_test.target.min()
        (18, tensor(3.2000))
    """
    rows = DatasetRows(data, task)
    y = rows.truth()
    y = y.unsqueeze(1) if y.dim() == 1 else y
    if not -y.size(1) <= column < y.size(1):
        raise InputError(f"a column from 0 to {y.size(1) - 1}", column)
    values = y[:, column] if y.is_floating_point() else y[:, column].double()
    known = torch.nonzero(~values.isnan()).flatten()
    low, high = quantile
    cut = _cuts.tails(values[known], low=low, high=high, holdout=holdout, seed=seed)
    missing = len(rows) - known.numel()
    return rows.splits(
        {split: known[numbers] for split, numbers in cut.items()},
        values,
        name="target",
        description=f"Training on targets up to the {low:g} quantile, testing on those from the "
        f"{high:g} quantile on." + (f" {missing} rows without it are left out." if missing else ""),
    )


def degree(
    data: Graphs,
    kind: Kind = "covariate",
    *,
    seed: int = 0,
    task: Task | None = None,
    descending: bool = True,
    **options: Any,
) -> Splits:
    """By degree: edges that leave a node, or their mean over the nodes of a graph.

    ``descending`` trains a covariate cut on high degrees and tests it on low ones.
    """
    rows = DatasetRows(data, task)
    options |= {"descending": descending} if kind == "covariate" else {}
    return _by(rows, rows.scalar(_degrees), kind, seed, "degree", options)


def feature(
    data: Graphs,
    value: str | Callable[[Data], Any] | None = None,
    kind: Kind = "covariate",
    *,
    seed: int = 0,
    task: Task | None = None,
    **options: Any,
) -> Splits:
    """By any scalar of a graph or node.

    Args:
        data: The dataset.
        value: An attribute's name or a function of a graph; it gives one number per graph, or one
            per node (averaged over the nodes for a graph task). ``None``: the sum of the features
            ``x``, which is the word count of a bag of words.
        kind: The cut, see `by`.
        seed: Of the random draws.
        task: See `by`.
        options: Further arguments of the cut.
    """
    name = value if isinstance(value, str) else "feature"
    function = _feature_sum if value is None else value
    if not callable(function):
        function = attribute(function)
    rows = DatasetRows(data, task)
    return _by(rows, rows.scalar(function), kind, seed, name, options)


def time(
    data: Graphs,
    stamps: Values,
    *,
    cuts: tuple[float, float] = (0.6, 0.8),
    seed: int = 0,
    task: Task | None = None,
    **options: Any,
) -> Splits:
    """By time: train on the past, validate on what came next, test on the newest.

    Args:
        data: The dataset.
        stamps: One per row: numbers, or dates that sort as text (``"2024-05-31"``) or
            ``datetime`` and ``datetime64`` values.
        cuts: Shares of the rows after which ``ood_val`` and ``ood_test`` begin.
        seed: Of the draw of ``id_val`` and ``id_test`` from the past.
        task: See `by`.
        options: Further arguments of `gduq.shifts.covariate`.
    """
    return by(data, stamps, "covariate", seed=seed, task=task, name="time", cuts=cuts, **options)


def _degrees(graph: Data) -> Tensor:
    edges = attribute("edge_index")(graph)
    return torch.bincount(edges[0], minlength=int(graph.num_nodes or 0))


def _feature_sum(graph: Data) -> Tensor:
    x: Tensor = attribute("x")(graph)
    if x.layout == torch.sparse_csr:
        return torch.segment_reduce(x.values(), "sum", offsets=x.crow_indices())
    return (x.to_dense() if x.layout == torch.sparse_coo else x).sum(dim=-1)
