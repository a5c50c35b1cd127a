"""Three lines for any network: anchor, fit, predict, whatever its class, head or task."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric.data import Batch, Data, HeteroData

import gduq
from gduq import InputError
from gduq.data import View
from gduq.graphs import label_rows
from gduq.tracing.call import call_network
from tests.tracing.test_trace import KINDS, Gine, Gps, Hetero, Jumping, sequential


def node_graph(nodes: int = 90) -> Data:
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(nodes) % 3
    x = F.one_hot(y, 4) + torch.randn(nodes, 4, generator=generator, dtype=torch.float64)
    edges = torch.randint(nodes, (2, 4 * nodes), generator=generator)
    attributes = torch.rand(4 * nodes, 2, generator=generator, dtype=torch.float64)
    return Data(x=x, edge_index=edges, edge_attr=attributes, y=y)


def views(graph: Data) -> tuple[View, View, View]:
    """Node tasks: training, validation and test rows."""
    place = torch.arange(graph.num_nodes)
    return (
        View(graph, place < 40),
        View(graph, (place >= 40) & (place < 65)),
        View(graph, place > 64),
    )


def node_data() -> tuple[View, View, View]:
    return views(node_graph())


def graph_data() -> tuple[View, View, View]:
    whole = [node_graph(nodes) for nodes in range(5, 10) for _ in range(16)]
    for i, graph in enumerate(whole):
        graph.y = torch.tensor([i % 3])
        graph.x = graph.x + F.one_hot(graph.y, 4)
    return View(whole[::2]), View(whole[1::3]), View(whole[:9])


def edge_data() -> tuple[View, View, View]:
    graph = node_graph()
    graph.edge_label_index = torch.randint(90, (2, 100), generator=torch.manual_seed(1))
    graph.edge_label = (graph.y[graph.edge_label_index].diff(dim=0)[0] == 0).long()
    place = torch.arange(100)
    return (
        View(graph, edges=place < 50),
        View(graph, edges=(place >= 50) & (place < 80)),
        View(graph, edges=place >= 80),
    )


def hetero_data() -> tuple[View, View, View]:
    graph, plain = HeteroData(), node_graph()
    graph["paper"].x, graph["paper"].y = plain.x, plain.y
    graph["author"].x = torch.randn(90, 5, generator=torch.manual_seed(2)).double()
    graph["author", "writes", "paper"].edge_index = plain.edge_index
    graph["paper", "rev_writes", "author"].edge_index = plain.edge_index.flip(0)
    place = torch.arange(90)
    masks = (place < 40, (place >= 40) & (place < 65), place > 64)
    return tuple(View(graph, mask, node_type="paper") for mask in masks)  # type: ignore[return-value]


# -- networks --------------------------------------------------------------------------------------


class Ending(nn.Module):
    """Two convolutions, or one and a linear map, and what is made of their output."""

    def __init__(self, end: Callable[[Tensor], Tensor] = lambda z: z, last: str = "linear") -> None:
        super().__init__()
        self.conv, self.end = pyg.SAGEConv(4, 8), end
        self.last = nn.Linear(8, 3) if last == "linear" else pyg.GCNConv(8, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.conv(x, edge_index).relu()
        return self.end(
            self.last(x) if isinstance(self.last, nn.Linear) else self.last(x, edge_index)
        )


class TakesAnything(Ending):
    def forward(self, **kwargs: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(kwargs["features"], kwargs["links"])


class Links(nn.Module):
    """An encoder, and a decoder of pairs of nodes: one logit per edge."""

    def __init__(self, decoder: str) -> None:
        super().__init__()
        self.encode = pyg.GCN(4, 8, 2, 8)
        self.decode = pyg.MLP([16, 8, 1], norm=None) if decoder == "mlp" else None

    def forward(self, x: Tensor, edge_index: Tensor, edge_label_index: Tensor) -> Tensor:
        one, two = self.encode(x, edge_index)[edge_label_index]
        if self.decode is None:
            return (one * two).sum(dim=-1)
        return self.decode(torch.cat([one, two], dim=-1)).squeeze(-1)


@dataclass(frozen=True)
class Case:
    """A network, the data it answers for, and what is found in it."""

    make: Callable[[], nn.Module]
    found: str
    data: Callable[[], tuple[View, View, View]] = node_data
    call: Any = None


CONVS = ("GCN", "GAT", "GraphSAGE", "EdgeCNN")
CASES = {
    **{k: Case(lambda k=k: KINDS[k](4, 8, 2, 3), "'convs.1' and the outputs, one") for k in CONVS},
    "GIN": Case(lambda: KINDS["GIN"](4, 8, 2, 3), "'convs.1.nn.lins.0', one row per node; 4"),
    "PNA": Case(lambda: KINDS["PNA"](4, 8, 2, 3), "'convs.1.lin', one row per node; a second"),
    **{
        f"{k} jk": Case(lambda k=k: KINDS[k](4, 8, 2, 3, jk="max"), "'lin', one row per node; a")
        for k in KINDS
    },
    "AttentiveFP": Case(
        lambda: pyg.AttentiveFP(4, 8, 3, 2, 2, 2), "'lin2', one row per graph; a", graph_data
    ),
    "Sequential": Case(sequential, "'module_4', one row per graph; 4", graph_data),
    "GINE": Case(Gine, "'lin1', one row per graph; 4", graph_data),
    "GPS": Case(Gps, "'head.lins.0', one row per graph; 4", graph_data),
    "Jumping": Case(Jumping, "'head.0', one row per node; 4"),
    "linear end": Case(Ending, "'last', one row per node; a second branch reads the anchors;"),
    "conv end": Case(lambda: Ending(last="conv"), "'last' and the outputs, one row"),
    "norm end": Case(lambda: Ending(nn.BatchNorm1d(3)), "'last', one row per node; a second"),
    "kwargs": Case(
        TakesAnything,
        "'last', one row per node; a second branch",
        call=lambda net, graph: net(features=graph.x, links=graph.edge_index),
    ),
    "HeteroConv": Case(Hetero, "'lin', one row per node; a second branch", hetero_data),
    "links mlp": Case(lambda: Links("mlp"), "'decode.lins.0', one row per edge; 4", edge_data),
    "links dot": Case(lambda: Links("dot"), "'encode.convs.1', the input of a GCNConv", edge_data),
}  # fmt: skip


def make(case: Case) -> nn.Module:
    """In float64, with running statistics moved away from their start."""
    torch.manual_seed(1)
    net = case.make().double().train()
    graph = next(case.data()[0].batches(8))
    with torch.no_grad():
        for _ in range(2):
            call_network(net, graph, case.call)
    return net.eval()


@pytest.mark.parametrize("name", CASES)
def test_three_lines(name: str) -> None:
    case = CASES[name]
    net, (train, val, test) = make(case), case.data()
    before, raw = copy.deepcopy(net.state_dict()), call_raw(net, test, case.call)
    model = gduq.anchor(net, num_anchors=4, call=case.call)
    start = gduq.predict(model, test)
    torch.testing.assert_close(start.logits, raw, rtol=1e-10, atol=1e-10)
    assert case.found in repr(model)
    assert "\n" not in repr(model)

    history = gduq.fit(model, train, val, progress=False, **({} if model.trunk else {"epochs": 2}))
    assert history.kept_epoch is not None
    p = gduq.predict(model, test)
    assert p.samples.shape == (4, *raw.shape)
    assert p.probs.isfinite().all()
    assert p.epistemic.isfinite().all()
    assert p.epistemic.min() >= 0
    assert p.novelty is not None
    assert 0 <= p.novelty.min() <= p.novelty.max() <= 1
    assert p.calibrated == ("clean" if case.data is hetero_data else "shifted")

    after = net.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    torch.testing.assert_close(call_raw(net, test, case.call), raw)


def call_raw(net: nn.Module, view: View, call: Any) -> Tensor:
    """The network's own logits of the rows of a view ``[m, C]``; one logit is ``(0, z)``."""
    parts = []
    with torch.no_grad():
        for graph in view.batches(4):
            out = call_network(net, graph, call)
            parts.append(out[label_rows(graph, out.size(0))])
    out = torch.cat(parts)
    return torch.cat([torch.zeros_like(out), out], dim=1) if out.size(1) == 1 else out


