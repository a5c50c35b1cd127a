"""Corruptions: what they change, what they leave alone, and that all forms of data fare alike."""

import pytest
import torch
from torch_geometric.data import Data

from gduq import shifts
from gduq.errors import InputError
from gduq.graphs.packed import Packed
from gduq.graphs.view import View
from tests.shifts.cases import NO_EDGES

CORRUPTIONS = [shifts.feature_noise, shifts.feature_mask, shifts.edge_drop, shifts.edge_rewire]


def ring(nodes, seed):
    ends = torch.stack([torch.arange(nodes), (torch.arange(nodes) + 1) % nodes])
    generator = torch.Generator().manual_seed(seed)
    edges = torch.cat([ends, ends.flip(0)], 1)
    return Data(
        x=torch.randn(nodes, 4, generator=generator),
        edge_index=edges,
        edge_attr=torch.arange(edges.size(1)).float(),
        y=torch.tensor([seed % 2]),
    )


def views():
    graphs = [ring(5 + i % 7, i) for i in range(30)]
    odd = [g.clone() for g in graphs]
    for graph in odd:
        graph.extra = {"a": 1}  # cannot be packed
    node = ring(60, 3)
    node.y = torch.arange(60) % 3
    return {
        "list": View(graphs),
        "packed": View(Packed.pack(graphs)[torch.arange(29, -1, -1)]),
        "odd": View(odd),
        "node": View(node, torch.arange(10, 30)),
    }


@pytest.mark.parametrize("kind", ["list", "packed", "odd", "node"])
@pytest.mark.parametrize("corrupt", CORRUPTIONS)
def test_corruptions_keep_rows_and_are_reproducible(kind, corrupt):
    view = views()[kind]
    assert corrupt(view, 0) is view
    before = [(g.x.clone(), g.edge_index.clone()) for g in view.graphs]
    one, two, other = corrupt(view, 3, seed=1), corrupt(view, 3, seed=1), corrupt(view, 3, seed=2)
    assert len(one) == len(view)
    assert torch.equal(one.target, view.target)
    differs = False
    for a, b, c in zip(one.graphs, two.graphs, other.graphs, strict=True):
        assert torch.equal(a.x, b.x)
        assert torch.equal(a.edge_index, b.edge_index)
        differs |= not torch.equal(a.x, c.x) or a.edge_index.tolist() != c.edge_index.tolist()
        assert a.edge_index.size(1) == a.edge_attr.size(0)
        assert a.edge_index.numel() == 0 or int(a.edge_index.max()) < a.num_nodes
    assert differs
    for graph, (x, edges) in zip(view.graphs, before, strict=True):  # the view is left alone
        assert torch.equal(graph.x, x)
        assert torch.equal(graph.edge_index, edges)
    list(one.batches(8))


def test_noise_grows_with_severity_and_feature():
    view = views()["node"]
    x = view.graphs[0].x
    view.graphs[0].x = torch.cat([x, 100 * x[:, :1], torch.ones(60, 1)], 1)
    last = 0.0
    for severity in range(1, 6):
        moved = shifts.feature_noise(view, severity).graphs[0].x - view.graphs[0].x
        std = view.graphs[0].x.std(0, correction=0)
        std[-1] = 1.0  # a constant column: its size
        share = (moved / std).std()
        assert share == pytest.approx(shifts.LEVELS[severity], rel=0.15)
        assert share > last
        last = share


def test_mask_share_and_sparse_features():
    x = torch.ones(100, 50)
    x[:, 25:] = 0
    for features in (x, x.to_sparse_csr()):
        graph = Data(x=features, edge_index=NO_EDGES, y=torch.arange(100) % 2)
        masked = shifts.feature_mask(View(graph, torch.arange(50)), 4).graphs[0].x
        dense = masked.to_dense()
        assert masked.layout == features.layout
        assert not dense[:, 25:].any()
        assert 1 - dense[:, :25].mean() == pytest.approx(shifts.LEVELS[4], abs=0.04)
        noisy = shifts.feature_noise(View(graph, torch.arange(50)), 2).graphs[0].x.to_dense()
        if features.layout == torch.sparse_csr:
            assert not noisy[:, 25:].any()
            assert (noisy[:, :25] - 1).std() == pytest.approx(shifts.LEVELS[2], rel=0.1)


