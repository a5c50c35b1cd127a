"""Temperatures, vector scaling and Dirichlet calibration, against scipy and scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import minimize_scalar
from sklearn.linear_model import LogisticRegression

from gduq.calibration import METHODS, DirichletCalibration, TemperatureScaling, VectorScaling
from gduq.prediction import ClassPrediction
from tests.calibration.kinds import nll, overconfident

P = overconfident(rows=300, samples=1)
AFFINE = [VectorScaling, DirichletCalibration]


@pytest.mark.parametrize("samples", [1, 5])
def test_the_temperature_is_scipys_minimum_of_the_loss_of_the_mixture(samples):
    p = overconfident(rows=400, samples=samples)
    p = p.with_samples(p.logits + 6 * (p.samples - p.logits))

    def loss(log_t):
        return nll(p.with_samples(p.samples / np.exp(log_t)))

    expected = np.exp(minimize_scalar(loss, bounds=(-4, 4), method="bounded").x)
    found = float(TemperatureScaling().fit(p).value)
    assert found == pytest.approx(expected, rel=1e-4)
    of_means = float(TemperatureScaling().fit(p.mean_logits()).value)
    assert found < 0.9 * of_means or samples == 1


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
    cal = METHODS["ensemble_temperature"]().fit(p)
    state = cal.state()
    weights = state["weights"]
    assert weights.min() >= 0
    assert float(weights.sum()) == pytest.approx(1)
    one = (p.logits / state["temperature"]).softmax(1)
    grid = [(a, b) for a in np.linspace(0, 1, 41) for b in np.linspace(0, 1 - a, 41)]
    mixtures = (a * one + b * p.probs + (1 - a - b) / 4 for a, b in grid)
    best = min(float(F.nll_loss(mixture.log(), target)) for mixture in mixtures)
    assert nll(cal(p)) <= best + 1e-9
    assert float(weights[2]) > 0.01
    assert nll(cal(p)) < nll(TemperatureScaling().fit(p)(p))


@pytest.mark.parametrize(
    ("cls", "classes"),
    [(VectorScaling, 2), (DirichletCalibration, 2), (DirichletCalibration, 4)],
)
def test_without_prior_it_is_logistic_regression(cls, classes):
    p = overconfident(rows=400, classes=classes, samples=1)
    x = (p.probs.log() if cls is DirichletCalibration else p.logits).numpy()
    theirs = LogisticRegression(C=np.inf, tol=1e-10, max_iter=5000).fit(x, p.target.numpy())
    ours = cls(penalty=0).fit(p)(p).probs
    np.testing.assert_allclose(ours, theirs.predict_proba(x), atol=2e-4)


@pytest.mark.parametrize("name", ["vector", "dirichlet", "order_invariant"])
def test_without_a_penalty_the_rows_at_hand_fit_better(name):
    p = overconfident(rows=60, samples=1)
    assert nll(METHODS[name](penalty=0).fit(p)(p)) < nll(METHODS[name]().fit(p)(p)) - 1e-4


@pytest.mark.parametrize("cls", AFFINE)
def test_few_rows_lead_back_to_temperature_scaling(cls):
    p, other = (overconfident(rows, samples=1, seed=seed) for rows, seed in ((25, 8), (2000, 9)))
    temperature = nll(TemperatureScaling().fit(p)(other))
    assert nll(cls().fit(p)(other)) < temperature + 0.03
    assert nll(cls(penalty=0).fit(p)(other)) > temperature + 0.1


@pytest.mark.parametrize("cls", AFFINE)
@pytest.mark.parametrize("penalty", [1, 0])
def test_an_absent_class_stays_at_the_temperature(cls, penalty):
    p = overconfident(rows=120, samples=1)
    part = p[p.target != 2]
    state = cls(penalty=penalty).fit(part).state()
    weight, bias = state["weight"], state["bias"]
    row = weight[2] if weight.dim() == 1 else weight[2, 2]
    assert float(row) == pytest.approx(float(1 / TemperatureScaling().fit(part).value), rel=1e-6)
    assert float(bias[2]) == pytest.approx(0.0, abs=1e-9)
