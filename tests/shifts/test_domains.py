"""Shifts of own data along every domain, on tiny graphs."""

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, InMemoryDataset

from gduq import shifts
from gduq.errors import InputError
from gduq.graphs.packed import Packed
from tests.shifts.cases import NO_EDGES, dots


class _Set(InMemoryDataset):
    def __init__(self, graphs, transform=None):
        super().__init__(transform=transform)
        self.data, self.slices = self.collate(graphs)


@pytest.mark.parametrize("form", [list, tuple, Packed.pack, _Set])
def test_size_of_a_list_and_of_a_dataset(form):
    splits = shifts.size(form(dots(range(1, 41))))
    assert splits.train.task == "graph"
    sizes = {name: [g.num_nodes for g in view.graphs] for name, view in splits}
    assert sum(map(len, sizes.values())) == 40
    assert max(sizes["train"] + sizes["id_val"] + sizes["id_test"]) == 20
    assert sorted(sizes["ood_test"]) == [37, 38, 39, 40]
    for name, view in splits:
        assert splits.domains[name].tolist() == sizes[name]
        assert len(view.target) == len(view)


def star(leaves):
    ends = torch.stack([torch.zeros(leaves).long(), torch.arange(1, leaves + 1)])
    return Data(x=torch.ones(leaves + 1, 1), edge_index=torch.cat([ends, ends.flip(0)], 1), y=0)


def test_degree_of_nodes_and_graphs():
    graphs = [star(n) for n in range(1, 21)]
    splits = shifts.by(graphs, "degree")
    assert min(splits.domains["ood_test"]) > max(splits.domains["train"])
    assert splits.domains["train"].dtype == torch.float64
    source = torch.arange(30).repeat_interleave(torch.arange(30))
    graph = Data(edge_index=torch.stack([source, torch.zeros_like(source)]), num_nodes=30)
    graph.y = torch.arange(30) % 2
    nodes = shifts.by(graph, "degree", descending=True)
    assert nodes.train.task == "node"
    assert nodes.domains["ood_test"].tolist() == [0, 1, 2, 3, 4, 5]
    assert nodes.ood_test.rows.nonzero().flatten().tolist() == [0, 1, 2, 3, 4, 5]
    assert (torch.stack([v.rows for _, v in nodes]).sum(0) == 1).all()


def test_by_attribute_and_function():
    graphs = dots([2] * 20)
    for i, graph in enumerate(graphs):
        graph.price = -float(i)
    by_name = shifts.by(graphs, "price")
    assert sorted(by_name.domains["ood_test"].tolist()) == [-3.0, -2.0, -1.0, 0.0]
    assert by_name.name == "price"
    by_function = shifts.by(graphs, lambda g: float(g.x.max()) ** 2, descending=True)
    assert sorted(by_function.domains["ood_test"].tolist()) == [0.0, 1.0, 4.0, 9.0]
    with pytest.raises(InputError):
        shifts.by(graphs, "weight")


def test_group_leaves_groups_out():
    labels = ["a"] * 10 + ["b"] * 6 + ["c"] * 4
    graph = Data(x=torch.ones(20, 1), edge_index=NO_EDGES, y=torch.arange(20) % 2)
    splits = shifts.group(graph, labels, test=["b"])
    assert splits.ood_val.rows.nonzero().flatten().tolist() == [10, 11, 12]
    assert splits.ood_test.rows.nonzero().flatten().tolist() == [13, 14, 15]
    assert len(splits.id_val) == 2
    both = shifts.group(graph, labels, test=["b"], val=["c"])
    assert len(both.ood_test) == 6
    assert len(both.ood_val) == 4
    assert both.domains["ood_val"].tolist() == [2] * 4
    for names, test, val in [
        (labels, ["d"], []), (labels, [], []), (labels[1:], ["b"], []), (labels, ["b"], ["b", "c"]),
        (labels, ["a", "b", "c"], []), ([["a"]] * 20, "a", []),
    ]:  # fmt: skip
        with pytest.raises(InputError):
            shifts.group(graph, names, test, val)


@pytest.mark.parametrize("one", [2, np.int64(2), torch.tensor(2), [2], torch.tensor([2])])
def test_classes_left_out(one):
    splits = shifts.group(dots([1] * 30, labels=[i % 3 for i in range(30)]), "y", one)
    assert set(splits.train.target.tolist()) == {0, 1}
    assert set(splits.ood_val.target.tolist()) == set(splits.ood_test.target.tolist()) == {2}
    assert len(splits.ood_val) == len(splits.ood_test) == 5


