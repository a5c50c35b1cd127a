"""Sound graphs pass, unsound ones are named; labelled rows, copies, walks over data."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.loader import DataLoader
from torch_geometric.nn import global_add_pool
from torch_geometric.transforms import ToUndirected
from torch_geometric.utils import scatter

from gduq.data.view import View
from gduq.errors import InputError
from gduq.graph import (
    check_graph,
    device_of,
    iterate,
    label_rows,
    mark_rows,
    num_graphs,
    num_rows,
    on_device,
    repeat,
    row_batch,
    row_kind,
    row_marks,
    row_type,
    targets,
)
from tests.conftest import tiny_graph

few = settings(deadline=None, max_examples=40)
seeds = st.integers(0, 10_000)


@st.composite
def sound(draw: st.DrawFn, max_nodes: int = 6) -> Data:
    """Any graph that must pass: no edges, isolated nodes, loops and double edges are fine."""
    nodes, width = draw(st.integers(1, max_nodes)), draw(st.integers(1, 4))
    node = st.integers(0, nodes - 1)
    pairs = draw(st.lists(st.tuples(node, node), max_size=8))
    edges = torch.tensor(pairs, dtype=torch.int64).view(-1, 2).T.contiguous()
    x = torch.randn(nodes, width, generator=torch.Generator().manual_seed(draw(seeds)))
    x = x.to_sparse_csr() if draw(st.booleans()) else x
    graph = Data(x=x, edge_index=edges)
    if draw(st.booleans()):
        graph.edge_attr = torch.rand(len(pairs), 2)
    if draw(st.booleans()):
        graph.edge_weight = torch.rand(len(pairs))
    return graph


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    return Batch.from_data_list([tiny_graph(n, draw(seeds)) for n in sizes])


# -- check_graph -------------------------------------------------------------------------------


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


# -- rows that carry a label -------------------------------------------------------------------


def test_label_rows() -> None:
    graph = Data(x=torch.ones(4, 1))
    assert label_rows(graph, 4) == slice(None)
    graph.row_mask = torch.tensor([True, False, True, False])
    assert torch.equal(label_rows(graph, 4), graph.row_mask)
    assert label_rows(graph, 1) == slice(None)  # an answer for the graph
    graph.batch_size = 3  # seeds come first, whatever else is marked
    assert label_rows(graph, 4) == slice(None, 3)
    assert label_rows(graph, 1) == slice(None)


def test_the_batch_size_of_a_batch_is_no_mark() -> None:
    batch = Batch.from_data_list([tiny_graph(1, 0), tiny_graph(1, 1), tiny_graph(1, 2)])
    assert batch.batch_size == 3
    assert label_rows(batch, 3) == slice(None)


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
    with pytest.raises(InputError, match=f"one label for each of the {labelled} rows"):
        targets(graph, labelled)


def test_num_graphs() -> None:
    assert num_graphs(Data(x=torch.ones(3, 1))) == 1
    assert num_graphs(Data(x=torch.ones(3, 1), batch=torch.tensor([0, 1, 1]))) == 2
    assert num_graphs(Data(x=torch.ones(0, 1), batch=torch.zeros(0).long())) == 0
    empty = Data(x=torch.ones(0, 4).double(), edge_index=torch.zeros(2, 0).long(), y=torch.ones(1))
    empty_last = Batch.from_data_list([tiny_graph(2, 0), empty])
    assert num_graphs(empty_last) == 2


def test_a_graph_on_its_device_is_itself() -> None:
    graph = tiny_graph(3, 0)
    assert on_device(graph, torch.device("cpu")) is graph
    away = on_device(graph, torch.device("meta"))
    assert away.x.device.type == away.edge_index.device.type == "meta"
    assert graph.x.device.type == graph.edge_index.device.type == "cpu"  # not moved itself


@pytest.mark.parametrize("y", ["mutagenic", ["a", "b"], [["a"]]])
def test_labels_that_are_text(y: object) -> None:
    with pytest.raises(InputError, match=r"class numbers.*text, such as.*Number the classes"):
        targets(Data(x=torch.ones(2, 1), y=y), 2)


# -- edges to be judged ------------------------------------------------------------------------


def judged(nodes: int = 4) -> Data:
    """As many nodes as edges to be judged, so that counts tell nothing."""
    ends = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
    graph = Data(x=torch.ones(nodes, 2), edge_index=ends[:, :2], y=torch.arange(nodes))
    graph.edge_label_index, graph.edge_label = ends, torch.tensor([1.0, 0.0, 1.0, 1.0])
    return graph


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


def test_edges_without_other_labels_are_the_rows() -> None:
    """What PyG's LinkNeighborLoader hands out: all edges count."""
    graph = judged()
    del graph["y"]
    assert row_kind(graph) == "edge"
    assert label_rows(graph, 4) == slice(None)
    assert targets(graph, 4).tolist() == graph.edge_label.tolist()


