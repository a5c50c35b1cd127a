"""Vector, matrix and Dirichlet calibration, against scikit-learn and autograd."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from gduq.calibration import (
    DirichletCalibration,
    HistogramBinning,
    MatrixScaling,
    TemperatureScaling,
    VectorScaling,
)
from gduq.calibration.affine import Diagonal, Full
from gduq.calibration.lesson import Lesson
from gduq.calibration.optimise import autograd
from gduq.errors import InputError
from gduq.prediction import Prediction
from tests.calibration.battery import WEIGHTS, nll, overconfident

AFFINE = [VectorScaling, MatrixScaling, DirichletCalibration]


def sklearn_probs(x, target):
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=np.inf, tol=1e-10, max_iter=5000)
    return model.fit(x.numpy(), target.numpy()).predict_proba(x.numpy())


@pytest.mark.parametrize(
    ("cls", "classes"),
    [(VectorScaling, 2), (MatrixScaling, 2), (MatrixScaling, 4), (DirichletCalibration, 4)],
)
def test_without_penalty_it_is_logistic_regression(cls, classes):
    p = overconfident(rows=400, classes=classes, samples=1)
    x = p.probs.log() if cls is DirichletCalibration else p.logits
    ours = cls(penalty=0.0).fit(p)(p).probs
    np.testing.assert_allclose(ours, sklearn_probs(x, p.target), atol=2e-4)


def test_the_bias_is_really_trained():
    p = overconfident(rows=400, samples=1)
    shift = torch.tensor([3.0, 0.0, -2.0, 0.0], dtype=torch.float64)
    off = Prediction(p.samples + shift, p.target)
    cal = VectorScaling(penalty=0.0).fit(off)
    assert cal.state()["bias"].abs().max() > 0.5
    straight = VectorScaling(penalty=0.0).fit(p)(p).probs
    torch.testing.assert_close(cal(off).probs, straight, rtol=1e-3, atol=1e-4)
    assert nll(cal(off)) < nll(TemperatureScaling().fit(off)(off)) - 0.05


@pytest.mark.parametrize("penalty", [None, 0.0, 0.3])
@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("problem", [Diagonal, Full])
def test_gradients_are_those_of_autograd(problem, samples, penalty):
    """The hand-written gradient against torch's, of the loss written out from the definition."""
    p, copy = overconfident(rows=50, samples=samples), overconfident(rows=20, samples=samples)
    share = WEIGHTS if samples > 1 else torch.ones(1, dtype=torch.float64)
    p = Prediction(p.samples, p.target, weights=share)
    lesson = Lesson(p, copies=[copy])
    task = problem(lesson, lesson.samples, torch.ones(4).double(), penalty)
    size = 20 if problem is Full else 8
    vector = torch.randn(size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def loss(v):
        inner, shift = v[:-4], v[-4:]
        weight = task.weight(inner.view(4, 4) if problem is Full else inner)
        bias = shift - (weight @ task.centre if problem is Full else weight * task.centre)
        pulled = (task.pull * (weight - task.home) ** 2).sum()
        logits = lesson.samples @ (weight.T if problem is Full else weight.diag()) + bias
        mixed = torch.einsum("k,knc->nc", share, logits.softmax(-1)).log()
        nll = 0.5 * F.nll_loss(mixed[:50], p.target) + 0.5 * F.nll_loss(mixed[50:], copy.target)
        return nll + pulled + task.bias_pull * (bias**2).sum()

    value, gradient = task.objective(vector)
    expected, slope = autograd(loss)(vector)
    assert value == pytest.approx(expected, rel=1e-10)
    torch.testing.assert_close(gradient, slope, rtol=1e-8, atol=1e-10)


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
    assert nll(cls(missing="keep").fit(p)(other)) < temperature + 0.03
    assert nll(cls(penalty=0.0, missing="keep").fit(p)(other)) > temperature + 0.1


@pytest.mark.parametrize("cls", AFFINE)
def test_every_sample_goes_through_the_same_linear_map(cls):
    p = overconfident()
    cal = cls().fit(p)
    weight, bias = cal.state()["weight"], cal.state()["bias"]
    weight = torch.diag(weight) if weight.dim() == 1 else weight
    logits = p.samples
    if cls is DirichletCalibration:
        logits = logits.log_softmax(-1)
    expected = logits @ weight.T + bias
    q = cal(p).samples
    if cls is DirichletCalibration:  # the energy of every sample stays
        torch.testing.assert_close(q.logsumexp(-1), p.samples.logsumexp(-1))
        expected, q = expected.log_softmax(-1), q.log_softmax(-1)
    torch.testing.assert_close(q, expected)


@pytest.mark.parametrize("cls", [*AFFINE, HistogramBinning])
def test_an_absent_class_is_an_error_or_stays(cls):
    p = overconfident(rows=120, samples=1)
    part = p[p.target != 2]
    with pytest.raises(InputError, match=r'none of class 2.*missing="keep"'):
        cls().fit(part)
    cal = cls(missing="keep").fit(part)
    if cls is HistogramBinning:
        assert not cal.state()["filled"][2].any()
        return
    weight, bias = cal.state()["weight"], cal.state()["bias"]
    beta = 1 / TemperatureScaling().fit(part).value
    row = weight[2] if weight.dim() == 1 else weight[2, 2]
    assert float(row) == pytest.approx(float(beta), rel=1e-6)
    assert float(bias[2]) == pytest.approx(0.0, abs=1e-9)


def test_many_absent_classes_make_a_short_message():
    p = overconfident(rows=60, classes=12, samples=1)
    with pytest.raises(InputError, match=r"none of class 0, 1, 2, 3, 4 \.\.\."):
        VectorScaling().fit(p[p.target > 6])


def test_dirichlet_does_not_see_a_constant_added_to_a_sample():
    """Probabilities do not change by it, so neither may what becomes of them."""
    p = overconfident(rows=200, samples=5)
    cal = DirichletCalibration().fit(p)
    shift = 5 * torch.randn(5, 200, 1, generator=torch.Generator().manual_seed(9)).double()
    moved = p.with_samples(p.samples + shift)
    torch.testing.assert_close(cal(moved).probs, cal(p).probs, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(cal(moved).epistemic, cal(p).epistemic, rtol=1e-6, atol=1e-9)
