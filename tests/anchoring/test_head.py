"""The answers of a head for all anchors at once, against one anchor and one row at a time."""

from __future__ import annotations

import copy

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn

import gduq
from gduq.anchoring.anchors import AnchoredLinear
from gduq.anchoring.cuts import AnchoredHead, Tail
from gduq.nn import GNN
from tests.conftest import tiny_graph

RESTS = {
    "relu": nn.Sequential(nn.ReLU(), nn.Dropout(), nn.Linear(6, 3)),
    "three layers": nn.Sequential(nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)),
}


def parts(rest: str, bias: bool = True) -> tuple[AnchoredLinear, Tail]:
    torch.manual_seed(0)
    linear = AnchoredLinear(4, 6, bias).double()
    if rest != "branch":
        return linear, Tail(RESTS[rest].double(), 6, None).double().eval()
    linear = AnchoredLinear(4, 32, bias).double()
    tail = Tail(nn.Identity(), 32, nn.Linear(4, 3).double()).double().eval()
    assert tail.out is not None
    nn.init.normal_(tail.out.weight)
    nn.init.normal_(tail.out.bias)
    return linear, tail


@pytest.mark.parametrize("rest", ["relu", "three layers", "branch"])
def test_all_anchors_at_once_are_one_by_one(rest: str) -> None:
    linear, tail = parts(rest, rest != "relu")
    bank, h = torch.randn(5, 4).double(), torch.randn(11, 4).double()
    head = AnchoredHead(linear, tail)
    each = [torch.cat([head(row[None], c.view(1, 1, -1)) for row in h], 1) for c in bank]
    found = head(h, bank.unsqueeze(1))
    torch.testing.assert_close(found, torch.cat(each), rtol=1e-10, atol=1e-12)
    tail.add_noise(3)
    wide = head.double().eval()(h, bank.unsqueeze(1))
    assert wide.shape == (5, 11, 6)
    torch.testing.assert_close(wide[..., :3], found, rtol=1e-10, atol=1e-12)
    assert head(h[:0], bank.unsqueeze(1)).shape == (5, 0, 6)


# -- the paper's way with a trained network --------------------------------------------------------


class Own(nn.Module):
    """A convolution and a head of three layers with a norm, as functions and modules."""

    def __init__(self, outputs: int = 2) -> None:
        super().__init__()
        self.conv, self.one = pyg.GCNConv(4, 8), nn.Linear(8, 7)
        self.norm, self.two, self.three = nn.BatchNorm1d(7), nn.Linear(7, 6), nn.Linear(6, outputs)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        h = pyg.global_mean_pool(self.conv(x, edge_index).relu(), batch)
        return self.three(self.two(self.norm(self.one(h)).relu()).relu())


@pytest.mark.filterwarnings("ignore:the network explains nothing")
@pytest.mark.parametrize("kind", ["own", "chain", "values"])
def test_the_paper_draws_and_trains_the_whole_head(kind: str) -> None:
    outputs = 1 if kind == "values" else 2
    torch.manual_seed(0)
    net: nn.Module = GNN(4, 8, 2, 2, head="mlp") if kind == "chain" else Own(outputs)
    data = [tiny_graph(5, seed=i) for i in range(60)]
    for i, graph in enumerate(data):
        graph.x = graph.x.float()
        graph.y = graph.x.mean().view(1) * 50 + 500 if kind == "values" else torch.tensor([i % 2])
    if kind == "values":
        nn.init.constant_(net.three.bias, 500.0)  # a network in the units of y
    recipe = gduq.Recipe.paper("graph", freeze=True)
    model = gduq.anchor(net, recipe=recipe, like=data[0], num_anchors=3)
    tail = model.point.tail.rest
    drawn = copy.deepcopy(tail)
    before = copy.deepcopy(net.state_dict())
    gduq.fit(model, data[:40], data[40:], epochs=10, progress=False)
    own = net.head if kind == "chain" else nn.ModuleList([net.one, net.two, net.three])
    head = [m for m in own.modules() if isinstance(m, nn.Linear)][1:]
    learnt = [m for m in model.point.tail.rest.modules() if isinstance(m, nn.Linear)]
    first = [m for m in drawn.modules() if isinstance(m, nn.Linear)]
    assert len(head) == len(learnt) == (1 if kind == "chain" else 2)
    for old, start, now in zip(head, first, learnt, strict=True):
        assert not torch.isclose(old.weight, now.weight).any()
        assert not torch.equal(start.weight, now.weight)  # it learns
    assert model.linear.weight.shape[1] == 2 * 8
    for state in (net.state_dict(), model.point.trunk.net.state_dict()):  # the backbone stays
        assert all(torch.equal(state[name], value) for name, value in before.items())
    p = gduq.predict(model, data)
    assert p.samples.isfinite().all()
    if kind == "values":
        assert abs(float(p.mean.mean()) - 500) < 50  # in the units of y
