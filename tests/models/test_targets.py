"""Baselines and `choose` for values and labels: closed forms, mixtures, and files."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

import gduq
from gduq import Ensemble, HeadEnsemble, LastLayerLaplace, MCDropout, Stack
from gduq.nn import GNN
from gduq.prediction import Labels, Values
from gduq.shifts.corruptions import shifted_copies

QUIET: dict[str, Any] = {"progress": False}
COLUMNS = torch.tensor([[1.0, -1.0, 0.0, 0.0], [0.0, 0.0, 2.0, 0.5]])
SHIFT, SCALE = torch.tensor([50.0, -1.0]), torch.tensor([10.0, 0.2])


def data(count: int, seed: int, kind: str) -> list[Data]:
    """Rings whose mean features tell two values with noise, or whether these are large."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(count):
        size = int(torch.randint(4, 8, (1,), generator=generator))
        x = torch.randn(size, 4, generator=generator, dtype=torch.float64)
        ring = torch.stack([torch.arange(size), torch.arange(size).roll(1)])
        noise = 0.2 * torch.randn(2, generator=generator, dtype=torch.float64)
        y = (x.mean(dim=0) @ COLUMNS.T.double() + noise).unsqueeze(0)
        if kind == "labels":
            y = (y > 0).double()
            if torch.rand((), generator=generator) < 0.3:
                y[0, 1] = torch.nan
        else:
            y = SHIFT + SCALE * y
        found.append(Data(x=x, edge_index=torch.cat([ring, ring.flip(0)], dim=1), y=y))
    return found


def gnn(outputs: int, seed: int = 0, **options: Any) -> GNN:
    torch.manual_seed(seed)
    return GNN(
        4, 8, outputs, num_layers=2, conv="gin", head="mlp", dropout=0.05, **options
    ).double()


@functools.cache
def _trained(kind: str, outputs: int) -> GNN:
    net = gnn(outputs)
    gduq.fit(net, data(60, 1, kind), data(40, 2, kind), epochs=12, lr=0.02, **QUIET)
    return net.eval()


def trained(kind: str, outputs: int = 2) -> GNN:
    return copy.deepcopy(_trained(kind, outputs))


def fitted(model: nn.Module, kind: str, **options: Any) -> Any:
    gduq.fit(model, data(60, 1, kind), data(40, 2, kind), **QUIET, **options)
    return model


def in_units_of_y(net: GNN, target: Values) -> GNN:
    """The same network with a last layer that gives user units."""
    other = copy.deepcopy(net)
    last = [m for m in other.modules() if isinstance(m, nn.Linear)][-1]
    shift, scale = torch.tensor(target.shift), torch.tensor(target.scale)
    with torch.no_grad():
        last.weight[:2] *= scale.unsqueeze(1)
        last.bias[:2] = last.bias[:2] * scale + shift
        last.bias[2:] += 2 * scale.log()[: len(last.bias) - 2]
    return other


# -- Laplace -------------------------------------------------------------------------------------


def wide(model: LastLayerLaplace, graphs: list[Data]) -> Tensor:
    """What the last layer reads, with a 1 for the bias."""
    phi = model.lead(model.features(Batch.from_data_list(graphs)))
    return torch.cat([phi, torch.ones(len(phi), 1)], dim=1).detach()


@pytest.mark.parametrize("outputs", [2, 4])
def test_laplace_of_values_is_bayesian_linear_regression(outputs: int) -> None:
    net, new = trained("values", outputs), data(9, 7, "values")
    model = fitted(LastLayerLaplace(net), "values", calibrate=None)
    p, posterior = gduq.predict(model, new), model.posterior
    target = model.target
    assert isinstance(target, Values)
    train, rows, scale = wide(model, data(60, 1, "values")), wide(model, new), target.scale
    own = net(Batch.from_data_list(data(60, 1, "values"))).detach()
    for t in range(2):
        v = own[:, 2 + t].exp() if outputs == 4 else posterior.noise[t].expand(60)
        precision = train.T @ (train / v.unsqueeze(1)) + posterior.precision[t] * torch.eye(9)
        wanted = ((rows @ torch.linalg.inv(precision)) * rows).sum(dim=1) * scale[t] ** 2
        torch.testing.assert_close(p.epistemic[:, t], wanted)
    one = net(Batch.from_data_list(new)).detach()
    shift = torch.tensor(target.shift)
    torch.testing.assert_close(p.mean, one[:, :2] * torch.tensor(scale) + shift)
    variance = one[:, 2:].exp() if outputs == 4 else posterior.noise.expand(9, 2)
    torch.testing.assert_close(p.aleatoric, variance * torch.tensor(scale).square())
    torch.testing.assert_close(p.variance, p.aleatoric + p.epistemic)


