"""Posteriors of a last layer against numeric Hessians, plain inverses, scikit-learn and
laplace-torch."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import optimize
from sklearn.linear_model import BayesianRidge
from torch import Tensor, nn

from gduq.errors import InputError
from gduq.models import posteriors as module
from gduq.models.posteriors import JointPosterior, SeparatePosteriors, best_noise, best_precision

CASES = [(3, True), (3, False), (2, True), (1, True), (1, False)]  # outputs, bias
every_case = pytest.mark.parametrize(("outputs", "bias"), CASES)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def randn(*size: int, seed: int) -> Tensor:
    return torch.randn(size, generator=seeded(seed), dtype=torch.float64)


def layer(outputs: int, d: int, bias: bool) -> tuple[Tensor, Tensor | None]:
    return randn(outputs, d, seed=1), randn(outputs, seed=2) if bias else None


def extended(phi: Tensor, bias: bool) -> Tensor:
    return torch.cat([phi, torch.ones(len(phi), 1, dtype=phi.dtype)], dim=1) if bias else phi


def stacked(weight: Tensor, bias: Tensor | None) -> Tensor:
    return weight if bias is None else torch.cat([weight, bias[:, None]], dim=1)


def numeric_hessian(phi: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Of the summed cross-entropy by all weights; it does not depend on the labels."""
    theta, wide = stacked(weight, bias), extended(phi, bias is not None)

    def loss(flat: Tensor) -> Tensor:
        z = wide @ flat.view_as(theta).T
        if z.size(1) == 1:
            return F.binary_cross_entropy_with_logits(z, torch.ones_like(z), reduction="sum")
        return F.cross_entropy(z, torch.zeros(len(z)).long(), reduction="sum")

    return torch.func.hessian(loss)(theta.flatten())


def by_inverse(found: JointPosterior, new: Tensor, hessian: Tensor) -> Tensor:
    """Covariances of the outputs from the definition: one Jacobian per row, one inverse."""
    rows, outputs = extended(new, bool(found.has_bias)), found.weight.size(0)
    inverse = torch.linalg.inv(hessian + found.precision * torch.eye(len(hessian)).double())
    jacobians = [torch.kron(torch.eye(outputs).double(), row[None]) for row in rows]  # [C, C * D]
    return torch.stack([j @ inverse @ j.T for j in jacobians])


def check_variances(found: JointPosterior, new: Tensor, hessian: Tensor) -> None:
    wanted = by_inverse(found, new, hessian).diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(found.variance(new), wanted, rtol=1e-8, atol=1e-10)
    shrunk = found.mean(new) / (1 + math.pi / 8 * wanted).sqrt()
    torch.testing.assert_close(found.probit(new), shrunk)


def sampled(found: Any, new: Tensor, k: int, seed: int) -> Tensor:
    return found.outputs(new, found.draw(k, seeded(seed)))


@every_case
def test_the_whole_matrix_is_the_numeric_hessian(outputs: int, bias: bool) -> None:
    phi, (weight, b) = randn(20, 4, seed=0), layer(outputs, 4, bias)
    found = JointPosterior().fit(phi, weight, b, "full")
    assert found.whole
    hessian = numeric_hessian(phi, weight, b)
    matrix = (found.right * found.values) @ found.right.T
    torch.testing.assert_close(matrix, hessian, rtol=1e-9, atol=1e-9)
    new = randn(6, 4, seed=3)
    check_variances(found, new, hessian)
    torch.testing.assert_close(found.mean(new), F.linear(new, weight, b))


@every_case
def test_the_kronecker_form_is_that_of_its_factors(outputs: int, bias: bool) -> None:
    phi, (weight, b) = randn(20, 4, seed=0), layer(outputs, 4, bias)
    found = JointPosterior().fit(phi, weight, b, "kron")
    z = F.linear(phi, weight, b)
    if outputs == 1:
        mean = (z.sigmoid() * (1 - z.sigmoid())).mean().view(1, 1)
    else:
        mean = torch.stack([p.diag() - torch.outer(p, p) for p in z.softmax(dim=1)]).mean(dim=0)
    wide = extended(phi, bias)
    hessian = torch.kron(mean, wide.T @ wide)
    check_variances(found, randn(6, 4, seed=3), hessian)


