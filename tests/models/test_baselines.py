"""Baselines: plain networks, ensembles, dropout, heads, Laplace, stacks; all with one face."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GAT, GCN, GATConv, GCNConv, GPSConv, Sequential

import gduq
from gduq import Ensemble, HeadEnsemble, LastLayerLaplace, MCDropout, Network, Recipe, Stack
from gduq.errors import InputError, NotFittedError
from gduq.graphs.view import View
from gduq.nn import GNN
from tests.training import cases as training_cases


def make_net(seed: int = 0, task: str = "graph", conv: str = "gin", **options: object) -> GNN:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        options = {"dropout": 0.5, "degree": [1, 2, 3, 4]} | options
        return GNN(4, 8, 3, num_layers=3, conv=conv, task=task, **options).double()


@pytest.fixture
def batch(graphs: list[Data]) -> Batch:
    return Batch.from_data_list(graphs)


def untouched(model: nn.Module, act: Callable[[], object]) -> object:
    """Run something, and check that it leaves model and global randomness as they were."""
    state = {k: v.clone() for k, v in model.state_dict().items()}
    modes = [m.training for m in model.modules()]
    random = torch.random.get_rng_state()
    result = act()
    assert torch.equal(random, torch.random.get_rng_state())
    assert [m.training for m in model.modules()] == modes
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    return result


# -- ensembles ---------------------------------------------------------------------------------


def test_an_ensemble_holds_one_hypothesis_a_member(batch: Batch) -> None:
    members = [make_net(seed) for seed in range(3)]
    ensemble = Ensemble(members).train()
    samples = untouched(ensemble, lambda: ensemble.sample(batch))
    for member, found in zip(members, samples, strict=True):
        torch.testing.assert_close(found, member.eval()(batch))
    p = gduq.predict(ensemble, batch)
    assert torch.equal(p.samples, samples)
    assert (p.epistemic > 0).all()


@pytest.mark.parametrize(
    "members",
    [
        [],
        [make_net(0), make_net(1), make_net(1)],
        make_net,
        make_net(0),
        nn.Sequential(make_net(0), make_net(1)),
        [make_net(0), "net"],
    ],
)
def test_bad_ensembles(members: object) -> None:
    """None, with equal weights, one network, no networks."""
    with pytest.raises(InputError):
        Ensemble(members)  # type: ignore[arg-type]


def test_members_differ_in_their_architecture_but_not_in_their_outputs(batch: Batch) -> None:
    assert Ensemble([make_net(0), make_net(0, conv="gcn")]).sample(batch).shape == (2, 7, 3)
    with pytest.raises(InputError):
        Ensemble([make_net(0), GNN(4, 8, 2, num_layers=2).double()]).sample(batch)


def test_an_ensemble_of_anchored_members(graphs: list[Data], batch: Batch) -> None:
    paper = Recipe.paper("graph", num_anchors=4)
    members = [gduq.anchor(make_net(s), recipe=paper, seed=s) for s in range(2)]
    ensemble = Ensemble([*members, make_net(5)])
    with pytest.raises(NotFittedError):
        ensemble.sample(batch)
    assert ensemble.fit_anchors(graphs) is ensemble
    samples = untouched(ensemble, lambda: ensemble.sample(batch))
    assert samples.shape == (4 + 4 + 1, 7, 3)
    torch.testing.assert_close(samples[4:8], members[1].sample(batch))
    ensemble.fit_anchors(graphs, k=2)
    assert ensemble.sample(batch).shape == (2 + 2 + 1, 7, 3)


# -- Monte Carlo dropout -----------------------------------------------------------------------


class Net(nn.Module):
    """A hand-written node network around one part that drops."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.first, self.norm, self.part = GCNConv(4, 8), nn.BatchNorm1d(8), part
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.norm(self.first(x, edge_index))
        return self.head(self.part(h, edge_index))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True)

    def forward(self, h: Tensor, edge_index: Tensor) -> Tensor:
        return self.inner(h[None], h[None], h[None], need_weights=False)[0][0]


