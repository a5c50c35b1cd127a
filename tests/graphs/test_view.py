"""Views: batches, identity, and what is refused."""

from dataclasses import replace

import pytest
import torch
from torch_geometric.data import Batch, Data, HeteroData, InMemoryDataset
from torch_geometric.loader import DataLoader
from torch_geometric.transforms import RandomLinkSplit, ToUndirected

import gduq
from gduq.errors import InputError
from gduq.graphs import Packed, Splits, View, iterate, label_rows, row_kind, row_type, targets
from gduq.nn import GNN

EDGES = torch.tensor([[0, 1], [1, 0]])


def graph(label, nodes=2):
    y = torch.tensor([label]).flatten() if not isinstance(label, str) else label
    x = torch.full((nodes, 1), float(label) if isinstance(label, int) else 0.0)
    return Data(x=x, edge_index=EDGES, y=y)


def node_graph(nodes=6):
    return Data(x=torch.arange(nodes).float()[:, None], edge_index=EDGES, y=torch.arange(nodes))


def labels(batches):
    return [b.y.tolist() for b in batches]


@pytest.mark.parametrize("pack", [False, True])
def test_batches_in_order_and_shuffled(pack):
    plain = [graph(i) for i in range(7)]
    view = View(Packed.pack(plain) if pack else plain)
    assert labels(view.batches(3)) == [[0, 1, 2], [3, 4, 5], [6]]
    order = torch.randperm(7, generator=torch.Generator().manual_seed(4)).tolist()
    shuffled = list(view.batches(3, shuffle=True, generator=torch.Generator().manual_seed(4)))
    assert labels(shuffled) == [order[:3], order[3:6], order[6:]]
    theirs = Batch.from_data_list([plain[i] for i in order[:3]])
    assert torch.equal(shuffled[0].x, theirs.x)
    assert torch.equal(shuffled[0].edge_index, theirs.edge_index)
    assert view.target.tolist() == list(range(7))
    assert len(list(iterate(view, 2))) == 4


def test_a_single_graph_is_the_same_object_every_time():
    for graphs in (graph(1), [graph(1)], Packed.pack([graph(1)])):
        view = View(graphs)
        assert next(view.batches()) is next(view.batches())
    data = node_graph()
    view = View(data, torch.tensor([1, 3]))
    (first,), (second,) = view.batches(), view.batches(1, shuffle=True)
    assert first is second
    assert first.x is data.x
    assert first.row_mask.tolist() == [False, True, False, True, False, False]
    assert "row_mask" not in data


@pytest.mark.parametrize("pack", [False, True])
def test_node_tasks_over_several_graphs(pack):
    plain = [node_graph(3), node_graph(2), node_graph(4)]
    rows = torch.tensor([0, 3, 4, 8])
    view = View(Packed.pack(plain) if pack else plain, rows)
    assert view.task == "node"
    assert len(view) == 4
    assert view.target.tolist() == [0, 0, 1, 3]
    found = [b.y[b.row_mask].tolist() for b in view.batches(2)]
    assert found == [[0, 0, 1], [3]]
    assert [len(b.y[b.row_mask]) for b in view.batches(1)] == [1, 2, 1]
    few = View(plain, torch.tensor([0, 8]))  # a graph without marked nodes is in no batch
    assert [int(batch.row_mask.sum()) for batch in few.batches(1)] == [1, 1]


def test_take_counts_rows():
    view = View([graph(i) for i in range(5)])
    assert view.take(torch.tensor([4, 0])).target.tolist() == [4, 0]
    assert View(Packed.pack([graph(i) for i in range(5)])).take([4, 0]).target.tolist() == [4, 0]
    nodes = View(node_graph(), torch.tensor([1, 3, 5]))
    assert nodes.take(torch.tensor([2, 0])).target.tolist() == [5, 1]
    assert len(View(node_graph(), [])) == len(nodes.take(torch.zeros(0).long())) == 0


