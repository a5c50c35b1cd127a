"""`Splits`: a dataset cut for training and for judging under shift, no row in two of its parts."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

import torch
from torch import Tensor
from torch.utils.data import Subset
from torch_geometric.data import Dataset

from gduq.errors import InputError
from gduq.graphs.packed import Packed
from gduq.graphs.rows import Graph
from gduq.graphs.view import View

__all__ = ["SPLIT_NAMES", "Splits", "overlap"]

SPLIT_NAMES = ("train", "id_val", "id_test", "ood_val", "ood_test")


@dataclass(frozen=True, eq=False)
class Splits:
    """A dataset cut for training and for judging under shift.

    ``id_val``, ``ood_val`` ... may be ``None`` where a dataset has none. ``domains`` maps a split
    name to the domain value of each of its rows; ``sources`` says where every file came from;
    ``severities`` holds further test views of growing shift, such as ``"rotation=10"``.
    ``target_names`` and ``units`` hold one word per target column, where they are known.
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
    target_names: tuple[str, ...] = ()
    units: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for (a, one), (b, two) in combinations(self, 2):
            if one is two and one.task == "graph":
                continue  # one view of graphs in two places is no slip but meant
            if both := overlap(one, two):
                what = "splits" if one.task == "graph" else f"{one.task} masks"
                got = f"{both} {one.task}(s) in both {a} and {b}"
                raise InputError(f"{what} that do not overlap", got)

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
    """How many rows are in both views, as far as the same objects or tensors show it.

    Example:
        >>> from torch_geometric.data import Data
        >>> graphs = [Data(x=torch.ones(2, 1)) for _ in range(5)]
        >>> overlap(View(graphs[:3]), View(graphs[2:]))
        1
    """
    a, b = one.graphs, two.graphs
    if one.task != two.task:
        return 0
    if one.mask is not None and two.mask is not None:
        # the same graphs in the same order: so do their first ones say
        same = a is b or (len(a) == len(b) and _same_graph(a[0], b[0]))
        return int((one.mask & two.mask).sum()) if same and one.node_type == two.node_type else 0
    if isinstance(a, Packed) and isinstance(b, Packed):
        shared = a.tensors is b.tensors
        return int(torch.isin(a.numbers.unique(), b.numbers).sum()) if shared else 0
    if len(a) == len(b) == 1:
        return int(_same_graph(a[0], b[0]))
    return len(set(_keys(a)) & set(_keys(b)))


def _same_graph(one: Graph, two: Graph) -> bool:
    """One object, or copies that share all their tensors: PyG datasets hand out such ones."""
    tensors, others = (
        [(key, id(v)) for store in g.stores for key, v in store.items() if isinstance(v, Tensor)]
        for g in (one, two)
    )
    return one is two or (bool(tensors) and tensors == others)


def _keys(graphs: Sequence[Graph] | Subset[Graph]) -> list[Hashable]:
    """One key per graph; equal keys are one graph."""
    if isinstance(graphs, (list, tuple)):
        return [id(graph) for graph in graphs]
    if isinstance(graphs, Subset):
        keys = _keys(graphs.dataset)  # type: ignore[arg-type]
        return [keys[i] for i in graphs.indices]
    # Slices of a PyG dataset in memory are copies of it that share what holds the graphs.
    data = getattr(graphs, "_data", None)
    if isinstance(graphs, Dataset) and data is not None:
        return [(id(data), i) for i in graphs.indices()]
    return [(id(graphs), i) for i in range(len(graphs))]
