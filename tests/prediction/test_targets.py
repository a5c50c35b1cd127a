"""What the outputs of a network mean: classes, labels with gaps, values; told, learned, saved."""

from __future__ import annotations

import copy
import math
from functools import cache, partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv, global_mean_pool

import gduq
from gduq.errors import InputError
from gduq.prediction import (
    Classes,
    ClassPrediction,
    LabelPrediction,
    Labels,
    TargetSample,
    ValuePrediction,
    Values,
    resolve_target,
    target_from,
)

NAN = math.nan


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def look(y: Tensor, outputs: int) -> TargetSample:
    """As of a network that says nothing yet."""
    return TargetSample(y, torch.zeros(len(y), outputs, dtype=torch.float64), y)


def values(y: Tensor, outputs: int = 2, **more) -> Values:
    return Values(**more).fit(look(y, outputs))


# -- telling -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("y", "outputs", "given"),
    [
        (torch.eye(3), 3, None),
        (torch.tensor([0.5, NAN]), 1, None),
        (torch.tensor([0.5, math.inf]), 1, None),
        (torch.tensor([2.5, 2.5]), 1, None),
        (torch.tensor([1.0, 2.0, math.inf]), 1, None),
        (torch.tensor([0.0, NAN, 1.0]), 1, None),
        (torch.tensor([-1, 1, 0]), 2, None),
        (torch.tensor([[-1.0, 1.0], [1.0, 0.0]]), 2, None),
        (1e-30 * torch.tensor([1.5, 2.0]).double(), 1, None),
        (1e8 + torch.tensor([1.5, 2.0]).double(), 1, None),
        (torch.tensor([0.5, 1.5]), 3, None),
        (torch.tensor([[0.0, NAN], [1.0, 0.0]]), 2, None),
        (torch.tensor([[0.0, NAN], [1.0, NAN]]), 2, None),
        (torch.tensor([[0.0, 1.0], [1.0, NAN], [0.0, 0.0]]), 3, None),
        (torch.tensor([0.5, 1.5]), 1, "labels"),
        (torch.tensor([0, 1]), 2, "numbers"),
        (torch.tensor([0, 1]), 3, Classes(2)),
        (torch.tensor([0.5, 1.5]), 1, Values(("a", "b"))),
    ],
)
def test_what_does_not_fit_is_one_sentence(y, outputs, given) -> None:
    with pytest.raises(InputError) as error:
        resolve_target(look(y, outputs), given)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("trained", [False, True])
def test_units_of_the_network_are_told(trained: bool) -> None:
    y = 100 + 5 * draw(50)
    good = (y + draw(50, seed=1)).unsqueeze(1)
    assert Values().fit(TargetSample(y, good, y, trained)).raw
    assert not Values().fit(TargetSample(y, (good - 100) / 5, y, trained)).raw
    assert not Values().fit(TargetSample(y, 0.1 * draw(50, 1), y)).raw  # a fresh network
    with pytest.warns(UserWarning, match="explains nothing"):
        Values().fit(TargetSample(y, good * 1000, y, trained=True))


# -- values --------------------------------------------------------------------------------------


def test_losses_are_gaussian_likelihoods() -> None:
    y = 3 + 2 * draw(20)
    target = values(y)
    outputs, truth = draw(4, 20, 2, seed=1), target.check(y, "train")
    own = target.losses(outputs, truth)
    normal = torch.distributions.Normal(outputs[..., 0], (outputs[..., 1] / 2).exp())
    assert torch.allclose(own.squeeze(-1), -normal.log_prob(truth[:, 0]))
    assert truth.mean().abs() < 1e-9
    assert truth.std(correction=0) == pytest.approx(1)


def test_masked_rows_know_the_marginal() -> None:
    y = 3 + 2 * draw(5000)
    target, outputs = values(y), torch.tensor([[0.3, -0.4]], dtype=torch.float64)
    expected = target.losses(outputs.expand(5000, 2), target.check(y, "train")).mean()
    assert float(target.masked_losses(outputs)) == pytest.approx(float(expected), rel=1e-6)
    assert target.masked_losses(0 * outputs) < target.masked_losses(outputs)