def test_spaced_means_have_the_moments_of_one_gaussian() -> None:
    net, new = trained("values"), data(9, 7, "values")
    spaced, alone = (
        gduq.predict(fitted(LastLayerLaplace(net, k), "values", calibrate=None), new)
        for k in (10, 1)
    )
    assert spaced.num_samples == 10
    assert (alone.epistemic == 0).all()
    torch.testing.assert_close(alone.mean, spaced.mean)
    torch.testing.assert_close(alone.std, spaced.std)
    torch.testing.assert_close(alone.quantile(0.9), spaced.quantile(0.9), rtol=1e-2, atol=0.0)


def test_the_units_of_a_network_do_not_matter() -> None:
    net, new = trained("values", 4), data(9, 7, "values")
    model = fitted(LastLayerLaplace(net), "values")
    other = fitted(LastLayerLaplace(in_units_of_y(net, model.target)), "values")
    assert other.target.raw
    assert not model.target.raw
    one, two = gduq.predict(model, new), gduq.predict(other, new)
    torch.testing.assert_close(two.mean, one.mean)
    torch.testing.assert_close(two.std, one.std, rtol=1e-5, atol=0.0)
    torch.testing.assert_close(two.epistemic, one.epistemic, rtol=1e-5, atol=0.0)


# -- all of them ---------------------------------------------------------------------------------

MODELS: dict[str, Callable[[str, int], nn.Module]] = {
    "ensemble": lambda kind, outputs: Ensemble([gnn(outputs, seed) for seed in (0, 1)]),
    "dropout": lambda kind, outputs: MCDropout(gnn(outputs), num_samples=4),
    "heads": lambda kind, outputs: HeadEnsemble(trained(kind, outputs), 2),
    "laplace": lambda kind, outputs: LastLayerLaplace(trained(kind, outputs), 4),
}
CASES = [("values", 2), pytest.param("values", 4, marks=pytest.mark.slow), ("labels", 2)]


@pytest.mark.parametrize(("kind", "outputs"), CASES)
@pytest.mark.parametrize("name", MODELS)
def test_every_baseline_answers_for_every_target(
    name: str, kind: str, outputs: int, tmp_path: Path
) -> None:
    model = MODELS[name](kind, outputs)
    options = {} if name in ("heads", "laplace") else {"epochs": 12, "lr": 0.02}
    fitted(model, kind, **options)
    new = data(80, 9, kind)
    p = gduq.predict(model, new)
    assert p.kind == kind
    assert p.calibrated == "shifted"
    moderated = name == "laplace" and kind == "labels"  # one hypothesis
    assert p.num_samples == (1 if moderated else 4 if name in ("dropout", "laplace") else 2)
    assert moderated or (p.epistemic.mean(dim=0) > 0).all()
    if kind == "values":
        torch.testing.assert_close(p.variance, p.aleatoric + p.epistemic)
        assert ((p.mean - p.target).square().mean(dim=0) < 0.9 * p.target.var(dim=0)).all()
        low, high = p.interval(0.9)
        assert 0.75 < ((low <= p.target) & (p.target <= high)).double().mean() <= 1
    else:
        torch.testing.assert_close(p.entropy, p.aleatoric + p.epistemic)
        assert (((p.label == p.target) & p.known).sum(dim=0) > 0.6 * p.known.sum(dim=0)).all()
    gduq.save(model, tmp_path / "bundle")
    again = gduq.predict(gduq.load(tmp_path / "bundle")[0], new)
    assert torch.equal(again.samples, p.samples)


