"""What moved: numbers by hand, against scipy, on every kind of view; the plot."""

import math

import pytest
import torch
from scipy.stats import ks_2samp
from torch_geometric.data import Data, HeteroData

from gduq import shifts
from gduq.data.describe import compare, plot, statistics
from gduq.data.packed import Packed
from gduq.data.splits import Splits
from gduq.data.view import View
from gduq.errors import InputError


def star(leaves, label):
    ends = torch.stack([torch.zeros(leaves).long(), torch.arange(1, leaves + 1)])
    x = torch.full((leaves + 1, 2), float(leaves))
    x[:, 1] = label
    return Data(x=x, edge_index=torch.cat([ends, ends.flip(0)], 1), y=torch.tensor([label]))


def rows_of(splits):
    return {(row.split, row.quantity): row for row in compare(splits)}


def test_graph_statistics_by_hand():
    view = View([star(1, 0), star(3, 1)])
    found = statistics(view)
    assert found["nodes"].tolist() == [2, 4]
    assert found["edges"].tolist() == [2, 6]
    assert found["degree"].tolist() == [1.0, 1.5]
    assert found["mean of x"].tolist() == [0.5, 2.0]
    assert found["length of x"].tolist() == pytest.approx([1.0, math.sqrt(10)])
    assert found["label"].tolist() == [0, 1]


def test_node_statistics_dense_and_sparse():
    x = torch.tensor([[1.0, 0, 0], [0, 2, 2], [0, 0, 0], [3, 4, 0]])
    edges = torch.tensor([[0, 0, 3], [1, 2, 0]])
    for features in (x, x.to_sparse_csr()):
        graph = Data(x=features, edge_index=edges, y=torch.tensor([0, 1, 1, 0]))
        found = statistics(View(graph, torch.tensor([0, 2, 3])))
        assert found["degree"].tolist() == [2, 0, 1]
        assert found["mean of x"].tolist() == pytest.approx([1 / 3, 0, 7 / 3])
        assert found["length of x"].tolist() == [1, 0, 5]
        assert found["label"].tolist() == [0, 1, 0]


def test_distance_is_that_of_kolmogorov_and_smirnov():
    generator = torch.Generator().manual_seed(0)
    sizes = torch.randint(1, 30, (80,), generator=generator).tolist()
    train, test = (
        View([star(n, n % 2) for n in part]) for part in (sizes[:50], [n + 4 for n in sizes[50:]])
    )
    row = rows_of(Splits(train, ood_test=test))["ood_test", "nodes"]
    one, two = statistics(train)["nodes"], statistics(test)["nodes"]
    assert row.distance == pytest.approx(ks_2samp(one, two).statistic)
    assert row.shift == pytest.approx(float((two.mean() - one.mean()) / one.std(correction=0)))


def test_labels_by_total_variation():
    train = View([star(1, y) for y in (0, 0, 0, 1)])
    test = View([star(1, y) for y in (0, 1, 1, 2)])
    row = rows_of(Splits(train, ood_test=test))["ood_test", "label"]
    assert row.distance == pytest.approx(0.5)


@pytest.mark.parametrize("pack", [False, True])
def test_the_column_that_moved_most(pack):
    train, test = [star(3, 0)] * 3 + [star(3, 1)], [star(3, 1)] * 4
    form = Packed.pack if pack else list
    splits = Splits(View(form(train)), ood_test=View(form(test)))
    row = rows_of(splits)["ood_test", "x[1], which moved most"]
    assert (row.train_mean, row.mean) == (0.25, 1.0)


def test_the_sparse_column_that_moved_most():
    x = torch.zeros(8, 5)
    x[:4, 0] = 1
    x[4:, 3] = 2
    x[:, 4] = 1
    results = []
    for features in (x, x.to_sparse_csr()):
        graph = Data(x=features, edge_index=torch.zeros(2, 0).long(), y=torch.arange(8) % 2)
        splits = Splits(View(graph, torch.arange(5)), ood_test=View(graph, torch.arange(5, 8)))
        rows = [r for r in compare(splits) if "moved most" in r.quantity]
        results.append(rows)
        assert rows[0].quantity == "x[0], which moved most"
        assert (rows[0].train_mean, rows[0].mean) == (0.8, 0.0)
    assert results[0] == results[1]