def test_groups_by_the_name_of_an_attribute():
    graphs = dots([1] * 40)
    for i, graph in enumerate(graphs):
        graph.site = "ab"[i % 2]
    assert set(shifts.group(graphs, "site", "b").ood_test.target.tolist()) == {1}


def test_scaffold_never_parts_a_scaffold():
    pytest.importorskip("rdkit")
    smiles = ["c1ccccc1C", "c1ccccc1CC", "c1ccccc1O", "c1ccccc1N", "c1ccccc1F", "c1ccccc1Cl"]
    smiles += ["C1CCCCC1C", "C1CCCCC1CC", "c1ccncc1C", "c1ccncc1O"]
    graphs = dots([1] * 10)
    for graph, text in zip(graphs, smiles, strict=True):
        graph.smiles = text
    splits = shifts.by(graphs, "scaffold", cuts=(0.5, 0.7))
    groups = [set(splits.domains[n].tolist()) for n in ("train", "ood_val", "ood_test")]
    assert groups == [{0}, {1}, {2}]
    graphs[0].smiles = "C1CC"
    with pytest.raises(InputError):
        shifts.by(graphs, "scaffold")
    with pytest.raises(InputError):
        shifts.by(dots([1] * 3), "scaffold")


def test_by_any_value():
    graphs = [dots([2])[0] for _ in range(10)]
    for graph in graphs:
        graph.y = torch.tensor([0, 1])
    nodes = shifts.by(graphs, torch.arange(20), task="node")
    assert nodes.train.task == "node"
    assert len(nodes.ood_test) == 4
    for data, wanted, kind in [
        (graphs, torch.arange(20), "covariate"), (graphs, torch.arange(10), "other"),
        (7, torch.arange(10), "covariate"), ([], [], "covariate"),
    ]:  # fmt: skip
        with pytest.raises(InputError):
            shifts.by(data, wanted, kind)


def values(y):
    graphs = dots([2] * len(y))
    for graph, value in zip(graphs, y, strict=True):
        graph.y = torch.as_tensor(value, dtype=torch.float32).reshape(1, -1)
    return graphs


def test_by_the_target_trains_on_low_values_and_tests_on_high_ones():
    y = torch.randperm(100, generator=torch.Generator().manual_seed(0)) / 7
    splits = shifts.by(values(y), "y", "tails", low=0.6, high=0.8)
    parts = {name: view.target for name, view in splits}
    assert parts["train"].max() < parts["ood_val"].min()
    assert parts["id_test"].max() < parts["ood_val"].min()
    assert parts["ood_val"].max() < parts["ood_test"].min()
    assert len(splits.ood_test) == 20
    with pytest.raises(InputError):
        shifts.by(values(torch.zeros(30)), "y", "tails")  # a constant has no high values


def test_cuts_of_several_targets_with_gaps():
    y = torch.rand(40, 3, generator=torch.Generator().manual_seed(0)).round()
    y[::4, 1] = torch.nan
    graphs = values(y)
    for splits in (
        shifts.by(graphs, range(40)),
        shifts.by(graphs, range(40), "no_shift"),
        shifts.group(graphs, [i % 4 for i in range(40)], test=[3]),
    ):
        assert splits.train.target.shape == (len(splits.train), 3)
        gaps = sum(int(view.target.isnan().sum()) for _, view in splits)
        assert gaps == 10


def test_time_stamps_keep_double_precision():
    start = 1.7e9
    stamps = [start + i for i in range(20)]
    splits = shifts.by(dots([1] * 20), stamps)
    assert splits.domains["ood_test"].tolist() == stamps[16:]
    graphs = dots([1] * 20)
    for graph, stamp in zip(graphs, stamps, strict=True):
        graph.stamp = stamp
    for cut in (shifts.by(graphs, "stamp"), shifts.by(graphs, lambda g: g.stamp)):
        assert cut.domains["ood_test"].tolist() == stamps[16:]
    tails = shifts.tails(stamps)
    assert tails["ood_test"].tolist() == [18, 19]
    groups = shifts.group(dots([1] * 20), stamps, test=stamps[:4])
    assert sorted(groups.domains["ood_test"].tolist()) == stamps[2:4]
