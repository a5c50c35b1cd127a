"""Any other model: PyG's own, hand-written ones, and the mistakes one can make."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch_geometric.data import Data

import gduq
from gduq import InputError
from gduq.tracing.call import call_network
from tests.anchoring.test_anchored import represent
from tests.nn.test_gnn import make_graph, make_net
from tests.tracing.test_trace import KINDS, Gine, graphs, sequential


class Plain(nn.Module):
    """Takes (x, edge_index, batch); skip connection and functional dropout."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.conv1, self.conv2 = pyg.GCNConv(4, 8), pyg.SAGEConv(8, 8)
        self.norm, self.lin = pyg.GraphNorm(8), nn.Linear(16, 3)
        self.inplace = inplace

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        first = self.conv1(x, edge_index)
        first = first.relu_() if self.inplace else first.relu()
        second = F.dropout(self.norm(first, batch), 0.5, self.training)
        second = self.conv2(second, edge_index)
        return self.lin(pyg.global_mean_pool(torch.cat([first, second], dim=-1), batch))


class WithGPS(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = pyg.Linear(4, 8)
        self.gps = pyg.GPSConv(8, pyg.GCNConv(8, 8), heads=2)
        self.lin = nn.Linear(8, 3)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        h = self.gps(self.encode(x), edge_index, batch)
        return self.lin(pyg.global_max_pool(h, batch))


MODELS: dict[str, Any] = {
    "GCN": lambda: pyg.GCN(4, 8, 2, 3, norm="batch_norm"),
    "GIN": lambda: pyg.GIN(4, 8, 2, 3, norm="graph_norm"),
    "GraphSAGE": lambda: pyg.GraphSAGE(4, 8, 3, 3, jk="cat"),
    "GAT": lambda: pyg.GAT(4, 8, 2, 3, heads=2, dropout=0.3),
    "PNA": lambda: KINDS["PNA"](4, 8, 2, 3),
    "EdgeCNN": lambda: pyg.EdgeCNN(4, 8, 2, 3, norm="layer_norm"),
    "Sequential": sequential,
    "Plain": Plain,
    "Inplace": lambda: Plain(inplace=True),
    "Gine": Gine,
    "WithGPS": WithGPS,
}


def make(name: str) -> nn.Module:
    torch.manual_seed(1)
    net = MODELS[name]().double()
    net.train()
    with torch.no_grad():
        for _ in range(3):  # move running statistics
            call_network(net, graphs())
    return net.eval()


def wrapped(net: nn.Module, at: str | int, **options: object) -> gduq.Anchored:
    """Anchored at a place, not frozen, at a random start unless told otherwise."""
    like = options.pop("like", None) or graphs()
    options = {"recipe": "thawed", "init": "random"} | options
    model = gduq.anchor(net, at, num_anchors=3, like=like, **options)
    generator = torch.Generator().manual_seed(2)
    model.set_bank(torch.randn(3, model.point.channels, generator=generator).double())
    return model.eval()


@pytest.mark.parametrize("name", MODELS)
def test_identity_start_equals_the_network_at_every_cut_point(name: str) -> None:
    net, graph = make(name), graphs()
    expected = call_network(net, graph)
    points = gduq.cut_points(net, graph)
    assert points[0] == ("input", (18, 4))
    assert len(points) >= 3
    for at, (rows, width) in points:
        model = wrapped(net, str(at), init="identity")
        assert represent(model, graph).shape == (rows, width)
        for sample in model.sample(graph):
            torch.testing.assert_close(sample, expected, rtol=1e-9, atol=1e-10, msg=f"{name} {at}")
    torch.testing.assert_close(call_network(net, graph), expected)  # the original is untouched


def test_an_optimiser_made_too_early_is_noticed() -> None:
    model, graph = gduq.anchor(make("Plain"), "lin"), graphs()
    with pytest.raises(InputError):
        model.train()(graph)
    model.locate(graph)
    assert model(graph).shape == (3, 3)


class Counted(TorchDispatchMode):
    """Counts how often torch works on so many rows and columns."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.shape, self.count = shape, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        made = isinstance(out, Tensor) and tuple(out.shape) == self.shape
        self.count += made and "mm" in str(func)
        return out


def test_the_trunk_of_a_head_runs_once_for_all_anchors() -> None:
    """In prediction, and in a training step."""
    net = AddsInPlace().double().eval()
    net.c1.lin = nn.Sequential(nn.Linear(4, 7), nn.Linear(7, 4)).double()
    model = gduq.anchor(net, "head", freeze=True, num_anchors=3, like=graphs())
    model.set_bank(torch.randn(3, model.point.channels).double())
    with Counted(18, 7) as seen:
        model.sample(graphs())
        assert seen.count == 1
        model.train().training_pass(graphs(), draws=4)
        assert seen.count == 2


def test_graphnorm_is_not_mixed_over_anchors() -> None:
    """Statistics over nodes must be taken for each anchor apart."""
    net = pyg.GIN(4, 8, 2, 3, norm="graph_norm").double().eval()
    graph = make_graph(9, 1)
    model = wrapped(net, "convs.1")
    for k in range(3):
        alone = copy.deepcopy(model)
        alone.bank = model.bank[k : k + 1]
        torch.testing.assert_close(alone.sample(graph)[0], model.sample(graph)[k])


def test_freeze_any_module() -> None:
    graph = graphs()
    for name in ("Plain", "GCN", "Sequential"):
        net = make(name)
        at = str(gduq.cut_points(net, graph)[-1][0])
        model = gduq.anchor(net, at=at, freeze=True, like=graph).train()
        h = represent(model, graph)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        for _ in range(3):
            model(graph).square().sum().backward()
            optimizer.step()
        torch.testing.assert_close(represent(model, graph), h)
        trained = [n for n, p in model.named_parameters() if p.requires_grad]
        assert trained == ["linear.weight", "linear.bias"] or name == "GCN"


class Dropping(nn.Module):
    """Functional dropout around the cut, on a tensor that skips over it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.lin = pyg.GCNConv(4, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = F.dropout(self.conv(x, edge_index), 0.5, self.training)
        return h + F.dropout(self.lin(h), 0.5, self.training)


def test_frozen_parts_are_in_evaluation_mode() -> None:
    graph = make_graph(40, 0)
    graph.x = graph.x.float()
    net = Dropping()
    model = gduq.anchor(net, at="lin", freeze=True, like=graph).train()
    torch.testing.assert_close(model(graph), net.eval()(graph.x, graph.edge_index))
    assert model.linear.training


def test_a_linear_layer_is_widened_and_nothing_is_put_in() -> None:
    net = make("Plain")
    model = gduq.anchor(net, at="lin", like=graphs())
    count = sum(p.numel() for p in net.parameters())
    assert sum(p.numel() for p in model.parameters()) == count + 16 * 3
    model = gduq.anchor(net, at="conv2", like=graphs())
    assert sum(p.numel() for p in model.parameters()) == count + 2 * 8 * 8 + 8


# -- what user code may do -----------------------------------------------------------------------


class AddsInPlace(nn.Module):
    """A skip connection that is changed in place after the cut, and one before it."""

    def __init__(self) -> None:
        super().__init__()
        self.c1, self.act = pyg.GCNConv(4, 4), nn.ReLU(inplace=True)
        self.c2, self.head = pyg.GCNConv(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.act(self.c1(x, edge_index))
        h += x
        h += self.c2(F.relu(h), edge_index)
        return self.head(h)


class ByKind(nn.Module):
    """Treats its layers by their classes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([pyg.GCNConv(4, 4), nn.Linear(4, 4), pyg.GCNConv(4, 3)])

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).relu() if isinstance(layer, nn.Linear) else layer(x, edge_index)
        return x


class Hooked(nn.Module):
    """A linear layer that is more than its weight, and one whose weight is shared."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.c = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3))
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.b(self.a(x)))


class GraphGym(nn.Module):
    """One parameter called ``batch`` that is the whole mini-batch."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 3)

    def forward(self, batch: Data) -> Tensor:
        return self.lin(batch.x)


@pytest.mark.parametrize("kind", [AddsInPlace, ByKind, Hooked, GraphGym])
def test_habits_of_hand_written_networks(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    net, graph = kind().double().eval(), make_graph(9, 2)
    expected = call_network(net, graph)
    points = gduq.cut_points(net, graph)
    for at, _ in points:
        model = wrapped(net, str(at), init="identity", like=graph)
        for sample in model.sample(graph):
            torch.testing.assert_close(sample, expected, rtol=1e-9, atol=1e-10, msg=str(at))
        again = copy.deepcopy(model)
        torch.testing.assert_close(again.sample(graph), model.sample(graph))


def test_threads_may_share_a_network() -> None:
    model, graph = wrapped(make("GCN"), "convs.1"), graphs()
    expected = model.sample(graph)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: model.sample(graph), range(40)):
            torch.testing.assert_close(found, expected)


def test_graphs_made_in_inference_mode() -> None:
    model = gduq.anchor(make_net("gcn", task="node"), at=1).double()
    model.bank = torch.randn(3, 8).double()
    expected = model.sample(make_graph(9, 2))
    with torch.inference_mode():
        torch.testing.assert_close(model.sample(make_graph(9, 2)), expected)


# -- mistakes ----------------------------------------------------------------------------------


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head, self.unused = pyg.GCNConv(4, 4), nn.Linear(4, 3), nn.Linear(4, 4)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.head(self.conv(self.conv(x, edge_index), edge_index))


def test_a_module_called_twice_or_never() -> None:
    graph = make_graph(5, 0)
    graph.x = graph.x.float()
    net = Twice()
    assert [name for name, _ in gduq.cut_points(net, graph)] == ["input", "head"]
    for at in ("conv", "unused"):
        with pytest.raises(InputError):
            gduq.anchor(net, at, like=graph)
        with pytest.raises(InputError):
            gduq.anchor(net, at).fit_anchors(graph)


class Odd(nn.Module):
    """A submodule that reads a tuple, and one that reads edges."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = pyg.SAGEConv((4, 4), 8)
        self.edge, self.head = nn.Linear(16, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.conv((x, x), edge_index)
        e = self.edge(torch.cat([h[edge_index[0]], h[edge_index[1]]], dim=-1))
        return self.head(h + torch.zeros_like(h).index_add(0, edge_index[1], e))


def test_places_that_are_none() -> None:
    graph = make_graph(6, 0)
    graph.x = graph.x.float()
    for at in ("conv", "edge"):
        with pytest.raises(InputError):
            gduq.anchor(Odd(), at=at, like=graph)
    for at in ("haed", True):
        with pytest.raises(InputError):
            gduq.anchor(Odd(), at=at)
    for at in (2, -3):
        with pytest.raises(InputError):
            gduq.anchor(make("GCN"), at, like=graphs())
    with pytest.raises(InputError):
        gduq.anchor(nn.Flatten(), like=graph)


def test_wide_inputs_are_sent_to_the_linear_layer() -> None:
    net = pyg.GCN(5000, 8, 2, 3)
    graph = Data(x=torch.rand(4, 5000), edge_index=torch.tensor([[0, 1], [1, 2]]))
    with pytest.raises(InputError):
        gduq.anchor(net, at="input", like=graph)
    assert gduq.anchor(net, at="convs.0.lin", like=graph).train()(graph).shape == (4, 3)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # dynamo looks at everything, also at what warns
@pytest.mark.parametrize("name", ["Plain", "zoo"])
def test_survives_compile(name: str) -> None:
    """Compiled and plain calls agree, in evaluation and in training (graph breaks allowed)."""
    net = make_net("gin") if name == "zoo" else make(name)
    model = wrapped(net, 1 if name == "zoo" else "lin").double()
    graph = graphs()
    torch.compiler.reset()
    compiled = torch.compile(model, backend="eager")
    torch.testing.assert_close(compiled(graph), model(graph))
    compiled.train()(graph).sum().backward()
    assert model.linear.weight.grad is not None