def test_numbers_of_rows_and_their_graphs() -> None:
    pair = Batch.from_data_list([judged(), judged(5)])
    assert [num_rows(pair, kind) for kind in ("node", "edge", "graph")] == [9, 8, 2]
    assert row_batch(pair, "node", 9).tolist() == [0] * 4 + [1] * 5
    assert row_batch(pair, "edge", 8).tolist() == [0] * 4 + [1] * 4
    assert row_batch(pair, "graph", 2).tolist() == [0, 1]
    assert row_batch(judged(), "edge", 4).tolist() == [0] * 4
    for kind in ("node", "edge"):
        with pytest.raises(InputError, match=f"rows, one per {kind}, got 3"):
            row_batch(pair, kind, 3)
    with pytest.raises(InputError, match=r"edge_label_index.*RandomLinkSplit"):
        num_rows(tiny_graph(3, 0), "edge")


def test_copies_of_edges_to_be_judged() -> None:
    graph = judged(5)
    mark_rows(graph, torch.tensor([True, False, True, False]), "edge")
    twice = repeat(graph, 2)
    check_graph(twice)
    assert row_kind(twice) == "edge"
    assert label_rows(twice, 8).tolist() == [True, False, True, False] * 2
    assert torch.equal(twice.edge_label_index[:, 4:], graph.edge_label_index + 5)
    assert row_batch(twice, "edge", 8).tolist() == [0] * 4 + [1] * 4


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


# -- several types of nodes and edges ----------------------------------------------------------


def hetero(papers: int = 3, authors: int = 2) -> HeteroData:
    graph = HeteroData()
    graph["paper"].x, graph["paper"].y = torch.ones(papers, 4), torch.arange(papers)
    graph["author"].x = torch.ones(authors, 2)
    graph["author", "writes", "paper"].edge_index = torch.tensor([[0, 1, 1], [0, 1, 2]])
    return ToUndirected()(graph)


def test_rows_of_one_type() -> None:
    graph = hetero()
    assert (row_kind(graph), row_type(graph)) == ("node", "paper")
    assert (num_rows(graph, "node"), num_rows(graph, "graph")) == (3, 1)
    assert label_rows(graph, 3) == slice(None)
    mark_rows(graph, torch.tensor([True, False, True]), "node", "paper")
    assert row_marks(graph).tolist() == [True, False, True]
    assert targets(graph, 2).tolist() == [0, 2]
    graph["paper"].batch_size = 2  # seeds of a neighbourhood
    assert targets(graph, 2).tolist() == [0, 1]
    mark_rows(graph, torch.tensor([True, False]), "node", "author")
    assert (row_type(graph), num_rows(graph, "node")) == ("author", 2)
    assert targets(graph, 1) is None


def test_the_type_of_the_rows_must_be_clear() -> None:
    graph = hetero()
    graph["author"].y = torch.zeros(2)
    with pytest.raises(InputError, match=r"labels y on paper, author.*node_type="):
        row_type(graph)
    del graph["author"].y, graph["paper"].y
    with pytest.raises(InputError, match="labels y on none of them"):
        row_type(graph)
    graph.row_type = "venue"
    with pytest.raises(InputError, match="one of the node types paper, author, got 'venue'"):
        row_type(graph)


def test_labels_of_heterogeneous_graphs_as_a_whole() -> None:
    graph = hetero()
    graph.y = torch.tensor([1])
    pair = Batch.from_data_list([graph, graph])
    assert row_kind(pair) is None
    assert targets(pair, 2).tolist() == [1, 1]


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


def test_a_hand_made_batch_of_heterogeneous_graphs() -> None:
    graph = hetero()
    graph["paper"].batch = torch.tensor([0, 1, 2])
    assert num_graphs(graph) == 3


def test_heterogeneous_graphs_move_as_copies() -> None:
    graph = hetero()
    assert on_device(graph, torch.device("cpu")) is graph
    away = on_device(graph, torch.device("meta"))
    assert device_of(away).type == away["author", "writes", "paper"].edge_index.device.type
    assert device_of(away).type == "meta"
    assert device_of(graph).type == "cpu"
    assert device_of(Data(num_nodes=3)).type == "cpu"


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


# -- copies ------------------------------------------------------------------------------------


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


# -- walks -------------------------------------------------------------------------------------


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