class _Random(InMemoryDataset):
    """A dataset whose transform counts its calls."""

    def __init__(self, transform=None):
        super().__init__(transform=transform)
        self.data, self.slices = self.collate([graph(i) for i in range(4)])


def test_a_datasets_transform_runs_at_every_visit():
    seen = []

    def transform(data):
        seen.append(1)
        return data

    view = View(_Random(transform)).take(torch.tensor([0, 2, 3]))
    for _ in range(2):
        assert [b.num_graphs for b in view.batches(2)] == [2, 1]
    assert len(seen) == 6
    plain = View(_Random())
    assert labels(plain.batches(3)) == [[0, 1, 2], [3]]


@pytest.mark.parametrize(
    "call",
    [
        lambda: View([]),
        lambda: View(None),
        lambda: View(DataLoader([graph(0)])),
        lambda: View(node_graph(), torch.ones(5).bool()),
        lambda: View(node_graph(), torch.ones(6, 3).bool()),
        lambda: View(node_graph(), torch.ones(6)),
        lambda: View(node_graph(), torch.ones(6).byte()),
        lambda: View(node_graph(), torch.tensor([0, 1, 1])),
        lambda: View(node_graph(), torch.tensor([6])),
        lambda: View(node_graph(), "train_mask"),
        lambda: View([Data(x=torch.ones(1, 1), edge_index=EDGES)]).target,
        lambda: View(Packed.pack([Data(x=torch.ones(1, 1), edge_index=EDGES)])).target,
        lambda: View([graph("active"), graph("inert")]).target,
        lambda: View([graph([0, 1, 2]), graph([0, 1, 2])]).target,
        lambda: View(Data(x=torch.ones(6, 1), edge_index=EDGES, y=torch.ones(4)), [1]).target,
        lambda: list(View([graph(0), graph(1)]).batches(0)),
        lambda: View(papers(), edges=True),
        lambda: View(node_graph(), edges=True),
        lambda: View(linked()[0], torch.tensor([1]), edges=True),
        lambda: View(linked()[0], edges=torch.ones(3).bool()),
        lambda: View(linked()[0], edges=torch.tensor([999])),
        lambda: View(node_graph(), torch.tensor([1]), node_type="paper"),
        lambda: View(papers(), node_type="venue"),
        lambda: View(papers(), torch.ones(5).bool()),
        lambda: View(papers(), torch.tensor([0]), node_type="author").target,
    ],
)
def test_what_is_refused(call):
    with pytest.raises(InputError):
        call()


def test_splits_refuse_masks_that_overlap():
    data = node_graph()
    train = View(data, torch.tensor([0, 1, 2]))
    with pytest.raises(InputError):
        Splits(train, ood_test=View(data, torch.tensor([2, 3])))
    splits = Splits(train, ood_test=View(data, torch.tensor([3])))
    assert [name for name, _ in splits] == ["train", "ood_test"]
    other = Splits(train, ood_test=View(node_graph(), torch.tensor([2])))  # another graph
    assert len(other.ood_test) == 1
    assert splits.with_(name="mine").name == "mine"


def small(n, **more):
    return [
        Data(x=torch.full((2, 1), float(i)), edge_index=torch.tensor([[0], [1]]), y=i, **more)
        for i in range(n)
    ]


@pytest.mark.parametrize("form", [list, Packed.pack])
def test_splits_refuse_graphs_in_two_of_them(form):
    graphs = form(small(6))
    one, two = View(graphs[:4]), View(graphs[3:])
    with pytest.raises(InputError):
        Splits(one, ood_test=two)
    assert len(Splits(one, ood_test=View(graphs[4:])).ood_test) == 2
    assert len(Splits(one, ood_test=View(form(small(6))[3:])).ood_test) == 3


