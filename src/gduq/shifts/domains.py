"""Shifts of anybody's data: choose what should differ, get `Splits`.

``data`` is a ``Data`` (node task), or a list of ``Data`` or a PyG dataset (graph task; node task if
it holds a single graph). ``task="node"`` makes a list of graphs a node task.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from gduq._checks import parse_dates
from gduq.data.smiles import scaffolds
from gduq.errors import InputError
from gduq.graphs.packed import Packed, try_pack
from gduq.graphs.splits import Splits
from gduq.graphs.view import View
from gduq.shifts import cuts as _cuts
from gduq.shifts.cuts import Values, as_labels, as_values

__all__ = ["DatasetRows", "Domain", "Graphs", "Task", "by", "class_out", "group",
           "scaffold_ranks", "size"]  # fmt: skip

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

    def labels(self) -> Tensor:
        """Integer labels, one per row."""
        every = torch.ones(len(self), dtype=torch.bool) if self.task == "node" else None
        return as_labels(View(self.graphs, every).target)

    def values(self, what: Values | str | Callable[[Data], Any]) -> Tensor:
        """One number per row, see `by`; of text and dates (a graph task) their rank."""
        if isinstance(what, str):
            if what == "size" and self.task == "graph":
                return self.sizes
            if what == "scaffold":
                return scaffold_ranks([_attribute(graph, "smiles") for graph in self._given])
        elif not callable(what):
            values = as_values(what)
            if len(values) != len(self):
                raise InputError(f"one domain value for each of the {len(self)} rows", len(values))
            return values
        found: list[Any] = []
        for graph in self._given:
            value = _number_of(graph, what)
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


def _number_of(graph: Data, what: str | Callable[[Data], Any]) -> Any:
    if callable(what):
        return what(graph)
    if what == "degree" and "degree" not in graph:
        ends = _attribute(graph, "edge_index")
        return torch.bincount(ends[0], minlength=int(graph.num_nodes or 0))
    return _attribute(graph, what)


def _attribute(graph: Data, name: str) -> Any:
    if name not in graph:
        raise InputError(f"graphs with an attribute {name!r}", f"only {sorted(graph.keys())}")
    return graph[name]


def scaffold_ranks(smiles: Sequence[str]) -> Tensor:
    """The Bemis-Murcko scaffold of each molecule as a number ``[n]``; 0 is the most common."""
    return _ranks(scaffolds(smiles))


def _ranks(names: Sequence[str]) -> Tensor:
    """The rank of each name by how often it is there; 0 is the most common."""
    count = Counter(names)
    rank = {name: i for i, name in enumerate(sorted(count, key=lambda n: (-count[n], n)))}
    return torch.tensor([rank[name] for name in names])


def by(
    data: Graphs,
    values: Values | str | Callable[[Data], Any],
    kind: Kind = "covariate",
    *,
    seed: int = 0,
    task: Task | None = None,
    name: str = "",
    **options: Any,
) -> Splits:
    """Cut a dataset along any domain.

    Args:
        data: The dataset, see the module.
        values: One number, string or date per row (graph or node); or what to compute: ``"size"``,
            ``"degree"``, ``"scaffold"`` (molecules with ``smiles``; the common ones train), the
            name of an attribute, or a function of a graph. Numbers of nodes are averaged over a
            graph in a graph task.
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
    if kind not in _DESCRIBED:
        raise InputError("a kind from covariate, concept, tails, no_shift", repr(kind))
    name = name or (values if isinstance(values, str) else "")
    rows = DatasetRows(data, task)
    domain = rows.values(values)
    given: tuple[Any, ...] = (len(rows),) if kind == "no_shift" else (domain,)
    if kind == "concept":
        given = (domain, rows.labels())
    cut = getattr(_cuts, kind)(*given, seed=seed, **options)
    description = _DESCRIBED[kind].format(name or "the given values")
    return rows.splits(cut, domain, name=name, description=description)


def size(data: Graphs, kind: Kind = "tails", *, seed: int = 0, **options: Any) -> Splits:
    """By number of nodes: as in the paper, train on the smaller half, test on the largest tenth."""
    return by(data, "size", kind, seed=seed, task="graph", **options)


