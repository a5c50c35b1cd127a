"""Copies of graphs, and walks over many."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import global_add_pool
from torch_geometric.utils import scatter

from gduq.data.view import View
from gduq.errors import InputError
from gduq.graph import (
    check_graph,
    iterate,
    label_rows,
    mark_rows,
    num_graphs,
    repeat,
    row_batch,
    row_kind,
    row_type,
    targets,
)
from tests.conftest import tiny_graph
from tests.graph.cases import batches, few, hetero, judged


def test_copies_of_edges_to_be_judged() -> None:
    graph = judged(5)
    mark_rows(graph, torch.tensor([True, False, True, False]), "edge")
    twice = repeat(graph, 2)
    check_graph(twice)
    assert row_kind(twice) == "edge"
    assert label_rows(twice, 8).tolist() == [True, False, True, False] * 2
    assert torch.equal(twice.edge_label_index[:, 4:], graph.edge_label_index + 5)
    assert row_batch(twice, "edge", 8).tolist() == [0] * 4 + [1] * 4


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
    with pytest.raises(InputError, match=r"homogeneous graph.*to_homogeneous"):
        repeat(one, 2)
    assert repeat(one, 1) is one


def summary(graph: Data) -> Tensor:
    """One aggregation and a sum over each graph: sees features, edges and membership."""
    source, target = graph.edge_index
    x = graph.x.to_dense() if graph.x.layout != torch.strided else graph.x
    h = x + scatter(x[source], target, dim=0, dim_size=x.size(0))
    batch = graph.get("batch")
    batch = torch.zeros(x.size(0), dtype=torch.int64) if batch is None else batch
    return global_add_pool(h, batch, size=num_graphs(graph))


@few
@given(batches(), st.integers(1, 3), st.sampled_from(["batch", "packed", "hand-made", "single"]))
def test_copies_are_the_graph_again(batch: Batch, copies: int, kind: str) -> None:
    graph: Data = batch
    if kind == "packed":
        graph = next(View(batch.to_data_list()).batches())
    elif kind == "hand-made":
        graph = Data(x=batch.x, edge_index=batch.edge_index, batch=batch.batch, y=batch.y)
    elif kind == "single":
        graph = Data(x=batch.x, edge_index=batch.edge_index, y=batch.y[:1])
    graph.extra = torch.arange(graph.num_nodes)  # added after the batch was made
    repeated = repeat(graph, copies)
    check_graph(repeated, 4)
    assert num_graphs(repeated) == copies * num_graphs(graph)
    torch.testing.assert_close(summary(repeated), summary(graph).repeat(copies, 1))
    assert torch.equal(repeated.y, graph.y.repeat(copies))
    assert torch.equal(repeated.extra, graph.extra.repeat(copies))
    if isinstance(graph, Batch):
        assert repeated.num_graphs == copies * graph.num_graphs


def test_copies_leave_the_graph_alone() -> None:
    batch = Batch.from_data_list([tiny_graph(2, 0), tiny_graph(3, 1)])
    before = {k: copy.deepcopy(v) for k, v in batch.to_dict().items()}
    repeat(batch, 3)
    for key, value in batch.to_dict().items():
        same = (
            torch.equal(value, before[key]) if isinstance(value, Tensor) else value == before[key]
        )
        assert same
    assert repeat(batch, 1) is batch


def test_copies_of_a_neighbour_batch_mark_their_seeds() -> None:
    graph = tiny_graph(4, 0)
    graph.y, graph.batch_size = torch.arange(4), 2
    twice = repeat(graph, 2)
    assert graph.batch_size == 2
    assert label_rows(twice, 8).tolist() == [True, True, False, False] * 2
    assert targets(twice, 4).tolist() == [0, 1, 0, 1]


def test_copies_keep_masks_and_sparse_features() -> None:
    graph = Data(x=torch.eye(3).to_sparse_csr(), edge_index=torch.tensor([[0], [1]]))
    graph.row_mask = torch.tensor([True, False, True])
    twice = repeat(graph, 2)
    assert twice.x.layout == torch.sparse_csr
    assert torch.equal(twice.x.to_dense(), torch.eye(3).repeat(2, 1))
    assert twice.row_mask.tolist() == [True, False, True] * 2


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


def test_one_graph_comes_as_it_is(node_graph: Data) -> None:
    assert next(iterate(node_graph)) is node_graph
    assert next(iterate([node_graph])) is node_graph
    batch = Batch.from_data_list([node_graph, node_graph])
    assert list(iterate(batch)) == [batch]


@pytest.mark.parametrize(
    "empty", [[], (), iter([]), Rows([])], ids=["list", "tuple", "iter", "set"]
)
def test_nothing_to_walk(empty: object) -> None:
    with pytest.raises(InputError, match="at least one graph, got an empty"):
        list(iterate(empty))


@pytest.mark.parametrize(
    "thing", [None, 3, "abc", b"abc", {"a": 1}, {}, [1, 2], ["a"], [None], [[], []], iter([1])]
)
def test_what_cannot_be_walked(thing: object) -> None:
    with pytest.raises(InputError):
        list(iterate(thing))


def test_a_loader_of_something_else() -> None:
    loader = torch.utils.data.DataLoader([torch.ones(2), torch.ones(2)], batch_size=None)
    with pytest.raises(InputError, match="Tensor in the place of a graph"):
        list(iterate(loader))


def test_torchs_own_loader_cannot_join_graphs(graphs: list[Data]) -> None:
    with pytest.raises(InputError, match=r"Use torch_geometric\.loader\.DataLoader"):
        list(iterate(torch.utils.data.DataLoader(graphs, batch_size=2)))
    one_by_one = torch.utils.data.DataLoader(graphs, batch_size=None)  # joins nothing
    assert len(list(iterate(one_by_one))) == len(graphs)


def test_graphs_of_which_only_some_have_labels(graphs: list[Data]) -> None:
    some = [graph.clone() for graph in graphs]
    some[0].y = torch.tensor([1])
    with pytest.raises(InputError, match="equal attributes, got some without 'y'"):
        list(iterate([some[0], Data(x=some[0].x, edge_index=some[0].edge_index)]))


@pytest.mark.parametrize("batch_size", [0, -1])
def test_a_batch_size_below_one(batch_size: int, graphs: list[Data]) -> None:
    for kind in KINDS.values():
        with pytest.raises(InputError, match="batch_size >= 1"):
            list(iterate(kind(graphs), batch_size))


def test_graphs_with_sparse_features_are_joined() -> None:
    graph = Data(x=torch.eye(3).to_sparse_csr(), edge_index=torch.tensor([[0], [1]]))
    (batch,) = iterate([graph, graph])
    assert batch.x.layout == torch.sparse_csr
    check_graph(batch, 3)