@pytest.mark.parametrize("factor", [0.5, 3.0])
@pytest.mark.parametrize("weights", [None, torch.tensor([0.7, 0.1, 0.2])])
def test_a_temperature_scales_all_deviations(factor, weights) -> None:
    y = draw(30)
    target, outputs = values(y), draw(3, 30, 2, seed=1)
    before = target.prediction(outputs, weights=weights)
    scaled = target.scaled(outputs, torch.tensor(factor), weights)
    after = target.prediction(scaled, weights=weights)
    assert torch.allclose(after.mean, before.mean)
    assert torch.allclose(after.std, factor * before.std)
    assert torch.allclose(after.epistemic, factor**2 * before.epistemic)


def test_best_temperature_in_closed_form_and_in_a_mixture() -> None:
    y = draw(400)
    target = values(y)
    truth = target.check(y, "train")
    outputs = torch.cat([truth + 0.3 * draw(400, 1, seed=2), torch.zeros_like(truth)], 1)[None]
    squares = (truth - outputs[0, :, :1]).square().sum()
    closed = math.sqrt((float(squares) + 1) / 401)  # one row says that deviations are right
    assert target.best_temperature([(outputs, truth, 1.0)]) == pytest.approx(closed, rel=1e-3)
    several = torch.cat([outputs, outputs + 0.1 * draw(1, 400, 2, seed=3)])
    found = target.best_temperature([(several, truth, 0.5), (several, truth, 0.5)])
    tried = np.exp(np.linspace(-1, 1, 21)) * found
    loss = [float(target.nll(target.scaled(several, torch.tensor(t)), truth).mean()) for t in tried]
    assert int(np.argmin(loss)) == 10


def test_noise_of_a_network_that_gives_means_only() -> None:
    y = 10 + 4 * draw(2000)
    target = values(y, outputs=1)
    truth = target.check(y, "train")
    means = truth[None] + 0.5 * draw(1, 2000, 1, seed=1)
    with_noise = target.with_noise(target.to_params(means), truth)
    p = with_noise.prediction(with_noise.to_params(means), y)
    assert float(p.std[0]) == pytest.approx(2.0, rel=0.05)
    assert with_noise.with_noise(with_noise.to_params(means), truth).noise == with_noise.noise
    assert target_from(with_noise.spec()) == with_noise
    assert with_noise.combined().noise is None


def test_predictions_are_in_the_users_units() -> None:
    y = torch.stack([5 + draw(50), 1000 * draw(50, seed=1)], dim=1)
    target = values(y, outputs=4, names=("a", "b"), units=("K", "Pa"))
    truth = target.check(y, "train")
    exact = torch.cat([truth, torch.full_like(truth, -20.0)], dim=1)[None]
    p = target.prediction(target.to_params(exact), y)
    assert torch.allclose(p.mean, y)
    assert (p.names, p.units) == (("a", "b"), ("K", "Pa"))
    assert torch.allclose(p.column(1).mean, y[:, 1])


def test_a_gap_counts_nowhere() -> None:
    y = torch.stack([5 + draw(50), 1000 * draw(50, seed=1)], dim=1)
    y[::2, 1] = NAN
    both, alone = values(y, outputs=4), values(y[:, 0])
    assert both.shift[0] == pytest.approx(alone.shift[0])
    assert both.scale[1] == pytest.approx(float(y[1::2, 1].std(correction=0)))
    outputs, truth = draw(3, 50, 4, seed=2), both.check(y, "train")
    first = alone.nll(outputs[..., [0, 2]], truth[:, :1])
    assert torch.allclose(both.nll(outputs, truth)[::2], first[::2])
    losses, counts = both.weighted_losses(outputs, truth)
    assert counts[0].tolist() == [0.5, 1.0] * 25
    assert bool(losses.isfinite().all())
    assert both.usable(torch.full((3, 2), NAN)).tolist() == [False] * 3
    with pytest.raises(InputError):
        values(torch.tensor([[1.0, 2.0], [math.inf, NAN], [2.0, 3.0]]), outputs=4)


