"""One traced pass: the head of any network, its layers, its rows and its ending."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric.data import Batch, Data, HeteroData

from gduq.errors import InputError
from gduq.tracing.call import call_network
from gduq.tracing.trace import Location, Step, Trace, trace
from gduq.tracing.trunk import Trunk

DEGREE = torch.tensor([0, 4, 4, 4, 4, 4])


def make_graph(nodes: int, seed: int) -> Data:
    generator = torch.Generator().manual_seed(seed)
    edges = torch.rand(nodes, nodes, generator=generator) < 0.4
    x = torch.randn(nodes, 4, generator=generator, dtype=torch.float64)
    return Data(x=x, edge_index=edges.fill_diagonal_(False).nonzero().T.contiguous())


def graphs(sizes: tuple[int, ...] = (4, 5, 9)) -> Batch:
    batch = Batch.from_data_list([make_graph(n, n) for n in sizes])
    generator = torch.Generator().manual_seed(0)
    batch.edge_attr = torch.rand(batch.num_edges, 2, generator=generator).double()
    return batch


def prepared(net: nn.Module, graph: Any = None, call: Any = None) -> nn.Module:
    """In float64, with running statistics moved away from their start."""
    net = net.double().train()
    with torch.no_grad():
        for _ in range(3):
            call_network(net, graphs() if graph is None else graph, call)
    return net.eval()


def check(net: nn.Module, graph: Any = None, call: Any = None) -> Trace:
    """Trace, and compare the head with the network: numbers, data and one line."""
    graph = graphs() if graph is None else graph
    net = prepared(net, graph, call)
    found = trace(net, graph, call)
    out = call_network(net, graph, call)
    if found.head is not None:
        stored = json.loads(json.dumps(Trunk(net, found.head, call).spec()))
        trunk = Trunk.from_spec(stored, net, call)
        assert trunk.location == found.head
        first, rest = trunk.head()
        h = trunk(graph)
        assert h.shape == (out.size(0), trunk.channels)
        logits = rest(first(h))
        endings: dict[Any, Callable[[Tensor], Tensor]] = {
            None: lambda z: z,
            "softmax": lambda z: z.softmax(dim=1),
            "log_softmax": lambda z: z.log_softmax(dim=1),
            "sigmoid": torch.sigmoid,
        }
        torch.testing.assert_close(endings[found.ending](logits), out, rtol=1e-12, atol=1e-12)
    return found


def names(head: Location | None) -> list[str] | None:
    return None if head is None else [head.path, *(step.name for step in head.steps or ())]


# -- PyG's own models ------------------------------------------------------------------------------

KINDS: dict[str, Callable[..., nn.Module]] = {
    "GCN": pyg.GCN,
    "GIN": pyg.GIN,
    "GAT": pyg.GAT,
    "GraphSAGE": pyg.GraphSAGE,
    "PNA": lambda *a, **k: pyg.PNA(
        *a, aggregators=["mean", "max"], scalers=["identity"], deg=DEGREE, **k
    ),
    "EdgeCNN": pyg.EdgeCNN,
}
ENDS = {"GIN": ["convs.1.nn.lins.0", "relu", "convs.1.nn.lins.1"]}
ENDS["PNA"] = ["convs.1.lin"]  # a PNAConv ends in a linear map of every node


@pytest.mark.parametrize("kind", KINDS)
def test_models_that_end_in_a_convolution(kind: str) -> None:
    found = check(KINDS[kind](4, 8, 2, 3, dropout=0.3))
    assert names(found.head) == ENDS.get(kind)
    assert found.layers == ("convs.0", "convs.1")
    assert (found.rows, found.ending) == ("node", None)


@pytest.mark.parametrize("jk", ["cat", "max", "lstm"])
@pytest.mark.parametrize("kind", KINDS)
def test_models_with_jumping_knowledge_end_in_a_linear_map(kind: str, jk: str) -> None:
    found = check(KINDS[kind](4, 8, 2, 3, jk=jk, norm="batch_norm"))
    assert names(found.head) == ["lin"]
    assert found.layers == ("convs.0", "convs.1")
    assert found.rows == "node"


def sequential() -> nn.Module:
    return pyg.Sequential(
        "x, edge_index, batch",
        [
            (pyg.GCNConv(4, 8), "x, edge_index -> h"),
            nn.ReLU(inplace=True),
            (pyg.GCNConv(8, 8), "h, edge_index -> h"),
            (pyg.global_mean_pool, "h, batch -> g"),
            (nn.Linear(8, 8), "g -> g"),
            nn.ELU(0.5, inplace=True),
            (nn.Linear(8, 3), "g -> g"),
        ],
    )


# -- networks of one's own -------------------------------------------------------------------------


class Own(nn.Module):
    """Two convolutions, a mean over each graph, and an end that a function writes."""

    def __init__(self, end: Callable[[Any, Tensor], Tensor], **parts: nn.Module) -> None:
        super().__init__()
        self.conv1, self.conv2 = pyg.GCNConv(4, 8), pyg.SAGEConv(8, 8)
        self.end = end
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        h = self.conv2(self.conv1(x, edge_index).relu_(), edge_index).relu()
        return self.end(self, pyg.global_mean_pool(h, batch))


def linears(*widths: int) -> dict[str, nn.Module]:
    pairs = enumerate(itertools.pairwise(widths), start=1)
    return {f"lin{i}": nn.Linear(*pair) for i, pair in pairs}


def two(between: Callable[[Any, Tensor], Tensor], **parts: nn.Module) -> Own:
    return Own(lambda n, h: n.lin2(between(n, n.lin1(h))), **linears(8, 8, 3), **parts)


BETWEEN: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "relu": lambda n, z: F.relu(z),
    "relu_inplace": lambda n, z: z.relu_(),
    "relu_inplace_option": lambda n, z: F.relu(z, inplace=True),
    "elu": lambda n, z: F.elu(z, alpha=0.3),
    "elu_positional": lambda n, z: F.elu(z, 0.3, False),
    "leaky_relu": lambda n, z: F.leaky_relu(z, 0.3),
    "gelu": lambda n, z: F.gelu(z),
    "gelu_tanh": lambda n, z: F.gelu(z, approximate="tanh"),
    "silu": lambda n, z: F.silu(z),
    "tanh": lambda n, z: F.tanh(z),
    "sigmoid": lambda n, z: torch.sigmoid(z),
    "times": lambda n, z: 3 * z,
    "over": lambda n, z: z / 3.0,
    "shifted": lambda n, z: 3 + z - 0.5,
    "constant": lambda n, z: UNITS * (z - UNITS) / UNITS,
    "dropout": lambda n, z: F.dropout(z, 0.4, n.training),
    "dropout_0": lambda n, z: F.dropout(z, 0.0, n.training),
    "input_by_name": lambda n, z: F.relu(input=z),
}


@pytest.mark.parametrize("name", BETWEEN)
def test_functions_between_two_linear_maps(name: str) -> None:
    found = check(two(BETWEEN[name]))
    assert found.head is not None
    assert found.head.path == "lin1"
    assert found.head.steps[-1] == Step("module", "lin2")
    steps = {"dropout_0": 1, "shifted": 3, "constant": 4}
    assert len(found.head.steps) == steps.get(name, 2)


MODULES: dict[str, nn.Module] = {
    "relu": nn.ReLU(inplace=True),
    "leaky": nn.LeakyReLU(0.3),
    "gelu": nn.GELU("tanh"),
    "sigmoid": nn.Sigmoid(),
    "prelu": nn.PReLU(),
    "dropout": nn.Dropout(0.4),
    "identity": nn.Identity(),
    "batch_norm": nn.BatchNorm1d(8),
    "pyg_batch_norm": pyg.BatchNorm(8),
    "layer_norm": nn.LayerNorm(8),
}


@pytest.mark.parametrize("name", MODULES)
def test_modules_between_two_linear_maps(name: str) -> None:
    found = check(two(lambda n, z: n.act(z), act=copy.deepcopy(MODULES[name])))
    assert found.head is not None
    assert found.head.path == "lin1"
    assert len(found.head.steps) == (1 if name == "identity" else 2)


def _masked(n: Any, z: Tensor) -> Tensor:
    z[:, 0] = 0.0
    return z


def _through_a_view(n: Any, z: Tensor) -> Tensor:
    z.view(-1).mul_(2)
    return z


UNITS = torch.linspace(1, 2, 8).double()
BREAKS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "masked": _masked,  # behind one's back
    "through a view": _through_a_view,
    "weights used twice": lambda n, z: n.act(n.act(z)),
    "residual": lambda n, z: z + z.relu(),
    "concatenation": lambda n, z: torch.cat([z[:, :4], z[:, 4:]], dim=1),
    "unknown": lambda n, z: z.cumsum(dim=1),
    "parameter": lambda n, z: z * n.conv1.bias,
    "itself": lambda n, z: z * z,
    "rows_mixed": lambda n, z: z - z.mean(dim=0),
    "always_dropping": lambda n, z: F.dropout(z, 0.5),
    "native_dropout": lambda n, z: torch.dropout(z, p=0.4, train=n.training),
    "other_dropout": lambda n, z: F.alpha_dropout(z, 0.5, n.training),
    "batch_statistics": lambda n, z: n.norm(z),
    "other_type": lambda n, z: z.float().double(),
    "less than a constant": lambda n, z: UNITS - z,
    "under a constant": lambda n, z: torch.div(UNITS, z),
    "under a number": lambda n, z: 2 / z,
}


@pytest.mark.parametrize("name", BREAKS)
def test_the_head_is_what_follows_a_break(name: str) -> None:
    net = two(BREAKS[name], norm=nn.BatchNorm1d(8, track_running_stats=False), act=nn.PReLU())
    if name == "always_dropping":  # random: numbers cannot be compared
        assert names(trace(prepared(net), graphs()).head) == ["lin2"]
    else:
        assert names(check(net).head) == ["lin2"]


def test_an_in_place_change_whose_result_nobody_takes_counts() -> None:
    def between(n: Any, z: Tensor) -> Tensor:
        z.relu_()
        F.dropout(z, 0.3, n.training)  # this one does not
        return z

    assert names(check(two(between)).head) == ["lin1", "relu", "lin2"]


def test_a_constant_of_the_graph_or_a_weight_is_no_step() -> None:
    graph = graphs()
    graph.units = torch.linspace(1, 2, 8).double()
    net = two(lambda n, z: z)
    assert names(check(net, graph).head) == ["lin1", "lin2"]

    def call(net: Any, graph: Data) -> Tensor:
        h = net.conv1(graph.x, graph.edge_index)
        return net.lin2(net.lin1(h) * graph.units)

    assert names(check(net, graph, call).head) == ["lin2"]


NO_HEAD: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "residual": lambda n, h: n.lin1(h) + n.lin2(h),
    "pooled_after": lambda n, h: n.lin1(h).mean(dim=0, keepdim=True).expand(3, 3),
    "tied": lambda n, h: n.tied(n.tied(h).relu()),
    "shared_weight": lambda n, h: F.linear(h, n.lin1.weight),
    "no_linear": lambda n, h: h.relu(),
}


@pytest.mark.parametrize("name", NO_HEAD)
def test_outputs_that_come_from_no_head(name: str) -> None:
    parts = {"lin1": nn.Linear(8, 3), "lin2": nn.Linear(8, 3), "tied": nn.Linear(8, 8)}
    found = check(Own(NO_HEAD[name], **parts))
    assert found.head is None
    assert found.layers == ("conv1", "conv2")


def test_a_linear_map_that_shares_weights_or_carries_hooks_is_no_part_of_a_head() -> None:
    net = two(lambda n, z: z.relu())
    net.get_submodule("lin1").weight = net.conv2.lin_l.weight
    assert names(check(net).head) == ["lin2"]
    net = two(lambda n, z: z.relu())
    net.get_submodule("lin1").register_forward_hook(lambda m, a, out: out + 1)
    assert names(check(net).head) == ["lin2"]
    net = two(lambda n, z: z.relu())
    nn.utils.parametrizations.weight_norm(net.get_submodule("lin1"))
    assert names(check(net).head) == ["lin2"]


class Gine(nn.Module):
    """Edge features, pooling, and a head of two layers written with functions."""

    def __init__(self) -> None:
        super().__init__()
        mlps = [pyg.MLP([width, 8, 8], norm=None) for width in (4, 8)]
        self.convs = nn.ModuleList([pyg.GINEConv(mlp, edge_dim=2) for mlp in mlps])
        self.lin1, self.lin2 = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, batch: Tensor) -> Tensor:
        for conv in self.convs:
            x = conv(x, edge_index, edge_attr).relu()
        z = F.relu(self.lin1(pyg.global_add_pool(x, batch)))
        return self.lin2(F.dropout(z, p=0.5, training=self.training))


class Gps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(4, 8)
        self.layers = nn.ModuleList(pyg.GPSConv(8, pyg.GCNConv(8, 8), heads=2) for _ in range(2))
        self.head = pyg.MLP([8, 8, 3], dropout=0.2)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        h = self.encode(x)
        for layer in self.layers:
            h = layer(h, edge_index, batch)
        return self.head(pyg.global_max_pool(h, batch))


def test_gps_layers_are_layers_as_a_whole() -> None:
    found = check(Gps())
    assert found.layers == ("layers.0", "layers.1")
    assert names(found.head) == [
        "head.lins.0",
        "head.norms.0.module",
        "relu",
        "dropout",
        "head.lins.1",
    ]


class Jumping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = pyg.GCN(4, 8, 2)
        self.late, self.early = pyg.GCNConv(8, 8), pyg.GCNConv(4, 8)
        self.head = nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, data: Data) -> Tensor:
        one = self.early(x=data.x, edge_index=data.edge_index)
        two = self.late(self.encoder(data.x, data.edge_index), data.edge_index)
        return self.head(torch.cat([one, two], dim=1))


def test_layers_are_in_the_order_of_their_calls_and_a_sub_network_is_no_layer() -> None:
    found = check(Jumping())
    assert found.layers == ("early", "encoder.convs.0", "encoder.convs.1", "late")
    assert names(found.head) == ["head.0", "head.1", "relu", "head.3"]
    stacked = pyg.Sequential(
        "x, edge_index", [(pyg.GCN(4, 8, 2), "x, edge_index -> h"), (nn.Linear(8, 3), "h -> h")]
    )
    inside = [name for name, part in stacked.named_modules() if isinstance(part, pyg.GCNConv)]
    assert check(stacked).layers == tuple(inside)


# -- endings ---------------------------------------------------------------------------------------

ENDINGS: dict[str, tuple[str | None, Callable[[Any, Tensor], Tensor]]] = {
    "softmax": ("softmax", lambda n, z: F.softmax(z, dim=-1)),
    "softmax_torch": ("softmax", lambda n, z: torch.softmax(z, 1)),
    "log_softmax": ("log_softmax", lambda n, z: F.log_softmax(z, dim=1)),
    "sigmoid": ("sigmoid", lambda n, z: torch.sigmoid(z)),
    "sigmoid_inplace": ("sigmoid", lambda n, z: z.sigmoid_()),
    "tanh": (None, lambda n, z: z.tanh()),
}


@pytest.mark.parametrize("name", ENDINGS)
def test_endings(name: str) -> None:
    ending, function = ENDINGS[name]
    net = Own(lambda n, h: function(n, n.lin2(n.lin1(h).relu())), **linears(8, 8, 3))
    found = check(net)
    assert found.ending == ending
    assert names(found.head)[:3] == ["lin1", "relu", "lin2"]  # type: ignore[index]
    no_head = check(Own(lambda n, h: function(n, h), **linears(8, 3)))
    assert (no_head.head, no_head.ending) == (None, ending)


ONE_LOGIT: dict[str, Callable[[Tensor], Tensor]] = {
    "column": lambda z: z,
    "squeezed": lambda z: z.squeeze(-1),
    "viewed": lambda z: z.view(-1),
    "scaled": lambda z: z.flatten() / 2,
    "sigmoid": lambda z: z.squeeze(-1).sigmoid(),
    "sigmoid_first": lambda z: z.sigmoid().squeeze(),
}


@pytest.mark.parametrize("name", ONE_LOGIT)
def test_one_logit_per_row(name: str) -> None:
    found = check(Own(lambda n, h: ONE_LOGIT[name](n.lin2(n.lin1(h).relu())), **linears(8, 8, 1)))
    assert found.head is not None
    assert found.head.path == "lin1"
    assert found.ending == ("sigmoid" if "sigmoid" in name else None)


# -- rows ------------------------------------------------------------------------------------------


class PerEdge(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = pyg.SAGEConv(4, 8)
        self.decode = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, x: Tensor, edge_index: Tensor, edge_label_index: Tensor) -> Tensor:
        h = self.conv(x, edge_index)
        one, two = edge_label_index
        return self.decode(torch.cat([h[one], h[two]], dim=1)).squeeze(-1)


class PerNode(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.lin, self.norm = pyg.SAGEConv(4, 8), nn.Linear(8, 3), pyg.GraphNorm(8)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        return self.lin(self.norm(self.conv(x, edge_index), batch))


def test_rows_of_edges() -> None:
    graph = make_graph(6, 1)
    graph.edge_label_index = torch.randint(6, (2, 6), generator=torch.manual_seed(0))
    found = check(PerEdge(), graph)
    assert found.rows == "edge"
    assert names(found.head) == ["decode.0", "relu", "decode.2"]
    with pytest.raises(InputError):
        trace(PerNode().double(), graph, lambda n, g: call_network(n, g)[:2])


def test_as_many_rows_of_two_kinds() -> None:
    """What the graph says of its rows decides, else that it is a batch."""
    pooled, one = Own(lambda n, h: n.lin1(h), **linears(8, 3)).double(), make_graph(1, 1)
    for size in (1, 4):
        assert trace(pooled, Batch.from_data_list([one] * size)).rows == "graph"
    with pytest.raises(InputError, match="View"):
        trace(pooled, one)
    one.train_mask = torch.tensor([True])
    assert trace(PerNode().double(), one).rows == "node"


class Hetero(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        convs = {("author", "writes", "paper"): pyg.SAGEConv((5, 4), 8)}
        convs["paper", "rev_writes", "author"] = pyg.SAGEConv((4, 5), 8)
        self.conv, self.lin = pyg.HeteroConv(convs), nn.Linear(8, 3)

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[Any, Tensor]) -> Tensor:
        return self.lin(self.conv(x_dict, edge_index_dict)["paper"].relu())


def test_heterogeneous_graphs() -> None:
    graph = HeteroData()
    graph["author"].x, graph["paper"].x = torch.rand(3, 5).double(), torch.rand(5, 4).double()
    graph["author", "writes", "paper"].edge_index = torch.tensor([[0, 1, 2], [0, 4, 1]])
    graph["paper", "rev_writes", "author"].edge_index = torch.tensor([[0, 4, 1], [0, 1, 2]])
    graph["paper"].y = torch.zeros(5, dtype=torch.int64)
    found = check(Hetero(), graph)
    assert (found.rows, names(found.head), found.layers) == ("node", ["lin"], ())


# -- manners ---------------------------------------------------------------------------------------


class Remembers(nn.Module):
    """Everything a pass can leave behind: a cache, an attribute, a buffer, randomness."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.lin = pyg.GCNConv(4, 8, cached=True), nn.Linear(8, 3)
        self.register_buffer("passes", torch.zeros(()))
        self.last: Tensor | None = None

    def forward(self, data: Data) -> Tensor:
        self.passes += 1
        data.x = data.x + 0 * torch.randn_like(data.x)
        self.last = self.conv(data.x, data.edge_index)
        self.extra = 1
        return self.lin(self.last)