class Ignoring(nn.Sequential):
    """Something that takes no edges."""

    def forward(self, h: Tensor, edge_index: Tensor) -> Tensor:
        return super().forward(h)


PARTS: dict[str, Callable[[], nn.Module]] = {
    "nn.Dropout": lambda: Ignoring(nn.ReLU(), nn.Dropout(0.5, inplace=True)),
    "GATConv": lambda: GATConv(8, 8, dropout=0.5),
    "attention": Attention,
    "GPSConv": lambda: GPSConv(8, GCNConv(8, 8), heads=2, dropout=0.5),
}


def make_part(name: str) -> Net:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        net = Net(PARTS[name]()).double()
    for module in net.modules():  # statistics of their own, so that a change would show
        if isinstance(module, nn.BatchNorm1d):
            module.running_mean.fill_(0.1)
            module.running_var.fill_(1.3)
    return net


@pytest.mark.parametrize("name", PARTS)
def test_samples_are_passes_in_training_mode_without_batch_statistics(
    name: str, node_graph: Data
) -> None:
    net = make_part(name)
    model = MCDropout(net, num_samples=3, seed=5)
    found = model.sample(node_graph)
    net.train()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.eval()
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(5)
        wanted = torch.stack([net(node_graph.x, node_graph.edge_index) for _ in range(3)])
    torch.testing.assert_close(found, wanted)


def test_a_network_without_dropout(node_graph: Data) -> None:
    for net in (GAT(4, 8, 2, 3), Net(Ignoring(nn.Dropout(0.0)))):
        with pytest.raises(InputError):
            MCDropout(net.double()).sample(node_graph)


@pytest.mark.parametrize("name", ["GATConv", "attention"])
@pytest.mark.parametrize("at", ["input", "norm", "head"])
def test_dropout_around_any_anchored_model(at: str, name: str, node_graph: Data) -> None:
    net = make_part(name)
    recipe = Recipe.thawed(at=at, num_anchors=4, init="random")
    model = MCDropout(gduq.anchor(net, recipe=recipe), num_samples=3)
    model.fit_anchors(node_graph)
    samples = untouched(model, lambda: model.sample(node_graph)).view(3, 4, 9, 3)
    for passes in (0, 1):  # masks, anchors
        assert (samples.std(dim=passes) > 0).any(dim=-1).any(dim=0).all()


# -- models on a frozen trunk ------------------------------------------------------------------


def many(count: int = 40, seed: int = 0) -> list[Data]:
    return training_cases.graphs(count, seed=seed)


def trained_net(head: str = "mlp") -> GNN:
    net = make_net(head=head, dropout=0.0)
    gduq.fit(net, many(), epochs=3, lr=0.01, progress=False)
    return net


@pytest.mark.parametrize(("head", "mask"), [("mlp", 0.3), ("linear", 0.0)])
def test_a_head_ensemble_trains_heads_of_its_own(head: str, mask: float) -> None:
    net = trained_net(head)
    before = {k: v.clone() for k, v in net.state_dict().items()}
    model = HeadEnsemble(net, size=4, mask=mask)
    for unfit in (model, LastLayerLaplace(net)):
        with pytest.raises(NotFittedError):
            unfit.sample(Batch.from_data_list(many(3)))
    history = gduq.fit(model, many(), many(24, 5), progress=False)
    assert len(history.members) == 4
    p = gduq.predict(model, many(24, 5), features=True)
    assert p.samples.shape == (4, 24, 3)
    assert (p.epistemic > 0).all()
    rows = torch.stack([head(p.features)[0] for head in model.heads]) / model.temperature
    torch.testing.assert_close(p.samples, rows)
    assert gduq.metrics.accuracy(p) > 0.5  # chance is 1/3
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())


