"""Sound graphs pass, unsound ones are refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch_geometric.data import Batch, Data, HeteroData

from gduq.errors import InputError
from gduq.graphs import check_graph, mark_rows
from tests.conftest import tiny_graph
from tests.graphs.cases import few, hetero, judged, sound

NO_EDGES = torch.zeros(2, 0, dtype=torch.int64)


def ones(nodes: int = 3, **attributes: object) -> Data:
    return Data(**{"x": torch.ones(nodes, 2), "edge_index": NO_EDGES, **attributes})


@few
@given(sound())
def test_sound_graphs_pass(graph: Data) -> None:
    check_graph(graph)
    check_graph(graph, graph.x.size(1))
    check_graph(graph)  # the second time from memory
    with pytest.raises(InputError):
        check_graph(graph, graph.x.size(1) + 1)


@few
@given(sound(), st.data())
def test_numbers_that_are_none(graph: Data, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from([n for n in ("x", "edge_attr", "edge_weight") if n in graph]))
    bad = data.draw(st.sampled_from([float("nan"), float("inf"), -float("inf")]))
    value = graph[name].clone()
    numbers = value.values() if value.layout == torch.sparse_csr else value
    if numbers.numel() == 0:
        return
    numbers.view(-1)[data.draw(st.integers(0, numbers.numel() - 1))] = bad
    graph[name] = value
    with pytest.raises(InputError):
        check_graph(graph)
    check_graph(graph, finite=False)


@pytest.mark.parametrize("sparse", [False, True])
def test_a_change_in_place_is_seen(sparse: bool) -> None:
    x = torch.rand(3, 2) + 1
    graph = Data(x=x.to_sparse_csr() if sparse else x, edge_index=torch.tensor([[0], [1]]))
    check_graph(graph)
    (graph.x.values() if sparse else graph.x.view(-1))[2] = float("nan")
    with pytest.raises(InputError):
        check_graph(graph)
    (graph.x.values() if sparse else graph.x.view(-1))[2] = 0.0
    check_graph(graph)


@few
@given(sound(), st.data())
def test_edges_out_of_range(graph: Data, data: st.DataObject) -> None:
    n = graph.num_nodes
    edges = torch.cat([graph.edge_index, torch.zeros(2, 1, dtype=torch.int64)], dim=1)
    wrong = data.draw(st.one_of(st.integers(n, n + 2**40), st.integers(-(2**40), -1)))
    edges[data.draw(st.integers(0, 1)), data.draw(st.integers(0, edges.size(1) - 1))] = wrong
    graph.edge_index, graph.edge_attr, graph.edge_weight = edges, None, None
    with pytest.raises(InputError):
        check_graph(graph)


def csr(pointers: list[int], columns: list[int]) -> Tensor:
    """Products of such a matrix would read foreign memory or count an entry twice."""
    parts = (torch.tensor(pointers), torch.tensor(columns), torch.ones(2))
    return torch.sparse_csr_tensor(*parts, (2, 3), check_invariants=False)


TWO = torch.tensor([[0], [1]])
BEYOND = Batch.from_data_list([tiny_graph(2, 0), tiny_graph(2, 1)])
BEYOND.batch = torch.tensor([0, 1, 1, 2])
UNSOUND: dict[str, object] = {
    **{f"{type(o).__name__}, no graph": o for o in (None, 3, "graph", torch.ones(3, 2), [Data()])},
    **{
        f"edges of {dtype}": ones(edge_index=TWO.to(dtype))
        for dtype in (torch.int32, torch.uint8, torch.bool, torch.float32)
    },
    **{
        f"edges of shape {shape}": ones(edge_index=torch.zeros(shape, dtype=torch.int64))
        for shape in ((2,), (3, 1), (1, 2), (2, 1, 1))
    },
    **{
        f"features of shape {shape}": ones(x=torch.ones(shape), num_nodes=3)
        for shape in ((3,), (3, 2, 1), (2, 2), (4, 2))
    },
    "edge_attr of another length": ones(edge_index=TWO, edge_attr=torch.ones(2, 1)),
    "edge_weight of another length": ones(edge_index=TWO, edge_weight=torch.ones(3)),
    "x of numpy": ones(x=np.ones((3, 2)), num_nodes=3),
    "a list of edges": ones(edge_index=[[0], [1]]),
    "a list of graphs": ones(batch=[0, 0, 0]),
    "edge_attr, one number": ones(edge_index=TWO, edge_attr=torch.tensor(1.0)),
    "edge_weight, a float": ones(edge_index=TWO, edge_weight=2.0),
    "no nodes": ones(0),
    "num_nodes of 0": Data(num_nodes=0, edge_index=NO_EDGES),
    "nothing": Data(),
    "a batch of no nodes": Batch.from_data_list([ones(0)]),
    "an empty graph in a batch": Batch.from_data_list([ones(), ones(0), ones()]),
    "an empty graph at the end": Batch.from_data_list([ones(), ones(0)]),
    "batch of floats": ones(batch=torch.zeros(3)),
    "batch too short": ones(batch=torch.zeros(2, dtype=torch.int64)),
    "batch, a matrix": ones(batch=torch.zeros(3, 1, dtype=torch.int64)),
    "batch below 0": ones(batch=torch.tensor([-1, 0, 0])),
    "batch beyond its pointers": BEYOND,
    "no edge_index": Data(x=torch.ones(3, 2)),
    "x of COO": ones(x=torch.eye(3).to_sparse(layout=torch.sparse_coo)),
    "CSR column out of range": ones(x=csr([0, 1, 2], [0, 5])),
    "CSR column below 0": ones(x=csr([0, 1, 2], [0, -1])),
    "CSR column twice": ones(x=csr([0, 2, 2], [1, 1])),
    "CSR pointers": ones(x=csr([0, 5, 2], [0, 1])),
    "no types": HeteroData(),
}


@pytest.mark.parametrize("name", UNSOUND)
def test_unsound_graphs_are_refused(name: str) -> None:
    with pytest.raises(InputError):
        check_graph(UNSOUND[name])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("edge_label_index", torch.tensor([[0], [4]])),
        ("edge_label_index", torch.zeros(2, 1)),
        ("edge_label", torch.ones(3)),
        ("edge_row_mask", torch.ones(5).bool()),
    ],
)
def test_unsound_edges_to_be_judged(name: str, value: Tensor) -> None:
    graph = judged()
    mark_rows(graph, torch.ones(4).bool(), "edge")
    check_graph(graph)
    graph[name] = value
    with pytest.raises(InputError):
        check_graph(graph)


WRITES = ("author", "writes", "paper")


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        ("author", "x", torch.ones(3, 2)),
        ("author", "x", torch.full((2, 2), float("nan"))),
        ("paper", "x", [1.0]),
        (WRITES, "edge_index", torch.tensor([[2], [0]])),
        (WRITES, "edge_index", torch.tensor([[0], [3]])),
        (WRITES, "edge_index", torch.zeros(3, 1).long()),
        (WRITES, "edge_index", torch.zeros(2, 1)),
        (WRITES, "edge_attr", torch.ones(2, 1)),
        (("author", "meets", "editor"), "edge_index", torch.tensor([[0], [0]])),
    ],
)
def test_unsound_heterogeneous_graphs(kind: object, key: str, value: object) -> None:
    graph = hetero()
    graph["author"].num_nodes = 2
    check_graph(graph)
    check_graph(graph, 4)
    with pytest.raises(InputError):
        check_graph(graph, 5)
    graph[kind][key] = value
    with pytest.raises(InputError):
        check_graph(graph)
