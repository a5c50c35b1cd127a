"""Posteriors of a last layer against numeric Hessians, plain inverses and scikit-learn."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import optimize
from sklearn.linear_model import BayesianRidge
from torch import Tensor

from gduq.errors import InputError
from gduq.models.laplace import Posterior


def randn(*size: int, seed: int) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def layer(outputs: int, d: int, bias: bool) -> tuple[Tensor, Tensor | None]:
    return randn(outputs, d, seed=1), randn(outputs, seed=2) if bias else None


def extended(phi: Tensor, bias: bool) -> Tensor:
    return torch.cat([phi, torch.ones(len(phi), 1, dtype=phi.dtype)], dim=1) if bias else phi


def stacked(weight: Tensor, bias: Tensor | None) -> Tensor:
    return weight if bias is None else torch.cat([weight, bias[:, None]], dim=1)


def class_hessian(phi: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    z, wide = F.linear(phi, weight, bias), extended(phi, bias is not None)
    mean = torch.stack([p.diag() - torch.outer(p, p) for p in z.softmax(dim=1)]).mean(dim=0)
    return torch.kron(mean, wide.T @ wide)


def variances(found: Posterior, new: Tensor, hessian: Tensor, outputs: int) -> Tensor:
    """Of the outputs, from the definition: one Jacobian per row, one inverse."""
    inverse = torch.linalg.inv(hessian + found.precision[0] * torch.eye(len(hessian)).double())
    jacobians = [torch.kron(torch.eye(outputs).double(), row[None]) for row in new]  # [C, C * D]
    return torch.stack([(j @ inverse @ j.T).diagonal() for j in jacobians])


# -- classes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("outputs", "bias"), [(3, True), (3, False), (2, True)])
def test_the_kronecker_form_is_that_of_its_factors(outputs: int, bias: bool) -> None:
    phi, (weight, b) = randn(20, 4, seed=0), layer(outputs, 4, bias)
    found, new = Posterior().fit(extended(phi, bias), stacked(weight, b)), randn(6, 4, seed=3)
    wanted = variances(found, extended(new, bias), class_hessian(phi, weight, b), outputs)
    torch.testing.assert_close(found.variance(extended(new, bias)), wanted, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("scale", [0.03, 10.0])
def test_the_precision_maximises_the_evidence(scale: float) -> None:
    phi, (weight, bias) = randn(30, 4, seed=0), layer(3, 4, True)
    weight, bias = scale * weight, scale * torch.as_tensor(bias)
    found = Posterior().fit(extended(phi, True), stacked(weight, bias))
    hessian, theta = class_hessian(phi, weight, bias).numpy(), stacked(weight, bias).numpy()

    def loss(log_tau: float) -> float:
        tau = np.exp(log_tau)
        whole = hessian + tau * np.eye(len(hessian))
        parts = len(hessian) * log_tau, np.linalg.slogdet(whole)[1], tau * np.sum(theta**2)
        return -0.5 * float(parts[0] - parts[1] - parts[2])

    options = {"xatol": 1e-9}
    best = optimize.minimize_scalar(loss, bounds=(-13.8, 13.8), method="bounded", options=options)
    assert float(found.precision[0].log()) == pytest.approx(best.x, abs=1e-4)


def test_odd_features_and_weights_stay_finite() -> None:
    weight, b = layer(3, 4, True)
    for phi in (torch.ones(20, 4), torch.zeros(20, 4), 1e4 * randn(20, 4, seed=0)):
        for scale in (0.0, 1.0):
            wide = extended(phi.double(), True)
            found = Posterior().fit(wide, scale * stacked(weight, b))
            assert torch.isfinite(found.variance(wide)).all()
    for curvature in (None, torch.ones(20, 3)):
        with pytest.raises(InputError):
            Posterior().fit(torch.full((20, 4), math.nan), weight, curvature)


# -- values --------------------------------------------------------------------------------------


def values_case(n: int = 60, d: int = 5, outputs: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    """Features, weights (of ridge regression) and truth of values with noise."""
    phi, true = randn(n, d, seed=0), randn(outputs, d, seed=1)
    y = phi @ true.T + randn(n, outputs, seed=2) * torch.tensor([0.3, 2.0])[:outputs]
    solved = torch.linalg.solve(phi.T @ phi + torch.eye(d), phi.T @ y).T
    return phi, solved, y


def test_it_is_scikit_learns_bayesian_ridge() -> None:
    """At its weights: the same noise, the same prior, the same predictive deviation."""
    phi, _, y = values_case()
    new = randn(9, 5, seed=3)
    free = dict.fromkeys(("alpha_1", "alpha_2", "lambda_1", "lambda_2"), 0)
    ridge = BayesianRidge(max_iter=5000, tol=1e-14, fit_intercept=False, **free)
    found = [copy.deepcopy(ridge).fit(phi, column) for column in y.T]
    weight = torch.from_numpy(np.stack([one.coef_ for one in found]))
    ours = Posterior().fit(phi, weight, torch.ones_like(y), y - phi @ weight.T)
    for t, one in enumerate(found):
        assert float(ours.noise[t]) == pytest.approx(1 / one.alpha_, rel=1e-6)
        assert float(ours.precision[t]) == pytest.approx(one.lambda_, rel=1e-6)
        _, std = one.predict(new.numpy(), return_std=True)
        deviation = (ours.variance(new)[:, t] + ours.noise[t]).sqrt()
        torch.testing.assert_close(deviation, torch.from_numpy(std), rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("shift", [0.0, 0.3])  # weights of ridge regression, and others
def test_noise_and_prior_maximise_the_evidence(shift: float) -> None:
    phi, weight, y = values_case()
    weight, bias = weight + shift, torch.tensor([0.1, -0.4]).double()
    spread = randn(60, 2, seed=4).exp()
    residuals = y - phi @ weight.T - bias
    wide, thetas = extended(phi, True), stacked(weight, bias)
    ours = Posterior().fit(wide, thetas, 1 / spread, residuals)
    wide, thetas = wide.numpy(), thetas.numpy()
    for t in range(2):
        v, r, theta = spread[:, t].numpy(), residuals[:, t].numpy(), thetas[t]

        def loss(at: np.ndarray, v=v, r=r, theta=theta) -> float:
            """Of the Laplace approximation at theta, from its definition."""
            tau, s = np.exp(at)
            hessian = wide.T @ (wide / (s * v)[:, None]) + tau * np.eye(len(theta))
            likelihood = -0.5 * np.sum(np.log(2 * np.pi * s * v) + r**2 / (s * v))
            prior = 0.5 * len(theta) * np.log(tau) - 0.5 * tau * theta @ theta
            return -float(likelihood + prior - 0.5 * np.linalg.slogdet(hessian)[1])

        best = optimize.minimize(loss, np.zeros(2))
        found = torch.stack([ours.precision[t], ours.noise[t]]).log().numpy()
        assert loss(found) <= best.fun + 1e-9
        np.testing.assert_allclose(found, best.x, atol=1e-3)


def test_noise_of_odd_cases_is_finite() -> None:
    """Perfect fits, more weights than rows, features or weights of zero."""
    phi, weight = randn(4, 9, seed=0), randn(1, 9, seed=1)
    ones = torch.ones(4, 1).double()
    for features in (phi, torch.zeros_like(phi), 1e6 * phi):
        for theta in (weight, torch.zeros_like(weight)):
            for residuals in (torch.zeros(4, 1), 1e3 * ones):
                found = Posterior().fit(features, theta, ones, residuals)
                for value in (found.noise, found.variance(phi)):
                    assert torch.isfinite(value).all()
                    assert (value > 0).all()


# -- labels --------------------------------------------------------------------------------------


def test_every_label_is_a_yes_no_question_of_its_own() -> None:
    """Missing entries teach nothing."""
    phi, (weight, bias) = randn(40, 4, seed=0), layer(3, 4, True)
    p = F.linear(phi, weight, bias).sigmoid()
    curvature = p * (1 - p) * (randn(40, 3, seed=5) > -0.25)
    wide, new = extended(phi, True), extended(randn(6, 4, seed=3), True)
    ours = Posterior().fit(wide, stacked(weight, bias), curvature)
    for t, lam in enumerate(curvature.T):
        hessian = wide.T @ (wide * lam[:, None])
        inverse = torch.linalg.inv(hessian + ours.precision[t] * torch.eye(5))
        wanted = ((new @ inverse) * new).sum(dim=1)
        torch.testing.assert_close(ours.variance(new)[:, t], wanted)
    assert (ours.noise == 1).all()
