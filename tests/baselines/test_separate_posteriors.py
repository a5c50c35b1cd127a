"""Posteriors of independent outputs against scikit-learn, numeric optima and laplace-torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import optimize
from sklearn.linear_model import BayesianRidge
from torch import Tensor, nn

from gduq.baselines import separate_posteriors as module
from gduq.baselines.joint_posterior import JointPosterior
from gduq.baselines.separate_posteriors import SeparatePosteriors, best_noise
from gduq.errors import InputError, NotFittedError
from tests.baselines.test_joint_posterior import extended, layer, randn, seeded, stacked


def values_case(n: int = 60, d: int = 5, outputs: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    """Features, weights (of ridge regression) and truth of values with noise."""
    phi, true = randn(n, d, seed=0), randn(outputs, d, seed=1)
    y = phi @ true.T + randn(n, outputs, seed=2) * torch.tensor([0.3, 2.0])[:outputs]
    solved = torch.linalg.solve(phi.T @ phi + torch.eye(d), phi.T @ y).T
    return phi, solved, y


# -- values --------------------------------------------------------------------------------------


def test_it_is_scikit_learns_bayesian_ridge() -> None:
    """At its weights: the same noise, the same prior, the same predictive deviation."""
    phi, _, y = values_case()
    new = randn(9, 5, seed=3)
    found = []
    for column in y.T:
        ridge = BayesianRidge(
            max_iter=5000, tol=1e-14, fit_intercept=False,
            alpha_1=0, alpha_2=0, lambda_1=0, lambda_2=0,
        )  # fmt: skip
        found.append(ridge.fit(phi, column))
    weight = torch.from_numpy(np.stack([ridge.coef_ for ridge in found]))
    ours = SeparatePosteriors().fit(phi, weight, None, torch.ones_like(y), y - phi @ weight.T)
    assert ours.right.size(0) == 1  # all outputs share the eigenvectors
    for t, ridge in enumerate(found):
        assert float(ours.noise[t]) == pytest.approx(1 / ridge.alpha_, rel=1e-6)
        assert float(ours.precision[t]) == pytest.approx(ridge.lambda_, rel=1e-6)
        mean, std = ridge.predict(new.numpy(), return_std=True)
        whole = (ours.variance(new)[:, t] + ours.noise[t]).sqrt()
        torch.testing.assert_close(whole, torch.from_numpy(std), rtol=1e-6, atol=0.0)
        torch.testing.assert_close(ours.mean(new)[:, t], torch.from_numpy(mean))


def log_evidence(
    at: np.ndarray, phi: np.ndarray, spread: np.ndarray, r: np.ndarray, theta: np.ndarray
) -> float:
    """Of the Laplace approximation at theta, from its definition."""
    tau, s = np.exp(at)
    hessian = phi.T @ (phi / (s * spread)[:, None]) + tau * np.eye(len(theta))
    likelihood = -0.5 * np.sum(np.log(2 * np.pi * s * spread) + r**2 / (s * spread))
    prior = 0.5 * len(theta) * np.log(tau) - 0.5 * tau * theta @ theta
    return float(likelihood + prior - 0.5 * np.linalg.slogdet(hessian)[1])


@pytest.mark.parametrize("shift", [0.0, 0.3])  # weights of ridge regression, and others
def test_noise_and_prior_maximise_the_evidence(shift: float) -> None:
    phi, weight, y = values_case()
    weight, bias = weight + shift, torch.tensor([0.1, -0.4]).double()
    spread = randn(60, 2, seed=4).exp()
    r = y - phi @ weight.T - bias
    ours = SeparatePosteriors().fit(phi, weight, bias, 1 / spread, r)
    wide, theta = extended(phi, True).numpy(), stacked(weight, bias).numpy()
    for t in range(2):
        case = (wide, spread[:, t].numpy(), r[:, t].numpy(), theta[t])
        best = optimize.minimize(lambda at, case=case: -log_evidence(at, *case), np.zeros(2))
        found = torch.stack([ours.precision[t], ours.noise[t]]).log().numpy()
        assert log_evidence(found, *case) >= -best.fun - 1e-9
        np.testing.assert_allclose(found, best.x, atol=1e-3)


def test_uneven_noise_is_weighted_regression() -> None:
    phi, weight, y = values_case()
    spread = randn(60, 2, seed=4).exp()
    ours = SeparatePosteriors().fit(phi, weight, None, 1 / spread, y - phi @ weight.T)
    assert ours.right.size(0) == 2
    new = randn(7, 5, seed=3)
    for t in range(2):
        noise = ours.noise[t] * spread[:, t : t + 1]
        inverse = torch.linalg.inv(phi.T @ (phi / noise) + ours.precision[t] * torch.eye(5))
        wanted = ((new @ inverse) * new).sum(dim=1)
        torch.testing.assert_close(ours.variance(new)[:, t], wanted)


def test_noise_of_odd_cases_is_finite() -> None:
    """Perfect fits, more weights than rows, features or weights of zero."""
    phi, weight = randn(4, 9, seed=0), randn(1, 9, seed=1)
    ones = torch.ones(4, 1).double()
    for features in (phi, torch.zeros_like(phi), 1e6 * phi):
        for theta in (weight, torch.zeros_like(weight)):
            for residuals in (torch.zeros(4, 1), 1e3 * ones):
                found = SeparatePosteriors().fit(features, theta, None, ones, residuals)
                assert (found.noise > 0).all()
                assert torch.isfinite(found.noise).all()
                assert torch.isfinite(found.variance(phi)).all()
                assert (found.variance(phi) > 0).all()
    exact = best_noise(torch.zeros(1, 3), torch.ones(1, 3), torch.tensor([8.0]), rows=4)
    assert float(exact) == pytest.approx(2.0)  # nothing is explained: the mean of the squares


# -- labels --------------------------------------------------------------------------------------


def label_case(missing: bool) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    phi, (weight, bias) = randn(40, 4, seed=0), layer(3, 4, True)
    p = (phi @ weight.T + bias).sigmoid()
    curvature = p * (1 - p)
    if missing:
        curvature[torch.rand(40, 3, generator=seeded(5)) < 0.4] = 0.0
    return phi, weight, bias, curvature


@pytest.mark.parametrize("missing", [False, True])
def test_every_label_is_a_yes_no_question_of_its_own(missing: bool) -> None:
    """Missing entries teach nothing: those rows may as well not be there."""
    phi, weight, bias, curvature = label_case(missing)
    ours, new = SeparatePosteriors().fit(phi, weight, bias, curvature), randn(6, 4, seed=3)
    for t in range(3):
        rows = curvature[:, t] > 0
        alone = JointPosterior().fit(phi[rows], weight[t : t + 1], bias[t : t + 1], "full")
        torch.testing.assert_close(ours.precision[t], alone.precision)
        torch.testing.assert_close(ours.variance(new)[:, [t]], alone.variance(new))
        torch.testing.assert_close(ours.probit(new)[:, [t]], alone.probit(new))
    assert (ours.noise == 1).all()


def test_many_wide_labels_share_eigenvectors(monkeypatch: pytest.MonkeyPatch) -> None:
    phi, weight, bias, curvature = label_case(missing=True)
    monkeypatch.setattr(module, "_MOST", 50)
    found = SeparatePosteriors().fit(phi, weight, bias, curvature)
    assert found.right.size(0) == 1
    wide, new = extended(phi, True), extended(randn(6, 4, seed=3), True)
    for t in range(3):
        hessian = curvature[:, t].mean() * wide.T @ wide
        inverse = torch.linalg.inv(hessian + found.precision[t] * torch.eye(5))
        wanted = ((new @ inverse) * new).sum(dim=1)
        torch.testing.assert_close(found.variance(new[:, :4])[:, t], wanted)


# -- both ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [True, False])
def test_draws_have_the_posteriors_moments(shared: bool) -> None:
    phi, weight, y = values_case()
    curvature = torch.ones_like(y) if shared else randn(60, 2, seed=4).exp()
    found = SeparatePosteriors().fit(phi, weight, None, curvature, y - phi @ weight.T)
    new = randn(4, 5, seed=3)
    z = found.sample(new, 40_000, seeded(4))
    deviation = found.variance(new).sqrt()
    assert ((z.mean(dim=0) - found.mean(new)).abs() < 6 / 200 * deviation).all()
    torch.testing.assert_close(z.std(dim=0), deviation, rtol=0.03, atol=0.0)
    across = torch.corrcoef(z[:, 0].T)[0, 1]
    assert abs(float(across)) < 0.03  # outputs are independent
    assert torch.equal(found.sample(new, 5, seeded(4)), found.sample(new, 5, seeded(4)))


def test_mistakes_are_said() -> None:
    phi, weight, bias, curvature = label_case(missing=False)
    with pytest.raises(NotFittedError, match="fitted posterior"):
        SeparatePosteriors().variance(phi)
    with pytest.raises(NotFittedError, match="fitted posterior"):
        SeparatePosteriors().draw(2, seeded(0))
    with pytest.raises(InputError, match=r"one number per row and output \[40, 3\]"):
        SeparatePosteriors().fit(phi, weight, bias, curvature[:, :2])
    with pytest.raises(InputError, match=r"one number per row and output \[40, 3\]"):
        SeparatePosteriors().fit(phi, weight, bias, curvature, curvature[:7])
    with pytest.raises(InputError, match="finite features"):
        SeparatePosteriors().fit(phi / 0, weight, bias, curvature)


# -- laplace-torch -------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_values_are_those_of_laplace_torch() -> None:
    laplace = pytest.importorskip("laplace")
    phi, weight, y = values_case(outputs=1)
    bias = torch.tensor([0.2]).double()
    head, trunk = nn.Linear(5, 1).double(), nn.Linear(5, 5, bias=False).double()
    head.weight.data.copy_(weight)
    head.bias.data.copy_(bias)
    trunk.weight.data.copy_(torch.eye(5))
    r = y - phi @ weight.T - bias
    ours = SeparatePosteriors().fit(phi, weight, bias, torch.ones_like(y), r)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(phi, y), batch_size=60)
    theirs = laplace.Laplace(
        nn.Sequential(trunk, head), "regression", "last_layer", "full",
        sigma_noise=ours.noise.sqrt(), prior_precision=ours.precision,
        backend=laplace.curvature.BackPackGGN,
    )  # fmt: skip
    theirs.fit(loader)
    new = randn(6, 5, seed=3)
    mean, covariance = theirs._glm_predictive_distribution(new)
    torch.testing.assert_close(ours.mean(new), mean)
    torch.testing.assert_close(ours.variance(new), covariance.squeeze(2), rtol=1e-6, atol=1e-9)
    best = float(theirs.log_marginal_likelihood(ours.precision, ours.noise.sqrt()))
    for tau, s in ((0.8, 1.0), (1.25, 1.0), (1.0, 0.8), (1.0, 1.25), (1.1, 1.1), (0.9, 1.1)):
        moved = theirs.log_marginal_likelihood(ours.precision * tau, (ours.noise * s).sqrt())
        assert float(moved) < best
