"""Prior precision and noise of a Gaussian posterior, by the marginal likelihood."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["best_noise", "best_precision"]

_LEAST = 1e-12  # noise, relative to what the network or the scale of the values says


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
