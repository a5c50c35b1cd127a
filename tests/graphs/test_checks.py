"""Sound graphs pass, unsound ones are named."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch_geometric.data import Batch, Data, HeteroData

from gduq.errors import InputError
from gduq.graphs import (
    check_graph,
    mark_rows,
    num_graphs,
)
from tests.conftest import tiny_graph
from tests.graphs.cases import batches, few, hetero, judged, sound


@few
@given(sound())
def test_sound_graphs_pass(graph: Data) -> None:
    check_graph(graph)
    check_graph(graph, graph.x.size(1))
    check_graph(graph)  # the second time from memory


@few
@given(batches())
def test_sound_batches_pass(batch: Batch) -> None:
    check_graph(batch, 4)
    plain = Data(x=batch.x, edge_index=batch.edge_index, batch=batch.batch)
    check_graph(plain, 4)
    assert num_graphs(plain) == num_graphs(batch) == batch.num_graphs


@pytest.mark.parametrize("graph", [Data(x=torch.ones(3, 2)), Data(x=torch.ones(1, 2))])
def test_no_edges_and_one_node_are_fine(graph: Data) -> None:
    graph.edge_index = torch.empty(2, 0, dtype=torch.int64)
    check_graph(graph, 2)


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
    with pytest.raises(InputError, match=rf"finite .* 1 NaN or infinite value\(s\) in {name}"):
        check_graph(graph)


@pytest.mark.parametrize("sparse", [False, True])
def test_a_change_in_place_is_seen(sparse: bool) -> None:
    x = torch.rand(3, 2) + 1
    graph = Data(x=x.to_sparse_csr() if sparse else x, edge_index=torch.tensor([[0], [1]]))
    check_graph(graph)
    (graph.x.values() if sparse else graph.x.view(-1))[2] = float("nan")
    with pytest.raises(InputError, match="NaN"):
        check_graph(graph)
    (graph.x.values() if sparse else graph.x.view(-1))[2] = 0.0
    check_graph(graph)


@few
@given(sound(), st.integers(-2, 7))
def test_wrong_width(graph: Data, width: int) -> None:
    right = graph.x.size(1)
    if width in (right, 0):
        return
    with pytest.raises(InputError, match=f"node features of width {width}, got {right}"):
        check_graph(graph, width)


@few
@given(sound(), st.data())
def test_edges_out_of_range(graph: Data, data: st.DataObject) -> None:
    n = graph.num_nodes
    edges = torch.cat([graph.edge_index, torch.zeros(2, 1, dtype=torch.int64)], dim=1)
    wrong = data.draw(st.one_of(st.integers(n, n + 2**40), st.integers(-(2**40), -1)))
    edges[data.draw(st.integers(0, 1)), data.draw(st.integers(0, edges.size(1) - 1))] = wrong
    graph.edge_index, graph.edge_attr, graph.edge_weight = edges, None, None
    with pytest.raises(InputError, match=f"edge_index with node numbers from 0 to {n - 1}"):
        check_graph(graph)


DTYPES = [torch.int32, torch.int16, torch.uint8, torch.bool, torch.float32, torch.float64]


@few
@given(sound(), st.sampled_from(DTYPES))
def test_edges_of_another_dtype(graph: Data, dtype: torch.dtype) -> None:
    graph.edge_index = graph.edge_index.to(dtype)
    with pytest.raises(InputError, match=r"edge_index of dtype int64.*\.long\(\)"):
        check_graph(graph)


@few
@given(sound(), st.lists(st.integers(0, 3), min_size=1, max_size=3))
def test_edges_of_another_shape(graph: Data, shape: list[int]) -> None:
    if len(shape) == 2 and shape[0] == 2:
        return
    graph.edge_index = torch.zeros(shape, dtype=torch.int64)
    graph.edge_attr = graph.edge_weight = None
    with pytest.raises(InputError, match=r"edge_index of shape \[2, E\], got \["):
        check_graph(graph)


@few
@given(sound(), st.sampled_from(["edge_attr", "edge_weight"]), st.integers(1, 3))
def test_edge_features_of_another_length(graph: Data, name: str, more: int) -> None:
    graph[name] = torch.ones(graph.edge_index.size(1) + more)
    with pytest.raises(
        InputError, match=f"{name} of {graph.edge_index.size(1)} rows, one per edge"
    ):
        check_graph(graph)


@pytest.mark.parametrize("shape", [(3,), (3, 2, 1), (2, 2), (4, 2)])
def test_features_of_another_shape(shape: tuple[int, ...]) -> None:
    edges = torch.zeros(2, 0, dtype=torch.int64)
    graph = Data(x=torch.ones(shape), edge_index=edges, num_nodes=3)
    with pytest.raises(InputError, match=r"x of shape \[3, d\]"):
        check_graph(graph)


NOT_TENSORS = {
    "x": np.ones((3, 2)),
    "edge_index": [[0], [1]],
    "batch": [0, 0, 0],
    "edge_attr": torch.tensor(1.0),
    "edge_weight": 2.0,
}


@pytest.mark.parametrize("name", NOT_TENSORS)
def test_what_is_no_tensor_of_rows(name: str) -> None:
    edges = torch.tensor([[0], [1]])
    graph = Data(x=torch.ones(3, 2), edge_index=edges, num_nodes=3)
    graph[name] = NOT_TENSORS[name]
    with pytest.raises(InputError, match=f"{name} as a tensor"):
        check_graph(graph)


NO_NODES = {
    "features": Data(x=torch.ones(0, 2), edge_index=torch.zeros(2, 0).long()),
    "num_nodes": Data(num_nodes=0, edge_index=torch.zeros(2, 0).long()),
    "nothing": Data(),
    "batch": Batch.from_data_list([Data(x=torch.ones(0, 2), edge_index=torch.zeros(2, 0).long())]),
}


@pytest.mark.parametrize("name", NO_NODES)
def test_no_nodes(name: str) -> None:
    with pytest.raises(InputError, match=r"at least one node.*Drop empty graphs"):
        check_graph(NO_NODES[name])


@few
@given(st.lists(st.integers(0, 3), min_size=2, max_size=5))
def test_an_empty_graph_inside_a_batch(sizes: list[int]) -> None:
    if 0 not in sizes or not any(sizes):
        return
    edges = torch.zeros(2, 0, dtype=torch.int64)
    batch = Batch.from_data_list([Data(x=torch.ones(n, 2), edge_index=edges) for n in sizes])
    message = rf"{sizes.count(0)} empty graph\(s\) in the batch, first at position {sizes.index(0)}"
    with pytest.raises(InputError, match=message):
        check_graph(batch)


BATCHES = {
    "float": torch.zeros(3),
    "short": torch.zeros(2, dtype=torch.int64),
    "matrix": torch.zeros(3, 1, dtype=torch.int64),
    "negative": torch.tensor([-1, 0, 0]),
}


@pytest.mark.parametrize("name", BATCHES)
def test_bad_batch_vectors(name: str) -> None:
    edges = torch.zeros(2, 0, dtype=torch.int64)
    graph = Data(x=torch.ones(3, 2), edge_index=edges, batch=BATCHES[name], num_nodes=3)
    with pytest.raises(InputError, match="batch"):
        check_graph(graph)


def test_a_batch_vector_beyond_its_pointers() -> None:
    batch = Batch.from_data_list([tiny_graph(2, 0), tiny_graph(2, 1)])
    batch.batch = torch.tensor([0, 1, 1, 2])
    with pytest.raises(InputError, match="graph numbers from 0 to 1 in batch, got 0 to 2"):
        check_graph(batch)


@pytest.mark.parametrize("thing", [None, 3, "graph", torch.ones(3, 2), [Data()]])
def test_what_is_no_graph(thing: object) -> None:
    with pytest.raises(InputError, match="Data, HeteroData or Batch"):
        check_graph(thing)


def test_a_graph_without_edges_attribute() -> None:
    with pytest.raises(InputError, match=r"a graph with edge_index, got only \['x'\]"):
        check_graph(Data(x=torch.ones(3, 2)))
    check_graph(Data(x=torch.ones(3, 2), adj_t=torch.eye(3).to_sparse_csr()))


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csc])
def test_other_sparse_layouts_are_told_apart(layout: torch.layout) -> None:
    graph = Data(x=torch.eye(3).to_sparse(layout=layout), edge_index=torch.zeros(2, 0).long())
    with pytest.raises(InputError, match=r"x dense or sparse CSR.*to_sparse_csr"):
        check_graph(graph)


BROKEN_CSR = {
    "column out of range": ([0, 1, 2], [0, 5]),
    "negative column": ([0, 1, 2], [0, -1]),
    "repeated column": ([0, 2, 2], [1, 1]),
    "pointers": ([0, 5, 2], [0, 1]),
}


@pytest.mark.parametrize("name", BROKEN_CSR)
def test_broken_sparse_features(name: str) -> None:
    """Products would read foreign memory or count an entry twice."""
    pointers, columns = BROKEN_CSR[name]
    x = torch.sparse_csr_tensor(
        torch.tensor(pointers), torch.tensor(columns), torch.ones(2), (2, 3), check_invariants=False
    )
    with pytest.raises(InputError, match="sparse x with sorted, distinct column numbers"):
        check_graph(Data(x=x, edge_index=torch.zeros(2, 0).long()))


def test_inference_mode_tensors_are_checked_each_time() -> None:
    with torch.inference_mode():
        graph = Data(x=torch.ones(2, 2), edge_index=torch.tensor([[0], [1]]))
        check_graph(graph)
        graph.x[0, 0] = float("nan")
        with pytest.raises(InputError, match="NaN"):
            check_graph(graph)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("edge_label_index", torch.tensor([[0], [4]]), "edge_label_index with node numbers from 0"),
        ("edge_label_index", torch.zeros(2, 1), "edge_label_index of dtype int64"),
        ("edge_label", torch.ones(3), "edge_label of 4 rows, one per edge to be judged"),
        ("edge_row_mask", torch.ones(5).bool(), "edge_row_mask of 4 rows"),
    ],
)
def test_unsound_edges_to_be_judged(name: str, value: Tensor, says: str) -> None:
    graph = judged()
    mark_rows(graph, torch.ones(4).bool(), "edge")
    check_graph(graph)
    graph[name] = value
    with pytest.raises(InputError, match=says):
        check_graph(graph)


WRITES = ("author", "writes", "paper")


UNSOUND = {
    "x of a type": ("author", "x", torch.ones(3, 2), r"x of 'author' of shape \[2, d\]"),
    "nan": ("author", "x", torch.full((2, 2), float("nan")), "4 NaN .* in x of 'author'"),
    "no tensor": ("paper", "x", [1.0], "x of 'paper' as a tensor"),
    "first ends": (WRITES, "edge_index", torch.tensor([[2], [0]]), "numbers from 0 to 1, got 2 to"),
    "second ends": (WRITES, "edge_index", torch.tensor([[0], [3]]), "numbers from 0 to 2, got 3"),
    "shape": (WRITES, "edge_index", torch.zeros(3, 1).long(), r"of shape \[2, E\]"),
    "dtype": (WRITES, "edge_index", torch.zeros(2, 1), "dtype int64"),
    "edge features": (
        WRITES,
        "edge_attr",
        torch.ones(2, 1),
        r"edge_attr .* of 3 rows, one per edg",
    ),
}


@pytest.mark.parametrize("name", UNSOUND)
def test_unsound_heterogeneous_graphs(name: str) -> None:
    kind, key, value, says = UNSOUND[name]
    graph = hetero()
    graph["author"].num_nodes = 2
    check_graph(graph)
    check_graph(graph, 4)
    graph[kind][key] = value
    with pytest.raises(InputError, match=says):
        check_graph(graph)


def test_heterogeneous_graphs_of_another_width_or_without_nodes() -> None:
    with pytest.raises(InputError, match="node features of 'paper' of width 5, got 4"):
        check_graph(hetero(), 5)
    with pytest.raises(InputError, match="at least one node"):
        check_graph(HeteroData())
    graph = hetero()
    graph["author", "meets", "editor"].edge_index = torch.tensor([[0], [0]])
    with pytest.raises(InputError, match="nodes of type 'editor', which"):
        check_graph(graph)
