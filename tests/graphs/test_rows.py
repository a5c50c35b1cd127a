"""What the rows are, which of them count, and their labels."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.data import Batch, Data

from gduq.errors import InputError
from gduq.graphs import (
    device_of,
    label_rows,
    mark_rows,
    num_graphs,
    num_rows,
    on_device,
    row_batch,
    row_kind,
    row_type,
    targets,
)  # fmt: skip
from tests.conftest import tiny_graph
from tests.graphs.cases import hetero, judged


def test_label_rows() -> None:
    graph = Data(x=torch.ones(4, 1))
    assert label_rows(graph, 4) == slice(None)
    graph.row_mask = torch.tensor([True, False, True, False])
    assert torch.equal(label_rows(graph, 4), graph.row_mask)
    assert label_rows(graph, 1) == slice(None)  # an answer for the graph
    graph.batch_size = 3  # seeds come first, whatever else is marked
    assert label_rows(graph, 4) == slice(None, 3)
    assert label_rows(graph, 1) == slice(None)


def test_targets() -> None:
    graph = Data(x=torch.ones(4, 1))
    assert targets(graph, 4) is None
    graph.y = torch.arange(4)
    assert targets(graph, 4).tolist() == [0, 1, 2, 3]
    graph.row_mask = torch.tensor([True, False, True, False])
    assert targets(graph, 2).tolist() == [0, 2]
    graph.y = torch.arange(4).unsqueeze(1)
    assert targets(graph, 2).tolist() == [[0], [2]]
    graph.y = torch.tensor(5)
    assert targets(graph, 1).tolist() == [5]
    graph.y = 7
    assert targets(graph, 1).tolist() == [7]


@pytest.mark.parametrize("labelled", [1, 3, 5])
def test_targets_that_do_not_fit(labelled: int) -> None:
    graph = Data(x=torch.ones(4, 1), y=torch.arange(4))
    with pytest.raises(InputError):
        targets(graph, labelled)


def test_num_graphs() -> None:
    assert num_graphs(Data(x=torch.ones(3, 1))) == 1
    assert num_graphs(Data(x=torch.ones(3, 1), batch=torch.tensor([0, 1, 1]))) == 2
    assert num_graphs(Data(x=torch.ones(0, 1), batch=torch.zeros(0).long())) == 0
    empty = Data(x=torch.ones(0, 4).double(), edge_index=torch.zeros(2, 0).long(), y=torch.ones(1))
    empty_last = Batch.from_data_list([tiny_graph(2, 0), empty])
    assert num_graphs(empty_last) == 2


def test_rows_are_said_not_counted() -> None:
    graph = judged()
    assert row_kind(graph) is None  # labels of both nodes and edges
    assert targets(graph, 4).tolist() == [0, 1, 2, 3]
    mark_rows(graph, torch.tensor([True, False, True, False]), "edge")
    assert row_kind(graph) == "edge"
    assert label_rows(graph, 4).tolist() == [True, False, True, False]
    assert targets(graph, 2).tolist() == [1.0, 1.0]
    graph.edge_label = None
    assert targets(graph, 2) is None


def test_numbers_of_rows_and_their_graphs() -> None:
    pair = Batch.from_data_list([judged(), judged(5)])
    assert [num_rows(pair, kind) for kind in ("node", "edge", "graph")] == [9, 8, 2]
    assert row_batch(pair, "node", 9).tolist() == [0] * 4 + [1] * 5
    assert row_batch(pair, "edge", 8).tolist() == [0] * 4 + [1] * 4
    assert row_batch(pair, "graph", 2).tolist() == [0, 1]
    assert row_batch(judged(), "edge", 4).tolist() == [0] * 4
    for kind in ("node", "edge"):
        with pytest.raises(InputError):
            row_batch(pair, kind, 3)
    with pytest.raises(InputError):
        num_rows(tiny_graph(3, 0), "edge")


def test_rows_of_one_type() -> None:
    graph = hetero()
    assert (row_kind(graph), row_type(graph)) == ("node", "paper")
    assert (num_rows(graph, "node"), num_rows(graph, "graph")) == (3, 1)
    assert label_rows(graph, 3) == slice(None)
    mark_rows(graph, torch.tensor([True, False, True]), "node", "paper")
    assert label_rows(graph, 3).tolist() == [True, False, True]
    assert targets(graph, 2).tolist() == [0, 2]
    graph["paper"].batch_size = 2  # seeds of a neighbourhood
    assert targets(graph, 2).tolist() == [0, 1]
    mark_rows(graph, torch.tensor([True, False]), "node", "author")
    assert (row_type(graph), num_rows(graph, "node")) == ("author", 2)
    assert targets(graph, 1) is None


def test_the_type_of_the_rows_must_be_clear() -> None:
    graph = hetero()
    graph["author"].y = torch.zeros(2)
    with pytest.raises(InputError):
        row_type(graph)
    del graph["author"].y, graph["paper"].y
    with pytest.raises(InputError):
        row_type(graph)
    graph.row_type = "venue"
    with pytest.raises(InputError):
        row_type(graph)


def test_heterogeneous_graphs_move_as_copies() -> None:
    graph = hetero()
    assert on_device(graph, torch.device("cpu")) is graph
    away = on_device(graph, torch.device("meta"))
    assert device_of(away).type == away["author", "writes", "paper"].edge_index.device.type
    assert device_of(away).type == "meta"
    assert device_of(graph).type == "cpu"
    assert device_of(Data(num_nodes=3)).type == "cpu"