def test_graphs_of_different_attributes_are_refused_by_name():
    graphs = small(6, weight=torch.ones(1))
    del graphs[4].weight
    with pytest.raises(InputError):
        next(View(graphs).batches(2))


# -- labels ------------------------------------------------------------------------------------


def test_several_labels_per_row_stay_together():
    data = node_graph(24)
    data.y = torch.arange(48).view(24, 2)
    assert View(data, torch.tensor([1, 3])).target.tolist() == [[2, 3], [6, 7]]
    data.y = torch.arange(24).view(24, 1)
    assert View(data, torch.tensor([1, 3])).target.tolist() == [1, 3]
    rows = [
        Data(x=torch.ones(1, 1), edge_index=EDGES, y=torch.tensor([[i, 1 - i]])) for i in (0, 1)
    ]
    assert View(rows).target.tolist() == [[0, 1], [1, 0]]  # too few to call it one-hot
    assert View(Packed.pack(rows)).target.tolist() == [[0, 1], [1, 0]]


# -- edges -------------------------------------------------------------------------------------


@pytest.mark.parametrize("pack", [False, True])
def test_edges_of_several_graphs(pack):
    parts = [part for seed in (12, 9, 10) for part in linked(seed)[1:2]]
    keys = ("x", "edge_index", "edge_label_index", "edge_label")
    plain = [Data(**{key: part[key] for key in keys}) for part in parts]
    sizes = [part.edge_label.numel() for part in plain]
    last = sum(sizes) - 1
    view = View(Packed.pack(plain) if pack else plain, edges=torch.tensor([last, 0, 1]))
    assert view.task == "edge"
    every = torch.cat([part.edge_label for part in plain])
    assert torch.equal(view.target, every[[last, 0, 1]])
    batches = list(view.batches(1))  # one graph has no row
    assert [int(batch.edge_row_mask.sum()) for batch in batches] == [2, 1]
    (both,) = view.batches()
    assert torch.equal(targets(both, 3)[view.order], view.target)
    assert int(both.edge_label_index.max()) < both.num_nodes


def linked(nodes=12):
    ends = torch.combinations(torch.arange(nodes))[::3].T
    data = Data(x=torch.rand(nodes, 2), edge_index=torch.cat([ends, ends.flip(0)], dim=1))
    data.y = torch.arange(nodes)  # labels of nodes, which are not asked for
    torch.manual_seed(0)  # RandomLinkSplit knows no generator
    return RandomLinkSplit(num_val=0.2, num_test=0.2, is_undirected=True)(data)


def test_edges_of_a_link_split():
    train, val, _ = linked()
    views = [View(part, edges=True) for part in (train, val)]
    for view, part in zip(views, (train, val), strict=True):
        assert view.task == "edge"
        assert len(view) == part.edge_label.numel()
        assert torch.equal(view.target, part.edge_label)
        (handed,), (again,) = view.batches(), iterate(view, 1)
        assert handed is again
        assert row_kind(handed) == "edge"
        assert "row_kind" not in part
        assert targets(handed, len(view)).tolist() == part.edge_label.tolist()
    assert repr(views[0]) == f"View({len(views[0])} edges in 1 graph(s))"
    assert len(Splits(views[0], id_val=views[1]).id_val) == len(views[1])


@pytest.mark.parametrize("form", ["mask", "numbers"])
def test_some_of_the_edges(form):
    data = linked()[0]
    numbers = torch.tensor([0, 2, 7])
    mask = torch.zeros(data.edge_label.numel(), dtype=torch.bool)
    mask[numbers] = True
    view = View(data, edges=mask if form == "mask" else numbers)
    (handed,) = view.batches()
    assert torch.equal(label_rows(handed, mask.numel()), mask)
    assert torch.equal(view.target, data.edge_label[numbers])
    taken = view.take(torch.tensor([2, 0]))
    assert torch.equal(taken.numbers, numbers[[2, 0]])
    assert torch.equal(taken.target, data.edge_label[numbers[[2, 0]]])
    changed = replace(view, graphs=data.clone())
    assert changed.task == "edge"
    assert torch.equal(changed.mask, view.mask)