def test_the_pass_leaves_no_trace() -> None:
    net, graph = Remembers().double().train(), graphs()
    net.lin.eval()
    x, state = graph.x, torch.random.get_rng_state()
    found = trace(net, graph)
    assert names(found.head) == ["lin"]
    assert trace(net, graph) == found
    assert torch.equal(torch.random.get_rng_state(), state)
    assert graph.x is x
    assert (net.last, net.conv._cached_edge_index, float(net.passes)) == (None, None, 0.0)
    assert not hasattr(net, "extra")
    assert net.training
    assert net.conv.training
    assert not net.lin.training
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())


def test_one_pass_also_in_inference_mode() -> None:
    net = prepared(Gine())
    expected = trace(net, graphs())
    with torch.inference_mode():
        assert trace(net, graphs()) == expected
    with pytest.raises(InputError):  # lazy
        trace(pyg.GCN(-1, 8, 2, 3), graphs())


# -- steps -----------------------------------------------------------------------------------------


CHANGES: tuple[dict[str, Any], ...] = (
    *({"name": "exec"}, {"name": "load"}, {"args": ["1"]}, {"kwargs": {"beta": 1.0}}),
    *({"kind": "module"}, {"kind": "module", "name": None}),
)


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_unknown_steps_are_an_error(change: dict[str, Any]) -> None:
    good = {"kind": "function", "name": "elu", "args": [0.5], "kwargs": {}}
    net, place = two(BETWEEN["relu"]), Location("lin1", 8, "node", "node")._asdict()
    trunk = Trunk.from_spec(place | {"steps": [good]}, net, None)
    assert trunk.spec()["steps"] == [good]
    with pytest.raises((InputError, KeyError, TypeError)):
        Trunk.from_spec(place | {"steps": [good | change]}, net, None)


# -- what bounds the output ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (lambda z: z, True),
        (lambda z: F.dropout(z, 0.5, False).squeeze(-1), True),
        (lambda z: (z * z).sum(dim=1), True),
        (lambda z: z.tanh() / 2 + 0.5, False),
        (lambda z: 1 / (1 + z.neg().exp()), False),
        (lambda z: z.softmax(dim=1)[:, 1], False),
    ],
)
def test_outputs_that_nothing_bounds(end: Callable[[Tensor], Tensor], expected: bool) -> None:
    net = Own(lambda n, h: end(n.lin1(h)), **linears(8, 3)).double()
    assert trace(net, graphs()).bounded is not expected