def scores() -> nn.Module:
    """A score per node and class, averaged over each graph."""
    first = [(pyg.GINConv(nn.Linear(4, 8)), "x, edge_index -> x"), nn.ReLU()]
    last = [(pyg.SAGEConv(8, 3), "x, edge_index -> x"), (pyg.global_mean_pool, "x, batch -> x")]
    return pyg.Sequential("x, edge_index, batch", [*first, *last])


def propagated() -> nn.Module:
    mlp = pyg.MLP([4, 8, 3], norm=None)
    steps = [(mlp, "x -> x"), (pyg.APPNP(2, 0.1), "x, edge_index -> x")]
    return pyg.Sequential("x, edge_index", steps)


@pytest.mark.parametrize(
    ("make_net", "data"),
    [(CASES["GCN"].make, node_data), (propagated, node_data), (scores, graph_data)],
)
def test_without_a_head_the_network_runs_once_and_a_branch_learns(make_net, data) -> None:
    torch.manual_seed(0)
    net, (train, val, test) = make_net().double().eval(), data()
    plain = gduq.predict(net, test)
    model = gduq.anchor(net, num_anchors=4, draws=2)
    model.locate(test.graphs[0] if test.rows is not None else next(test.batches()))
    model.fit_anchors(train)
    passes: list[int] = []
    model.trunk.net.register_forward_pre_hook(lambda *_: passes.append(1))
    assert torch.equal(gduq.predict(model, test).logits, plain.logits)
    assert len(passes) == 1
    gduq.fit(model, train, val, progress=False)
    gduq.fit(model, train, epochs=5, lr=0.05, progress=False)
    assert not any(".net." in name for name, p in model.named_parameters() if p.requires_grad)
    p = gduq.predict(model, test)
    assert p.epistemic.max() > 0
    assert p.novelty is not None
    assert torch.equal(gduq.predict(net, test).logits, plain.logits)