def class_evidence(log_tau: float, hessian: np.ndarray, theta: np.ndarray) -> float:
    tau = np.exp(log_tau)
    whole = hessian + tau * np.eye(len(hessian))
    size = len(hessian) * log_tau - np.linalg.slogdet(whole)[1] - tau * np.sum(theta**2)
    return 0.5 * float(size)


@pytest.mark.parametrize("scale", [0.03, 1.0, 10.0])
@every_case
def test_the_precision_maximises_the_evidence(scale: float, outputs: int, bias: bool) -> None:
    phi, (weight, b) = randn(30, 4, seed=0), layer(outputs, 4, bias)
    weight, b = scale * weight, None if b is None else scale * b
    found = JointPosterior().fit(phi, weight, b, "full")
    hessian, theta = numeric_hessian(phi, weight, b).numpy(), stacked(weight, b).numpy()
    best = optimize.minimize_scalar(
        lambda s: -class_evidence(s, hessian, theta), bounds=(-13.8, 13.8), method="bounded",
        options={"xatol": 1e-9},
    )  # fmt: skip
    assert float(found.precision.log()) == pytest.approx(best.x, abs=1e-4)


def test_precisions_without_a_maximum_stay_finite() -> None:
    assert best_precision(torch.zeros(4), torch.ones(4)) == pytest.approx(1e-6)  # no data
    assert best_precision(torch.ones(4), torch.zeros(4)) == pytest.approx(1e6)  # no weights


@pytest.mark.parametrize("structure", ["full", "kron"])
def test_draws_of_classes_have_the_posteriors_moments(structure: Any) -> None:
    phi, (weight, b) = randn(30, 3, seed=0), layer(3, 3, True)
    found, new = JointPosterior().fit(phi, weight, b, structure), randn(4, 3, seed=3)
    z = sampled(found, new, 40_000, 4)
    hessian = torch.kron(found.left, found.right) * found.values.flatten()
    wanted = by_inverse(found, new, hessian @ torch.kron(found.left, found.right).T)
    for row in range(4):
        deviation = wanted[row].diagonal().sqrt()
        error = 6 / 40_000**0.5
        assert ((z[:, row].mean(dim=0) - found.mean(new)[row]).abs() < error * deviation).all()
        bound = 1.5 * error * torch.outer(deviation, deviation)
        assert ((torch.cov(z[:, row].T) - wanted[row]).abs() < bound).all()


def test_the_probit_is_near_the_mean_over_the_posterior() -> None:
    phi, (weight, b) = randn(15, 3, seed=0), layer(1, 3, True)
    found = JointPosterior().fit(phi, weight, b)
    new = 3 * randn(40, 3, seed=3)
    wanted = sampled(found, new, 20_000, 0).sigmoid().mean(dim=0)
    plain, shrunk = found.mean(new).sigmoid() - wanted, found.probit(new).sigmoid() - wanted
    assert shrunk.abs().max() < 0.03
    assert shrunk.abs().mean() < 0.3 * plain.abs().mean()


def test_blocks_of_rows_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    phi, (weight, b) = randn(50, 4, seed=0), layer(3, 4, True)
    wanted = JointPosterior().fit(phi, weight, b)
    monkeypatch.setattr(module, "_CHUNK", 100)
    found = JointPosterior().fit(phi, weight, b)
    torch.testing.assert_close(found.values, wanted.values)
    torch.testing.assert_close(found.variance(phi), wanted.variance(phi))


def test_auto_takes_the_whole_matrix_where_it_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LARGEST", 40)
    assert JointPosterior().fit(randn(5, 9, seed=0), *layer(4, 9, True)).whole
    assert not JointPosterior().fit(randn(5, 9, seed=0), *layer(5, 9, True)).whole


@pytest.mark.parametrize("structure", ["full", "kron"])
@pytest.mark.parametrize("bias", [True, False])
def test_state_round_trip_is_bit_identical(structure: str, bias: bool) -> None:
    phi, (weight, b) = randn(20, 4, seed=0).float(), layer(3, 4, bias)
    fitted = JointPosterior().fit(phi, weight.float(), b, structure)
    fresh = JointPosterior()
    fresh.load_state_dict(fitted.state_dict())
    for other in (fresh, copy.deepcopy(fitted)):
        for name in ("mean", "variance", "probit"):
            one, two = getattr(fitted, name)(phi), getattr(other, name)(phi)
            assert one.dtype == torch.float32
            assert torch.equal(one, two)
        assert torch.equal(sampled(fitted, phi, 3, 0), sampled(other, phi, 3, 0))


