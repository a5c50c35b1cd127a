r"""The Laplace approximation of a last linear layer whose outputs are independent, in closed form.

Yes/no labels and values have one loss per output, so that every output t has a Gaussian posterior
of its own over the weights :math:`\theta_t` (bias included) that read the features :math:`\phi`:

.. math::
    \theta_t \sim N\Bigl(\hat\theta_t, \bigl(\tfrac{1}{s_t} H_t + \tau_t I\bigr)^{-1}\Bigr), \qquad
    H_t = \sum_i \lambda_{ti}\, \phi_i \phi_i^\top

For labels :math:`\lambda = p (1 - p)` and :math:`s = 1`. For values with noise of variance
:math:`s_t v_{ti}` it is :math:`\lambda = 1 / v`, and the posterior is no approximation: this is
Bayesian linear regression. Prior precision :math:`\tau_t` and, where it is not known, noise
:math:`s_t` maximise the marginal likelihood.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from gduq.baselines.gaussian_layer import GaussianLayer, best_precision
from gduq.errors import InputError
from gduq.randomness import normal

__all__ = ["SeparatePosteriors", "best_noise"]

_MOST = 4_000_000  # numbers in the eigenvectors of all outputs
_LEAST = 1e-12  # noise, relative to what the network or the scale of the values says


class SeparatePosteriors(GaussianLayer):
    r"""One Gaussian per output over the weights of a last linear layer.

    Attributes:
        right: Eigenvectors of :math:`H_t`, ``[T, D, D]``; ``[1, D, D]`` where all outputs share
            them: rows count the same, or there are so many outputs that the mean of
            :math:`\lambda_t` stands for it.
        values: Eigenvalues of :math:`H_t`, ``[T, D]``.
        precision: :math:`\tau`, ``[T]``.
        noise: :math:`s`, ``[T]``.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> phi, head = torch.randn(50, 4, generator=generator), torch.nn.Linear(4, 2)
        >>> probs = head(phi).sigmoid()
        >>> posterior = SeparatePosteriors().fit(phi, head.weight, head.bias, probs * (1 - probs))
        >>> posterior.variance(phi).shape
        torch.Size([50, 2])
    """

    sized: ClassVar[Mapping[str, int]] = {
        "weight": 2,
        "right": 3,
        "values": 2,
        "precision": 1,
        "noise": 1,
    }

    right: Tensor
    values: Tensor
    precision: Tensor
    noise: Tensor

    @torch.no_grad()
    def fit(
        self,
        phi: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        curvature: Tensor,
        residuals: Tensor | None = None,
    ) -> SeparatePosteriors:
        r"""Fit to the features of training rows and a trained layer.

        Args:
            phi: Features ``[n, d]`` that the layer reads.
            weight: ``[T, d]``.
            bias: ``[T]`` or ``None``.
            curvature: :math:`\lambda`, ``[n, T]``; 0 where an entry is missing.
            residuals: Truth less output ``[n, T]``, for values whose noise is to be found;
                ``None`` leaves :math:`s = 1`.
        """
        for given in (curvature, residuals):
            wanted = (phi.size(0), weight.size(0))
            if given is not None and given.shape != wanted:
                raise InputError(f"one number per row and output {list(wanted)}", list(given.shape))
        phi, theta = self._take(phi, weight, bias)
        curvature = curvature.detach().double()
        values, right = _eigen(phi, curvature)
        if residuals is None:
            self.noise = torch.ones_like(values[:, 0])
        else:
            squares = (curvature * residuals.detach().double().square()).sum(dim=0)
            self.noise = best_noise(values, theta, squares, phi.size(0))
        self.values, self.right = values, right.contiguous()
        self.precision = best_precision(values / self.noise.unsqueeze(1), theta)
        return self

    @torch.no_grad()
    def variance(self, phi: Tensor) -> Tensor:
        """Variance ``[m, T]`` of each output for features ``[m, d]``."""
        read = self._read(phi)
        if self.right.size(0) == 1:
            return ((read @ self.right[0]).square() @ self._scale.T).to(phi.dtype)
        pairs = zip(self.right, self._scale, strict=True)
        return torch.stack([(read @ r).square() @ s for r, s in pairs], dim=1).to(phi.dtype)

    @torch.no_grad()
    def draw(self, k: int, generator: torch.Generator) -> Tensor:
        self._require_fit()
        noise = normal((k, *self.values.shape), self.values.dtype, self.values.device, generator)
        scaled = (noise * self._scale.sqrt()).unsqueeze(2)  # [K, T, 1, D]
        return self.weight + (scaled @ self.right.transpose(1, 2)).squeeze(2)

    @property
    def _scale(self) -> Tensor:
        """Variances of the weights in the eigenbasis ``[T, D]``."""
        return (self.values / self.noise.unsqueeze(1) + self.precision.unsqueeze(1)).reciprocal()

    def extra_repr(self) -> str:
        return f"outputs={self.weight.size(0)}" if self.fitted else "not fitted"


def _eigen(phi: Tensor, curvature: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues ``[T, D]`` and eigenvectors ``[T, D, D]`` or ``[1, D, D]`` of all H."""
    outputs, width = curvature.size(1), phi.size(1)
    alike = bool((curvature == curvature[:1]).all())
    if alike or outputs * width**2 > _MOST:
        values, right = torch.linalg.eigh(phi.T @ phi)
        return torch.outer(curvature.mean(dim=0), values.clamp_min(0)), right.unsqueeze(0)
    whole = torch.stack([(phi * column.unsqueeze(1)).T @ phi for column in curvature.unbind(1)])
    values, right = torch.linalg.eigh(whole)
    return values.clamp_min(0), right


