"""One optimiser for every calibrator: L-BFGS in float64, bounded where the parameters are."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

__all__ = ["Bounds", "autograd", "fit_module", "minimise"]

Bounds = Sequence[tuple[float | None, float | None]]
ValueAndGradient = Callable[[Tensor], tuple[float, Tensor]]


def minimise(
    objective: ValueAndGradient,
    start: Tensor,
    bounds: Bounds | None = None,
    steps: int = 200,
    tolerance: float = 1e-10,
) -> Tensor:
    """The minimiser of ``objective`` by L-BFGS.

    Args:
        objective: From a float64 vector to its value and gradient.
        start: Where to begin; a vector.
        bounds: Lower and upper bound of every entry; ``None`` where there is none.
        steps: At most so many iterations.
        tolerance: Relative decrease of the value that counts as none.

    Example:
        >>> minimise(lambda v: (float((v - 3) @ (v - 3)), 2 * (v - 3)), torch.zeros(1).double())
        tensor([3.], dtype=torch.float64)
    """

    def flat(vector: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        value, gradient = objective(torch.from_numpy(vector.copy()))
        return value, gradient.numpy().astype(np.float64, copy=False)

    first = start.double().numpy()
    options = {"maxiter": steps, "maxcor": 20, "ftol": tolerance, "gtol": 1e-8}
    result = minimize(flat, first, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    return torch.from_numpy(result.x.copy())


def autograd(loss: Callable[[Tensor], Tensor]) -> ValueAndGradient:
    """Value and gradient of a scalar torch function."""

    def objective(vector: Tensor) -> tuple[float, Tensor]:
        leaf = vector.detach().clone().requires_grad_()
        value = loss(leaf)
        (gradient,) = torch.autograd.grad(value, leaf)
        return float(value.detach()), gradient

    return objective


def fit_module(
    module: nn.Module, loss: Callable[[], Tensor], rows: int, prior: float, steps: int
) -> None:
    r"""Minimise a mean loss of n ``rows`` over a module's float64 parameters, in place.

    Adds :math:`\frac{1}{2 n \tau^2}\|\theta\|^2`, a normal prior of deviation :math:`\tau` on every
    parameter: strong when rows are few, fading as they grow.
    """
    parameters = list(module.parameters())
    decay = 1.0 / (rows * prior**2)

    def objective(vector: Tensor) -> tuple[float, Tensor]:
        vector_to_parameters(vector, parameters)
        value = loss()
        gradients = torch.autograd.grad(value, parameters)
        total = float(value.detach()) + 0.5 * decay * float(vector @ vector)
        return total, parameters_to_vector(gradients) + decay * vector

    start = parameters_to_vector(parameters).detach()
    found = minimise(objective, start, steps=steps, tolerance=1e-7)
    vector_to_parameters(found, parameters)
