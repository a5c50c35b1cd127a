"""Temperatures, vector scaling and Dirichlet calibration, against scipy, netcal, scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import minimize_scalar

from gduq.calibration import (
    METHODS,
    CalibrationSet,
    DirichletCalibration,
    EnsembleTemperatureScaling,
    TemperatureScaling,
    VectorScaling,
)
from gduq.prediction import ClassPrediction
from tests.calibration.battery import WEIGHTS, nll, overconfident

P = overconfident(rows=300, samples=1)
AFFINE = [VectorScaling, DirichletCalibration]


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


def separable(rows, seed):
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(3, (rows,), generator=generator)
    noise = torch.randn(rows, 3, generator=generator)
    return ClassPrediction((4 * F.one_hot(target, 3) + noise).double(), target)


@pytest.mark.parametrize(
    "name", ["temperature", "ensemble_temperature", "vector", "dirichlet", "order_invariant"]
)
def test_validation_rows_that_are_all_right_do_not_make_it_sure_of_everything(name):
    p, other = separable(60, 0), separable(5000, 1)
    assert bool(p.correct.all())
    assert not bool(other.correct.all())
    assert nll(METHODS[name]().fit(p)(other)) < nll(other) + 0.02


def test_ensemble_weights_beat_a_grid():
    """Rows with random labels mixed in: a uniform part is needed."""
    noisy = torch.randint(4, (100,), generator=torch.Generator().manual_seed(3))
    target = torch.cat([noisy, P.target[100:]])
    p = ClassPrediction(P.samples, target)
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


def test_the_loss_is_that_of_the_mixture():
    p = ClassPrediction(
        overconfident(rows=30).samples, overconfident(rows=30).target, weights=WEIGHTS
    )
    assert float(CalibrationSet(p).nll(p.samples)) == pytest.approx(nll(p), rel=1e-12)


def sklearn_probs(x, target):
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=np.inf, tol=1e-10, max_iter=5000)
    return model.fit(x.numpy(), target.numpy()).predict_proba(x.numpy())


@pytest.mark.parametrize(
    ("cls", "classes"),
    [(VectorScaling, 2), (DirichletCalibration, 2), (DirichletCalibration, 4)],
)
def test_without_penalty_it_is_logistic_regression(cls, classes):
    p = overconfident(rows=400, classes=classes, samples=1)
    x = p.probs.log() if cls is DirichletCalibration else p.logits
    ours = cls(penalty=0.0).fit(p)(p).probs
    np.testing.assert_allclose(ours, sklearn_probs(x, p.target), atol=2e-4)


def test_odir_is_at_its_minimum():
    p = overconfident(rows=200, samples=1)
    lam = 0.05
    state = DirichletCalibration(penalty=lam).fit(p).state()
    weight, bias = state["weight"].requires_grad_(), state["bias"].requires_grad_()
    off = weight * (1 - torch.eye(4))
    penalty = lam * (off**2).sum() / 12 + lam * (bias**2).sum() / 4
    loss = F.cross_entropy(p.probs.log() @ weight.T + bias, p.target) + penalty
    loss.backward()
    assert weight.grad.abs().max() < 1e-3
    assert bias.grad.abs().max() < 1e-3


@pytest.mark.parametrize("cls", AFFINE)
def test_a_strong_penalty_or_few_rows_lead_back_to_temperature_scaling(cls):
    p, other = (
        overconfident(rows=25, samples=1, seed=8),
        overconfident(rows=2000, seed=9, samples=1),
    )
    temperature = nll(TemperatureScaling().fit(p)(other))
    assert nll(cls().fit(p)(other)) < temperature + 0.03
    assert nll(cls(penalty=0.0).fit(p)(other)) > temperature + 0.1


@pytest.mark.parametrize("cls", AFFINE)
@pytest.mark.parametrize("penalty", [None, 0.0])
def test_an_absent_class_stays_at_the_temperature(cls, penalty):
    p = overconfident(rows=120, samples=1)
    part = p[p.target != 2]
    state = cls(penalty).fit(part).state()
    weight, bias = state["weight"], state["bias"]
    row = weight[2] if weight.dim() == 1 else weight[2, 2]
    assert float(row) == pytest.approx(float(1 / TemperatureScaling().fit(part).value), rel=1e-6)
    assert float(bias[2]) == pytest.approx(0.0, abs=1e-9)


def test_dirichlet_does_not_see_a_constant_added_to_a_sample():
    """Probabilities do not change by it, so neither may what becomes of them."""
    p = overconfident(rows=200, samples=5)
    cal = DirichletCalibration().fit(p)
    shift = 5 * torch.randn(5, 200, 1, generator=torch.Generator().manual_seed(9)).double()
    moved = p.with_samples(p.samples + shift)
    torch.testing.assert_close(cal(moved).probs, cal(p).probs, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(cal(moved).epistemic, cal(p).epistemic, rtol=1e-6, atol=1e-9)