def best_noise(values: Tensor, theta: Tensor, squares: Tensor, rows: int) -> Tensor:
    r"""The noise that, with the best prior precision, maximises the marginal likelihood.

    With weights :math:`\hat\theta`, residuals r and eigenvalues :math:`\lambda` of H, up to
    constants,

    .. math::
        2 \log Z(\tau, s) = P \log \tau - n \log s - \sum_j \log(\lambda_j / s + \tau) -
        \|r\|^2 / s - \tau \|\hat\theta\|^2

    Where both derivatives are 0, :math:`\tau = \gamma / \|\hat\theta\|^2` and :math:`s = \|r\|^2 /
    (n - \gamma)` with :math:`\gamma = \sum_j \lambda_j / (\lambda_j + \rho)`. So :math:`\rho = \tau
    s` solves :math:`\rho = \gamma \|r\|^2 / ((n - \gamma) \|\hat\theta\|^2)`. The left side rises,
    the right side falls: there is one solution, found by bisection.

    Args:
        values: :math:`\lambda`, ``[T, P]``.
        theta: :math:`\hat\theta`, ``[T, P]``.
        squares: :math:`\|r\|^2`, ``[T]``.
        rows: n.

    Example:
        >>> flat = torch.full((1, 2), 1e-9)  # features that say nothing: all is noise
        >>> best_noise(flat, torch.ones(1, 2), torch.tensor([5.0]), rows=10)
        tensor([0.5000], dtype=torch.float64)
    """
    values, squares = values.double(), squares.double()
    length = theta.double().square().sum(dim=1)
    top = values.amax(dim=1).clamp_min(1e-200)
    squares = squares.clamp_min(_LEAST * rows)
    low, high = top.log() - 60.0, top.log() + 60.0

    def explained(ratio: Tensor) -> Tensor:
        return (values / (values + ratio.unsqueeze(1))).sum(dim=1)

    for _ in range(80):
        middle = (low + high) / 2
        gamma = explained(middle.exp())
        below = middle.exp() * (rows - gamma) * length < gamma * squares
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    gamma = explained(((low + high) / 2).exp())
    return squares / (rows - gamma).clamp_min(_LEAST * rows)
