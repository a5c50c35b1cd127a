"""`LastLayerLaplace`: a Gaussian over the weights of a trained network's last linear layer."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import ClassVar, cast

import torch
from scipy.optimize import brentq
from torch import Tensor, nn

from gduq._checks import check_int
from gduq.errors import InputError, NotFittedError
from gduq.models.head_ensemble import OnTrunk
from gduq.models.predictor import CachedRows, TrainHeads
from gduq.nn.network_specs import AnySize
from gduq.prediction import Labels, Target, Values
from gduq.tracing.call import LINEAR, Call
from gduq.tracing.trunk import Trunk

__all__ = ["LastLayerLaplace", "Posterior"]

_PRECISIONS = (1e-6, 1e6)  # that a prior may have
_LEAST = 1e-12  # noise, relative to what the network or the scale of the values says


class LastLayerLaplace(OnTrunk):
    r"""A trained network with a Laplace approximation of its last layer (Daxberger et al., 2021).

    In closed form from one pass over the training rows, with the prior by marginal likelihood:
    nothing is trained. Classes and labels have one hypothesis with moderated logits, MacKay's
    :math:`\mu / \sqrt{1 + \pi \sigma^2 / 8}`.

    For values it is Bayesian linear regression around the trained weights; the noise is the
    network's own or, where it gives means only, by marginal likelihood too. The K Gaussians have
    means that are spaced like the quantiles of the posterior, with exactly its mean and variance
    (for K = 1 it widens the noise).

    Args:
        net: A trained network with a head; it is copied.
        num_samples: K, for values.
        call: As in `gduq.anchor`.
        trunk: A trunk to share with other models.
    """

    kind: ClassVar[str] = "LastLayerLaplace"
    settings: ClassVar[tuple[str, ...]] = ("num_samples",)

    def __init__(
        self,
        net: nn.Module | None,
        num_samples: int = 10,
        call: Call | None = None,
        trunk: Trunk | None = None,
    ) -> None:
        self.num_samples = check_int("num_samples", num_samples, 1)
        super().__init__(net, call, trunk)

    def _build(self, trunk: Trunk) -> None:
        first, rest = trunk.head()
        steps = [first, *(rest.children() if isinstance(rest, nn.Sequential) else [])]
        last = max(i for i, step in enumerate(steps) if isinstance(step, LINEAR))
        if any(not isinstance(step, (nn.Dropout, nn.Identity)) for step in steps[last + 1 :]):
            raise InputError("a head that ends in a linear map", f"{steps[-1]} at its end")
        self.lead = nn.Sequential(*steps[:last]).requires_grad_(False)
        self.last = cast(nn.Linear, steps[last].requires_grad_(False))
        self.posterior = Posterior()

    @torch.no_grad()
    def fit_rows(
        self, train: CachedRows, held: CachedRows, learn: TrainHeads, before: Target | None = None
    ) -> None:
        phi, target, y = self.lead(train.h), self.target, train.y
        weight: Tensor = self.last.weight
        bias: Tensor | None = getattr(self.last, "bias", None)
        curvature = residuals = None
        if isinstance(target, Values):  # in standardised units, with the noise the network gives
            count = target.num_values
            weight, bias = weight[:count], None if bias is None else bias[:count]
            if target.raw:
                shift, scale = (weight.new_tensor(given) for given in (target.shift, target.scale))
                weight = weight / scale.unsqueeze(1)
                bias = None if bias is None else (bias - shift) / scale
            means, logs = self._own(phi, target)
            curvature, residuals = (-logs).exp(), y - means if target.needs_noise else None
        elif isinstance(target, Labels) or weight.size(0) == 1:
            p = self.last(phi).sigmoid()
            curvature = p * (1 - p) * ~y.view(p.shape).isnan()
        self.posterior = Posterior().to(phi.device).fit(phi, weight, bias, curvature, residuals)

    def from_rows(self, h: Tensor, outputs: Tensor) -> Tensor:
        self.check_ready()
        phi = self.lead(h)
        variance = self.posterior.variance(phi)
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

    def _own(self, phi: Tensor, target: Values) -> tuple[Tensor, Tensor]:
        """The network's means and log-variances ``[m, T]``, standardised; 0 where it has none."""
        means, logs = target.to_params(self.last(phi)).chunk(2, dim=-1)
        return means, torch.zeros_like(logs) if target.needs_noise else logs

    def check_ready(self) -> None:
        if self.trunk is None or not self.posterior.values.numel():
            raise NotFittedError("a posterior", "none yet", "Call gduq.fit(model, train, val).")


