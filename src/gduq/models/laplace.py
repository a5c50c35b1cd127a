"""`LastLayerLaplace`: a Gaussian over the weights of a trained network's last linear layer."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import ClassVar, cast

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

from gduq.errors import InputError, NotFittedError, check_int
from gduq.models.on_trunk import OnTrunk
from gduq.models.predictor import RowFit
from gduq.nn.layers import AnySize
from gduq.prediction import Labels, Values
from gduq.tracing.call import LINEAR, Call
from gduq.tracing.trunk import Trunk

__all__ = ["LastLayerLaplace", "Posterior"]

_PRECISIONS = (1e-6, 1e6)  # that a prior may have
_LEAST = 1e-12  # noise, relative to what the network or the scale of the values says
_LOGS = (-90.0, 90.0)  # of precision times noise, wherever features and values have their scale


class LastLayerLaplace(OnTrunk):
    r"""A trained network with a Laplace approximation of its last layer (Daxberger et al., 2021).

    From one pass over the training rows, with the prior by marginal likelihood: nothing is
    trained. Classes and labels have one hypothesis with moderated logits, MacKay's
    :math:`\mu / \sqrt{1 + \pi \sigma^2 / 8}`. For values it is Bayesian linear regression around
    the trained weights; the noise is the network's own or, where it gives means only, by marginal
    likelihood too. The means of the K Gaussians are spaced like quantiles of the posterior, with
    exactly its mean and variance (for K = 1 it widens the noise).

    Args:
        net: A trained network with a head, which is copied; or a trunk, to share it.
        num_samples: K, for values.
        call: As in `gduq.anchor`.
    """

    settings: ClassVar[tuple[str, ...]] = ("num_samples",)

    def __init__(
        self, net: nn.Module | Trunk, num_samples: int = 10, call: Call | None = None
    ) -> None:
        self.num_samples = check_int("num_samples", num_samples, 1)
        super().__init__(net, call)

    def _build(self, trunk: Trunk) -> None:
        super()._build(trunk)
        with torch.random.fork_rng(devices=[]):  # its layers draw weights, if only to lose them
            first, rest = trunk.head()
        steps = [first, *(rest.children() if isinstance(rest, nn.Sequential) else [])]
        last = max(i for i, step in enumerate(steps) if isinstance(step, LINEAR))
        if any(not isinstance(step, (nn.Dropout, nn.Identity)) for step in steps[last + 1 :]):
            raise InputError("a head that ends in a linear map", f"{steps[-1]} at its end")
        self.lead = nn.Sequential(*steps[:last]).requires_grad_(False)
        self.last = cast(nn.Linear, steps[last].requires_grad_(False))
        self.posterior = Posterior()

    @torch.no_grad()
    def fit_rows(self, work: RowFit) -> None:
        phi, target, y = self.lead(work.train.h), self.target, work.train.y
        bias = [] if self.last.bias is None else [self.last.bias.unsqueeze(1)]
        theta = torch.cat([self.last.weight, *bias], dim=1)  # a copy
        curvature = residuals = None
        if isinstance(target, Values):  # in standardised units, with the noise the network gives
            theta = theta[: target.num_values]
            if target.raw:
                if bias:
                    theta[:, -1] -= theta.new_tensor(target.shift)
                theta /= theta.new_tensor(target.scale).unsqueeze(1)
            means, logs = self._own(phi, target)
            curvature = (-logs).exp() * ~y.isnan()
            residuals = (y - means).nan_to_num() if target.needs_noise else None
        elif isinstance(target, Labels) or theta.size(0) == 1:
            p = self.last(phi).sigmoid()
            curvature = p * (1 - p) * ~y.view(p.shape).isnan()
        self.posterior = Posterior().fit(self._wide(phi), theta, curvature, residuals)

    def from_rows(self, h: Tensor, outputs: Tensor) -> Tensor:
        self.check_ready()
        phi = self.lead(h)
        variance = self.posterior.variance(self._wide(phi))
        if not isinstance(self.target, Values):
            logits: Tensor = self.last(phi)
            return (logits / (1.0 + math.pi / 8.0 * variance).sqrt()).unsqueeze(0)
        means, logs = self._own(phi, self.target)
        logs = logs + self.posterior.noise.log().to(logs)
        k, quantile = self.num_samples, NormalDist().inv_cdf  # ONNX has no such function
        if k == 1:
            return torch.cat([means, (logs.exp() + variance).log()], dim=-1).unsqueeze(0)
        # quantiles of the standard normal distribution, stretched to a variance of 1
        steps = torch.tensor([quantile((i + 0.5) / k) for i in range(k)], dtype=torch.float64)
        steps = (steps / steps.square().mean().sqrt()).to(means).view(-1, 1, 1)
        means = means + steps * variance.sqrt()
        return torch.cat([means, logs.expand_as(means)], dim=-1)

    def _wide(self, phi: Tensor) -> Tensor:
        """What the weights are multiplied with: features, and a 1 for the bias."""
        return phi if self.last.bias is None else F.pad(phi, (0, 1), value=1.0)

    def _own(self, phi: Tensor, target: Values) -> tuple[Tensor, Tensor]:
        """The network's means and log-variances ``[m, T]``, standardised; 0 where it has none."""
        means, logs = target.to_params(self.last(phi)).chunk(2, dim=-1)
        return means, torch.zeros_like(logs) if target.needs_noise else logs

    def check_ready(self) -> None:
        if self.trunk is None or not self.posterior.scale.numel():
            raise NotFittedError("a posterior", "none yet", "Call gduq.fit(model, train, val).")


