"""What Gaussians over the weights of a last linear layer share, whatever its outputs mean."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gduq.errors import InputError, NotFittedError

__all__ = ["GaussianLayer", "best_precision"]


class GaussianLayer(nn.Module, ABC):
    """A Gaussian over the weights of a last linear layer around its trained weights.

    Attributes:
        weight: The trained weights ``[C, D]``; D is d, or d + 1 with the bias last.
        has_bias: Whether there is a bias.
    """

    sized: ClassVar[Mapping[str, int]]  # buffers of the layer's size, with their dimensions

    weight: Tensor
    has_bias: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name, dim in self.sized.items():
            self.register_buffer(name, torch.empty([0] * dim, dtype=torch.float64))
        self.register_buffer("has_bias", torch.zeros((), dtype=torch.bool))

    def _take(self, phi: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        """Note a trained layer; its weights ``[C, D]`` and the features as they read them."""
        _check_layer(phi, weight, bias)
        theta = weight.detach().double()
        if bias is not None:
            theta = torch.cat([theta, bias.detach().double().unsqueeze(1)], dim=1)
        self.weight, self.has_bias = theta, torch.full_like(self.has_bias, bias is not None)
        return _with_one(phi.detach().double(), bias is not None), theta

    @property
    def fitted(self) -> bool:
        """Whether there is a posterior."""
        return self.weight.numel() > 0

    @abstractmethod
    def variance(self, phi: Tensor) -> Tensor:
        """Variance ``[m, C]`` of each output."""

    @abstractmethod
    def draw(self, k: int, generator: torch.Generator) -> Tensor:
        """K draws of the weights ``[K, C, D]``, the bias last; each is a network of its own."""

    @torch.no_grad()
    def mean(self, phi: Tensor) -> Tensor:
        """Outputs ``[m, C]`` of the trained layer for features ``[m, d]``."""
        return (self._read(phi) @ self.weight.T).to(phi.dtype)

    @torch.no_grad()
    def sample(self, phi: Tensor, k: int, generator: torch.Generator) -> Tensor:
        """Outputs ``[K, m, C]`` under K draws of the weights, the same draws for all rows."""
        return self.outputs(phi, self.draw(k, generator))

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
        self._require_fit()
        width = self.weight.size(1) - int(self.has_bias)
        if phi.dim() != 2 or phi.size(1) != width:
            raise InputError(f"features of shape [m, {width}]", list(phi.shape))
        return _with_one(phi.detach().to(self.weight), bool(self.has_bias))

    def _require_fit(self) -> None:
        if not self.fitted:
            raise NotFittedError("a fitted posterior", "none", "Call fit(phi, weight, bias) first.")

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        for name, dim in self.sized.items():
            found = state_dict.get(prefix + name)
            if found is not None and found.dim() == dim:  # of any size
                setattr(self, name, torch.empty_like(found, device=self.get_buffer(name).device))
        super()._load_from_state_dict(state_dict, prefix, *args)


def best_precision(values: Tensor, theta: Tensor) -> Tensor:
    r"""The prior precision that maximises the marginal likelihood of a Laplace approximation.

    With eigenvalues :math:`\lambda` of H, up to what does not depend on it,

    .. math::
        2 \log Z(\tau) = P \log \tau - \sum_j \log(\lambda_j + \tau) - \tau \|\hat\theta\|^2

    By :math:`\log \tau` its derivative is :math:`\sum_j \lambda_j / (\lambda_j + \tau) - \tau
    \|\hat\theta\|^2`, which only falls: there is one maximum, found by bisection.

    Args:
        values: Eigenvalues ``[..., P]``.
        theta: Weights ``[..., P]``.

    Example:
        >>> best_precision(torch.tensor([1e9, 1e9]), torch.tensor([2.0, 2.0]))  # 2 / |theta|²
        tensor(0.2500, dtype=torch.float64)
    """
    values, length = values.double(), theta.double().square().sum(dim=-1)
    low, high = (torch.full_like(length, math.log(end)) for end in (1e-6, 1e6))
    for _ in range(60):
        middle = (low + high) / 2
        tau = middle.exp()
        rising = (values / (values + tau.unsqueeze(-1))).sum(dim=-1) > tau * length
        low, high = torch.where(rising, middle, low), torch.where(rising, high, middle)
    return ((low + high) / 2).exp()


def _with_one(phi: Tensor, bias: bool) -> Tensor:
    """Features as a layer with a bias reads them: with a 1 at their end."""
    return torch.cat([phi, phi.new_ones(phi.size(0), 1)], dim=1) if bias else phi


def _check_layer(phi: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """Raise for features and weights that do not fit together."""
    if weight.dim() != 2 or (bias is not None and bias.shape != weight.shape[:1]):
        shapes = [list(weight.shape), None if bias is None else list(bias.shape)]
        raise InputError("a weight [C, d] and a bias [C]", shapes)
    if phi.dim() != 2 or phi.size(1) != weight.size(1) or phi.size(0) == 0:
        raise InputError(f"features of shape [n, {weight.size(1)}]", list(phi.shape))
    if not torch.isfinite(phi).all():
        raise InputError("finite features", "NaN or infinite values")
