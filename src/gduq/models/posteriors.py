r"""Gaussian posteriors over the weights of a last linear layer, in closed form.

Around its trained weights :math:`\hat\theta` (bias included) a linear map of features :math:`\phi`
has the Laplace approximation

.. math::
    \theta \sim N\bigl(\hat\theta, (H + \tau I)^{-1}\bigr), \qquad
    H = \sum_i \Lambda_i \otimes \phi_i \phi_i^\top

where :math:`\Lambda_i` is the Hessian of row i's loss by its outputs. H is kept in its eigenbasis,
and the prior precision :math:`\tau` maximises the marginal likelihood.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from torch import Tensor

from gduq._torch import normal
from gduq.errors import InputError
from gduq.nn.any_size import AnySize

__all__ = ["JointPosterior", "SeparatePosteriors", "best_noise", "best_precision"]

_LARGEST = 256  # weights up to which the whole matrix is worth its decomposition
_CHUNK = 4_000_000  # numbers in one block
_MOST = 4_000_000  # numbers in the eigenvectors of all outputs
_LEAST = 1e-12  # noise, relative to what the network or the scale of the values says


class Posterior(AnySize, ABC):
    """A Gaussian over the weights of a last linear layer around its trained weights.

    Attributes:
        weight: The trained weights ``[C, D]``; D is d, or d + 1 with the bias last.
        has_bias: Whether there is a bias.
        values: Eigenvalues of H.
    """

    sized: ClassVar[Mapping[str, int]]  # buffers of the layer's size, with their dimensions

    weight: Tensor
    has_bias: Tensor
    right: Tensor
    values: Tensor
    precision: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name, dim in self.sized.items():
            self.register_buffer(name, torch.empty([0] * dim, dtype=torch.float64))
        self.register_buffer("has_bias", torch.zeros((), dtype=torch.bool))

    def _take(self, phi: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        """Note a trained layer; features ``[n, D]`` as it reads them and its weights ``[C, D]``."""
        if not torch.isfinite(phi).all():
            raise InputError("finite features", "NaN or infinite values")
        theta = weight.detach().double()
        if bias is not None:
            theta = torch.cat([theta, bias.detach().double().unsqueeze(1)], dim=1)
        self.weight, self.has_bias = theta, torch.full_like(self.has_bias, bias is not None)
        return self._read(phi), theta

    @property
    def fitted(self) -> bool:
        """Whether there is a posterior."""
        return self.weight.numel() > 0

    @abstractmethod
    def variance(self, phi: Tensor) -> Tensor:
        """Variance ``[m, C]`` of each output for features ``[m, d]``."""

    @abstractmethod
    def draw(self, k: int, generator: torch.Generator) -> Tensor:
        """K draws of the weights ``[K, C, D]``, the bias last; each is a network of its own."""

    @torch.no_grad()
    def mean(self, phi: Tensor) -> Tensor:
        """Outputs ``[m, C]`` of the trained layer."""
        return (self._read(phi) @ self.weight.T).to(phi.dtype)

    @torch.no_grad()
    def outputs(self, phi: Tensor, draws: Tensor) -> Tensor:
        """Outputs ``[K, m, C]`` under given weights ``[K, C, D]``."""
        return (self._read(phi) @ draws.transpose(1, 2)).to(phi.dtype)

    def probit(self, phi: Tensor) -> Tensor:
        r"""Logits ``[m, C]`` whose softmax (sigmoid) approximates the mean over the posterior.

        MacKay's :math:`\mu / \sqrt{1 + \pi \sigma^2 / 8}`, output by output.
        """
        return self.mean(phi) / (1.0 + math.pi / 8.0 * self.variance(phi)).sqrt()

    def _read(self, phi: Tensor) -> Tensor:
        """Features as the layer reads them: with a 1 at their end where it has a bias."""
        phi = phi.detach().to(self.weight)
        return torch.cat([phi, phi.new_ones(phi.size(0), 1)], dim=1) if bool(self.has_bias) else phi

    def _noise(self, k: int, generator: torch.Generator) -> Tensor:
        return normal((k, *self.values.shape), self.values.dtype, self.values.device, generator)


class JointPosterior(Posterior):
    r"""For a layer that tells classes apart: :math:`\Lambda = \mathrm{diag}(p) - p p^\top`.

    H is kept whole or as :math:`B \otimes A` with A the sum of :math:`\phi \phi^\top` and B the
    mean of :math:`\Lambda` (Ritter et al., ICLR 2018).

    Attributes:
        left, right: Eigenvectors: ``[C, C]`` and ``[D, D]`` for the Kronecker form, ``[1, 1]`` and
            ``[C * D, C * D]`` for the whole matrix.
        values: ``[C, D]`` or ``[1, C * D]``.
        precision: :math:`\tau`, a scalar.
    """

    sized: ClassVar[Mapping[str, int]] = {"weight": 2, "left": 2, "right": 2, "values": 2}

    left: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("precision", torch.ones((), dtype=torch.float64))

    @property
    def whole(self) -> bool:
        """Whether H is kept whole."""
        return self.right.size(0) == self.weight.numel()

    @torch.no_grad()
    def fit(
        self,
        phi: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        structure: Literal["auto", "full", "kron"] = "auto",
    ) -> JointPosterior:
        """Fit to the features ``[n, d]`` of training rows and a trained layer ``[C, d]``.

        C = 1 is the one logit of a yes/no question; ``"auto"`` keeps H whole up to 256 weights.
        """
        if structure not in ("auto", "full", "kron"):
            raise InputError("structure 'auto', 'full' or 'kron'", repr(structure))
        phi, theta = self._take(phi, weight, bias)
        diagonal, probs = _output_curvature(phi @ theta.T)
        if structure == "full" or (structure == "auto" and theta.numel() <= _LARGEST):
            left = phi.new_ones(1, 1)
            values, right = torch.linalg.eigh(_whole(phi, diagonal, probs))
            values = values.unsqueeze(0)
        else:
            mean = diagonal.mean(dim=0).diag()
            mean = mean if probs is None else mean - probs.T @ probs / probs.size(0)
            of_outputs, left = torch.linalg.eigh(mean)
            of_inputs, right = torch.linalg.eigh(phi.T @ phi)
            values = torch.outer(of_outputs.clamp_min(0), of_inputs.clamp_min(0))
        self.left, self.right = left.contiguous(), right.contiguous()  # as files hold them
        self.values = values.clamp_min(0)
        self.precision = best_precision(self.values.flatten(), theta.flatten())
        return self

    @torch.no_grad()
    def variance(self, phi: Tensor) -> Tensor:
        read, outputs = self._read(phi), self.weight.size(0)
        scale = (self.values + self.precision).reciprocal()
        if not self.whole:
            return ((read @ self.right).square() @ scale.T @ self.left.square().T).to(phi.dtype)
        rows = self.right.view(outputs, read.size(1), -1)
        blocks = (rows * scale) @ rows.transpose(1, 2)  # [C, D, D]
        return torch.stack([((read @ b) * read).sum(dim=1) for b in blocks], dim=1).to(phi.dtype)

    @torch.no_grad()
    def draw(self, k: int, generator: torch.Generator) -> Tensor:
        scaled = self._noise(k, generator) * (self.values + self.precision).rsqrt()
        return self.weight + (self.left @ scaled @ self.right.T).view(k, *self.weight.shape)


def _output_curvature(outputs: Tensor) -> tuple[Tensor, Tensor | None]:
    r"""Each :math:`\Lambda_i` as a diagonal ``[n, C]`` less the square of a vector ``[n, C]``."""
    if outputs.size(1) == 1:
        yes = outputs.sigmoid()
        return yes * (1.0 - yes), None
    probs = outputs.softmax(dim=1)
    return probs, probs


def _whole(phi: Tensor, diagonal: Tensor, probs: Tensor | None) -> Tensor:
    """H ``[C * D, C * D]``, output by output."""
    blocks = [(phi * column.unsqueeze(1)).T @ phi for column in diagonal.unbind(dim=1)]
    whole: Tensor = torch.block_diag(*blocks)
    if probs is not None:
        size = max(1, _CHUNK // (phi.size(1) * probs.size(1)))
        for rows, share in zip(phi.split(size), probs.split(size), strict=True):
            pairs = (share.unsqueeze(2) * rows.unsqueeze(1)).flatten(1)  # [n, C * D]
            whole.addmm_(pairs.T, pairs, alpha=-1.0)
    return whole


class SeparatePosteriors(Posterior):
    r"""For independent outputs (yes/no labels, values): one Gaussian each.

    With the loss's curvature :math:`\lambda_{ti}`, output t has

    .. math::
        \theta_t \sim N\Bigl(\hat\theta_t, \bigl(\tfrac{1}{s_t} H_t + \tau_t I\bigr)^{-1}\Bigr),
        \qquad H_t = \sum_i \lambda_{ti}\, \phi_i \phi_i^\top

    For labels :math:`\lambda = p (1 - p)` and :math:`s = 1`. For values with noise of variance
    :math:`s_t v_{ti}` it is :math:`\lambda = 1 / v`, and the posterior is no approximation: this
    is Bayesian linear regression, where an unknown :math:`s_t` maximises the marginal likelihood.

    Attributes:
        right: Eigenvectors of :math:`H_t`, ``[T, D, D]``; ``[1, D, D]`` where all outputs share
            them: rows count the same, or there are so many outputs that the mean of
            :math:`\lambda_t` stands for it.
        values: Eigenvalues of :math:`H_t`, ``[T, D]``.
        precision: :math:`\tau`, ``[T]``.
        noise: :math:`s`, ``[T]``.
    """

    sized: ClassVar[Mapping[str, int]] = {
        "weight": 2,
        "right": 3,
        "values": 2,
        "precision": 1,
        "noise": 1,
    }

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
        r"""Fit to the features ``[n, d]`` of training rows and a trained layer ``[T, d]``.

        The curvature :math:`\lambda` ``[n, T]`` is 0 where an entry is missing. Residuals (truth
        less output, ``[n, T]``) are for values whose noise is to be found, else :math:`s = 1`.
        """
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
        read = self._read(phi)
        if self.right.size(0) == 1:
            return ((read @ self.right[0]).square() @ self._scale.T).to(phi.dtype)
        pairs = zip(self.right, self._scale, strict=True)
        return torch.stack([(read @ r).square() @ s for r, s in pairs], dim=1).to(phi.dtype)

    @torch.no_grad()
    def draw(self, k: int, generator: torch.Generator) -> Tensor:
        scaled = (self._noise(k, generator) * self._scale.sqrt()).unsqueeze(2)  # [K, T, 1, D]
        return self.weight + (scaled @ self.right.transpose(1, 2)).squeeze(2)

    @property
    def _scale(self) -> Tensor:
        """Variances of the weights in the eigenbasis ``[T, D]``."""
        return (self.values / self.noise.unsqueeze(1) + self.precision.unsqueeze(1)).reciprocal()


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


# -- marginal likelihood --------------------------------------------------------------------------


def best_precision(values: Tensor, theta: Tensor) -> Tensor:
    r"""The prior precision that maximises the marginal likelihood of a Laplace approximation.

    With eigenvalues :math:`\lambda` of H ``[..., P]`` and weights ``[..., P]``, up to what does not
    depend on it,

    .. math::
        2 \log Z(\tau) = P \log \tau - \sum_j \log(\lambda_j + \tau) - \tau \|\hat\theta\|^2

    By :math:`\log \tau` its derivative is :math:`\sum_j \lambda_j / (\lambda_j + \tau) - \tau
    \|\hat\theta\|^2`, which only falls: there is one maximum, found by bisection.
    """
    values, length = values.double(), theta.double().square().sum(dim=-1)
    low, high = (torch.full_like(length, math.log(end)) for end in (1e-6, 1e6))
    for _ in range(60):
        middle = (low + high) / 2
        tau = middle.exp()
        rising = (values / (values + tau.unsqueeze(-1))).sum(dim=-1) > tau * length
        low, high = torch.where(rising, middle, low), torch.where(rising, high, middle)
    return ((low + high) / 2).exp()


def best_noise(values: Tensor, theta: Tensor, squares: Tensor, rows: int) -> Tensor:
    r"""The noise ``[T]`` that, with the best prior precision, maximises the marginal likelihood.

    With weights :math:`\hat\theta` and eigenvalues :math:`\lambda` of H ``[T, P]`` and squared
    residuals :math:`\|r\|^2` ``[T]`` of n rows, up to constants,

    .. math::
        2 \log Z(\tau, s) = P \log \tau - n \log s - \sum_j \log(\lambda_j / s + \tau) -
        \|r\|^2 / s - \tau \|\hat\theta\|^2

    Where both derivatives are 0, :math:`\tau = \gamma / \|\hat\theta\|^2` and :math:`s = \|r\|^2 /
    (n - \gamma)` with :math:`\gamma = \sum_j \lambda_j / (\lambda_j + \rho)`. So :math:`\rho = \tau
    s` solves :math:`\rho = \gamma \|r\|^2 / ((n - \gamma) \|\hat\theta\|^2)`. The left side rises,
    the right side falls: there is one solution, found by bisection.
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
