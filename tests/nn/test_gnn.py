"""The backbones: the paper's sizes, PyG's functions, and the chain in two parts."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.data import Batch, Data
from torch_geometric.transforms import AddLaplacianEigenvectorPE
from torch_geometric.utils import erdos_renyi_graph

import gduq
from gduq import InputError
from gduq.nn import GNN
from gduq.nn.layers import _operators
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
    if options.get("edge_channels"):
        graph.edge_attr = torch.rand(graph.num_edges, options["edge_channels"]).double()
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


@pytest.mark.parametrize("conv", ["gcn", "gin"])
def test_half_precision(conv: str) -> None:
    net, graph = make_net(conv, task="node"), make_graph(6, 1)
    expected = net(graph)
    graph.x = graph.x.bfloat16()
    out = net.bfloat16()(graph)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.double(), expected, rtol=0.1, atol=0.1)


def test_edge_weights_reach_gcn() -> None:
    graph = make_graph(6, 1)
    net = make_net("gcn", task="node")
    plain = net(graph)
    graph.edge_weight = torch.rand(graph.num_edges).double()
    reference = net.layers[0]
    assert not torch.allclose(plain, net(graph))
    graph.edge_weight = torch.ones(graph.num_edges).double()
    torch.testing.assert_close(plain, net(graph))
    assert reference.kind == "gcn"


def test_changed_edge_weights_are_noticed_and_old_operators_let_go() -> None:
    graph, net = make_graph(6, 1), make_net("gcn", task="node")
    graph.edge_weight = torch.rand(graph.num_edges).double()
    before = net(graph)
    graph.edge_weight.mul_(torch.linspace(0.1, 2, graph.num_edges).double())
    assert not torch.allclose(net(graph), before)
    torch.testing.assert_close(net(graph), net(graph.clone()))
    for _ in range(5):
        graph.edge_weight = torch.rand(graph.num_edges).double()
        net(graph)
    assert len(_operators[graph.edge_index]) == 1


def test_operator_cache_notices_changed_edges() -> None:
    graph, net = make_graph(6, 1), make_net("gcn", task="node")
    before = net(graph)
    graph.edge_index[:, 0] = graph.edge_index[:, 0].flip(0)
    graph.edge_index[1] = (graph.edge_index[1] + 1) % 6
    fresh = graph.clone()
    torch.testing.assert_close(net(graph), net(fresh))
    assert not torch.allclose(before, net(graph))


OPTIONS = [
    *({"conv": c} for c in CONVS),
    *({"conv": c, "task": "node"} for c in CONVS),
    *({"readout": r} for r in ("sum", "max", "attention")),
    {"head": "mlp"},
    {"virtual_node": True},
    {"virtual_node": True, "conv": "gcn"},
    *({"positional": "laplacian", "conv": c} for c in ("gin", "gps")),
    *({"positional": "peg", "conv": c} for c in CONVS),
    *({"edge_channels": 2, "conv": c} for c in ("pna", "gated_gcn", "gps")),
]


def full_graph(sizes: tuple[int, ...] = (1, 5, 9), channels: int = 4) -> Batch:
    graph = with_encoding(Batch.from_data_list([make_graph(n, n, channels) for n in sizes]))
    graph.edge_attr = torch.rand(graph.num_edges, 2, generator=torch.Generator().manual_seed(1))
    return graph


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
    alone = [make_graph(n, n) for n in (2, 5, 9)]
    for i, g in enumerate(alone):
        with_encoding(g)
        g.edge_attr = torch.rand(g.num_edges, 2, generator=torch.Generator().manual_seed(i))
    together = net(Batch.from_data_list(alone))
    apart = torch.cat([net(g) for g in alone])
    torch.testing.assert_close(together, apart, rtol=1e-8, atol=1e-9)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(5))
    g = alone[2]
    place = torch.empty(9, dtype=torch.int64)
    place[order] = torch.arange(9)
    moved = Data(
        x=g.x[order], pe=g.pe[order], edge_index=place[g.edge_index], edge_attr=g.edge_attr
    )
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


@pytest.mark.parametrize("conv", CONVS)
def test_peg_sees_only_distances(conv: str) -> None:
    net, graph = make_net(conv, positional="peg"), full_graph()
    expected = net(graph)
    q, _ = torch.linalg.qr(torch.randn(4, 4).double())
    graph.pe = graph.pe @ q
    torch.testing.assert_close(net(graph), expected, rtol=1e-8, atol=1e-9)
    graph.pe = graph.pe * torch.linspace(1, 2, graph.num_nodes).double().unsqueeze(1)
    assert not torch.allclose(net(graph), expected)


def test_works_with_pygs_own_encoding() -> None:
    graph = AddLaplacianEigenvectorPE(2, attr_name="pe")(make_graph(8, 2))
    net = GNN(0, 8, 3, 2, positional="laplacian", positional_channels=2)
    assert net.eval()(graph).shape == (1, 3)


def test_categories_are_embedded() -> None:
    net = GNN(8, 8, 2, 2, categories=[5, 3])
    graph = Data(x=torch.tensor([[4, 0], [1, 2]]), edge_index=torch.tensor([[0], [1]]))
    assert net.eval()(graph).shape == (1, 2)
    assert net.prefix(graph, "input")[0].shape == (2, 8)
    graph.x = torch.tensor([[5, 0], [1, 2]])
    with pytest.raises(InputError, match="categories from 0 to 4, got 1 to 5"):
        net(graph)
    with pytest.raises(InputError, match="integer categories"):
        net(Data(x=graph.x.float(), edge_index=graph.edge_index))


@pytest.mark.parametrize("conv", CONVS)
def test_graphs_without_edges_and_isolated_nodes(conv: str) -> None:
    net = make_net(conv)
    empty = torch.zeros(2, 0, dtype=torch.int64)
    lonely = Data(x=torch.ones(3, 4).double(), edge_index=empty)
    one_edge = Data(x=torch.ones(3, 4).double(), edge_index=torch.tensor([[0, 1], [1, 0]]))
    out = net(Batch.from_data_list([lonely, one_edge]))
    assert torch.isfinite(out).all()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"conv": "gat"}, "conv one of gcn, gin, pna, gated_gcn, gps, got 'gat'"),
        ({"task": "edge"}, "task one of node, graph"),
        ({"readout": "median"}, "readout one of"),
        ({"head": "deep"}, "head one of linear, mlp"),
        ({"positional": "sine"}, "positional None, 'laplacian' or 'peg'"),
        ({"num_layers": 0}, "num_layers >= 1"),
        ({"dropout": 1.0}, "dropout in"),
        ({"in_channels": 0}, "in_channels >= 1"),
        ({"conv": "pna"}, "degree= for conv='pna'"),
        ({"virtual_node": True, "task": "node"}, "virtual_node=True with task='graph' only"),
        ({"virtual_node": True, "num_layers": 2}, "num_layers >= 3 with a virtual node"),
        ({"edge_channels": 3}, "edge_channels with conv pna"),
        ({"conv": "gps", "hidden_channels": 6}, "hidden_channels divisible by heads=4"),
    ],
)
def test_wrong_settings_name_the_choices(options: dict[str, object], words: str) -> None:
    settings = {"in_channels": 4, "hidden_channels": 8, "out_channels": 3, "num_layers": 2}
    with pytest.raises(InputError, match=words):
        GNN(**(settings | options))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"x": torch.ones(3, 5)}, "node features of width 4, got 5"),
        ({"x": torch.full((3, 4), float("nan"))}, "finite node features, got 12 NaN"),
        ({"x": None}, "features x of width 4"),
        ({"edge_index": torch.tensor([[0], [3]])}, "node numbers from 0 to 2"),
    ],
)
def test_bad_graphs_are_refused(change: dict[str, object], words: str) -> None:
    graph = Data(x=torch.ones(3, 4), edge_index=torch.tensor([[0], [1]]), num_nodes=3)
    for key, value in change.items():
        graph[key] = value
    with pytest.raises(InputError, match=words):
        GNN(4, 8, 3, 2).eval()(graph)


@pytest.mark.parametrize("positional", ["peg", "laplacian"])
def test_wrong_encodings_are_refused(positional: str) -> None:
    net, graph = make_net(positional=positional), with_encoding(make_graph(6, 0))
    graph.pe[0, 0] = float("nan")
    with pytest.raises(InputError, match="finite encodings pe"):
        net(graph)
    graph.pe = torch.zeros(9, 4).double()
    with pytest.raises(InputError, match=r"encoding pe of shape \[6, 4\], got \[9, 4\]"):
        net(graph)
