"""One optimiser for every calibrator: L-BFGS in float64, bounded where the parameters are."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

__all__ = [
    "Bounds",
    "autograd",
    "best_scale",
    "careful_scale",
    "fit_module",
    "minimise",
    "softening_scale",
]

Bounds = Sequence[tuple[float | None, float | None]]
ValueAndGradient = Callable[[Tensor], tuple[float, Tensor]]

_SCALES = (1e-2, 1e2)  # of logits of usual size: temperatures from 100 down to 1/100
_WOLFE_MEMORY = 20
_EXPECTED = 10  # rows, see `softening_scale`


def minimise(
    objective: ValueAndGradient,
    start: Tensor,
    bounds: Bounds | None = None,
    steps: int = 200,
    tolerance: float = 1e-10,
) -> Tensor:
    """The minimiser of ``objective`` by (bounded) L-BFGS.

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

    result = minimize(
        flat,
        start.double().numpy(),
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        options={
            "maxiter": steps,
            "maxcor": _WOLFE_MEMORY,
            "ftol": tolerance,
            "gtol": 1e-8,
        },
    )
    return torch.from_numpy(result.x.copy())


def autograd(loss: Callable[[Tensor], Tensor]) -> ValueAndGradient:
    """Value and gradient of a scalar torch function.

    Example:
        >>> autograd(lambda v: (v * v).sum())(torch.tensor([3.0]))
        (9.0, tensor([6.]))
    """

    def objective(vector: Tensor) -> tuple[float, Tensor]:
        leaf = vector.detach().clone().requires_grad_()
        value = loss(leaf)
        (gradient,) = torch.autograd.grad(value, leaf)
        return float(value.detach()), gradient

    return objective


def fit_module(
    module: nn.Module, loss: Callable[[], Tensor], rows: int, prior: float, steps: int
) -> None:
    r"""Minimise a mean loss over a module's parameters, in place.

    Adds :math:`\frac{1}{2 n \tau^2}\|\theta\|^2`, a normal prior of deviation :math:`\tau` on every
    parameter: strong when rows are few, fading as they grow.

    Args:
        module: Its parameters, float64, are the unknowns; zero should mean no effect.
        loss: Mean loss of the module as it is.
        rows: n, the number of rows behind the mean.
        prior: :math:`\tau`.
        steps: At most so many iterations.
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


def best_scale(
    logits: Tensor, target: Tensor, pseudo_rows: float = 0.0, expected_rows: float = 0.0
) -> float:
    r"""The factor :math:`\beta` with the lowest mean NLL of ``beta * logits``.

    The loss is convex in :math:`\beta = 1/T`, with slope :math:`E_p[z] - z_y` and curvature
    :math:`\mathrm{Var}_p[z]` averaged over rows, so Newton's method with a bracket finds the one
    minimum in a few passes; where the curvature is no help, the bracket is halved. It runs from
    0.01 to 100, wider for logits larger or smaller than usual: where every row is right the best
    factor would be infinite.

    Args:
        logits: ``[m, C]``.
        target: ``[m]``.
        pseudo_rows: So many rows of even target, each like the average one, are thought to be
            among them.
        expected_rows: The same with rows whose targets are as probable as the logits say.

    Example:
        >>> z = torch.tensor([[2.0, 0.0]] * 4).double()  # right three times of four
        >>> round(best_scale(z, torch.tensor([0, 0, 0, 1])), 6)  # log(3) / 2
        0.549306
    """
    centred = logits - logits.amax(dim=1, keepdim=True)
    total = centred.gather(1, target[:, None]).sum()
    if pseudo_rows:
        total = total + pseudo_rows * centred.mean()
    if expected_rows:
        total = total + expected_rows * (centred.softmax(dim=1) * centred).sum(dim=1).mean()
    chosen = total / (len(target) + pseudo_rows + expected_rows)
    ends = _bracket(centred)
    (low, high), scale = ends, 1.0
    for _ in range(100):
        slope, curvature = _slope(centred, chosen, scale)
        if slope == 0.0 and curvature <= 1e-300:  # constant rows, or all right beyond doubt
            break
        step = scale - slope / curvature if curvature > 1e-300 else math.inf
        if abs(step - scale) <= 1e-9 * scale or high - low <= 1e-9 * low:
            return scale
        low, high = (scale, high) if slope < 0 else (low, scale)
        scale = step if low < step < high else (low * high) ** 0.5
    return _nearest_end(scale, low, high, ends)


def careful_scale(logits: Tensor, target: Tensor) -> float:
    r"""`best_scale`, but logits are made sharper only as far as one row more would allow.

    Validation rows that are all right say :math:`T \to 0`, and the first wrong row met later costs
    without limit. So a factor above 1 must also be the best one when a row of even target joins
    in, otherwise it falls back to that one's, at least 1. Factors up to 1 stay as they are.

    Args:
        logits: ``[m, C]``.
        target: ``[m]``.

    Example:
        >>> z = torch.tensor([[4.0, 0.0]] * 9).double()  # always right: confidence 0.95, not 1
        >>> scale = careful_scale(z, torch.zeros(9).long())
        >>> scale, round(best_scale(z, torch.zeros(9).long(), pseudo_rows=1.0), 3)
        (1.0, 0.736)
    """
    scale = best_scale(logits, target)
    return scale if scale <= 1.0 else max(1.0, best_scale(logits, target, pseudo_rows=1.0))


def softening_scale(logits: Tensor, target: Tensor) -> float:
    r"""The best factor up to 1: it makes confident rows less so, never more.

    A few rows that happen to be wrong must not undo a good network. So ten rows that are right as
    often as the logits say are thought to be among them.

    Args:
        logits: ``[m, C]``.
        target: ``[m]``.

    Example:
        >>> z = torch.tensor([[4.0, 0.0]] * 400).double()  # sure, and right three times of four
        >>> y = torch.tensor([0, 0, 0, 1] * 100)
        >>> round(softening_scale(z, y), 2), softening_scale(z, 0 * y)
        (0.28, 1.0)
        >>> round(softening_scale(z[:1], y[3:4]), 2)  # one row, wrong
        0.53
    """
    return min(1.0, best_scale(logits, target, expected_rows=_EXPECTED))


def _bracket(centred: Tensor) -> tuple[float, float]:
    """Where a factor is looked for: far to both sides of 1 over the logits' typical size."""
    size = float(centred.abs().mean())
    if not 0.0 < size < math.inf:
        return _SCALES
    return min(_SCALES[0], _SCALES[0] / size), max(_SCALES[1], _SCALES[1] / size)


def _nearest_end(scale: float, low: float, high: float, ends: tuple[float, float]) -> float:
    """The end that the search was running into, if it was; then no best factor lies inside."""
    if high == ends[1] and low > 1.0:
        return high
    return low if low == ends[0] and high < 1.0 else scale


def _slope(centred: Tensor, chosen: Tensor, scale: float) -> tuple[float, float]:
    """First and second derivative of the mean NLL in the scale; one pass over the logits."""
    weight = (centred * scale).exp_()
    total = weight.sum(dim=1)
    weight *= centred
    first = weight.sum(dim=1) / total
    second = torch.einsum("mc,mc->m", weight, centred) / total
    curvature = (second - first * first).mean()
    return float(first.mean() - chosen), float(curvature)