def test_constant_and_huge_features_stay_finite() -> None:
    weight, b = layer(3, 4, True)
    for phi in (torch.ones(20, 4), torch.zeros(20, 4), 1e4 * randn(20, 4, seed=0)):
        found = JointPosterior().fit(phi.double(), weight, b)
        assert torch.isfinite(found.variance(phi.double())).all()
        assert torch.isfinite(found.draw(3, seeded(0))).all()
        assert (found.values >= 0).all()


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


def value_evidence(
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
        best = optimize.minimize(lambda at, case=case: -value_evidence(at, *case), np.zeros(2))
        found = torch.stack([ours.precision[t], ours.noise[t]]).log().numpy()
        assert value_evidence(found, *case) >= -best.fun - 1e-9
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
def test_draws_of_values_have_the_posteriors_moments(shared: bool) -> None:
    phi, weight, y = values_case()
    curvature = torch.ones_like(y) if shared else randn(60, 2, seed=4).exp()
    found = SeparatePosteriors().fit(phi, weight, None, curvature, y - phi @ weight.T)
    new = randn(4, 5, seed=3)
    z = sampled(found, new, 40_000, 4)
    deviation = found.variance(new).sqrt()
    assert ((z.mean(dim=0) - found.mean(new)).abs() < 6 / 200 * deviation).all()
    torch.testing.assert_close(z.std(dim=0), deviation, rtol=0.03, atol=0.0)
    across = torch.corrcoef(z[:, 0].T)[0, 1]
    assert abs(float(across)) < 0.03  # outputs are independent


def test_features_must_be_finite() -> None:
    phi, weight, bias, curvature = label_case(missing=False)
    with pytest.raises(InputError, match="finite features"):
        SeparatePosteriors().fit(phi / 0, weight, bias, curvature)
    with pytest.raises(InputError, match="finite features"):
        JointPosterior().fit(phi / 0, weight, bias)


# -- laplace-torch -------------------------------------------------------------------------------


def two_layers(weight: Tensor, bias: Tensor | None) -> nn.Module:
    """The identity, and the layer."""
    outputs, width = weight.shape
    trunk, head = nn.Linear(width, width, False), nn.Linear(width, outputs, bias is not None)
    trunk.weight.data.copy_(torch.eye(width))
    head.weight.data.copy_(weight)
    if bias is not None:
        head.bias.data.copy_(bias)
    return nn.Sequential(trunk, head).double()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("structure", "bias"), [("full", True), ("full", False), ("kron", False)])
def test_classes_are_those_of_laplace_torch(structure: str, bias: bool) -> None:
    """Variances and evidence; its Kronecker form treats a bias apart, so only without one."""
    laplace = pytest.importorskip("laplace")
    weight, b = layer(3, 4, bias)
    phi, y = randn(40, 4, seed=0), torch.arange(40) % 3
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(phi, y), batch_size=40)
    theirs = laplace.Laplace(
        two_layers(weight, b), "classification", "last_layer", structure,
        backend=laplace.curvature.BackPackGGN,
    )  # fmt: skip
    theirs.fit(loader)
    ours = JointPosterior().fit(phi, weight, b, structure)
    theirs.prior_precision = ours.precision
    new = randn(6, 4, seed=3)
    mean, covariance = theirs._glm_predictive_distribution(new)
    torch.testing.assert_close(ours.mean(new), mean)
    wanted = covariance.diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(ours.variance(new), wanted, rtol=1e-6, atol=1e-9)
    best = float(theirs.log_marginal_likelihood())
    for factor in (0.8, 1.25):
        moved = ours.precision * factor
        assert float(theirs.log_marginal_likelihood(moved)) < best


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_values_are_those_of_laplace_torch() -> None:
    laplace = pytest.importorskip("laplace")
    phi, weight, y = values_case(outputs=1)
    bias = torch.tensor([0.2]).double()
    r = y - phi @ weight.T - bias
    ours = SeparatePosteriors().fit(phi, weight, bias, torch.ones_like(y), r)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(phi, y), batch_size=60)
    theirs = laplace.Laplace(
        two_layers(weight, bias), "regression", "last_layer", "full",
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
