"""A trained network that trains on with anchors: no worse, and where outputs depend on them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch_geometric.data import Data

import gduq
from gduq.data import View
from gduq.errors import InputError
from gduq.graphs.packed import Packed
from gduq.nn import GNN
from tests.conftest import tiny_graph

QUIET: dict[str, Any] = {"progress": False}


def labelled(nodes: int = 120) -> Data:
    """A graph of two groups whose nodes differ in their features."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(nodes) % 2
    x = torch.randn(nodes, 4, generator=generator) + 2 * y.unsqueeze(1)
    ring = torch.arange(nodes)
    edges = torch.stack([ring, ring.roll(2)])
    return Data(x=x, edge_index=torch.cat([edges, edges.flip(0)], 1), y=y)


class Normed(nn.Module):
    """A convolution, BatchNorm and a convolution at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = pyg.GCNConv(4, 16), nn.BatchNorm1d(16)
        self.last = pyg.GCNConv(16, 2)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.last(self.norm(self.first(x, edge_index)).relu(), edge_index)


def split(data: Data) -> tuple[View, View]:
    rows = torch.arange(len(data.y))
    return View(data, rows < 60), View(data, rows >= 60)


@pytest.fixture
def well_trained() -> nn.Module:
    torch.manual_seed(0)
    net = Normed()
    gduq.fit(net, *split(labelled()), epochs=40, lr=0.02, **QUIET)
    return net


def val_loss(model: nn.Module, val: View) -> float:
    return float(gduq.metrics.nll(gduq.predict(model, val)))


@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.filterwarnings("ignore:the hypotheses hardly")
def test_training_on_never_ends_worse(well_trained: nn.Module, resumed: bool, tmp_path) -> None:
    train, val = split(labelled())
    model = gduq.anchor(copy.deepcopy(well_trained), recipe="thawed", like=train.graphs[0])
    before = val_loss(model, val)
    options: dict[str, Any] = {"lr": 5.0, "calibrate": None, **QUIET}
    if resumed:
        options["resume"] = tmp_path
        gduq.fit(copy.deepcopy(model), train, val, epochs=1, **options)
    history = gduq.fit(model, train, val, epochs=3, **options)
    assert min(record["val_loss"] for record in history.records) > before  # the steps do harm
    assert history.kept_epoch == 0
    assert val_loss(model, val) <= before * (1 + 1e-6)


def test_the_first_steps_of_a_trained_network_are_small(well_trained: nn.Module) -> None:
    train, _ = split(labelled())

    def moved(init: Any) -> float:
        recipe = gduq.Recipe.thawed(init=init, mask=0.0)
        model = gduq.anchor(well_trained, recipe=recipe, like=train.graphs[0])
        before = model.linear.weight.detach().clone()
        gduq.fit(model, train, epochs=1, lr=0.1, **QUIET)
        return float((model.linear.weight.detach() - before).abs().max())

    assert moved("identity") == pytest.approx(0.01, rel=1e-3)  # Adam's first step is the rate
    assert moved("random") == pytest.approx(0.1, rel=1e-3)


# -- places without effect -------------------------------------------------------------------------


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.mu, self.ls = pyg.GCNConv(4, 8), pyg.GCNConv(8, 4), pyg.GCNConv(8, 4)

    def forward(self, x: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        h = self.conv(x, edge_index).relu()
        return self.mu(h, edge_index), self.ls(h, edge_index)


def judged() -> Data:
    data = labelled(60)
    generator = torch.Generator().manual_seed(1)
    data.edge_label_index = torch.randint(60, (2, 90), generator=generator)
    source, target = data.y[data.edge_label_index]
    data.edge_label = (source == target).long()
    return data


def decode(net: Any, graph: Data) -> Tensor:
    z = net.encode(graph.x, graph.edge_index)
    return net.decoder(z, graph.edge_label_index, sigmoid=False)


def test_anchors_are_where_the_output_depends_on_them() -> None:
    """A VGAE uses its log-variances, the last layer, in training only."""
    torch.manual_seed(0)
    net, data = pyg.VGAE(Encoder()), judged()
    decode(net, data).sum().backward()  # it keeps its activations
    rows = torch.arange(90)
    train, val = View(data, edges=rows[:45]), View(data, edges=rows[45:])
    for at in ("head", -1):
        model = gduq.anchor(net, at, freeze=True, call=decode, like=data, init="random")
        assert "encoder.mu" in repr(model)
    gduq.fit(model, train, val, epochs=2, **QUIET)
    p = gduq.predict(model, val)
    assert float(p.epistemic.max()) > 1e-4
    with pytest.raises(InputError, match=r"encoder\.ls"):
        gduq.anchor(net, at="encoder.ls", call=decode, like=data)


# -- memory ----------------------------------------------------------------------------------------


class Largest(TorchDispatchMode):
    """Notes how many numbers the largest tensor has that is made while it is entered."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        known = {t.untyped_storage().data_ptr() for t in tree_leaves(args) if torch.is_tensor(t)}
        for leaf in tree_leaves(out):
            if torch.is_tensor(leaf) and leaf.untyped_storage().data_ptr() not in known:
                self.numbers = max(self.numbers, leaf.numel())
        return out


@pytest.mark.parametrize("freeze", [True, False])
@pytest.mark.filterwarnings("ignore:the hypotheses hardly")
def test_wide_features_are_not_copied(freeze: bool) -> None:
    """Anchors sit behind the layer that reads x: it is copied once at most, never per anchor."""
    data = labelled()
    data.x = torch.cat([data.x, torch.zeros(120, 796)], dim=1)
    train, val = split(data)
    net = pyg.GCN(800, 8, 2, out_channels=2)
    model = gduq.anchor(net, at="head", freeze=freeze, draws=10, like=data)
    with Largest() as seen:
        gduq.fit(model, train, val, epochs=2, calibrate="clean", **QUIET)
        assert gduq.predict(model, val).samples.size(0) == 10
    assert 0 < seen.numbers <= data.x.numel()


def many(count: int, seed: int) -> list[Data]:
    found = [tiny_graph(4 + i % 3, seed=seed + i) for i in range(count)]
    for i, graph in enumerate(found):
        graph.y = torch.tensor([i % 2])
    return found


def gnn(seed: int = 0) -> GNN:
    torch.manual_seed(seed)
    return GNN(4, 8, 2, num_layers=2, head="mlp").double()


FITS: dict[str, Callable[[list[Data], list[Data]], object]] = {
    "head": lambda *data: gduq.fit(gduq.anchor(gnn()), *data, **QUIET),
    "ensemble": lambda *data: gduq.fit(gduq.Ensemble(map(gnn, range(3))), *data, epochs=1, **QUIET),
    "choose": lambda *data: gduq.choose(gnn(), *data, budget=1.5, epochs=20, **QUIET),
}


@pytest.mark.parametrize("name", FITS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_graphs_are_packed_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    pack = Packed.pack

    def counted(graphs: Any) -> Packed:
        seen.append(len(graphs))
        return pack(graphs)

    monkeypatch.setattr(Packed, "pack", staticmethod(counted))
    FITS[name](many(50, 0), many(30, 99))
    assert sorted(seen) == [30, 50]  # shifted copies are made of what is packed
