"""Shifts of anybody's data: choose what should differ between training and test, get `Splits`.

``data`` is a ``Data`` (node task), or a list of ``Data`` or a PyG dataset (graph task; node task if
it holds a single graph). ``task="node"`` makes a list of graphs a node task.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from gduq.data.packed import Packed, try_pack
from gduq.data.view import Splits, View
from gduq.errors import InputError
from gduq.shifts import cuts

__all__ = [
    "by",
    "class_out",
    "degree",
    "feature",
    "group",
    "scaffold",
    "scaffold_ranks",
    "size",
    "target",
    "time",
]

Kind = Literal["covariate", "concept", "no_shift", "tails"]
Task = Literal["node", "graph"]
Graphs: TypeAlias = "Data | Sequence[Data]"


def by(
    data: Graphs,
    values: cuts.Values,
    kind: Kind = "covariate",
    *,
    seed: int = 0,
    task: Task | None = None,
    name: str = "",
    **options: Any,
) -> Splits:
    """Cut a dataset along any domain: one value a row.

    Args:
        data: The dataset, see the module.
        values: One number, string or date a row (graph or node).
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
    return _by(Rows(data, task), values, kind, seed, name, options)


def _by(
    rows: Rows, values: cuts.Values, kind: Kind, seed: int, name: str, options: dict[str, Any]
) -> Splits:
    values = cuts.as_values(values)
    if len(values) != len(rows):
        raise InputError(f"one domain value for each of the {len(rows)} rows", len(values))
    if kind == "concept":
        cut = cuts.concept(values, rows.labels(), seed=seed, **options)
    elif kind == "covariate":
        cut = cuts.covariate(values, seed=seed, **options)
    elif kind == "tails":
        cut = cuts.tails(values, seed=seed, **options)
    elif kind == "no_shift":
        cut = cuts.no_shift(len(rows), seed=seed, **options)
    else:
        raise InputError("a kind from covariate, concept, tails, no_shift", repr(kind))
    return rows.splits(cut, values, name=name, description=_describe(kind, name))


def size(data: Graphs, kind: Kind = "tails", *, seed: int = 0, **options: Any) -> Splits:
    """By number of nodes: as in the paper, train on the smaller half, test on the largest tenth."""
    rows = Rows(data, "graph")
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
    rows = Rows(data, task)
    y = rows.truth()
    y = y.unsqueeze(1) if y.dim() == 1 else y
    if not -y.size(1) <= column < y.size(1):
        raise InputError(f"a column from 0 to {y.size(1) - 1}", column)
    values = y[:, column]
    if not values.is_floating_point():
        values = values.double()
    known = torch.nonzero(~values.isnan()).flatten()
    low, high = quantile
    cut = cuts.tails(values[known], low=low, high=high, holdout=holdout, seed=seed)
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
    rows = Rows(data, task)
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
        value: An attribute's name or a function of a graph; it gives one number a graph, or one a
            node (averaged over the nodes for a graph task). ``None``: the sum of the features
            ``x``, which is the word count of a bag of words.
        kind: The cut, see `by`.
        seed: Of the random draws.
        task: See `by`.
        options: Further arguments of the cut.
    """
    if value is None:
        function: Callable[[Data], Any] = _feature_sum
    elif callable(value):
        function = value
    else:
        function = _attribute(value)
    name = value if isinstance(value, str) else "feature"
    rows = Rows(data, task)
    return _by(rows, rows.scalar(function), kind, seed, name, options)


def time(
    data: Graphs,
    stamps: cuts.Values,
    *,
    cuts: tuple[float, float] = (0.6, 0.8),
    seed: int = 0,
    task: Task | None = None,
    **options: Any,
) -> Splits:
    """By time: train on the past, validate on what came next, test on the newest.

    Args:
        data: The dataset.
        stamps: One a row: numbers, or dates that sort as text (``"2024-05-31"``) or
            ``datetime`` and ``datetime64`` values.
        cuts: Shares of the rows after which ``ood_val`` and ``ood_test`` begin.
        seed: Of the draw of ``id_val`` and ``id_test`` from the past.
        task: See `by`.
        options: Further arguments of `gduq.shifts.covariate`.
    """
    return by(data, stamps, "covariate", seed=seed, task=task, name="time", cuts=cuts, **options)


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
    rows = Rows(data, task)
    names, test, val = _plain(labels), _plain(test), _plain(val)
    if len(names) != len(rows):
        raise InputError(f"one group for each of the {len(rows)} rows", len(names))
    _check_groups(set(names), test, val)
    held = _positions(names, test)
    if val:
        held_val = _positions(names, val)
    else:
        held_val, held = held[: len(held) // 2], held[len(held) // 2 :]
    pool = _positions(names, set(names) - set(test) - set(val))
    cut = cuts.leave_out(pool, held_val, held, int(holdout * len(rows)), seed)
    return rows.splits(
        cut, _codes(names), name="group", description=f"Groups left out for testing: {_some(test)}."
    )


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
    splits means nothing. Values have no classes to leave out: cut those with `target`.
    """
    rows = Rows(data, task)
    labels, classes = rows.labels(), _plain(classes)
    result = group(data, labels, test=classes, holdout=holdout, seed=seed, task=task)
    return result.with_(
        name="class_out",
        description=f"Classes {_some(classes)} appear in the OOD splits only, for OOD detection.",
    )


