"""`Network`: what a first pass over a graph shows of any module, and what is refused."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

import gduq
from gduq import Network
from gduq.errors import InputError
from gduq.models.network import checked_predictor
from gduq.nn import GNN
from gduq.nn.gnn import as_chain
from tests.conftest import tiny_graph

GRAPH = tiny_graph(5, seed=3)
del GRAPH.y


def edges(judged: int = 30) -> Data:
    graph = tiny_graph(12, seed=1)
    del graph.y
    graph.edge_label_index = torch.randint(
        12, (2, judged), generator=torch.Generator().manual_seed(0)
    )
    return graph


def plain(z: Tensor) -> Tensor:
    return z


class Pairs(nn.Module):
    """A dot product of both ends of an edge, without a layer a trace could name."""

    def __init__(self, end: Callable[[Tensor], Tensor] = plain) -> None:
        super().__init__()
        self.table, self.end = nn.Parameter(torch.linspace(-1, 1, 48).view(12, 4).double()), end

    def forward(self, x: Tensor, edge_label_index: Tensor) -> Tensor:
        source, target = (self.table + 0 * x)[edge_label_index]
        return self.end((source * target).sum(dim=-1))


# -- subclasses of gduq's own network --------------------------------------------------------------


class Renamed(GNN):
    """Nothing new."""


class Doubled(GNN):
    def forward(self, graph: Data) -> Tensor:
        return 2 * super().forward(graph)


def test_a_subclass_with_a_pass_of_its_own_is_no_chain() -> None:
    net, own = (kind(4, 8, 3, num_layers=2).double().eval() for kind in (Renamed, Doubled))
    assert as_chain(net) is net
    assert as_chain(own) is None
    batch = Batch.from_data_list([tiny_graph(n, seed=n) for n in (4, 5, 6)])
    found = Network(own).forward_samples(batch, features=True).outputs
    assert torch.equal(found[0], own(batch))
    model = gduq.anchor(own, "input", like=batch, num_anchors=2)
    with torch.no_grad():
        torch.testing.assert_close(gduq.predict(model, batch).samples[0], own(batch))


# -- endings ---------------------------------------------------------------------------------------


def by_hand(z: Tensor) -> Tensor:
    return 1 / (1 + (-z).exp())


def test_a_column_of_probabilities_by_unknown_means_is_refused() -> None:
    with pytest.raises(InputError):
        gduq.predict(Pairs(by_hand), edges())
    assert gduq.predict(Pairs(by_hand), edges(19)).probs.size(0) == 19  # too few to tell
    call = lambda net, graph: torch.logit(net(graph.x, graph.edge_label_index))  # noqa: E731
    found = gduq.predict(Pairs(by_hand), edges(), call=call).probs[:, 1]
    torch.testing.assert_close(found, gduq.predict(Pairs(torch.sigmoid), edges()).probs[:, 1])


@pytest.mark.parametrize("last", ["linear", "conv", "chain"])
def test_a_column_of_logits_may_lie_anywhere(last: str) -> None:
    """Small logits of a network that is known to end in a sum are no probabilities."""
    if last == "chain":
        net: nn.Module = GNN(4, 8, 1, num_layers=2, conv="gcn", task="node").double()
    else:
        kind = pyg.GraphSAGE if last == "linear" else pyg.GCN
        net = kind(4, 8, 2, out_channels=1, jk="cat" if last == "linear" else None).double()
    with torch.no_grad():
        for p in net.parameters():
            p.mul_(0.0)
        *_, bias = (p for p in net.parameters() if p.numel() == 1)
        bias.fill_(0.5)
    outputs = Network(net).sample(tiny_graph(25, seed=2))
    assert ((outputs > 0) & (outputs < 1)).all()
    assert outputs.size(1) >= 20


@pytest.mark.parametrize("last", ["linear", "conv"])
def test_a_sigmoid_of_several_columns_is_labels(last: str) -> None:
    net = pyg.GCN(4, 8, 2, out_channels=3, jk="cat" if last == "linear" else None).double()
    call = lambda net, graph: net(graph.x, graph.edge_index).sigmoid()  # noqa: E731
    p = gduq.predict(net, GRAPH, call=call)
    assert p.kind == "labels"
    assert torch.allclose(p.probs, call(net.eval(), GRAPH))
    for model in (
        gduq.anchor(net, call=call, like=GRAPH),
        gduq.anchor(net, "input", call=call, like=GRAPH),
    ):
        assert "sigmoid" in repr(model)
    one = lambda net, graph: net(graph.x, graph.edge_index)[:, [0]].sigmoid()  # noqa: E731
    assert gduq.predict(net, GRAPH, call=one).probs.shape == (5, 2)


def test_lazy_layers_need_a_pass_before() -> None:
    with pytest.raises(InputError):
        gduq.predict(nn.LazyLinear(3), GRAPH, call=lambda net, graph: net(graph.x))


# -- calibration and the weights it is of ----------------------------------------------------------


def many(count: int, seed: int = 0) -> list[Data]:
    found = [tiny_graph(4 + i % 3, seed=seed + i) for i in range(count)]
    for i, graph in enumerate(found):
        graph.y = torch.tensor([i % 2])
    return found


class Own(nn.Module):
    """A network whose forward needs no call, but may be given one."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.out = pyg.GCNConv(4, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        return self.out(pyg.global_add_pool(self.conv(x, edge_index).relu(), batch))