# -- labels --------------------------------------------------------------------------------------


def test_label_losses_over_what_is_known() -> None:
    y = torch.tensor([[1.0, NAN, 0.0], [NAN, NAN, 1.0], [0.0, 1.0, NAN], [1.0, 0.0, 0.0]]).double()
    target = Labels(("a", "b", "c")).fit(look(y, 3))
    assert target.rates == pytest.approx((2 / 3, 1 / 2, 1 / 3))
    outputs = draw(2, 4, 3)
    found = target.weighted_losses(outputs, y)[0] / target.row_weights(y)
    bce = nn.functional.binary_cross_entropy_with_logits
    assert found[1, 0] == pytest.approx(float(bce(outputs[1, 0, [0, 2]], y[0, [0, 2]])))
    assert target.row_weights(y).tolist() == pytest.approx([2 / 3, 1 / 3, 2 / 3, 1])
    assert torch.allclose(target.nll(outputs[:1], y), found[0])
    best = torch.tensor(target.rates).double().logit().expand(1, 3)
    assert bool((target.masked_losses(best) < target.masked_losses(best + 0.1)).all())
    assert target_from(target.spec()) == target


def test_label_temperature_is_that_of_two_classes() -> None:
    logits, generator = 4 * draw(3, 300, 1), torch.Generator().manual_seed(1)
    y = torch.bernoulli((logits.mean(0) / 3).sigmoid(), generator=generator)
    labels = Labels().fit(TargetSample(y, logits[0], y))
    classes = Classes(2, one_logit=True)
    expected = classes.best_temperature([(logits, y[:, 0].long(), 1.0)])
    assert labels.best_temperature([(logits, y, 1.0)]) == pytest.approx(expected, rel=1e-6)


# -- predictions ---------------------------------------------------------------------------------


def test_mixture_of_gaussians_is_exact() -> None:
    samples, share = draw(4, 6, 2), torch.tensor([0.1, 0.2, 0.3, 0.4])
    p = ValuePrediction(samples, weights=share)
    assert torch.allclose(p.variance, p.aleatoric + p.epistemic)
    for q in (0.01, 0.5, 0.97):
        assert torch.allclose(p.cdf(p.quantile(q)), torch.full((6,), q).double(), atol=1e-9)
    grid = torch.linspace(-40, 40, 40_001).double()
    density = torch.stack([p.log_prob(float(x)) for x in grid[::40]]).exp()
    assert torch.allclose(torch.trapezoid(density, grid[::40], dim=0), torch.ones(6).double(),
                          atol=1e-6)  # fmt: skip
    mean = torch.trapezoid(density * grid[::40, None], grid[::40], dim=0)
    assert torch.allclose(mean, p.mean, atol=1e-5)
    low, high = p.interval(0.8)
    assert torch.allclose(p.cdf(high) - p.cdf(low), torch.full((6,), 0.8).double())


def test_labels_are_columns_of_two_classes() -> None:
    y = torch.tensor([[1.0, NAN], [0.0, 1.0], [1.0, 0.0]])
    p = LabelPrediction(draw(4, 3, 2), y, ("a", "b"), novelty=torch.tensor([0.1, 0.2, 0.3]))
    one = p.column(1)
    assert isinstance(one, ClassPrediction)
    assert one.names == ("no b", "b")
    assert one.target.tolist() == [1, 0]
    assert torch.allclose(one.probs[:, 1], p.probs[1:, 1])
    assert torch.allclose(one.epistemic, p.epistemic[1:, 1])
    assert torch.allclose(one.novelty, torch.tensor([0.2, 0.3]))


GAPS = torch.tensor([[1.0, NAN]] * 5)