def group(
    data: Graphs,
    labels: Sequence[Any] | Tensor,
    test: Any,
    val: Any = (),
    *,
    holdout: float = 0.1,
    seed: int = 0,
    task: Task | None = None,
) -> Splits:
    """Leave groups out: train on all others (universities, hospitals, laboratories).

    Args:
        data: The dataset.
        labels: The group of each row.
        test: Groups (or one group) that make ``ood_test``.
        val: Groups that make ``ood_val``. None: the first half of the test rows, by position.
        holdout: Size of ``id_val``, and of ``id_test``, as a share of all rows.
        seed: Of their draw.
        task: See `by`.
    """
    rows = DatasetRows(data, task)
    names, test, val = _as_list(labels), _as_list(test), _as_list(val)
    if len(names) != len(rows):
        raise InputError(f"one group for each of the {len(rows)} rows", len(names))
    unknown = [one for one in [*test, *val] if one not in set(names)]
    if unknown or not test:
        raise InputError(f"test groups among {_first(set(names))}", unknown or "none")
    if both := set(test) & set(val):
        raise InputError("val and test without a common group", f"{_first(both)} in both")
    part = torch.tensor([1 if n in val else 2 if n in test else 0 for n in names])
    pool, middle, held = (torch.nonzero(part == number).flatten() for number in range(3))
    if not val:
        middle, held = held[: len(held) // 2], held[len(held) // 2 :]
    cut = _cuts.leave_out(pool, middle, held, int(holdout * len(rows)), seed)
    numeric = all(isinstance(name, (bool, int, float)) for name in names)
    codes = as_values(names if numeric else [str(name) for name in names])
    text = f"Groups left out for testing: {_first(test)}."
    return rows.splits(cut, codes, name="group", description=text)


def class_out(
    data: Graphs,
    classes: int | Collection[int] | Tensor,
    *,
    holdout: float = 0.1,
    seed: int = 0,
    task: Task | None = None,
) -> Splits:
    """Leave classes out of training, for OOD detection: both OOD splits hold these classes only.

    Labels keep their numbers, so a network needs as many outputs as before; accuracy on the OOD
    splits means nothing. Values have no classes to leave out: cut those with ``by(data, "y")``.
    """
    labels = DatasetRows(data, task).labels()
    result = group(data, labels, test=classes, holdout=holdout, seed=seed, task=task)
    text = f"Classes {_first(_as_list(classes))} appear in the OOD splits only, for OOD detection."
    return result.with_(name="class_out", description=text)


def _as_list(values: Any) -> list[Any]:
    """Groups as Python values, whatever holds them; a single one counts as a list of one."""
    if isinstance(values, (Tensor, np.ndarray, np.generic)):
        values = values.tolist()
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        values = [values]
    found = [v.item() if isinstance(v, (Tensor, np.generic)) else v for v in values]
    for value in found:
        if not isinstance(value, Hashable):
            raise InputError("groups named by a number or text each", repr(value))
    return found


def _first(values: Iterable[Any]) -> str:
    names = sorted(str(v) for v in values)
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")


# -- what `gduq train --by` means ------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Domain:
    """What a test differs in: one number per row ``[n]``, the highest of which make the test.

    ``labels`` say what the numbers stand for, of things that have no order; ``dates`` that they are
    seconds.
    """

    name: str
    values: Tensor
    labels: Sequence[str] | None = None
    dates: bool = False

    @classmethod
    def of(cls, by: str, graphs: Sequence[Data], fields: Sequence[Any] | None) -> Domain | None:
        """What ``"scaffold"``, ``"size"``, ``"group=NAME"`` or ``"time=NAME"`` says of each graph;
        ``None`` for ``"random"``. ``fields``: for two of them, what each row has under the name."""
        kind, _, name = by.partition("=")
        if kind == "random":
            return None
        if kind == "size":
            sizes = torch.tensor([int(graph.num_nodes or 0) for graph in graphs])
            return cls("atoms" if "smiles" in graphs[0] else "nodes", sizes)
        if kind == "scaffold":
            if "smiles" not in graphs[0]:
                got = "graphs without SMILES"
                raise InputError("molecules to cut by scaffold", got, "Cut by size.")
            ranks = scaffold_ranks([graph.smiles for graph in graphs])
            return cls("scaffold", ranks, [str(rank) for rank in ranks.tolist()])
        assert fields is not None
        if kind == "time":
            values, are_dates = parse_dates(name, fields)
            return cls(name, torch.tensor(values, dtype=torch.float64), dates=are_dates)
        texts = [str(field) for field in fields]
        return cls(name, _ranks(texts), texts)

    def describe(self, rows: Tensor) -> str:
        """What some rows are in this respect."""
        if self.labels is None:
            low, high = (self._shown(v) for v in self.values[rows].aminmax())
            return f"{self.name} {low}" if low == high else f"{self.name} {low} to {high}"
        found = Counter(self.labels[row] for row in rows.tolist())
        if self.name == "scaffold":
            return f"{len(found)} scaffold{'s' * (len(found) != 1)}"
        names = sorted(found, key=lambda one: (-found[one], one))
        more = f" and {len(names) - 4} more" if len(names) > 4 else ""
        return f"{self.name} {', '.join(names[:4])}{more}"

    def _shown(self, value: Tensor) -> str:
        if not self.dates:
            return f"{value.item():g}"
        return datetime.fromtimestamp(value.item()).isoformat(sep=" ").removesuffix(" 00:00:00")
