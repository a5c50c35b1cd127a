"""Temperature and its ensemble, against scipy, netcal and scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from gduq.calibration import METHODS, EnsembleTemperatureScaling, TemperatureScaling
from gduq.calibration.optimise import autograd, best_scale, careful_scale, fit_module, minimise
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


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10_000), st.floats(0.05, 20.0))
def test_best_scale_has_zero_slope_and_scales_back(seed, factor):
    p = overconfident(rows=600, samples=1, seed=seed)
    beta = torch.tensor(best_scale(p.logits * factor, p.target)).double().requires_grad_()
    F.cross_entropy(beta * factor * p.logits, p.target).backward()
    assert abs(beta.grad.item()) < 1e-6 * factor
    assert beta.item() == pytest.approx(best_scale(p.logits, p.target) / factor, rel=1e-6)


def test_best_scale_stays_in_bounds_where_there_is_no_best():
    z = torch.tensor([[1.0, 0.0], [0.0, 2.0]], dtype=torch.float64)
    assert best_scale(z, torch.tensor([0, 1])) == pytest.approx(100 / 0.75)  # all right
    assert best_scale(z, torch.tensor([1, 0])) == pytest.approx(0.01, rel=1e-6)  # all wrong
    assert best_scale(torch.ones(3, 2).double(), torch.tensor([0, 1, 0])) == 1.0  # says nothing


@pytest.mark.parametrize("size", [1e-3, 1.0, 800.0, 1e5])
def test_best_scale_of_tiny_and_huge_logits(size):
    """Gaps above 745 underflow: the curvature is 0 there, the slope is not."""
    z = torch.tensor([[size, 0.0]] * 4, dtype=torch.float64)
    beta = best_scale(z, torch.tensor([0, 0, 0, 1]))
    assert beta * size == pytest.approx(np.log(3.0), rel=1e-6)
    mixed = torch.tensor([[760.0, 0.0]] * 3 + [[2.0, 0.0]], dtype=torch.float64)
    p = Prediction(mixed, target=torch.tensor([0, 0, 1, 0]))
    assert nll(TemperatureScaling().fit(p)(p)) < 0.7


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


def test_sharpening_is_held_back_continuously_and_fades_with_rows():
    p = overconfident(rows=4000, samples=1)
    shy = p.logits / 20  # T far below 1 is right, and 4000 rows say so
    exact = best_scale(shy, p.target)
    assert exact > 3
    assert careful_scale(shy, p.target) == pytest.approx(exact, rel=0.01)
    few = careful_scale(shy[:30], p.target[:30])
    assert 1.0 < few < best_scale(shy[:30], p.target[:30])
    assert careful_scale(p.logits, p.target) == best_scale(p.logits, p.target) < 1
    nearly = p.logits * best_scale(p.logits, p.target) / 1.00001  # best factor: just above 1
    assert careful_scale(nearly, p.target) == pytest.approx(1.0, abs=1e-4)


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