def scaffold(
    data: Sequence[Data],
    *,
    cuts: tuple[float, float] = (0.6, 0.8),
    seed: int = 0,
    smiles: Sequence[str] | None = None,
    **options: Any,
) -> Splits:
    """By molecular scaffold (Bemis-Murcko): train on the common ones, test on the rare.

    Args:
        data: Graphs with an attribute ``smiles``, as PyG's ``from_smiles`` makes them.
        cuts: Shares of the rows after which ``ood_val`` and ``ood_test`` begin.
        seed: Of the draw of ``id_val`` and ``id_test``.
        smiles: The molecules, where the graphs do not carry them.
        options: Further arguments of `gduq.shifts.covariate`.
    """
    texts = list(smiles) if smiles is not None else [_attribute("smiles")(g) for g in data]
    ranks = scaffold_ranks(texts)
    return by(data, ranks, seed=seed, task="graph", name="scaffold", cuts=cuts, **options)


def scaffold_ranks(smiles: Sequence[str]) -> Tensor:
    """The scaffold of each molecule as a number ``[n]``; 0 is the most common one."""
    scaffolds = [_murcko(text, row) for row, text in enumerate(smiles)]
    count = Counter(scaffolds)
    rank = {text: r for r, text in enumerate(sorted(count, key=lambda t: (-count[t], t)))}
    return torch.tensor([rank[text] for text in scaffolds])


# -- rows of a dataset -----------------------------------------------------------------------------


class Rows:
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
        return cuts.as_labels(self.truth())

    def scalar(self, function: Callable[[Data], Any]) -> Tensor:
        """One number a row; of text and dates (a graph task) their rank."""
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
        return torch.cat(found) if self.task == "node" else cuts.as_values(found)

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


def _plain(values: Any) -> list[Any]:
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


def _check_groups(known: set[Any], test: list[Any], val: list[Any]) -> None:
    unknown = [g for g in [*test, *val] if g not in known]
    if unknown or not test:
        raise InputError(f"test groups among {_some(known)}", unknown or "none")
    both = set(test) & set(val)
    if both:
        raise InputError("val and test without a common group", f"{_some(both)} in both")


def _codes(names: list[Any]) -> Tensor:
    """Numbers as they are; anything else by its rank among the distinct values."""
    if all(isinstance(v, (bool, int, float)) for v in names):
        return torch.from_numpy(np.asarray(names))
    rank = {v: i for i, v in enumerate(sorted(set(names), key=str))}
    return torch.tensor([rank[v] for v in names])


def _positions(names: Sequence[Any], wanted: Collection[Any]) -> Tensor:
    chosen = set(wanted)
    return torch.tensor([i for i, name in enumerate(names) if name in chosen], dtype=torch.long)


def _degrees(graph: Data) -> Tensor:
    if graph.edge_index is None:
        raise InputError("graphs with edge_index", f"only {sorted(graph.keys())}")
    return torch.bincount(graph.edge_index[0], minlength=int(graph.num_nodes or 0))


def _feature_sum(graph: Data) -> Tensor:
    if graph.x is None:
        raise InputError("graphs with features x", f"only {sorted(graph.keys())}")
    x: Tensor = graph.x.to_dense() if graph.x.layout == torch.sparse_coo else graph.x
    if x.layout == torch.sparse_csr:
        return torch.segment_reduce(x.values(), "sum", offsets=x.crow_indices())
    return x.sum(dim=-1)


def _attribute(name: str) -> Callable[[Data], Any]:
    def read(graph: Data) -> Any:
        if name not in graph:
            raise InputError(f"graphs with an attribute {name!r}", f"only {sorted(graph.keys())}")
        return graph[name]

    return read


def _murcko(smiles: str, row: int) -> str:
    try:
        from rdkit import Chem
        from rdkit.Chem.Scaffolds import MurckoScaffold
    except ImportError as error:
        raise InputError(
            "rdkit for scaffolds", "no such package", "pip install 'gduq[molecules]'."
        ) from error
    molecule = Chem.MolFromSmiles(smiles)
    if molecule is None:
        raise InputError("SMILES that rdkit can read", f"{smiles!r} in row {row}", "Drop the row.")
    return str(MurckoScaffold.MurckoScaffoldSmiles(mol=molecule))  # type: ignore[no-untyped-call]


def _describe(kind: str, name: str) -> str:
    domain = name or "the given values"
    return {
        "covariate": f"Covariate shift of {domain}: training and test hold different values.",
        "tails": f"Shift of {domain}: training on the low values, testing on the highest.",
        "concept": f"Concept shift of {domain}: its correlation with the label turns round.",
        "no_shift": "No shift: a uniform cut.",
    }[kind]


def _some(values: Iterable[Any]) -> str:
    names = sorted(str(v) for v in values)
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