def test_an_ensemble_of_values_is_the_mixture_of_its_members() -> None:
    """In user units; networks with and without noise of their own, and one in units of y."""
    one, two = fitted(trained("values", 2), "values", epochs=0), trained("values", 4)
    two = fitted(two, "values", epochs=0)
    known = gduq.models.as_predictor(one)
    raw = fitted(in_units_of_y(two, known.target), "values", epochs=0)
    members = [gduq.models.as_predictor(net) for net in (one, two, raw)]
    assert members[2].target.raw
    for member in members:
        member.novelty_slope.zero_()  # a mixture has one of its own
    new = data(9, 7, "values")
    parts = [gduq.predict(member, new) for member in members]
    model = Ensemble(members)
    model.target = members[0].target.combined()
    check_mixture(gduq.predict(model, new), parts, [1 / 3] * 3)
    shares = [0.2, 0.5, 0.3]
    check_mixture(gduq.predict(Stack(members, shares), new), parts, shares)


def check_mixture(p: Any, parts: list[Any], shares: list[float]) -> None:
    pairs = list(zip(shares, parts, strict=True))
    mean = sum(share * part.mean for share, part in pairs)
    torch.testing.assert_close(p.mean, mean)
    square = sum(share * (part.variance + part.mean.square()) for share, part in pairs)
    torch.testing.assert_close(p.variance, square - mean.square(), rtol=1e-6, atol=1e-6)
    density = sum(share * part.log_prob(p.target).exp() for share, part in pairs)
    torch.testing.assert_close(p.log_prob(p.target).exp(), density)


# -- choose --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "outputs"), CASES)
def test_choose_mixes_models_of_every_target(kind: str, outputs: int, tmp_path: Path) -> None:
    net, val = trained(kind, outputs), data(40, 2, kind)
    named = Values(("a", "b"), ("eV", "nm")) if kind == "values" else Labels(("a", "b"))
    stack = gduq.choose(net, data(60, 1, kind), val, target=named, **QUIET)
    board = stack.leaderboard
    cheap = "Laplace" if kind == "values" else "neighbours"
    assert set(board["candidate"]) == {"plain", "anchored head", cheap}
    assert board["weight"].sum() == pytest.approx(1.0)
    plain = board.set_index("candidate").loc["plain"]
    assert board["score"].iloc[0] <= plain["score"]
    new = data(30, 9, kind)
    p = gduq.predict(stack, new)
    assert p.kind == kind
    assert p.names == ("a", "b")
    assert kind == "labels" or p.units == ("eV", "nm")
    parts = [gduq.predict(member, new) for member in stack]
    if kind == "labels":
        stack.set_temperature(1.0, None)
        mixed = sum(s * part.probs for s, part in zip(stack.shares, parts, strict=True))
        torch.testing.assert_close(gduq.predict(stack, new).probs, mixed)
    else:
        mean = sum(s * part.mean for s, part in zip(stack.shares, parts, strict=True))
        torch.testing.assert_close(p.mean, mean)  # a temperature leaves the mean alone
    gduq.save(stack, tmp_path / "bundle")
    loaded: Any = gduq.load(tmp_path / "bundle")[0]
    assert torch.equal(gduq.predict(loaded, new).samples, gduq.predict(stack, new).samples)
    assert loaded.leaderboard.equals(board)


def test_choose_scores_a_network_as_fit_calibrates_it() -> None:
    """The plain network's score is its likelihood on validation rows and copies of them."""
    net, train, val = trained("values"), data(60, 1, "values"), data(40, 2, "values")
    stack = gduq.choose(net, train, val, **QUIET)
    gduq.fit(net, train, val, epochs=0, **QUIET)
    known = gduq.models.as_predictor(net)
    known.novelty_slope.zero_()  # candidates have no slope of their own
    target = known.target
    scale = torch.tensor(target.scale).log().sum() / 2  # scores are of standardised values

    def loss(rows: Any) -> float:
        p = gduq.predict(net, rows)
        return -float(p.log_prob(p.target).mean() + scale)

    copies = [loss(one) for one in shifted_copies(gduq.data.View(val), 0)]
    wanted = 0.5 * loss(val) + 0.5 * sum(copies) / len(copies)
    found = stack.leaderboard.set_index("candidate").loc["plain"]["score"]
    assert found == pytest.approx(wanted, abs=1e-6)