def test_masked_heads_know_less_of_what_is_far() -> None:
    """Differences of rows are trained to be uniform; without masking nobody has seen them."""
    net, sure = trained_net(), []
    for mask in (0.0, 0.5):
        model = HeadEnsemble(net, size=3, mask=mask)
        gduq.fit(model, many(90), many(24, 5), epochs=30, lr=0.01, progress=False)
        h = model.features(Batch.from_data_list(many(90)))
        far = torch.cat([head(h - h.roll(1, dims=0)) for head in model.heads])
        sure.append(far.softmax(dim=-1).amax(dim=-1).mean())
    assert sure[1] < sure[0] - 0.1


def test_a_network_without_a_head_and_layers_is_refused(node_graph: Data) -> None:
    net = Sequential("x", [(nn.Linear(4, 3).double(), "x -> x"), (lambda x: x.cumsum(0), "x -> x")])
    for kind in (LastLayerLaplace, HeadEnsemble):
        gduq.fit(kind(GCN(4, 8, 2, 3).double()), View(node_graph, torch.arange(9)))
        with pytest.raises(InputError):
            gduq.fit(kind(net), View(node_graph, torch.arange(9)))


# -- stacks ------------------------------------------------------------------------------------


def test_a_stack_is_a_weighted_mixture(batch: Batch) -> None:
    members = [Network(make_net(0)), Ensemble([make_net(1), make_net(2)])]
    p = gduq.predict(Stack(members, [0.7, 0.3]), batch)
    assert p.weights is not None
    assert p.weights.tolist() == pytest.approx([0.7, 0.15, 0.15])
    one, two = (gduq.predict(member, batch).probs for member in members)
    torch.testing.assert_close(p.probs, 0.7 * one + 0.3 * two)
    nested = Stack([Stack(members, [0.7, 0.3]), Network(make_net(5))], [0.5, 0.5])
    assert gduq.predict(nested, batch).weights.tolist() == pytest.approx([0.35, 0.075, 0.075, 0.5])


def test_members_of_a_stack_keep_their_temperatures(batch: Batch) -> None:
    members = [Network(make_net(0)), Network(make_net(1))]
    raw = [member.sample(batch).detach() for member in members]
    members[0].set_temperature(2.0, "clean")
    stack = Stack(members, [0.5, 0.5])
    torch.testing.assert_close(stack.sample(batch), torch.cat([raw[0] / 2, raw[1]]))
    stack.set_temperature(4.0, "clean")
    torch.testing.assert_close(stack.sample(batch), torch.cat([raw[0] / 8, raw[1] / 4]))


def test_the_trunk_of_a_stack_runs_once(batch: Batch) -> None:
    plain = Network(trained_net())
    assert plain.trunk is not None
    trunk = plain.trunk.requires_grad_(False)
    heads = [
        HeadEnsemble(trunk, 2),
        LastLayerLaplace(trunk, 3),
        gduq.Anchored(trunk, Recipe.head(num_anchors=4, mask=0.1)),
    ]
    for model in heads:
        gduq.fit(model, many(), many(24, 5), progress=False)
    calls = []
    first, *_ = trunk.net.layers
    first.register_forward_hook(lambda *_: calls.append(1))
    stack = Stack([plain, *heads], [0.25] * 4)
    samples = stack.sample(batch)
    assert len(calls) == 1
    alone = torch.cat([model.sample(batch) for model in (plain, *heads)])
    torch.testing.assert_close(samples, alone)
    assert len(calls) == 5
    assert torch.equal(stack.features(batch), plain.features(batch))


@pytest.mark.parametrize("shares", [[1.0], [0.7, 0.7], [1.5, -0.5], [float("nan"), 1.0]])
def test_bad_shares(shares: list[float]) -> None:
    with pytest.raises(InputError):
        Stack([Network(make_net(0)), Network(make_net(1))], shares)