# -- networks that do not end in logits ------------------------------------------------------------

ENDINGS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "softmax": (lambda z: z.softmax(dim=-1), lambda out: out),
    "log_softmax": (lambda z: F.log_softmax(z, dim=1), torch.exp),
    "sigmoid": (lambda z: z[:, :1].sigmoid(), lambda out: torch.cat([1 - out, out], dim=1)),
}
MODULES = {"softmax": nn.Softmax(dim=1), "log_softmax": nn.LogSoftmax(dim=-1)}


@pytest.mark.parametrize("last", ["linear", "conv"])
@pytest.mark.parametrize("ending", ENDINGS)
def test_probabilities_stay_what_they_are(ending: str, last: str) -> None:
    end, probabilities = ENDINGS[ending]
    graph = node_graph()
    graph.y = graph.y.clamp_max(1) if ending == "sigmoid" else graph.y
    train, val, test = views(graph)
    for make_end in (end, MODULES.get(ending, end)):
        torch.manual_seed(1)
        net = Ending(make_end, last).double().eval()
        mask = test.batches(1).__next__().row_mask
        expected = probabilities(net(graph.x, graph.edge_index))[mask].detach()
        model = gduq.anchor(net, num_anchors=4, draws=2)
        for known in (net, model):
            found = gduq.predict(known, test).probs
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
        assert f"ends in {ending}, which is undone" in repr(model)
        for at in ("conv", "input"):
            thawed = gduq.anchor(net, at, like=graph)
            torch.testing.assert_close(
                gduq.predict(thawed, test).probs, expected, rtol=1e-9, atol=1e-9
            )
            assert f"ends in {ending}, which is undone" in repr(thawed)
    gduq.fit(model, train, val, epochs=2, progress=False)
    p = gduq.predict(model, test)
    assert p.probs.isfinite().all()
    assert p.calibrated == "shifted"


def shares(z: Tensor) -> Tensor:
    """Probabilities by means nobody knows."""
    positive = z.square() + 0.1
    return positive / positive.sum(dim=1, keepdim=True)


@pytest.mark.parametrize("last", ["linear", "conv"])
def test_probabilities_by_unknown_means_are_refused(last: str) -> None:
    net, (train, val, test) = Ending(shares, last).double(), node_data()
    for at in (None, "conv", "input"):
        model = gduq.anchor(net, at)
        with pytest.raises(InputError):
            gduq.predict(model, test)
        with pytest.raises(InputError):
            gduq.fit(model, train, val, epochs=1, progress=False)
    with pytest.raises(InputError):
        gduq.predict(net, test)
    call = lambda net, graph: net(graph.x, graph.edge_index).log()  # noqa: E731
    with torch.no_grad():
        expected = net(*(test.graphs[0][key] for key in ("x", "edge_index")))
    found = gduq.predict(gduq.anchor(net, call=call), test).probs
    torch.testing.assert_close(found, expected[65:], rtol=1e-9, atol=1e-9)


# -- rows at a named place -------------------------------------------------------------------------


class Pooled(nn.Module):
    """Nodes at ``one``, graphs at ``two``, whatever their numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.conv, self.two = nn.Linear(4, 8), pyg.GCNConv(8, 8), nn.Linear(8, 8)
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        h = self.conv(self.one(x).relu(), edge_index)
        h = pyg.global_mean_pool(h, batch)
        return self.out(self.two(h).relu().softmax(dim=1))


def test_rows_are_not_guessed() -> None:
    single = Batch.from_data_list([node_graph(1) for _ in range(4)])  # 4 nodes, 4 graphs
    single.y = torch.arange(4) % 3
    with pytest.raises(InputError):
        gduq.anchor(Pooled().double(), "two", like=single)


class Rescaled(nn.Module):
    """Gives values in their units, which it multiplies and shifts itself."""

    def __init__(self, constant: Callable[[float], Any]) -> None:
        super().__init__()
        self.conv, self.head = pyg.GCNConv(4, 8), nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
        self.scale, self.shift = constant(3.0), constant(5.0)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.head(self.conv(x, edge_index).relu()) * self.scale + self.shift


@pytest.mark.parametrize("constant", [float, torch.tensor])
def test_a_head_that_rescales_its_outputs_is_found(constant: Any) -> None:
    net, graph = Rescaled(constant).double(), node_graph()
    model = gduq.anchor(net, like=graph)
    assert model.trunk.path == "head.0"
    out = net(graph.x, graph.edge_index).detach()
    torch.testing.assert_close(model.eval()(graph), out)
