"""Temperature and its ensemble, against scipy, netcal and scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import minimize_scalar

from gduq.calibration import METHODS, EnsembleTemperatureScaling, TemperatureScaling
from gduq.calibration.optimise import autograd, fit_module, minimise
from gduq.prediction import Prediction
from tests.calibration.battery import nll, overconfident

P = overconfident(rows=300, samples=1)


def test_temperature_is_scipys_minimum():
    def loss(log_t):
        return float(F.cross_entropy(P.logits / np.exp(log_t), P.target))

    expected = np.exp(minimize_scalar(loss, bounds=(-4, 4), method="bounded").x)
    assert float(TemperatureScaling().fit(P).value) == pytest.approx(expected, rel=1e-4)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # netcal's own, of pyro
def test_temperature_equals_netcals():
    scaling = pytest.importorskip("netcal.scaling", reason="netcal is not installed")
    theirs = scaling.TemperatureScaling()
    theirs.fit(P.probs.numpy(), P.target.numpy())
    ours = TemperatureScaling().fit(P)
    assert 1 / float(ours.value) == pytest.approx(theirs.temperature.item(), rel=1e-4)
    np.testing.assert_allclose(ours(P).probs.numpy(), theirs.transform(P.probs.numpy()), atol=1e-5)


def test_temperature_equals_scikit_learns():
    from sklearn import calibration

    if not hasattr(calibration, "_TemperatureScaling"):
        pytest.skip("this scikit-learn has no temperature scaling")
    theirs = calibration._TemperatureScaling().fit(P.logits.numpy(), P.target.numpy())
    assert float(TemperatureScaling().fit(P).value) == pytest.approx(1 / theirs.beta_, rel=1e-3)


def test_temperature_divides_every_sample():
    p = overconfident()
    cal = TemperatureScaling().fit(p)
    torch.testing.assert_close(cal(p).samples, p.samples / cal.value, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(cal.temperature(p), cal.value.expand(len(p)))


def test_several_hypotheses_have_the_temperature_of_their_mixture():
    """Scipy's minimum of the mixture's loss, which is not that of the mean logits."""
    p = overconfident(rows=400, samples=5)
    p = p.with_samples(p.logits + 6 * (p.samples - p.logits))

    def loss(log_t):
        return nll(p.with_samples(p.samples / np.exp(log_t)))

    expected = np.exp(minimize_scalar(loss, bounds=(-4, 4), method="bounded").x)
    found = float(TemperatureScaling().fit(p).value)
    assert found == pytest.approx(expected, rel=1e-4)
    assert found < 0.9 * float(TemperatureScaling().fit(p.mean_logits()).value)


def test_a_temperature_may_move_the_label_of_a_mixture():
    """So ``keeps_accuracy`` is false: the surest hypothesis loses most of its vote."""
    samples = torch.tensor([[6.0, 0.0], [-0.4, 0.0], [-0.4, 0.0]], dtype=torch.float64)
    p = Prediction(samples.unsqueeze(1))
    cold = TemperatureScaling().neutral(2, 3)
    cold._state["temperature"] = torch.tensor(0.1, dtype=torch.float64)
    assert p.label.item() == 0
    assert cold(p).label.item() == 1
    assert not TemperatureScaling.keeps_accuracy


def separable(rows, seed):
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(3, (rows,), generator=generator)
    noise = torch.randn(rows, 3, generator=generator)
    return Prediction((4 * F.one_hot(target, 3) + noise).double(), target)


@pytest.mark.parametrize(
    "name", ["temperature", "ensemble_temperature", "vector", "matrix", "dirichlet",
             "order_invariant", "anchor_aware"]
)  # fmt: skip
def test_validation_rows_that_are_all_right_do_not_make_it_sure_of_everything(name):
    p, other = separable(60, 0), separable(5000, 1)
    assert bool(p.correct.all())
    assert not bool(other.correct.all())
    assert nll(METHODS[name]().fit(p)(other)) < nll(other) + 0.02


def test_ensemble_weights_beat_a_grid():
    """Rows with random labels mixed in: a uniform part is needed."""
    noisy = torch.randint(4, (100,), generator=torch.Generator().manual_seed(3))
    target = torch.cat([noisy, P.target[100:]])
    p = Prediction(P.samples, target)
    cal = EnsembleTemperatureScaling().fit(p)
    state = cal.state()
    weights = state["weights"]
    assert weights.min() >= 0
    assert float(weights.sum()) == pytest.approx(1)
    parts = torch.stack(
        [(p.logits / state["temperature"]).softmax(1), p.probs, torch.full_like(p.probs, 0.25)]
    )
    grid = [
        torch.tensor([a, b, 1 - a - b], dtype=torch.float64)
        for a in np.linspace(0, 1, 41)
        for b in np.linspace(0, 1 - a, 41)
    ]
    best = min(float(F.nll_loss(torch.einsum("k,kmc->mc", w, parts).log(), target)) for w in grid)
    assert nll(cal(p)) <= best + 1e-9
    assert float(weights[2]) > 0.01
    assert nll(cal(p)) < nll(TemperatureScaling().fit(p)(p))


def test_minimise_respects_bounds():
    found = minimise(autograd(lambda v: ((v - 3) ** 2).sum()), torch.zeros(2), [(0, 1), (None, 9)])
    torch.testing.assert_close(found, torch.tensor([1.0, 3.0]).double())


def test_the_prior_of_a_module_fades_with_rows():
    def slope(rows):
        layer = torch.nn.Linear(1, 1, bias=False, dtype=torch.float64)
        fit_module(layer, lambda: (layer.weight - 2).square().sum() / 2, rows, prior=1.0, steps=50)
        return layer.weight.item()

    assert slope(1) == pytest.approx(1.0)  # halfway between the prior's 0 and the data's 2
    assert slope(10_000) == pytest.approx(2.0, abs=1e-3)