@pytest.mark.parametrize("severity", range(1, 6))
def test_edges_go_in_both_directions(severity):
    view = views()["packed"]
    total = sum(g.num_edges for g in view.graphs)
    dropped = shifts.edge_drop(view, severity)
    left = sum(g.num_edges for g in dropped.graphs)
    assert left == total - 2 * round(shifts.LEVELS[severity] * total / 2)
    for graph, old in zip(dropped.graphs, view.graphs, strict=True):
        pairs = set(map(tuple, graph.edge_index.t().tolist()))
        assert all((v, u) in pairs for u, v in pairs)
        numbers = dict(zip(map(tuple, old.edge_index.t().tolist()), old.edge_attr, strict=True))
        assert [numbers[p] for p in map(tuple, graph.edge_index.t().tolist())] == list(
            graph.edge_attr
        )
    rewired = shifts.edge_rewire(view, severity)
    moved = 0
    for graph, old in zip(rewired.graphs, view.graphs, strict=True):
        pairs = sorted(map(tuple, graph.edge_index.t().tolist()))
        assert pairs == sorted((v, u) for u, v in pairs)
        assert graph.num_edges == old.num_edges
        assert torch.equal(graph.edge_attr, old.edge_attr)
        moved += int((graph.edge_index != old.edge_index).any(0).sum())
    expected = shifts.LEVELS[severity] * total
    assert 0.5 * expected <= moved <= expected + 2  # some draw their old end


def test_corruptions_refuse():
    view = views()["list"]
    for wrong in (6, -1, 2.5, 3.0, True, "3"):
        with pytest.raises(InputError):
            shifts.edge_drop(view, wrong)
    with pytest.raises(InputError):
        shifts.edge_drop(view, 3, seed="0")
    bare = View([Data(edge_index=NO_EDGES, num_nodes=2), Data(edge_index=NO_EDGES, num_nodes=1)])
    with pytest.raises(InputError):
        shifts.feature_mask(bare, 2)
    empty = shifts.edge_drop(bare, 5)
    assert [g.num_edges for g in empty.graphs] == [0, 0]
    assert [g.num_nodes for g in shifts.edge_rewire(bare, 5).graphs] == [2, 1]


def lines(n=12, odd=False):
    """Paths of 3 to n + 2 nodes, both directions; ``odd``: of different attributes."""
    out = []
    for i in range(3, n + 3):
        path = torch.stack([torch.arange(i - 1), torch.arange(1, i)])
        edges = torch.cat([path, path.flip(0)], 1)
        x = torch.arange(2.0 * i).view(i, 2) * i
        weight = edges[0] + 100.0 * edges[1] + 10000.0 * i
        out.append(Data(x=x, edge_index=edges, y=torch.tensor([i % 2]), weight=weight))
    if odd:
        out[0].note = "only here"
    return out


@pytest.mark.parametrize("odd", [False, True])
def test_dropped_edges_leave_labels_alone(odd):
    """One edge a graph: as many labels as edges."""
    one = torch.tensor([[0], [1]])
    graphs = [
        Data(x=torch.ones(2, 1), edge_index=one, y=torch.tensor([i]), edge_w=torch.tensor([i]))
        for i in range(10)
    ]
    if odd:
        graphs[0].note = "only here"
    dropped = shifts.edge_drop(View(graphs), 5)
    assert torch.equal(dropped.target, torch.arange(10))
    left = [i for i, graph in enumerate(dropped.graphs) if graph.edge_index.size(1)]
    assert len(left) == 5
    assert torch.cat([graph.edge_w for graph in dropped.graphs]).tolist() == left


@pytest.mark.parametrize("odd", [False, True])
def test_edge_attributes_are_told_from_nodes_by_graph(odd):
    """As many nodes as edges in all, but not in each graph."""
    graphs = [
        Data(
            x=torch.ones(n, 1), edge_index=torch.tensor([pairs, pairs]), weight=torch.tensor(pairs)
        )
        for n, pairs in ((4, [0, 1]), (4, [0, 1, 2, 3, 0, 1]))
    ]
    graphs[1].edge_index[1] = torch.tensor([1, 2, 3, 0, 2, 3])
    if odd:
        graphs[0].note = "only here"
    for graph in shifts.edge_drop(View(graphs), 5).graphs:
        assert torch.equal(graph.weight, graph.edge_index[0])


@pytest.mark.parametrize("corrupt", CORRUPTIONS)
def test_graphs_that_cannot_be_packed_are_corrupted_alike(corrupt):
    packed, odd = corrupt(View(lines()), 4, seed=3), corrupt(View(lines(odd=True)), 4, seed=3)
    for one, two in zip(packed.graphs, odd.graphs, strict=True):
        assert all(torch.equal(one[key], two[key]) for key in ("x", "edge_index", "y", "weight"))
    changed = "edge_index" if "edge" in corrupt.__name__ else "x"
    old, new = (torch.cat([g[changed].flatten() for g in of]) for of in (lines(), odd.graphs))
    assert not torch.equal(old, new)


def test_rewiring_keeps_self_loops_and_symmetry():
    path = torch.stack([torch.arange(19), torch.arange(1, 20)])
    loops = torch.arange(20).repeat(2, 1)
    graph = Data(x=torch.ones(20, 1), edge_index=torch.cat([path, loops, path.flip(0)], 1))
    new = shifts.edge_rewire(View(graph), 5).graphs[0].edge_index
    assert torch.equal(new[:, 19:39], loops)
    assert torch.equal(new[:, :19], new[:, 39:].flip(0))
    assert not torch.equal(new[:, :19], path)
