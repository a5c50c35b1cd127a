"""Copies of graphs, and walks over many."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader

from gduq.errors import InputError
from gduq.graphs import iterate, mark_rows, num_graphs, row_batch, row_type, targets
from gduq.graphs.view import View
from tests.graphs.cases import hetero


def test_heterogeneous_graphs_joined() -> None:
    one, two = hetero(), hetero(4, 3)
    for graph in (one, two):
        mark_rows(graph, torch.arange(graph["paper"].num_nodes) < 2, "node", "paper")
    (pair,) = iterate([one, two])
    assert (num_graphs(one), num_graphs(pair)) == (1, 2)
    assert row_type(pair) == "paper"
    assert row_batch(pair, "node", 7).tolist() == [0, 0, 0, 1, 1, 1, 1]
    assert targets(pair, 4).tolist() == [0, 1, 0, 1]
    assert next(iterate(one)) is one
    loader = DataLoader([one, two], batch_size=2)
    assert targets(next(iterate(loader)), 4).tolist() == [0, 1, 0, 1]


class Rows(torch.utils.data.Dataset):
    """A dataset of graphs as users write them."""

    def __init__(self, graphs: list[Data]) -> None:
        self.graphs = graphs

    def __len__(self) -> int:
        return len(self.graphs)

    def __getitem__(self, index: int) -> Data:
        return self.graphs[index]


KINDS = {
    "view": View,
    "list": list,
    "tuple": tuple,
    "dataset": Rows,
    "loader": lambda graphs: DataLoader(graphs, batch_size=2),
    "generator": iter,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch_size", [None, 1, 2, 100])
def test_walks_visit_all_graphs_in_order(
    kind: str, batch_size: int | None, graphs: list[Data]
) -> None:
    parts = list(iterate(KINDS[kind](graphs), batch_size))
    assert torch.equal(torch.cat([p.x for p in parts]), torch.cat([g.x for g in graphs]))
    assert sum(num_graphs(p) for p in parts) == len(graphs)
    if batch_size is not None and kind in ("view", "list", "tuple", "dataset"):
        assert max(num_graphs(p) for p in parts) == min(batch_size, len(graphs))


@pytest.mark.parametrize(
    "thing",
    [
        *([], (), iter([]), Rows([])),
        *(None, 3, "abc", b"abc", {"a": 1}, {}, [1, 2], ["a"], [None], [[], []], iter([1])),
        torch.utils.data.DataLoader([torch.ones(2), torch.ones(2)], batch_size=None),
        torch.utils.data.DataLoader([Data(x=torch.ones(1, 1))], batch_size=1),  # joins no graphs
    ],
)
def test_what_cannot_be_walked(thing: object) -> None:
    with pytest.raises(InputError):
        list(iterate(thing))
    with pytest.raises(InputError):
        list(iterate([hetero(), hetero()], 0))