# -- several types of nodes --------------------------------------------------------------------


def papers(count=4, authors=5):
    data = HeteroData()
    data["paper"].x, data["paper"].y = torch.rand(count, 3), torch.arange(count)
    data["author"].x = torch.rand(authors, 2)
    data["author", "writes", "paper"].edge_index = torch.tensor([[0, 1, 2], [0, 1, 1]])
    return ToUndirected()(data)


@pytest.mark.parametrize("node_type", [None, "paper"])
def test_nodes_of_one_type(node_type):
    data = papers()
    view = View(data, torch.tensor([False, True, False, True]), node_type=node_type)
    assert (view.task, view.node_type, len(view)) == ("node", "paper", 2)
    assert repr(view) == "View(2 'paper' nodes in 1 graph(s))"
    assert view.target.tolist() == [1, 3]
    (handed,), (again,) = view.batches(), view.batches()
    assert handed is again
    assert (row_kind(handed), row_type(handed)) == ("node", "paper")
    assert targets(handed, 2).tolist() == [1, 3]
    assert "row_mask" not in data["paper"]
    assert "row_type" not in data
    assert view.take(torch.tensor([1])).target.tolist() == [3]
    assert View(data, node_type="paper").target.tolist() == [0, 1, 2, 3]


# -- the order of numbers --------------------------------------------------------------------------


def test_rows_keep_the_order_they_are_given_in():
    numbers = torch.tensor([4, 0, 3])
    view = View(node_graph(), numbers)
    assert view.target.tolist() == view.numbers.tolist() == [4, 0, 3]
    assert view.mask.nonzero().flatten().tolist() == [0, 3, 4]
    assert len(view) == 3
    (batch,) = view.batches()  # a graph has its own order
    assert targets(batch)[view.order].tolist() == [4, 0, 3]
    same = replace(view, graphs=[node_graph()])
    assert same.target.tolist() == [4, 0, 3]
    assert view.take(torch.tensor([2, 0])).target.tolist() == [3, 4]
    assert View(node_graph(), [0, 3, 4]).order is None
    with pytest.raises(InputError):
        View(node_graph(), [4, 0, 4])


@pytest.mark.parametrize("several", [False, True])
def test_predictions_line_up_with_the_numbers(several):
    """Of one graph, and of graphs of which some are in no batch."""
    generator = torch.Generator().manual_seed(0)
    graphs = []
    for nodes in (5, 4, 6) if several else (15,):
        ring = torch.arange(nodes)
        edges = torch.stack([ring, ring.roll(1)])
        x = torch.randn(nodes, 2, generator=generator)
        graphs.append(Data(x=x, edge_index=edges, y=(x[:, 0] > 0).long()))
    net = GNN(2, 8, 2, num_layers=2, task="node").eval()
    y = torch.cat([g.y for g in graphs])
    numbers = torch.tensor([14, 2, 11, 0, 4, 13])
    every = gduq.predict(net, View(graphs, torch.ones(15, dtype=torch.bool)), batch_size=1)
    p = gduq.predict(net, View(graphs, numbers), batch_size=1, features=True)
    assert torch.equal(p.target, y[numbers])
    torch.testing.assert_close(p.probs, every.probs[numbers])
    assert p.to_pandas()["node"].tolist() == p.nodes.tolist() == numbers.tolist()
    assert p[[1, 0]].nodes.tolist() == [2, 14]
    assert every.nodes.tolist() == list(range(15))
    given = {"one": View(graphs, numbers), "two": View(graphs, numbers.flip(0))}
    said = gduq.evaluate(net, given).predictions
    assert torch.equal(said["two"].target, y[numbers.flip(0)])
    torch.testing.assert_close(said["two"].probs, every.probs[numbers.flip(0)])
