"""Training: the loop against loops written by hand, every kind of data, bad input, processes."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Batch, Data, InMemoryDataset
from torch_geometric.loader import DataLoader
from torch_geometric.nn.aggr import MeanAggregation

import gduq
from gduq import InputError, metrics
from gduq.data import View
from gduq.nn import GNN
from gduq.prediction import Classes
from gduq.training import fit
from gduq.training.rows import even_size
from tests.training import cases
from tests.training.cases import Net, graphs, node_view

QUIET: dict[str, Any] = {"progress": False, "calibrate": None}  # see test_calibrated_fit


def gnn(seed: int = 0, **options: Any) -> GNN:
    torch.manual_seed(seed)
    defaults: dict[str, Any] = {"num_layers": 2, "conv": "gin", "dropout": 0.5}
    return GNN(4, 6, 3, **{**defaults, **options}).double()


def anchored(at: int | str = "readout", k: int = 4, seed: int = 0, **options: Any) -> gduq.Anchored:
    """Anchored from scratch: random weights, nothing masked; or as options say."""
    net = options.pop("net", None) or gnn(seed, **options.pop("gnn", {}))
    recipe = gduq.Recipe.paper("graph", at=at, num_anchors=k, **options)
    return gduq.anchor(net, recipe=recipe).double()


def equal(one: nn.Module, two: nn.Module) -> bool:
    a, b = one.state_dict(), two.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def trained(model: nn.Module) -> dict[str, Tensor]:
    """All but novelty, which is measured on other rows with validation rows than without."""
    return {k: v for k, v in model.state_dict().items() if not k.startswith("novelty")}


def close(one: nn.Module, two: nn.Module, atol: float = 1e-12) -> None:
    torch.testing.assert_close(dict(one.state_dict()), dict(two.state_dict()), rtol=0, atol=atol)


# -- the loss ------------------------------------------------------------------------------------


def test_an_anchored_loss_weighs_rows_that_are_not_masked() -> None:
    model = anchored(gnn={"dropout": 0.0}, draws=3, mask=0.5).train()
    model.target = Classes(3, weights=(0.2, 1.0, 3.0))
    batch = Batch.from_data_list(graphs(9))
    torch.manual_seed(1)
    losses, counts = model.loss(batch)
    torch.manual_seed(1)
    outputs, masked = model.training_pass(batch, 3, 0.5)
    assert masked.any()
    assert not masked.all()
    log_probs, y = outputs.log_softmax(dim=-1), batch.y
    weights = torch.tensor([0.2, 1.0, 3.0]).double()[y]
    ordinary = -log_probs.gather(2, y.expand(3, -1).unsqueeze(2)).squeeze(2) * weights
    torch.testing.assert_close(losses, torch.where(masked, -log_probs.mean(dim=2), ordinary))
    torch.testing.assert_close(counts, torch.where(masked, 1.0, weights.expand(3, -1)))


# -- the loop against loops by hand --------------------------------------------------------------


def by_hand(net: nn.Module, batches: Callable[[], Iterator[Data]], epochs: int, lr: float) -> None:
    optimizer = torch.optim.Adam(net.parameters(), lr)
    for _ in range(epochs):
        for graph in batches():
            out = net(graph.x, graph.edge_index, graph.batch)
            optimizer.zero_grad()
            F.cross_entropy(out[: graph.get("seeds")], graph.y[: graph.get("seeds")]).backward()
            optimizer.step()


def test_one_batch_of_graphs_is_the_plain_loop() -> None:
    ours, theirs, data = Net(), Net(), graphs(12)
    history = fit(ours, data, epochs=5, lr=0.01, batch_size=12, **QUIET)
    by_hand(theirs, lambda: iter([Batch.from_data_list(data)]), 5, 0.01)
    close(ours, theirs)
    first = F.cross_entropy(
        Net()(*(Batch.from_data_list(data)[k] for k in ("x", "edge_index", "batch"))),
        torch.cat([g.y for g in data]),
    )
    assert history.records[0]["loss"] == pytest.approx(first.item())


def test_graphs_that_label_their_nodes_are_data_of_nodes() -> None:
    one, two = node_view(marked=41).graphs[0], node_view(29, 29).graphs[0]
    nets = [Net(node_task=True) for _ in range(4)]
    rows = torch.arange(70)
    data: list[Any] = [[one], View(one, rows[:41]), [one, two], View([one, two], rows)]
    for net, kind in zip(nets, data, strict=True):
        fit(net, kind, kind, epochs=2, **QUIET)
    assert equal(nets[0], nets[1])
    assert equal(nets[2], nets[3])


def test_one_graph_of_nodes_is_the_plain_loop() -> None:
    view = node_view()
    ours, theirs = Net(node_task=True), Net(node_task=True)
    fit(ours, view, epochs=5, lr=0.01, **QUIET)
    graph = copy.copy(view.graphs[0])
    graph.seeds, graph.batch = len(view), torch.zeros(graph.num_nodes, dtype=torch.int64)
    by_hand(theirs, lambda: iter([graph]), 5, 0.01)
    close(ours, theirs)


def test_a_fixed_anchor_is_the_plain_loop_on_pairs() -> None:
    """Any number of draws of one anchor is one draw, and that is a head that reads the pair."""

    class Pair(Net):
        def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
            h = MeanAggregation()(self.conv(x, edge_index).tanh(), batch)
            c = torch.full_like(h, 0.3)
            return self.head(torch.cat([h - c, c], dim=1))

    data, model = graphs(12), cases.anchored()
    pair = Pair()
    pair.head = nn.Linear(16, 3).double()
    pair.head.load_state_dict(model.linear.state_dict())
    several = cases.anchored(draws=3)
    fit(model, data, epochs=4, lr=0.01, batch_size=12, **QUIET)
    fit(several, data, epochs=4, lr=0.01, batch_size=12, **QUIET)
    by_hand(pair, lambda: iter([Batch.from_data_list(data)]), 4, 0.01)
    for trained in (model, several):
        torch.testing.assert_close(trained.linear.weight, pair.head.weight, rtol=0, atol=1e-12)
        torch.testing.assert_close(
            trained.point.net.conv.lin_rel.weight, pair.conv.lin_rel.weight, rtol=0, atol=1e-12
        )


def test_only_labelled_rows_count() -> None:
    """Labels outside the view may be anything, for plain and anchored, all cuts."""
    view = node_view()
    other = copy.copy(view.graphs[0])
    other.y = torch.where(view.rows, other.y, 2 - other.y.clamp(0, 2))
    assert not torch.equal(other.y, view.graphs[0].y)
    makers: list[Callable[[], nn.Module]] = [lambda: Net(node_task=True)]
    for at in ("input", 1, "readout"):
        makers.append(lambda at=at: anchored(at, gnn={"task": "node"}))
    for make in makers:
        one, two = make(), make()
        fit(one, view, epochs=3, lr=0.01, **QUIET)
        fit(two, View(other, view.rows), epochs=3, lr=0.01, **QUIET)
        assert equal(one, two)


# -- randomness ----------------------------------------------------------------------------------


@pytest.mark.parametrize("at", ["input", 1, "readout"])
def test_same_seed_same_bits_and_the_callers_state_stays(at: int | str) -> None:
    models = [anchored(at) for _ in range(3)]
    torch.manual_seed(5)
    before = (torch.get_rng_state(), np.random.get_state()[1], random.getstate())  # noqa: NPY002
    fit(models[0], graphs(12), graphs(5), epochs=2, batch_size=5, **QUIET)
    after = (torch.get_rng_state(), np.random.get_state()[1], random.getstate())  # noqa: NPY002
    assert torch.equal(before[0], after[0])
    assert np.array_equal(before[1], after[1])
    assert before[2] == after[2]
    torch.manual_seed(77)
    fit(models[1], graphs(12), graphs(5), epochs=2, batch_size=5, **QUIET)
    fit(models[2], graphs(12), graphs(5), epochs=2, batch_size=5, seed=1, **QUIET)
    assert equal(models[0], models[1])
    assert not equal(models[0], models[2])


# -- what is kept --------------------------------------------------------------------------------


def test_the_best_weights_stay_and_patience_stops_early() -> None:
    net, val = Net(), graphs(9, seed=3)
    history = fit(net, graphs(6), val, epochs=60, lr=0.3, patience=3, **QUIET)
    losses = [record["val_loss"] for record in history.records]
    assert history.kept_epoch == losses.index(min(losses)) + 1
    assert len(history.records) == history.kept_epoch + 3 < 60
    assert metrics.nll(gduq.predict(net, val)) == pytest.approx(min(losses))
    assert not net.training
    with pytest.raises(InputError, match="validation data with patience"):
        fit(Net(), graphs(6), epochs=2, patience=3, **QUIET)


def test_a_last_batch_of_one_graph_is_no_trouble() -> None:
    model = anchored(1, gnn={"num_layers": 3, "virtual_node": True})  # BatchNorm over graphs
    fit(model, graphs(9), epochs=1, batch_size=8, **QUIET)
    assert [even_size(33, size) for size in (1, 4, 32, 33, 64)] == [1, 5, 33, 33, 64]


# -- kinds of data -------------------------------------------------------------------------------


def test_views_lists_datasets_and_loaders_are_alike() -> None:
    class Stored(InMemoryDataset):
        def __init__(self) -> None:
            super().__init__()
            self.data, self.slices = self.collate(graphs(10))

    kinds: list[Any] = [graphs(10), View(graphs(10)), Stored(), tuple(graphs(10))]
    kinds.append(DataLoader(graphs(10), batch_size=10))
    nets = [Net() for _ in kinds]
    for net, data in zip(nets, kinds, strict=True):
        fit(net, data, data, epochs=3, batch_size=10, lr=0.01, **QUIET)
        close(net, nets[0])


def neighbourhoods() -> list[Data]:
    """What NeighborLoader gives: seed nodes first, their number stored, masks of the whole."""
    generator, found = torch.Generator().manual_seed(2), []
    for i in range(4):
        nodes = 9 + i
        data = Data(
            x=torch.randn(nodes, 4, generator=generator, dtype=torch.float64),
            edge_index=torch.randint(nodes, (2, 30), generator=generator),
            y=torch.randint(3, (nodes,), generator=generator),
            train_mask=torch.ones(nodes, dtype=torch.bool),
            n_id=torch.arange(nodes),
        )
        data.batch_size = data.num_seeds = 5
        found.append(data)
    return found


@pytest.mark.parametrize("at", [None, "input", 1, "readout", "head"])
def test_neighbourhoods_count_their_seed_nodes_only(at: int | str | None) -> None:
    def make() -> nn.Module:
        if at is None:
            return Net(node_task=True)
        net = Net(node_task=True) if at == "head" else gnn(task="node", conv="gcn")
        return anchored(at, net=net)

    batches, other = neighbourhoods(), neighbourhoods()
    for graph in other:
        graph.y[5:] = 2 - graph.y[5:]
    models = [make(), make()]
    for model, data in zip(models, (batches, other), strict=True):
        loader = torch.utils.data.DataLoader(data, batch_size=None, shuffle=True)
        fit(model, loader, loader, epochs=2, lr=0.01, **QUIET)
    assert equal(*models)
    p = gduq.predict(models[0], torch.utils.data.DataLoader(batches, batch_size=None))
    assert p.samples.shape == (1 if at is None else 4, 20, 3)
    assert p.target is not None
    assert torch.equal(p.target, torch.cat([g.y[:5] for g in batches]))
    if at is not None:
        assert models[0].sample(batches[0]).shape == (4, 5, 3)


# -- frozen parts --------------------------------------------------------------------------------


@pytest.mark.parametrize("task", ["graph", "node"])
def test_the_trunk_of_a_head_runs_once_over_all_data(
    task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = node_view() if task == "node" else View(graphs(13))
    calls = []
    forward, counts = GNN.forward, []
    monkeypatch.setattr(GNN, "forward", lambda self, graph: calls.append(1) or forward(self, graph))
    for epochs in (2, 9):
        calls.clear()
        model = gduq.anchor(gnn(task=task, head="mlp"), num_anchors=4)
        fit(model, data, data, epochs=epochs, batch_size=4, **QUIET)
        counts.append(len(calls))
    assert counts == [2, 2]  # the training rows and the validation rows


def test_a_head_on_a_frozen_network_learns_and_leaves_the_network_alone() -> None:
    net = gnn(head="mlp")
    before, model = copy.deepcopy(net), gduq.anchor(net, num_anchors=4)
    trunk = copy.deepcopy(model.trunk)
    history = fit(model, graphs(60), graphs(30, seed=4), **QUIET)  # no epochs: it knows itself
    assert 0 < len(history.records) <= 25
    assert history.seconds > sum(record["seconds"] for record in history.records)
    assert equal(net, before)
    assert equal(trunk, model.trunk)
    plain, better = (gduq.predict(m, graphs(60, seed=9)) for m in (net, model))
    assert metrics.nll(better) < metrics.nll(plain)


# -- ensembles and MC dropout --------------------------------------------------------------------


def test_recipes_are_each_members_own() -> None:
    """Members are trained as on their own, with their draws, masks and frozen parts."""
    data, options = (graphs(9), graphs(5, seed=2)), {"epochs": 2, "seed": 4, **QUIET}

    def members() -> list[nn.Module]:
        deep = gduq.anchor(gnn(head="mlp"), num_anchors=4, mask=0.2)
        return [deep, anchored(1, seed=1, draws=2), anchored(seed=2, mask=0.3), gnn(3)]

    together = gduq.Ensemble(members())
    history = fit(together, *data, **options)
    assert not together.training
    for i, alone in enumerate(members()):
        found = fit(alone, *data, **{**options, "seed": 4 + i})
        member = together.members[i]
        assert equal(alone, member if i < 3 else member.net)
        assert [r["loss"] for r in found.records] == [r["loss"] for r in history.members[i].records]
    inside = gduq.MCDropout(members()[0])
    fit(inside, *data, **options)
    assert equal(inside.net, together.members[0])


# -- bad input -----------------------------------------------------------------------------------


def planetoid() -> Data:
    data = copy.copy(node_view().graphs[0])
    data.train_mask = torch.arange(41) < 20
    data.val_mask = ~data.train_mask
    return data


def test_a_graph_with_masks_must_be_cut() -> None:
    data, net = planetoid(), Net(node_task=True)
    wrong: list[Any] = [data, [data], View(data), DataLoader([data])]
    for kind in wrong:
        with pytest.raises(InputError, match=r"View\(data, data.train_mask\)"):
            fit(net, kind, epochs=1, **QUIET)
        with pytest.raises(InputError, match=r"View\(data, data.val_mask\)"):
            fit(net, View(data, data.train_mask), kind, epochs=1, **QUIET)
    fit(net, View(data, data.train_mask), View(data, data.val_mask), epochs=1, **QUIET)


@pytest.mark.parametrize(
    "train",
    [
        [],
        DataLoader([], 2),
        View(node_view().graphs[0], torch.zeros(41, dtype=torch.bool)),
        graphs(6, classes=1),
        graphs(8, classes=4),
        [Data(x=g.x, edge_index=g.edge_index) for g in graphs(4)],
        [Data(x=g.x, edge_index=g.edge_index, y=g.y - 1) for g in graphs(8, classes=4)],
        [Data(x=g.x, edge_index=g.edge_index, y=g.y + 0.5) for g in graphs(4)],
        [Data(x=g.x, edge_index=g.edge_index, y=torch.zeros(1, 5)) for g in graphs(4)],
        [Data(x=g.x / 0, edge_index=g.edge_index, y=g.y) for g in graphs(4)],
        [torch.ones(3), torch.ones(3)],
        7,
        None,
    ],
)
def test_data_that_cannot_be_trained_on(train: Any) -> None:
    net = Net()
    before = copy.deepcopy(net)
    with pytest.raises(InputError):
        fit(net, train, epochs=1, **QUIET)
    assert equal(net, before)


WRONG: dict[str, list[Any]] = {
    "epochs": [-1, 1.5, True],
    "lr": [0.0, -1.0, float("nan"), float("inf")],
    "batch_size": [0],
    "weight_decay": [-1e-3],
    "milestones": [[0], [1.5]],
    "gamma": [0.0, 2.0],
    "patience": [0],
    "calibrate": ["both"],
    "seed": [-1, None],
    "class_weights": ["even", [1.0, 1.0], [1.0, 0.0, 1.0], [1.0, float("nan"), 1.0]],
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_settings(name: str) -> None:
    for value in WRONG[name]:
        with pytest.raises(InputError, match=name):
            fit(Net(), graphs(6), graphs(6), **{"epochs": 1, **QUIET, name: value})


@pytest.mark.parametrize("make", [Net, anchored])
def test_divergence_names_the_epoch(make: Callable[[], nn.Module]) -> None:
    model = make()
    with pytest.raises(InputError, match=r"in epoch \d+.*learning rate below"):
        fit(model, graphs(6), graphs(6), epochs=60, lr=1e308, **QUIET)
    assert not model.training