class Posterior(AnySize):
    r"""A Gaussian over the weights ``[C, D]`` of a linear layer.

    .. math::
        \theta_t \sim N\Bigl(\hat\theta_t, \bigl(\tfrac{1}{s_t} H_t + \tau_t I\bigr)^{-1}\Bigr),
        \qquad H_t = \sum_i \lambda_{ti}\, \phi_i \phi_i^\top

    with the curvature of the loss :math:`\lambda_{ti} = p (1 - p)` for labels (s is 1). For values
    with noise of variance :math:`s_t v_{ti}` it is :math:`1 / v`, and this is Bayesian linear
    regression. Classes exclude each other: :math:`H = B \otimes A` with A the sum of
    :math:`\phi \phi^\top` and B the mean of :math:`\mathrm{diag}(p) - p p^\top` (Ritter et al.,
    ICLR 2018). Precision and noise maximise the marginal likelihood.

    Attributes:
        basis: Eigenvectors of A ``[1, D, D]``, or of every :math:`H_t` ``[C, D, D]``.
        scale: Variance of each output along them ``[C, D]``.
        precision, noise: :math:`\tau` and s ``[C]``.
    """

    basis: Tensor
    scale: Tensor
    precision: Tensor
    noise: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name, dim in {"basis": 3, "scale": 2, "precision": 1, "noise": 1}.items():
            self.register_buffer(name, torch.empty([0] * dim, dtype=torch.float64))

    @torch.no_grad()
    def fit(
        self,
        phi: Tensor,
        theta: Tensor,
        curvature: Tensor | None = None,
        residuals: Tensor | None = None,
    ) -> Posterior:
        r"""Fit to the features ``[n, D]`` of training rows and a trained layer ``[C, D]``.

        The curvature :math:`\lambda` ``[n, C]`` of independent outputs is 0 where an entry is
        missing; ``None`` means classes. Residuals (truth less output, ``[n, C]``) are for values
        whose noise is to be found, else :math:`s = 1`.
        """
        if not torch.isfinite(phi).all():
            raise InputError("finite features", "NaN or infinite values")
        theta, phi = theta.double(), phi.double()
        shares = torch.eye(len(theta)).to(theta)  # of B's eigenvectors in every output
        if curvature is None:
            probs = (phi @ theta.T).softmax(dim=1)
            mean = probs.mean(dim=0).diag() - probs.T @ probs / probs.size(0)
            (of_outputs, vectors), (of_inputs, basis) = _eigen(mean), _eigen(phi.T @ phi)
            values, shares, self.basis = of_outputs.outer(of_inputs), vectors.square(), basis[None]
            found = [_evidence(values, theta)] * len(theta)  # one prior for all outputs
        else:
            columns = curvature.double().unsqueeze(2).unbind(dim=1)
            values, self.basis = _eigen(torch.stack([(phi * c).T @ phi for c in columns]))
            errors = 0.0 * curvature if residuals is None else curvature * residuals.square()
            rows = (0.0 * curvature if residuals is None else curvature > 0).sum(dim=0).tolist()
            sums = errors.double().sum(dim=0).tolist()
            found = [_evidence(*case) for case in zip(values, theta, sums, rows, strict=True)]
        self.precision, self.noise = theta.new_tensor(found).T.contiguous()
        precisions = values / self.noise.unsqueeze(1) + self.precision.unsqueeze(1)
        self.scale = shares @ precisions.reciprocal()
        return self

    @torch.no_grad()
    def variance(self, phi: Tensor) -> Tensor:
        """Variance ``[m, C]`` of each output for features ``[m, D]``."""
        own = zip(self.basis, self.scale.chunk(len(self.basis)), strict=True)
        found = [(phi.to(basis) @ basis).square() @ scale.T for basis, scale in own]
        return torch.cat(found, dim=1).to(phi.dtype)


def _eigen(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues, none below 0, and eigenvectors as files hold them."""
    values, vectors = torch.linalg.eigh(matrix)
    return values.clamp_min(0), vectors.contiguous()


def _evidence(
    values: Tensor, theta: Tensor, squares: float = 0.0, rows: int = 0
) -> tuple[float, float]:
    r"""The prior precision and the noise that maximise the marginal likelihood: with eigenvalues
    :math:`\lambda` of H, P weights and the sum of squared residuals :math:`\|r\|^2` of n rows,

    .. math::
        2 \log Z(\tau, s) = P \log \tau - n \log s - \sum_j \log(\lambda_j / s + \tau) -
        \|r\|^2 / s - \tau \|\hat\theta\|^2 + \ldots

    For a given :math:`q = \tau s` the best s is :math:`(\|r\|^2 + q \|\hat\theta\|^2) / n`, which
    leaves one number, with one maximum. Without rows s is 1.
    """
    known, length = values.cpu().numpy(), float(theta.square().sum())
    squares = max(squares, _LEAST * rows)

    def loss(log: float) -> float:
        misfit = squares + math.exp(log) * length
        misfit = rows * math.log(misfit) if rows else misfit
        return misfit + float(np.log1p(known * math.exp(-log)).sum())

    found = minimize_scalar(loss, bounds=_LOGS, method="bounded", options={"xatol": 1e-9})
    product = math.exp(found.x)
    noise = (squares + product * length) / rows if rows else 1.0
    return min(max(product / noise, _PRECISIONS[0]), _PRECISIONS[1]), noise