class Posterior(AnySize):
    r"""A Gaussian over the weights ``[C, D]`` of a linear layer (a bias is the last column).

    .. math::
        \theta_t \sim N\Bigl(\hat\theta_t, \bigl(\tfrac{1}{s_t} H_t + \tau_t I\bigr)^{-1}\Bigr),
        \qquad H_t = \sum_i \lambda_{ti}\, \phi_i \phi_i^\top

    with the curvature of the loss :math:`\lambda_{ti} = p (1 - p)` for labels (s is 1). For values
    with noise of variance :math:`s_t v_{ti}` it is :math:`1 / v`, and this is Bayesian linear
    regression. Classes exclude each other: :math:`H = B \otimes A` with A the sum of
    :math:`\phi \phi^\top` and B the mean of :math:`\mathrm{diag}(p) - p p^\top` (Ritter et al.,
    ICLR 2018). Precision and noise maximise the marginal likelihood. H is in its eigenbasis.

    Attributes:
        left: Eigenvectors of B ``[C, C]``; the identity for independent outputs.
        right: Eigenvectors of A ``[1, D, D]``, or of every :math:`H_t` ``[C, D, D]``.
        values: Eigenvalues of H ``[C, D]``.
        precision, noise: :math:`\tau` and s ``[C]``.
    """

    left: Tensor
    right: Tensor
    values: Tensor
    precision: Tensor
    noise: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name, dim in {"left": 2, "right": 3, "values": 2, "precision": 1, "noise": 1}.items():
            self.register_buffer(name, torch.empty([0] * dim, dtype=torch.float64))

    @torch.no_grad()
    def fit(
        self,
        phi: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        curvature: Tensor | None = None,
        residuals: Tensor | None = None,
    ) -> Posterior:
        r"""Fit to the features ``[n, d]`` of training rows and a trained layer ``[C, d]``.

        The curvature :math:`\lambda` ``[n, C]`` of independent outputs is 0 where an entry is
        missing; ``None`` means classes. Residuals (truth less output, ``[n, C]``) are for values
        whose noise is to be found, else :math:`s = 1`.
        """
        if not torch.isfinite(phi).all():
            raise InputError("finite features", "NaN or infinite values")
        theta, phi = weight.double(), phi.double()
        if bias is not None:
            theta, phi = torch.cat([theta, bias.double().unsqueeze(1)], dim=1), _with_ones(phi)
        if curvature is None:
            probs = (phi @ theta.T).softmax(dim=1)
            mean = probs.mean(dim=0).diag() - probs.T @ probs / probs.size(0)
            (of_outputs, self.left), (of_inputs, right) = _eigen(mean), _eigen(phi.T @ phi)
            self.values, self.right = torch.outer(of_outputs, of_inputs), right.unsqueeze(0)
            found = [_evidence(self.values, theta)] * len(theta)  # one prior for all outputs
        else:
            self.left = torch.eye(len(theta)).to(theta)
            columns = curvature.double().unsqueeze(2).unbind(dim=1)
            self.values, self.right = _eigen(torch.stack([(phi * c).T @ phi for c in columns]))
            rows = 0 if residuals is None else len(phi)
            errors = 0.0 * curvature if residuals is None else curvature * residuals.square()
            cases = zip(self.values, theta, errors.double().sum(dim=0).tolist(), strict=True)
            found = [_evidence(*case, rows) for case in cases]
        self.precision, self.noise = theta.new_tensor(found).T.contiguous()
        return self

    @torch.no_grad()
    def variance(self, phi: Tensor) -> Tensor:
        """Variance ``[m, C]`` of each output for features ``[m, d]``."""
        read = phi.to(self.values)
        read = _with_ones(read) if self.right.size(-1) > read.size(1) else read
        scale = (self.values / self.noise.unsqueeze(1) + self.precision.unsqueeze(1)).reciprocal()
        if self.right.size(0) == 1:
            found = (read @ self.right[0]).square() @ scale.T
        else:
            pairs = zip(self.right, scale, strict=True)
            found = torch.stack([(read @ r).square() @ s for r, s in pairs], dim=1)
        return (found @ self.left.square().T).to(phi.dtype)


def _with_ones(phi: Tensor) -> Tensor:
    return torch.cat([phi, phi.new_ones(phi.size(0), 1)], dim=1)


def _eigen(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues, none below 0, and eigenvectors as files hold them."""
    values, vectors = torch.linalg.eigh(matrix)
    return values.clamp_min(0), vectors.contiguous()


def _evidence(
    values: Tensor, theta: Tensor, squares: float = 0.0, rows: int = 0
) -> tuple[float, float]:
    r"""The prior precision and the noise that maximise the marginal likelihood.

    With eigenvalues :math:`\lambda` of H, P weights and the sum of squared residuals
    :math:`\|r\|^2` of n rows, up to what depends on neither,

    .. math::
        2 \log Z(\tau, s) = P \log \tau - n \log s - \sum_j \log(\lambda_j / s + \tau) -
        \|r\|^2 / s - \tau \|\hat\theta\|^2

    Both derivatives are 0 where :math:`\tau = \gamma / \|\hat\theta\|^2` and :math:`s = \|r\|^2 /
    (n - \gamma)` with :math:`\gamma = \sum_j \lambda_j / (\lambda_j + \tau s)`. One side of either
    rises with :math:`\tau s`, the other falls. Without rows s is 1.
    """
    known, length = values.cpu().numpy().ravel(), float(theta.square().sum())

    def gamma(ratio: float) -> float:
        return float((known / (known + ratio)).sum())

    if not rows:
        return _root(lambda tau: gamma(tau) - tau * length, *_PRECISIONS), 1.0
    squares, top = max(squares, _LEAST * rows), max(float(known.max()), 1e-200)

    def slope(ratio: float) -> float:
        return gamma(ratio) * squares - ratio * (rows - gamma(ratio)) * length

    ratio = _root(slope, top * 1e-26, top * 1e26)
    noise = squares / max(rows - gamma(ratio), _LEAST * rows)
    low, high = _PRECISIONS
    return min(max(ratio / noise, low), high), noise


def _root(falling: Callable[[float], float], low: float, high: float) -> float:
    """Where a falling function of a positive number is 0, or the end that is next to it."""
    if falling(low) <= 0 or falling(high) >= 0:
        return low if falling(low) <= 0 else high
    return math.exp(brentq(lambda x: falling(math.exp(x)), math.log(low), math.log(high)))
