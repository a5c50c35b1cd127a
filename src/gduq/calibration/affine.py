"""Vector, matrix and Dirichlet calibration: one linear map of the logits, a convex problem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from gduq.calibration.base import Calibrator, check_classes, labelled, mean_logits
from gduq.calibration.optimise import ValueAndGradient, minimise
from gduq.errors import InputError
from gduq.prediction import Prediction

__all__ = ["DirichletCalibration", "MatrixScaling", "VectorScaling"]

Missing = Literal["error", "keep"]


@dataclass(eq=False)
class _Affine(Calibrator):
    """Shared by the three: absent classes, the linear map, what it does to deviations."""

    keeps_accuracy: ClassVar[bool] = False
    state_names: ClassVar[tuple[str, ...]] = ("weight", "bias")

    missing: Missing = "error"

    def __post_init__(self) -> None:
        if self.missing not in ("error", "keep"):
            raise InputError('missing="error" or "keep"', repr(self.missing))

    def _features(self, logits: Tensor) -> Tensor:
        return logits

    def _multiply(self, values: Tensor) -> Tensor:
        """The linear part, on the last axis."""
        return values @ self._state["weight"].T

    def _map(self, p: Prediction) -> Tensor:
        return self._multiply(self._features(mean_logits(p))) + self._state["bias"]

    def _carry(self, deviation: Tensor, before: Tensor, after: Tensor) -> Tensor:
        return self._multiply(deviation)


@dataclass(eq=False)
class VectorScaling(_Affine):
    r"""A weight and a bias for each class (Guo et al., ICML 2017).

    .. math:: \mu' = w \odot \mu + b

    Both are fitted by NLL with L-BFGS. May change labels.

    Args:
        missing: What to do when a class has no validation row: ``"error"``, or ``"keep"`` its
            weight at 1 and its bias at 0 (the likelihood alone would push it out for good).

    Example:
        >>> z = torch.tensor([[1.0, 0.0], [0.0, 1.0]] * 4)
        >>> p = Prediction(z, target=torch.tensor([0, 1, 0, 0, 0, 1, 0, 1]))
        >>> VectorScaling().fit(p)(p).probs[1]  # class 1 was right three times of four
        tensor([0.2500, 0.7500])
    """

    def _fit(self, p: Prediction, rows: Tensor | slice) -> dict[str, Tensor]:
        logits, target = labelled(p, rows)
        free = check_classes(target, p.num_classes, self.missing).double()
        centre, width = logits.mean(dim=0), logits.std(dim=0, correction=0)
        width = torch.where(width > 1e-9, width, 1.0)
        unit = (logits - centre) / width  # equal scales: L-BFGS needs few steps
        classes = p.num_classes

        def objective(vector: Tensor) -> tuple[float, Tensor]:
            weight, bias = vector[:classes], vector[classes:]
            value, error = _cross_entropy(unit * weight + bias, target)
            slope = torch.einsum("nc,nc->c", error, unit) * free
            return value, torch.cat([slope, error.sum(dim=0) * free])

        found = minimise(objective, torch.cat([width, centre]))
        weight = found[:classes] / width
        return {"weight": weight, "bias": found[classes:] - weight * centre}

    def _multiply(self, values: Tensor) -> Tensor:
        return values * self._state["weight"]

    def _neutral(self, num_classes: int) -> dict[str, Tensor]:
        one = torch.ones(num_classes, dtype=torch.float64)
        return {"weight": one, "bias": torch.zeros_like(one)}


@dataclass(eq=False)
class MatrixScaling(_Affine):
    r"""A full linear map of the logits (Guo et al., ICML 2017), held back by ODIR.

    .. math:: \mu' = W \mu + b, \qquad \min_{W,b}\ \mathrm{NLL}
        + \frac{\lambda}{C(C-1)} \sum_{i \ne j} W_{ij}^2 + \frac{\lambda}{C} \sum_i b_i^2

    Convex; solved by L-BFGS in whitened coordinates. The penalty (off-diagonal and intercept
    regularisation, Kull et al., NeurIPS 2019) matters when rows are few. May change labels.

    Args:
        missing: As for `VectorScaling`.
        penalty: :math:`\lambda`.

    Example:
        >>> z = torch.tensor([[1.0, 0.0], [0.0, 1.0]] * 4)
        >>> p = Prediction(z, target=torch.tensor([0, 1, 0, 0, 0, 1, 0, 1]))
        >>> MatrixScaling(penalty=0.0).fit(p)(p).probs[1]
        tensor([0.2500, 0.7500])
    """

    penalty: float = 5e-4

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.penalty >= 0:
            raise InputError("penalty >= 0", self.penalty)

    def _fit(self, p: Prediction, rows: Tensor | slice) -> dict[str, Tensor]:
        logits, target = labelled(p, rows)
        free = check_classes(target, p.num_classes, self.missing).double()
        problem = _Whitened(self._features(logits), target, free, self.penalty)
        weight, bias = problem.solve()
        return {"weight": weight, "bias": bias}

    def _neutral(self, num_classes: int) -> dict[str, Tensor]:
        eye = torch.eye(num_classes, dtype=torch.float64)
        return {"weight": eye, "bias": torch.zeros(num_classes, dtype=torch.float64)}


@dataclass(eq=False)
class DirichletCalibration(MatrixScaling):
    r"""A full linear map of the log probabilities (Kull et al., NeurIPS 2019), with ODIR.

    .. math:: \mu' = W \log\mathrm{softmax}(\mu) + b

    with the penalty of `MatrixScaling`. It is what makes Dirichlet-distributed probabilities
    calibrated. May change labels.

    Args:
        missing: As for `VectorScaling`.
        penalty: :math:`\lambda` of `MatrixScaling`.

    Example:
        >>> z = torch.tensor([[1.0, 0.0], [0.0, 1.0]] * 4)
        >>> p = Prediction(z, target=torch.tensor([0, 1, 0, 0, 0, 1, 0, 1]))
        >>> DirichletCalibration(penalty=0.0).fit(p)(p).probs[1]
        tensor([0.2500, 0.7500])
    """

    def _features(self, logits: Tensor) -> Tensor:
        return logits.log_softmax(dim=-1)


class _Whitened:
    r"""The regularised problem in the coordinates :math:`u = (x - \bar x) P`, :math:`W = A P`.

    Log probabilities of many classes are strongly correlated; with unit covariance L-BFGS needs
    tens of steps instead of thousands.
    """

    def __init__(self, x: Tensor, target: Tensor, free: Tensor, penalty: float) -> None:
        self.target, self.free, self.penalty = target, free, penalty
        self.classes = classes = x.size(1)
        self.centre = x.mean(dim=0)
        centred = x - self.centre
        values, vectors = torch.linalg.eigh(centred.T @ centred / len(x))
        values = values.clamp_min(1e-4 * float(values[-1].clamp_min(1e-9)))
        self.whiten = (vectors * values.rsqrt()) @ vectors.T  # P, symmetric
        self.colour = (vectors * values.sqrt()) @ vectors.T  # its inverse
        self.unit = centred @ self.whiten
        self.off_diagonal = 1.0 - torch.eye(classes, dtype=torch.float64)

    def solve(self) -> tuple[Tensor, Tensor]:
        """The best weight ``[C, C]`` and bias ``[C]``, starting from the identity."""
        start = torch.cat([self.colour.flatten(), self.centre])
        found = minimise(self.objective(), start)
        return self._unpack(found)[2:]

    def objective(self) -> ValueAndGradient:
        classes = self.classes
        each = self.penalty / max(classes * (classes - 1), 1)

        def objective(vector: Tensor) -> tuple[float, Tensor]:
            inner, shift, weight, bias = self._unpack(vector)
            value, error = _cross_entropy(torch.addmm(shift, self.unit, inner.T), self.target)
            off = weight * self.off_diagonal
            value += each * float((off * off).sum()) + self.penalty * float(bias @ bias) / classes
            bias_slope = 2 * self.penalty / classes * bias
            weight_slope = 2 * each * off - torch.outer(bias_slope, self.centre)
            inner_slope = error.T @ self.unit + weight_slope @ self.whiten
            shift_slope = error.sum(dim=0) + bias_slope
            slopes = [(inner_slope * self.free[:, None]).flatten(), shift_slope * self.free]
            return value, torch.cat(slopes)

        return objective

    def _unpack(self, vector: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """A, its shift, and the W and b they stand for."""
        inner = vector[: self.classes**2].view(self.classes, self.classes)
        shift = vector[self.classes**2 :]
        weight = inner @ self.whiten
        return inner, shift, weight, shift - weight @ self.centre


def _cross_entropy(logits: Tensor, target: Tensor) -> tuple[float, Tensor]:
    """Mean NLL and its gradient in the logits, overwriting them."""
    logits -= logits.amax(dim=1, keepdim=True)
    chosen = logits.gather(1, target[:, None]).mean()
    total = logits.exp_().sum(dim=1, keepdim=True)
    value = float(total.log().mean() - chosen)
    logits /= total
    logits.scatter_add_(1, target[:, None], torch.full_like(total, -1.0))
    return value, logits.div_(len(target))