def fitted(call: Any = None) -> Own:
    torch.manual_seed(0)
    net = Own().double()
    gduq.fit(net, many(40), many(24, 50), epochs=2, call=call, progress=False)
    return net


def test_calibration_belongs_to_the_weights(tmp_path: Path) -> None:
    net, test = fitted(), many(6, 90)
    first = gduq.predict(net, test)
    assert first.calibrated == "shifted"
    assert first.novelty is not None
    with torch.no_grad():
        net.out.weight.mul_(1.5)
    with pytest.warns(UserWarning, match="weights have changed since gduq.fit: not calibrated"):
        gduq.save(net, tmp_path / "m")
    changed = gduq.predict(net, test)
    assert changed.calibrated is changed.novelty is None
    gduq.save(net, tmp_path / "again")  # it warns once
    batch = Batch.from_data_list(test)
    torch.testing.assert_close(changed.samples[0], net(batch.x, batch.edge_index, batch.batch))
    gduq.fit(net, many(40), many(24, 50), epochs=1, progress=False)
    assert gduq.predict(net, test).calibrated == "shifted"


@pytest.mark.parametrize("change", ["step", "data", "swap", "module", "load"])
def test_every_change_is_seen(change: str) -> None:
    net = fitted()
    net.load_state_dict(copy.deepcopy(net.state_dict()))  # the same weights
    assert checked_predictor(net.train()).calibration == "shifted"
    if change == "step":
        net.out(torch.ones(1, 8).double()).sum().backward()
        torch.optim.Adam(net.parameters(), fused=True).step()
    elif change == "data":
        net.out.bias.data += 1e-3  # torch does not count these, nor fused steps
    elif change == "module":
        net.out = nn.Linear(8, 2).double()
    elif change == "swap":
        net.out.weight.data = net.out.weight.data.flip(0)
    else:
        net.load_state_dict(Own().state_dict())
    with pytest.warns(UserWarning, match="weights have changed"):
        assert checked_predictor(net).calibration is None


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_nothing_is_written_into_a_network() -> None:
    net, test = Own().double().eval(), many(6, 90)
    names, before = set(vars(net)), pickle.dumps(net)
    gduq.predict(net, test)
    assert pickle.dumps(net) == before
    gduq.fit(net, many(40), many(24, 50), epochs=0, progress=False)
    assert gduq.predict(net, test).calibrated == "shifted"
    assert pickle.dumps(net) == before
    gduq.fit(net, many(40), many(24, 50), epochs=1, progress=False)
    gduq.anchor(net, like=many(1)[0])
    assert set(vars(net)) == names
    assert b"gduq" not in pickle.dumps(net)
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert gduq.predict(other, test).calibrated is None  # a plain network


@pytest.mark.parametrize("kind", ["own", "chain"])
def test_what_is_known_does_not_keep_a_network_alive(kind: str) -> None:
    net: Any = GNN(4, 8, 2, num_layers=2).double() if kind == "chain" else Own().double()
    gduq.fit(net, many(40), many(24, 50), epochs=1, progress=False)
    gduq.predict(net, many(3))
    alive = weakref.ref(net)
    del net
    gc.collect()
    assert alive() is None


def test_another_call_keeps_what_was_fitted() -> None:
    def make() -> Any:
        return lambda net, graph: net(graph.x, graph.edge_index, graph.batch)

    net, test = fitted(make()), many(6, 90)
    first = gduq.predict(net, test)
    again = gduq.predict(net, test, call=make())
    assert first.calibrated == again.calibrated == "shifted"
    assert torch.equal(first.samples, again.samples)
    twice = gduq.predict(net, test, call=lambda net, graph: 2 * make()(net, graph))
    torch.testing.assert_close(twice.samples, 2 * first.samples)
    assert torch.equal(gduq.predict(net, test).samples, first.samples)  # for that time only