@pytest.mark.parametrize(
    "p",
    [
        ValuePrediction(draw(3, 5, 4), draw(5, 2), ("a", "b"), ("K", "Pa"), novelty=torch.rand(5)),
        LabelPrediction(draw(3, 5, 2), GAPS, ("a", "b")),
    ],
)
def test_files_and_parts(p, tmp_path) -> None:
    p.to_npz(tmp_path / "p.npz")
    for again in (type(p).from_npz(tmp_path / "p.npz"), type(p).concatenate([p[:2], p[2:]])):
        assert type(again) is type(p)
        assert again.names == p.names
        assert torch.equal(again.samples, p.samples)
    assert len(p.to_pandas()) == 5
    with pytest.raises(InputError):
        ClassPrediction.concatenate([p, ClassPrediction(torch.zeros(3, 5, 4))])


@pytest.mark.parametrize(
    "make",
    [
        lambda: ValuePrediction(torch.zeros(2, 3, 3)),
        lambda: ValuePrediction(torch.zeros(3, 2), torch.tensor([1.0, math.inf, 0.0])),
        lambda: ValuePrediction(torch.zeros(3, 2), torch.zeros(2)),
        lambda: ValuePrediction(torch.zeros(3, 2)).quantile(1.0),
        lambda: ValuePrediction(torch.zeros(3, 2), names=("a", "b")),
        lambda: LabelPrediction(torch.zeros(3, 2), torch.full((3, 2), 2.0)),
        lambda: LabelPrediction(torch.zeros(3, 2), torch.zeros(3)),
    ],
)
def test_bad_predictions(make) -> None:
    with pytest.raises(InputError):
        make()


# -- a network of one's own ----------------------------------------------------------------------


class Own(nn.Module):
    """Two convolutions and a head; ends in a sigmoid if asked to."""

    def __init__(self, outputs: int, deep: bool = True, sigmoid: bool = False) -> None:
        super().__init__()
        self.conv = GCNConv(3, 16)
        layers = [nn.Linear(16, 16), nn.ReLU()] if deep else []
        self.head = nn.Sequential(*layers, nn.Linear(16, outputs))
        self.sigmoid = sigmoid

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor | None = None) -> Tensor:
        h = global_mean_pool(self.conv(x, edge_index).relu(), batch)
        return self.head(h).sigmoid() if self.sigmoid else self.head(h)


