"""Views: batches, shards, identity, and what is refused."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Batch, Data, InMemoryDataset

from gduq.data.packed import Packed
from gduq.data.view import Splits, View
from gduq.errors import InputError
from gduq.graph import iterate

EDGES = torch.tensor([[0, 1], [1, 0]])


def graph(label, nodes=2):
    return Data(x=torch.full((nodes, 1), float(label)), edge_index=EDGES, y=torch.tensor([label]))


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


def test_graphs_of_different_attributes_are_joined_one_by_one():
    plain = [graph(0), graph(1)]
    for i, g in enumerate(plain):
        g.extra = {"number": i}
    (batch,) = View(plain).batches()
    assert batch.extra["number"].tolist() == [0, 1]


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
    (one,), (two,) = view.batches(shard=(0, 2)), view.batches(shard=(0, 2))
    assert one is two
    assert one.x is data.x


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


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 25), st.integers(1, 9), st.integers(1, 4), st.booleans())
def test_shards_cover_every_graph_once_in_equally_many_batches(count, size, world, shuffle):
    view = View([graph(i) for i in range(count)])
    if world > count:
        with pytest.raises(InputError, match="processes"):
            list(view.batches(size, shard=(0, world)))
        return
    dealt = []
    for rank in range(world):
        generator = torch.Generator().manual_seed(1)
        options = {"shuffle": shuffle, "generator": generator, "shard": (rank, world)}
        dealt.append([b.y for b in view.batches(size, **options)])
    assert len({len(batches) for batches in dealt}) == 1
    assert all(len(y) for batches in dealt for y in batches)
    everything = torch.cat([y for batches in dealt for y in batches])
    assert sorted(everything.tolist()) == list(range(count))
    whole = view.batches(size, shuffle=shuffle, generator=torch.Generator().manual_seed(1))
    if world <= size and count % size >= world:  # no batch was merged
        for i, batch in enumerate(whole):
            for rank in range(world):
                assert dealt[rank][i].tolist() == batch.y.tolist()[rank::world]


@settings(deadline=None, max_examples=20)
@given(st.lists(st.booleans(), min_size=6, max_size=6), st.integers(1, 3))
def test_shards_of_nodes_cover_every_row_once(mask, world):
    rows = torch.tensor(mask)
    view = View(node_graph(), rows)
    if world > max(int(rows.sum()), 1):
        with pytest.raises(InputError):
            list(view.batches(shard=(0, world)))
        return
    parts = [next(view.batches(shard=(rank, world))).row_mask for rank in range(world)]
    assert torch.equal(torch.stack(parts).sum(0), rows.long())


def test_shards_of_nodes_in_several_graphs():
    view = View([node_graph(3), node_graph(2), node_graph(4)], torch.ones(9).bool())
    parts = [list(view.batches(2, shard=(rank, 2))) for rank in range(2)]
    for one, two in zip(*parts, strict=True):
        assert torch.equal(one.x, two.x)
        assert not (one.row_mask & two.row_mask).any()
        assert (one.row_mask | two.row_mask).all()


def test_take_counts_rows():
    view = View([graph(i) for i in range(5)])
    assert view.take(torch.tensor([4, 0])).target.tolist() == [4, 0]
    assert View(Packed.pack([graph(i) for i in range(5)])).take([4, 0]).target.tolist() == [4, 0]
    nodes = View(node_graph(), torch.tensor([1, 3, 5]))
    assert nodes.take(torch.tensor([2, 0])).target.tolist() == [1, 5]


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
    ("call", "says"),
    [
        (lambda: View([]), "at least one graph"),
        (lambda: View(node_graph(), torch.ones(5).bool()), "a mask of 6 entries"),
        (lambda: View(node_graph(), torch.tensor([6])), "node numbers from 0 to 5"),
        (lambda: View([Data(x=torch.ones(1, 1), edge_index=EDGES)]).target, "labels y"),
        (
            lambda: View(Packed.pack([Data(x=torch.ones(1, 1), edge_index=EDGES)])).target,
            "labels y",
        ),
        (lambda: list(View([graph(0), graph(1)]).batches(0)), "batch_size >= 1"),
        (lambda: list(View([graph(0), graph(1)]).batches(shuffle=True)), "a generator"),
        (lambda: list(View([graph(0), graph(1)]).batches(shard=(2, 2))), "0 <= rank < world"),
        (lambda: list(View(graph(0)).batches(shard=(0, 2))), "at most 1 processes"),
    ],
)
def test_what_is_refused(call, says):
    with pytest.raises(InputError, match=says):
        call()


def test_splits_refuse_masks_that_overlap():
    data = node_graph()
    train = View(data, torch.tensor([0, 1, 2]))
    with pytest.raises(InputError, match=r"1 node\(s\) in both train and ood_test"):
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
    with pytest.raises(InputError, match=r"1 graph\(s\) in both train and ood_test"):
        Splits(one, ood_test=two)
    assert len(Splits(one, ood_test=View(graphs[4:])).ood_test) == 2
    assert len(Splits(one, ood_test=View(form(small(6))[3:])).ood_test) == 3


def test_graphs_of_different_attributes_are_refused_by_name():
    graphs = small(6, weight=torch.ones(1))
    del graphs[4].weight
    with pytest.raises(InputError, match=r"1 of 6 without 'weight', first graph 4"):
        next(View(graphs).batches(2))


def test_batches_without_marked_nodes_are_left_out():
    view = View(small(6), rows=torch.tensor([0, 11]))
    assert [int(batch.row_mask.sum()) for batch in view.batches(2)] == [1, 1]


def test_a_node_is_taken_once():
    view = View(small(6), rows=torch.arange(12))
    with pytest.raises(InputError, match="each node at most once"):
        view.take(torch.tensor([1, 1]))
