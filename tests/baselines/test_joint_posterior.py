"""The last layer's posterior against numeric Hessians, plain inverses and laplace-torch."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import optimize
from torch import Tensor, nn

from gduq.baselines import joint_posterior as module
from gduq.baselines.gaussian_layer import best_precision
from gduq.baselines.joint_posterior import JointPosterior
from gduq.errors import InputError, NotFittedError

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


def by_inverse(rows: Tensor, hessian: Tensor, precision: Tensor, outputs: int) -> Tensor:
    """Covariances from the definition: one Jacobian per row, one inverse."""
    inverse = torch.linalg.inv(hessian + precision * torch.eye(len(hessian), dtype=rows.dtype))
    eye = torch.eye(outputs, dtype=rows.dtype)
    jacobians = [torch.kron(eye, row[None]) for row in rows]  # [C, C * D]
    return torch.stack([j @ inverse @ j.T for j in jacobians])


@every_case
def test_the_whole_matrix_is_the_numeric_hessian(outputs: int, bias: bool) -> None:
    phi, (weight, b) = randn(20, 4, seed=0), layer(outputs, 4, bias)
    found = JointPosterior().fit(phi, weight, b, "full")
    assert found.structure == "full"
    hessian = numeric_hessian(phi, weight, b)
    matrix = (found.right * found.values) @ found.right.T
    torch.testing.assert_close(matrix, hessian, rtol=1e-9, atol=1e-9)
    new = randn(6, 4, seed=3)
    wanted = by_inverse(extended(new, bias), hessian, found.precision, outputs)
    torch.testing.assert_close(found.covariance(new), wanted, rtol=1e-8, atol=1e-10)
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
    new = randn(6, 4, seed=3)
    wanted = by_inverse(extended(new, bias), hessian, found.precision, outputs)
    torch.testing.assert_close(found.covariance(new), wanted, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("structure", ["full", "kron"])
@every_case
def test_variances_are_the_diagonals(structure: str, outputs: int, bias: bool) -> None:
    phi, (weight, b) = randn(20, 4, seed=0), layer(outputs, 4, bias)
    found = JointPosterior().fit(phi, weight, b, structure)
    wanted = found.covariance(phi).diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(found.variance(phi), wanted)
    assert (wanted > 0).all()
    shrunk = found.mean(phi) / (1 + math.pi / 8 * wanted).sqrt()
    torch.testing.assert_close(found.probit(phi), shrunk)


def log_evidence(log_tau: float, hessian: np.ndarray, theta: np.ndarray) -> float:
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
        lambda s: -log_evidence(s, hessian, theta), bounds=(-13.8, 13.8), method="bounded",
        options={"xatol": 1e-9},
    )  # fmt: skip
    assert float(found.precision.log()) == pytest.approx(best.x, abs=1e-4)


def test_precisions_without_a_maximum_stay_finite() -> None:
    assert best_precision(torch.zeros(4), torch.ones(4)) == pytest.approx(1e-6)  # no data
    assert best_precision(torch.ones(4), torch.zeros(4)) == pytest.approx(1e6)  # no weights


@pytest.mark.parametrize("structure", ["full", "kron"])
def test_draws_have_the_posteriors_moments(structure: str) -> None:
    phi, (weight, b) = randn(30, 3, seed=0), layer(3, 3, True)
    found = JointPosterior().fit(phi, weight, b, structure)
    new = randn(4, 3, seed=3)
    z = found.sample(new, 40_000, seeded(4))
    assert z.shape == (40_000, 4, 3)
    wanted = found.covariance(new)
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
    wanted = found.sample(new, 20_000, seeded(0)).sigmoid().mean(dim=0)
    plain, shrunk = found.mean(new).sigmoid() - wanted, found.probit(new).sigmoid() - wanted
    assert shrunk.abs().max() < 0.03
    assert shrunk.abs().mean() < 0.3 * plain.abs().mean()


def test_blocks_of_rows_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    phi, (weight, b) = randn(50, 4, seed=0), layer(3, 4, True)
    wanted = JointPosterior().fit(phi, weight, b)
    monkeypatch.setattr(module, "_CHUNK", 100)
    found = JointPosterior().fit(phi, weight, b)
    torch.testing.assert_close(found.values, wanted.values)
    torch.testing.assert_close(found.covariance(phi), wanted.covariance(phi))


def test_auto_takes_the_whole_matrix_where_it_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LARGEST", 40)
    assert JointPosterior().fit(randn(5, 9, seed=0), *layer(4, 9, True)).structure == "full"
    assert JointPosterior().fit(randn(5, 9, seed=0), *layer(5, 9, True)).structure == "kron"


@pytest.mark.parametrize("structure", ["full", "kron"])
@pytest.mark.parametrize("bias", [True, False])
def test_state_round_trip_is_bit_identical(structure: str, bias: bool) -> None:
    phi, (weight, b) = randn(20, 4, seed=0).float(), layer(3, 4, bias)
    fitted = JointPosterior().fit(phi, weight.float(), b, structure)
    fresh = JointPosterior()
    fresh.load_state_dict(fitted.state_dict())
    for other in (fresh, copy.deepcopy(fitted)):
        assert other.structure == structure
        for name in ("mean", "covariance", "variance", "probit"):
            one, two = getattr(fitted, name)(phi), getattr(other, name)(phi)
            assert one.dtype == torch.float32
            assert torch.equal(one, two)
        assert torch.equal(fitted.sample(phi, 3, seeded(0)), other.sample(phi, 3, seeded(0)))


def test_constant_and_huge_features_stay_finite() -> None:
    weight, b = layer(3, 4, True)
    for phi in (torch.ones(20, 4), torch.zeros(20, 4), 1e4 * randn(20, 4, seed=0)):
        found = JointPosterior().fit(phi.double(), weight, b)
        assert torch.isfinite(found.covariance(phi.double())).all()
        assert torch.isfinite(found.sample(phi.double(), 3, seeded(0))).all()
        assert (found.values >= 0).all()


def test_mistakes_are_said() -> None:
    phi, (weight, b) = randn(20, 4, seed=0), layer(3, 4, True)
    with pytest.raises(NotFittedError, match="fitted posterior"):
        JointPosterior().mean(phi)
    with pytest.raises(NotFittedError, match="fitted posterior"):
        JointPosterior().draw(2, seeded(0))
    fitted = JointPosterior().fit(phi, weight, b)
    with pytest.raises(InputError, match=r"\[m, 4\]"):
        fitted.mean(phi[:, :3])
    for call, match in (
        ((phi, weight, b, "diag"), "structure"),
        ((phi[:, :3], weight, b), r"features of shape \[n, 4\]"),
        ((phi[:0], weight, b), r"features of shape \[n, 4\]"),
        ((phi, weight, b[:2]), r"a weight \[C, d\]"),
        ((phi / 0, weight, b), "finite features"),
    ):
        with pytest.raises(InputError, match=match):
            JointPosterior().fit(*call)


# -- laplace-torch -------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("structure", "bias"), [("full", True), ("full", False), ("kron", False)])
def test_it_is_that_of_laplace_torch(structure: str, bias: bool) -> None:
    """Covariances and evidence; its Kronecker form treats a bias apart, so only without one."""
    laplace = pytest.importorskip("laplace")
    head = nn.Linear(4, 3, bias=bias).double()
    weight, b = layer(3, 4, bias)
    head.weight.data.copy_(weight)
    if b is not None:
        head.bias.data.copy_(b)
    trunk = nn.Linear(4, 4, bias=False).double()
    trunk.weight.data.copy_(torch.eye(4))
    phi, y = randn(40, 4, seed=0), torch.arange(40) % 3
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(phi, y), batch_size=40)
    theirs = laplace.Laplace(
        nn.Sequential(trunk, head), "classification", "last_layer", structure,
        backend=laplace.curvature.BackPackGGN,
    )  # fmt: skip
    theirs.fit(loader)
    ours = JointPosterior().fit(phi, weight, b, structure)
    theirs.prior_precision = ours.precision
    new = randn(6, 4, seed=3)
    mean, covariance = theirs._glm_predictive_distribution(new)
    torch.testing.assert_close(ours.mean(new), mean)
    torch.testing.assert_close(ours.covariance(new), covariance, rtol=1e-6, atol=1e-9)
    best = float(theirs.log_marginal_likelihood())
    for factor in (0.8, 1.25):
        moved = ours.precision * factor
        assert float(theirs.log_marginal_likelihood(moved)) < best