def test_a_constant_that_moves_and_one_that_does_not():
    train, test = View([star(2, 0)] * 3), View([star(3, 0)] * 2)
    rows = rows_of(Splits(train, ood_test=test))
    assert rows["ood_test", "nodes"].shift == math.inf
    assert rows["ood_test", "label"].shift == 0.0


def test_a_concept_shift_shows_in_the_correlation():
    graphs = [star(1 + i % 10, (i // 10) % 2) for i in range(600)]
    splits = shifts.size(graphs, "concept")
    row = rows_of(splits)["ood_test", "correlation of domain and label"]
    assert abs(row.train_mean) > 0.3
    assert row.train_mean * row.mean < 0
    assert row.shift == pytest.approx(row.mean - row.train_mean)


def test_severities_are_described_too():
    train = View([star(1 + i, i % 2) for i in range(6)])
    fewer = {"edges=3": shifts.edge_drop(train, 3)}
    rows = rows_of(Splits(train, severities=fewer))
    assert ("edges=3", "mean of x") in rows


def test_graphs_without_features_or_labels():
    bare = [Data(edge_index=torch.zeros(2, 0).long(), num_nodes=n) for n in range(1, 9)]
    splits = Splits(View(bare[:4]), ood_test=View(bare[4:]))
    assert {row.quantity for row in compare(splits)} == {"nodes", "edges", "degree"}


def test_plot(tmp_path):
    splits = shifts.size([star(1 + i % 30, i % 2) for i in range(120)])
    assert plot(splits, tmp_path / "moved.png").stat().st_size > 1000
    with pytest.raises(InputError, match=r"ends in \.png"):
        plot(splits, tmp_path / "moved.txt")


def test_edges_and_heterogeneous_graphs_are_refused_in_one_sentence():
    edges = torch.tensor([[0, 1], [1, 2]])
    linked = Data(x=torch.ones(3, 1), edge_index=edges, edge_label_index=edges)
    linked.edge_label = torch.ones(2)
    papers = HeteroData()
    papers["paper"].x, papers["paper"].y = torch.ones(2, 1), torch.zeros(2).long()
    for view, kind in ((View(linked, edges=True), "edges"), (View(papers, [0]), "a HeteroData")):
        with pytest.raises(InputError, match=f"to describe, got {kind}"):
            statistics(view)


def test_values_and_gaps_are_described():
    graphs = []
    for n in range(1, 41):
        y = torch.tensor([[n / 10, float("nan") if n % 2 else 1.0]])
        graphs.append(Data(edge_index=torch.zeros(2, 0).long(), num_nodes=n, y=y))
    splits = shifts.size(graphs).with_(target_names=("mass", "toxic"))
    rows = {row.quantity: row for row in compare(splits) if row.split == "ood_test"}
    assert rows["target mass"].mean == pytest.approx(3.85)
    assert rows["target mass"].distance == 1.0
    assert rows["target toxic"].mean == 1.0
    assert rows["target toxic"].shift == 0.0
    for graph in graphs:
        graph.y = graph.y[:, 0]
    rows = {row.quantity: row for row in compare(shifts.size(graphs)) if row.split == "ood_test"}
    assert rows["target"].distance == 1.0  # of Kolmogorov and Smirnov
    assert rows["target"].shift > 1
    assert rows["correlation of domain and target"].mean == pytest.approx(1.0)


def test_values_with_gaps_are_drawn(tmp_path):
    graphs = []
    for n in range(1, 41):
        y = torch.tensor([[n / 10, float("nan")]])
        graphs.append(Data(edge_index=torch.zeros(2, 0).long(), num_nodes=n, y=y))
    assert plot(shifts.size(graphs), tmp_path / "moved.svg").stat().st_size > 1000
    quantities = {row.quantity for row in compare(shifts.size(graphs))}
    assert "target 0" in quantities
    assert "target 1" not in quantities  # nothing is known of it
