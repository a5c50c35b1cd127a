"""What a graph alone tells of its rows: sizes and degrees, whoever they share a batch with."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch_geometric.data import Batch, Data, HeteroData

from gduq.data import View
from gduq.graphs import Rows, join, structure_of


def star(leaves: int) -> Data:
    """All leaves point at node 0."""
    ends = torch.stack([torch.arange(1, leaves + 1), torch.zeros(leaves).long()])
    return Data(x=torch.ones(leaves + 1, 2), edge_index=ends)


def lone() -> Data:
    return Data(x=torch.ones(1, 2), edge_index=torch.zeros(2, 0).long())


def told(graph: Data | HeteroData, rows: Rows) -> Tensor:
    """The counts themselves."""
    found = structure_of(graph, rows)
    assert found is not None
    assert found.dtype == torch.float64
    return found.expm1()


def check(found: Tensor, wanted: list[list[float]]) -> None:
    torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float64))


def test_sizes_and_degrees() -> None:
    batch = join([star(3), lone(), star(1)])
    check(told(batch, "graph"), [[4, 3 / 4], [1, 0], [2, 1 / 2]])
    check(told(batch, "node"), [[3], [0], [0], [0], [0], [1], [0]])
    check(told(star(3), "graph"), [[4, 3 / 4]])
    check(told(lone(), "graph"), [[1, 0]])
    check(told(lone(), "node"), [[0]])


def test_the_ends_of_an_edge_have_no_order() -> None:
    graph = star(3)
    graph.edge_index = torch.cat([graph.edge_index, graph.edge_index[:, :1].flip(0)], dim=1)
    graph.edge_label_index = torch.tensor([[0, 1, 1, 0], [1, 0, 2, 0]])
    check(told(graph, "edge"), [[1], [1], [0], [3]])
    some = View(graph, edges=torch.tensor([False, True, False, True]))
    check(told(next(some.batches()), "edge"), [[1], [3]])


@given(st.lists(st.integers(0, 6), min_size=1, max_size=6), st.integers(0, 2**16))
def test_mates_in_a_batch_and_names_of_nodes_change_nothing(leaves: list[int], seed: int) -> None:
    graphs = [star(count) for count in leaves]
    together, alone = told(join(graphs), "graph"), [told(graph, "graph") for graph in graphs]
    assert torch.equal(together, torch.cat(alone))
    nodes = torch.cat([told(graph, "node") for graph in graphs])
    assert torch.equal(told(join(graphs), "node"), nodes)
    graph = join(graphs)
    order = torch.randperm(len(nodes), generator=torch.Generator().manual_seed(seed))
    place = order.argsort()
    other = Data(x=graph.x, edge_index=place[graph.edge_index], batch=graph.batch[order])
    assert torch.equal(told(other, "node"), nodes[order])
    assert torch.equal(told(other, "graph"), together)


def test_where_it_cannot_be_told() -> None:
    assert structure_of(star(2), None) is None
    assert structure_of(Data(x=torch.ones(2, 1)), "graph") is None
    sampled = star(3)
    sampled.batch_size = 2  # degrees are those of the sample
    assert structure_of(sampled, "node") is None


def papers(authors: int) -> HeteroData:
    data = HeteroData()
    data["paper"].x, data["author"].x = torch.ones(2, 3), torch.ones(authors, 4)
    by = torch.stack([torch.arange(authors), torch.zeros(authors).long()])
    data["author", "writes", "paper"].edge_index = by
    data["paper", "cites", "paper"].edge_index = torch.tensor([[1], [0]])
    data["paper", "by", "author"].edge_index = by[:, :1].flip(0)
    return data


def test_all_types_of_edges_and_nodes_count() -> None:
    view = View(papers(5), node_type="paper")
    check(told(next(view.batches()), "node"), [[6], [0]])
    check(told(papers(5), "graph"), [[7, 1]])
    batch = Batch.from_data_list([papers(5), papers(2)])
    check(told(batch, "graph"), [[7, 1], [4, 1]])
    assert structure_of(papers(5), "edge") is None
    sampled = papers(5)
    sampled["paper"].batch_size = 1
    assert structure_of(sampled, "graph") is None
