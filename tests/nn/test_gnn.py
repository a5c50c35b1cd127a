"""The backbones: the paper's sizes, PyG's functions, and the chain in two parts."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GCNConv
from torch_geometric.utils import erdos_renyi_graph

import gduq
from gduq import InputError
from gduq.nn import GNN
from gduq.nn.layers import Structure
from naive import NaiveGNN

CONVS = ("gcn", "gin", "pna", "gated_gcn", "gps")


def make_graph(nodes: int, seed: int, channels: int = 4, classes: int = 3) -> Data:
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        edges = erdos_renyi_graph(nodes, 0.4)
    x = torch.randn(nodes, channels, generator=generator, dtype=torch.float64)
    y = torch.randint(classes, (1,), generator=generator)
    return Data(x=x, edge_index=edges, y=y)


def make_net(conv: str = "gin", channels: int = 4, **options: object) -> GNN:
    torch.manual_seed(0)
    options = {"degree": [0, 5, 5, 5, 5]} | options if conv == "pna" else options
    net = GNN(channels, 8, 3, num_layers=3, conv=conv, dropout=0.0, **options).double()
    graph = Batch.from_data_list([make_graph(6, s, channels) for s in range(4)])
    if options.get("positional"):
        graph = with_encoding(graph)
    for _ in range(3):  # move BatchNorm statistics away from their start
        net(graph)
    return net.eval()


def with_encoding(graph: Data, k: int = 4) -> Data:
    graph.pe = torch.randn(
        graph.num_nodes, k, generator=torch.Generator().manual_seed(7), dtype=torch.float64
    )
    return graph


def count(model: torch.nn.Module) -> int:
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


VANILLA = {  # in, out, layers, options -> vanilla, NFA, readout (GOOD.md §5.1)
    "CMNIST": ((3, 10, 5, {"virtual_node": True}), 2001310, 2003110, 2004310),
    "Motif": ((4, 3, 3, {}), 911403, 913803, 912303),
    "SST2": ((768, 1, 3, {"virtual_node": True}), 1732201, 2193001, 1732501),
    "Cora": ((8710, 70, 3, {"conv": "gcn", "task": "node"}), 2816770, 5429770, None),
    "WebKB": ((1703, 5, 3, {"conv": "gcn", "task": "node"}), 695105, 1206005, None),
    "CBAS": ((4, 4, 3, {"conv": "gcn", "task": "node"}), 185104, 186304, None),
}
LAYERWISE = {"CMNIST": (2360110, range(1, 5)), "Motif": (1633203, range(1, 3))}
LAYERWISE |= {"SST2": (2091001, range(1, 3))}


@pytest.mark.parametrize("name", VANILLA)
def test_paper_parameter_counts(name: str) -> None:
    (channels, classes, layers, options), vanilla, nfa, readout = VANILLA[name]
    net = GNN(channels, 300, classes, layers, **options)
    assert count(net) == vanilla
    assert count(gduq.anchor(net, "input", recipe="paper")) == nfa
    if readout is not None:
        assert count(gduq.anchor(net, "readout", recipe="paper")) == readout


@pytest.mark.parametrize(("name", "at"), [(n, r) for n in LAYERWISE for r in LAYERWISE[n][1]])
def test_paper_layerwise_counts(name: str, at: int) -> None:
    """The published layerwise counts contain no virtual node; with one, 363 000 more."""
    (channels, classes, layers, options), *_ = VANILLA[name]
    plain = GNN(channels, 300, classes, layers)
    assert count(gduq.anchor(plain, at, recipe="paper")) == LAYERWISE[name][0]
    if options.get("virtual_node"):
        virtual = GNN(channels, 300, classes, layers, virtual_node=True)
        assert count(gduq.anchor(virtual, at, recipe="paper")) == LAYERWISE[name][0] + 363_000


@pytest.mark.parametrize("conv", ["gcn", "gin"])
@pytest.mark.parametrize("task", ["node", "graph"])
@pytest.mark.parametrize("training", [False, True])
def test_equals_pyg_layers(conv: str, task: str, training: bool) -> None:
    net = make_net(conv, task=task).train(training)
    graph = Batch.from_data_list([make_graph(n, n) for n in (1, 5, 9)])
    reference = NaiveGNN(net).double().train(training)
    torch.testing.assert_close(net(graph), reference(graph), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("conv", ["gcn", "gin"])
def test_sparse_features_and_gradients_equal_dense(conv: str) -> None:
    graph = make_graph(12, 0, channels=20)
    graph.x = graph.x * (torch.rand(12, 20) < 0.2)
    sparse = graph.clone()
    sparse.x = graph.x.to_sparse_csr()
    net = make_net(conv, channels=20, task="node").train()
    grads = []
    for g in (graph, sparse):
        net.zero_grad()
        net(g).square().sum().backward()
        grads.append([p.grad.clone() for p in net.parameters()])
    for dense, other in zip(*grads, strict=True):
        torch.testing.assert_close(dense, other, rtol=1e-8, atol=1e-10)


def test_edge_weights_and_loops_are_those_of_gcnconv() -> None:
    graph, net = make_graph(6, 1), make_net("gcn", task="node")
    loops = torch.tensor([[2, 4], [2, 4]])
    graph.edge_index = torch.cat([graph.edge_index, loops], dim=1)
    edges, layer = graph.edge_index, net.layers[0]
    for weight in (None, torch.rand(graph.num_edges).double(), torch.ones(graph.num_edges)):
        graph.edge_weight = weight
        reference = GCNConv(4, 8).double()
        reference.load_state_dict({"lin.weight": layer.linear.weight, "bias": layer.linear.bias})
        wanted = reference(graph.x, edges, None if weight is None else weight.double())
        found = layer.read(graph.x, layer.linear.weight, Structure(graph)) + layer.linear.bias
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("changed", ["edge_weight", "edge_index"])
def test_changes_in_place_are_noticed(changed: str) -> None:
    graph, net = make_graph(6, 1), make_net("gcn", task="node")
    if changed == "edge_weight":
        graph.edge_weight = torch.rand(graph.num_edges).double()
    before = net(graph)
    if changed == "edge_weight":
        graph.edge_weight[0] = 9.0
    else:
        graph.edge_index[1] = (graph.edge_index[1] + 1) % 6
    torch.testing.assert_close(net(graph), net(graph.clone()))
    assert not torch.allclose(before, net(graph))
    graph.edge_weight = torch.rand(graph.num_edges).double()
    torch.testing.assert_close(net(graph), net(graph.clone()))
    edges = weakref.ref(graph.edge_index)
    del graph
    gc.collect()
    assert edges() is None  # what is kept does not keep them


OPTIONS = [
    *({"conv": c} for c in CONVS),
    *({"conv": c, "task": "node"} for c in CONVS),
    *({"readout": r} for r in ("sum", "max", "attention")),
    {"head": "mlp"},
    {"virtual_node": True},
    {"virtual_node": True, "conv": "gcn"},
    *({"positional": "laplacian", "conv": c} for c in ("gin", "gps")),
]


def full_graph(sizes: tuple[int, ...] = (1, 5, 9), channels: int = 4) -> Batch:
    return with_encoding(Batch.from_data_list([make_graph(n, n, channels) for n in sizes]))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_prefix_and_suffix_make_the_whole(options: dict[str, object]) -> None:
    """Cutting at every point with an identity start gives back the network, for any anchor."""
    net = make_net(**options)
    graph = full_graph()
    expected = net(graph)
    for point in net.points:
        model = gduq.anchor(net, at=point).double().eval()
        width = model.point.channels
        model.bank = torch.randn(4, width, generator=torch.Generator().manual_seed(3)).double()
        samples = model.sample(graph)
        for k in range(4):
            torch.testing.assert_close(samples[k], expected, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_does_not_depend_on_batch_mates_or_node_order(options: dict[str, object]) -> None:
    net = make_net(**options)
    alone = [with_encoding(make_graph(n, n)) for n in (2, 5, 9)]
    together = net(Batch.from_data_list(alone))
    apart = torch.cat([net(g) for g in alone])
    torch.testing.assert_close(together, apart, rtol=1e-8, atol=1e-9)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(5))
    g = alone[2]
    place = torch.empty(9, dtype=torch.int64)
    place[order] = torch.arange(9)
    moved = Data(x=g.x[order], pe=g.pe[order], edge_index=place[g.edge_index])
    out, expected = net(moved), net(g)
    expected = expected[order] if net.task == "node" else expected
    torch.testing.assert_close(out, expected, rtol=1e-8, atol=1e-9)


def test_laplacian_signs_flip_in_training_only() -> None:
    net = make_net(positional="laplacian")
    graph = full_graph()
    assert torch.equal(net(graph), net(graph))
    net.train()
    starts = [net.prefix(graph, "input")[0][:, 4:] for _ in range(20)]
    assert all(torch.equal(s.abs(), graph.pe.abs()) for s in starts)
    assert any(not torch.equal(s, starts[0]) for s in starts)
    ratio = starts[0] / graph.pe  # one sign per graph and column
    for i in range(3):
        assert ratio[graph.batch == i].std(dim=0, correction=0).max() < 1e-12


@pytest.mark.parametrize(
    "options",
    [
        *({name: "other"} for name in ("conv", "task", "readout", "head", "positional")),
        {"num_layers": 0},
        {"dropout": 1.0},
        {"in_channels": 0},
        {"conv": "pna"},  # without degree
        {"virtual_node": True, "task": "node"},
        {"virtual_node": True, "num_layers": 2},
        {"conv": "gps", "hidden_channels": 6},
    ],
    ids=str,
)
def test_wrong_settings_are_refused(options: dict[str, object]) -> None:
    settings = {"in_channels": 4, "hidden_channels": 8, "out_channels": 3, "num_layers": 3}
    with pytest.raises(InputError):
        GNN(**(settings | options))


def test_bad_graphs_are_refused() -> None:
    bad = [{"x": torch.ones(3, 5)}, {"x": torch.full((3, 4), float("nan"))}, {"x": None}]
    for change in [*bad, {"edge_index": torch.tensor([[0], [3]])}]:
        graph = Data(x=torch.ones(3, 4), edge_index=torch.tensor([[0], [1]]), num_nodes=3)
        with pytest.raises(InputError):
            GNN(4, 8, 3, 2).eval()(graph.update(change))
    encoded, graph = make_net(positional="laplacian"), with_encoding(make_graph(6, 0))
    for pe in (graph.pe.masked_fill(graph.pe > 0, float("nan")), torch.zeros(9, 4).double()):
        with pytest.raises(InputError):
            encoded(graph.update({"pe": pe}))