def graphs(kind: str, count: int = 80, seed: int = 0) -> list[Data]:
    """Graphs whose truth is a noisy function of their mean features."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for _ in range(count):
        nodes = int(torch.randint(2, 6, (1,), generator=generator))
        x = torch.randn(nodes, 3, generator=generator)
        edges = torch.stack([torch.arange(nodes), torch.arange(nodes).roll(1)])
        truth = x.mean(0, keepdim=True) + 0.2 * torch.randn(1, 3, generator=generator)
        if kind == "labels":
            y = (truth > 0).float()
            y[0, int(torch.randint(3, (1,), generator=generator))] = NAN
        else:
            y = 50 + 10 * truth[:, : 2 if kind == "several values" else 1]
        made.append(Data(x=x, edge_index=edges, y=y if kind != "values" else y[0]))
    return made


@cache
def _trained(kind: str, outputs: int, deep: bool) -> Own:
    torch.manual_seed(0)
    net = Own(outputs, deep)
    gduq.fit(net, graphs(kind), graphs(kind, 40, 1), epochs=20, lr=0.02, progress=False)
    return net


def trained(kind: str, outputs: int = 1, deep: bool = True) -> Own:
    """A network that `gduq.fit` has trained; a copy, so that tests may change it."""
    known = copy.deepcopy(gduq.models.as_predictor(_trained(kind, outputs, deep)))
    known.note()  # a copy of the network alone would be a plain network
    return known.net


def in_units_of_y() -> Own:
    """The same, as somebody else would have trained it, on ``y`` as it is."""
    net, raw = trained("values"), Own(1)
    target = gduq.models.as_predictor(net).target
    with torch.no_grad():
        net.head[-1].weight.mul_(target.scale[0])
        net.head[-1].bias.mul_(target.scale[0]).add_(target.shift[0])
    raw.load_state_dict(net.state_dict())
    return raw


@pytest.fixture
def train() -> list[Data]:
    return graphs("values")


@pytest.fixture
def val() -> list[Data]:
    return graphs("values", 40, 1)


CASES = [
    ("values", 1, True),
    ("values", 2, True),
    ("several values", 2, False),
    ("several values", 4, False),
    ("labels", 3, True),
]


@pytest.mark.parametrize(("kind", "outputs", "deep"), CASES)
def test_anchor_fit_predict_save(kind: str, outputs: int, deep: bool, tmp_path) -> None:
    train, val, test = graphs(kind), graphs(kind, 40, 1), graphs(kind, 60, 2)
    net = trained(kind, outputs, deep)
    plain = gduq.predict(net, test)
    model = gduq.anchor(net)
    gduq.fit(model, train, val, progress=False)
    p = gduq.predict(model, test)
    assert p.kind == ("labels" if kind == "labels" else "values")
    assert (p.num_samples, p.calibrated) == (10, "shifted")
    assert p.novelty is not None
    if p.kind == "values":
        spread = torch.cat([g.y.view(1, -1) for g in test]).std(dim=0)
        for found in (plain, p):
            error = (found.mean - found.target).square().mean(dim=0).sqrt()
            assert bool((error < 0.8 * spread).all())
            low, high = found.interval(0.9)
            held = ((found.target >= low) & (found.target <= high)).double().mean()
            assert 0.75 <= held <= 1.0
    else:
        known = p.known
        assert ((p.label == (p.target > 0.5)) & known).sum() / known.sum() > 0.75
    gduq.save(model, tmp_path / "m")
    again, _ = gduq.load(tmp_path / "m", net=Own(outputs, deep))
    assert again.target == model.target
    assert torch.equal(gduq.predict(again, test).samples, p.samples)


@pytest.mark.parametrize("kind", ["values", "several values"])
@pytest.mark.parametrize(
    "make", [gduq.anchor, partial(gduq.HeadEnsemble, size=3), gduq.LastLayerLaplace]
)
def test_values_with_gaps(make, kind: str) -> None:
    train, val, test = (graphs(kind, n, s) for s, n in enumerate((120, 60, 60)))
    width = train[0].y.numel()
    for part in (train, val, test):
        for i, graph in enumerate(part):
            graph.y = graph.y.masked_fill(torch.tensor([i % 3 == 0, i % 6 == 0])[:width], NAN)
    torch.manual_seed(0)
    net = Own(width)
    gduq.fit(net, train, val, epochs=20, lr=0.02, progress=False)
    model = make(net)
    gduq.fit(model, train, val, progress=False)
    p = gduq.predict(model, test, batch_size=1)
    assert p.known.sum(dim=0).tolist() == [40, 50][:width]
    assert gduq.predict(model, test[::6]).target is None  # nothing is known of these
    for t, one in enumerate(p.parts().values()):
        assert torch.equal(one.target, p.target.view(60, -1)[p.known[:, t], t])
        assert gduq.metrics.r2(one) > 0.4
        assert 0.7 <= gduq.metrics.coverage(one, 0.9) <= 1.0
    found = gduq.evaluate({"id_val": p, "id_test": p}, resamples=20)
    assert set(found.table["rows"]) >= {40}


def test_a_network_trained_in_the_units_of_y(train, val) -> None:
    standard = gduq.predict(trained("values"), val).mean
    raw = in_units_of_y()
    gduq.fit(raw, train, val, epochs=0, progress=False)
    assert torch.allclose(gduq.predict(raw, val).mean, standard, rtol=1e-4)
    model = gduq.anchor(raw)
    before = [p.clone() for p in raw.parameters()]
    gduq.fit(model, train, val, progress=False)
    assert all(torch.equal(a, b) for a, b in zip(before, raw.parameters(), strict=True))
    p = gduq.predict(model, val)
    assert (p.mean - p.target).square().mean() < 1.2 * (standard - p.target).square().mean()


def test_a_widened_head_starts_as_the_network(train, val) -> None:
    net = trained("values")
    model = gduq.anchor(net)
    gduq.fit(model, train, val, epochs=1, lr=1e-9, calibrate=None, progress=False)
    p, plain = gduq.predict(model, val), gduq.predict(net, val)
    assert torch.allclose(p.mean, plain.mean, rtol=1e-3)
    error = (plain.mean - plain.target).square().mean().sqrt()
    assert torch.allclose(p.aleatoric.sqrt(), error.expand_as(p.std), rtol=1e-2)


def test_networks_that_do_not_go_with_y_are_refused() -> None:
    flat = [Data(x=g.x, edge_index=g.edge_index, y=g.y[0]) for g in graphs("several values", 8)]
    for model, data in [(gduq.anchor(Own(2)), flat), (Own(1, sigmoid=True), graphs("values"))]:
        with pytest.raises(InputError):
            gduq.fit(model, data, epochs=1, progress=False)
    with pytest.raises(InputError):
        gduq.predict(Own(1), graphs("values", 5))  # before fit


# -- what a second look found --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (gduq.anchor, lambda y: (y > 50).long()),
        (lambda net: gduq.HeadEnsemble(net, size=3), lambda y: 1000 * y),
    ],
)
@pytest.mark.filterwarnings("ignore")  # the network knows nothing of the new units
def test_a_second_fit_with_another_target_starts_the_head_anew(make, change, train, val) -> None:
    others = [
        [Data(x=g.x, edge_index=g.edge_index, y=change(g.y)) for g in part] for part in (train, val)
    ]
    again, fresh = (make(trained("values")) for _ in range(2))
    gduq.fit(again, train, val, progress=False)
    for model in (again, fresh):
        gduq.fit(model, *others, progress=False)
    one, two = (gduq.predict(model, others[1]) for model in (again, fresh))
    assert one.kind == two.kind
    assert torch.allclose(one.samples, two.samples, rtol=1e-3, atol=1e-3)


def test_a_network_that_ends_in_softplus_works_in_the_units_of_y(train, val) -> None:
    class Positive(Own):
        def forward(self, x, edge_index, batch=None):
            return nn.functional.softplus(super().forward(x, edge_index, batch))

    for graph in (*train, *val):
        graph.y = graph.y / 10
    torch.manual_seed(0)
    net = Positive(1)
    gduq.fit(net, train, val, epochs=20, lr=0.05, progress=False)
    models = [gduq.anchor(net), gduq.HeadEnsemble(net, size=3)]
    for model in models:
        gduq.fit(model, train, val, progress=False)
    for model in (net, *models):
        p = gduq.predict(model, val)
        assert float(p.mean.min()) < float(p.target.mean()) - 0.3 * float(p.target.std())


def test_rows_without_known_labels() -> None:
    train, val = graphs("labels", 40), graphs("labels", 20, 1)
    for graph in train[:28]:
        graph.y = torch.full((1, 3), NAN)
    net = Own(3)
    history = gduq.fit(net, train, val, epochs=2, batch_size=4, progress=False)
    assert all(math.isfinite(record["loss"]) for record in history.records)
    model = gduq.anchor(net)
    gduq.fit(model, train, val, batch_size=2, progress=False)
    with pytest.raises(InputError):
        gduq.fit(Own(3), train, train[:20], epochs=1, progress=False)
    y = torch.tensor([[0.0], [1.0], [NAN], [NAN]])
    assert Labels(rates=(0.5,)).figures(torch.zeros(1, 4, 1), y)["val_loss"] == pytest.approx(
        math.log(2)
    )


def test_validation_values_in_other_units_are_said(train, val) -> None:
    for graph in val:
        graph.y = graph.y - 273.15
    with pytest.warns(UserWarning, match="same units"):
        gduq.fit(Own(1), train, val, epochs=1, progress=False)


def test_small_and_large_units() -> None:
    for unit in (1e-12, 1e12):
        y = unit * draw(50)
        target = values(y.float())
        samples = torch.cat([0.3 * draw(3, 50, 1), torch.zeros(3, 50, 1) - 1], -1).float()
        p = target.prediction(samples, y.float())
        assert bool((p.std > 0.1 * unit).all())
        assert bool((p.std < 10 * unit).all())
