"""Vector, matrix and Dirichlet calibration: one linear map of the logits, a convex problem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from gduq.calibration.base import Calibrator, check_classes, labelled, mean_logits
from gduq.calibration.optimise import careful_scale, minimise
from gduq.errors import InputError
from gduq.prediction import Prediction

__all__ = ["DirichletCalibration", "MatrixScaling", "VectorScaling"]

# Deviations of the default prior: weights as a share of 1/T, off the diagonal divided by sqrt(C).
_DIAGONAL, _OFF_DIAGONAL, _BIAS = 0.25, 0.25, 0.5


@dataclass(eq=False)
class _Affine(Calibrator):
    """Shared by the three: arguments, the linear map, what it does to deviations."""

    keeps_accuracy: ClassVar[bool] = False
    state_names: ClassVar[tuple[str, ...]] = ("weight", "bias")

    penalty: float | None = None
    missing: Literal["error", "keep"] = "error"

    def __post_init__(self) -> None:
        if self.missing not in ("error", "keep"):
            raise InputError('missing="error" or "keep"', repr(self.missing))
        if self.penalty is not None and not self.penalty >= 0:
            raise InputError("penalty >= 0 or None", self.penalty)

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

    Convex; both are fitted by NLL with L-BFGS. By default a normal prior holds the weights near
    1/T of temperature scaling and the biases near 0, and fades as rows grow: without it fifty rows
    are enough to make predictions much worse. May change labels.

    Args:
        penalty: ``None`` for that prior; a number :math:`\lambda` for :math:`\frac{\lambda}{C}
            \|b\|^2` instead, 0 for the published method.
        missing: What to do when a class has no validation row: ``"error"``, or ``"keep"`` its
            weight at 1/T and its bias at 0.

    Example:
        >>> z = torch.tensor([[1.0, 0.0], [0.0, 1.0]] * 4)
        >>> p = Prediction(z, target=torch.tensor([0, 1, 0, 0, 0, 1, 0, 1]))
        >>> VectorScaling(penalty=0.0).fit(p)(p).probs[1]  # class 1 was right three times of four
        tensor([0.2500, 0.7500])
    """

    def _fit(self, p: Prediction, rows: Tensor | slice) -> dict[str, Tensor]:
        logits, target = labelled(p, rows)
        free = check_classes(target, p.num_classes, self.missing).double()
        problem = _Diagonal(logits, target, free, self.penalty)
        weight, bias = problem.solve()
        return {"weight": weight, "bias": bias}

    def _multiply(self, values: Tensor) -> Tensor:
        return values * self._state["weight"]

    def _neutral(self, num_classes: int) -> dict[str, Tensor]:
        one = torch.ones(num_classes, dtype=torch.float64)
        return {"weight": one, "bias": torch.zeros_like(one)}


@dataclass(eq=False)
class MatrixScaling(_Affine):
    r"""A full linear map of the logits (Guo et al., ICML 2017), held back.

    .. math:: \mu' = W \mu + b

    Convex; solved by L-BFGS in whitened coordinates. By default a normal prior holds W near
    temperature scaling, :math:`I/T`, and b near 0, and fades as rows grow. The published
    off-diagonal and intercept regularisation (ODIR; Kull et al., NeurIPS 2019),

    .. math:: \frac{\lambda}{C(C-1)} \sum_{i \ne j} W_{ij}^2 + \frac{\lambda}{C} \sum_i b_i^2,

    leaves the diagonal free and, with its usual :math:`\lambda = 5 \cdot 10^{-4}`, overfits below
    about a hundred rows a class. May change labels.

    Args:
        penalty: ``None`` for the prior, or :math:`\lambda` for ODIR.
        missing: As for `VectorScaling`.

    Example:
        >>> z = torch.tensor([[1.0, 0.0], [0.0, 1.0]] * 4)
        >>> p = Prediction(z, target=torch.tensor([0, 1, 0, 0, 0, 1, 0, 1]))
        >>> MatrixScaling(penalty=0.0).fit(p)(p).probs[1]
        tensor([0.2500, 0.7500])
    """

    def _fit(self, p: Prediction, rows: Tensor | slice) -> dict[str, Tensor]:
        logits, target = labelled(p, rows)
        free = check_classes(target, p.num_classes, self.missing).double()
        problem = _Full(self._features(logits), target, free, self.penalty)
        weight, bias = problem.solve()
        return {"weight": weight, "bias": bias}

    def _neutral(self, num_classes: int) -> dict[str, Tensor]:
        eye = torch.eye(num_classes, dtype=torch.float64)
        return {"weight": eye, "bias": torch.zeros(num_classes, dtype=torch.float64)}


@dataclass(eq=False)
class DirichletCalibration(MatrixScaling):
    r"""A full linear map of the log probabilities (Kull et al., NeurIPS 2019).

    .. math:: \mu' = W \log\mathrm{softmax}(\mu) + b

    with the prior or ODIR of `MatrixScaling`. It is what makes Dirichlet-distributed
    probabilities calibrated. May change labels.

    Args:
        penalty: ``None`` for the prior, or :math:`\lambda` for ODIR.
        missing: As for `VectorScaling`.

    Example:
        >>> z = torch.tensor([[1.0, 0.0], [0.0, 1.0]] * 4)
        >>> p = Prediction(z, target=torch.tensor([0, 1, 0, 0, 0, 1, 0, 1]))
        >>> DirichletCalibration(penalty=0.0).fit(p)(p).probs[1]
        tensor([0.2500, 0.7500])
    """

    defines_logits: ClassVar[bool] = False

    def _features(self, logits: Tensor) -> Tensor:
        return logits.log_softmax(dim=-1)

    def _carry(self, deviation: Tensor, before: Tensor, after: Tensor) -> Tensor:
        features = self._features(before + deviation)  # a constant added to a sample drops out
        return self._multiply(features - features.mean(dim=0))


class _Diagonal:
    """The problem of `VectorScaling`, in units of each class's deviation."""

    def __init__(self, x: Tensor, target: Tensor, free: Tensor, penalty: float | None) -> None:
        self.target, self.free = target, free
        self.centre, width = x.mean(dim=0), x.std(dim=0, correction=0)
        self.width = torch.where(width > 1e-9, width, 1.0)
        self.unit = (x - self.centre) / self.width
        self.scale = careful_scale(x, target)
        rows, self.classes = x.shape
        if penalty is None:
            self.pull = 0.5 / (rows * (_DIAGONAL * self.scale) ** 2)
            self.bias_pull = 0.5 / (rows * _BIAS**2)
        else:
            self.pull, self.bias_pull = 0.0, penalty / self.classes

    def solve(self) -> tuple[Tensor, Tensor]:
        """The best weight and bias, ``[C]`` each, starting from temperature scaling."""
        start = torch.cat([self.scale * self.width, self.scale * self.centre])
        return self._unpack(minimise(self.objective, start))

    def objective(self, vector: Tensor) -> tuple[float, Tensor]:
        inner, shift = vector[: self.classes], vector[self.classes :]
        weight, bias = self._unpack(vector)
        value, error = _cross_entropy(self.unit * inner + shift, self.target)
        off = weight - self.scale
        value += self.pull * float(off @ off) + self.bias_pull * float(bias @ bias)
        bias_slope = 2 * self.bias_pull * bias
        weight_slope = 2 * self.pull * off - bias_slope * self.centre
        inner_slope = torch.einsum("nc,nc->c", error, self.unit) + weight_slope / self.width
        shift_slope = error.sum(dim=0) + bias_slope
        return value, torch.cat([inner_slope * self.free, shift_slope * self.free])

    def _unpack(self, vector: Tensor) -> tuple[Tensor, Tensor]:
        weight = vector[: self.classes] / self.width
        return weight, vector[self.classes :] - weight * self.centre


class _Full:
    r"""The problem of `MatrixScaling` in the coordinates :math:`u = (x - \bar x) P`, W = A P.

    Log probabilities of many classes are strongly correlated; with unit covariance L-BFGS needs
    tens of steps instead of thousands.
    """

    def __init__(self, x: Tensor, target: Tensor, free: Tensor, penalty: float | None) -> None:
        self.target, self.free = target, free
        rows, self.classes = x.shape
        self.centre = x.mean(dim=0)
        centred = x - self.centre
        values, vectors = torch.linalg.eigh(centred.T @ centred / rows)
        values = values.clamp_min(1e-4 * float(values[-1].clamp_min(1e-9)))
        self.whiten = (vectors * values.rsqrt()) @ vectors.T  # P, symmetric
        self.colour = (vectors * values.sqrt()) @ vectors.T  # its inverse
        self.unit = centred @ self.whiten
        self.scale = careful_scale(x, target)
        eye = torch.eye(self.classes, dtype=torch.float64)
        self.home = self.scale * eye
        self.pull, self.bias_pull = _pulls(eye, rows, self.scale, penalty)

    def solve(self) -> tuple[Tensor, Tensor]:
        """The best weight ``[C, C]`` and bias ``[C]``, starting from temperature scaling."""
        start = torch.cat([(self.scale * self.colour).flatten(), self.scale * self.centre])
        return self._unpack(minimise(self.objective, start))[2:]

    def objective(self, vector: Tensor) -> tuple[float, Tensor]:
        inner, shift, weight, bias = self._unpack(vector)
        value, error = _cross_entropy(torch.addmm(shift, self.unit, inner.T), self.target)
        off = weight - self.home
        value += float((self.pull * off * off).sum()) + self.bias_pull * float(bias @ bias)
        bias_slope = 2 * self.bias_pull * bias
        weight_slope = 2 * self.pull * off - torch.outer(bias_slope, self.centre)
        inner_slope = error.T @ self.unit + weight_slope @ self.whiten
        shift_slope = error.sum(dim=0) + bias_slope
        return value, torch.cat(
            [(inner_slope * self.free[:, None]).flatten(), shift_slope * self.free]
        )

    def _unpack(self, vector: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """A, its shift, and the W and b they stand for."""
        inner = vector[: self.classes**2].view(self.classes, self.classes)
        shift = vector[self.classes**2 :]
        weight = inner @ self.whiten
        return inner, shift, weight, shift - weight @ self.centre


def _pulls(eye: Tensor, rows: int, scale: float, penalty: float | None) -> tuple[Tensor, float]:
    """Factors of the squared distance from home, for every weight ``[C, C]`` and for the bias."""
    classes = len(eye)
    if penalty is not None:
        return (1.0 - eye) * penalty / max(classes * (classes - 1), 1), penalty / classes
    diagonal = 0.5 / (rows * (_DIAGONAL * scale) ** 2)
    off_diagonal = 0.5 * classes / (rows * (_OFF_DIAGONAL * scale) ** 2)
    return diagonal * eye + off_diagonal * (1.0 - eye), 0.5 / (rows * _BIAS**2)


def _cross_entropy(logits: Tensor, target: Tensor) -> tuple[float, Tensor]:
    """Mean NLL and its gradient in the logits, overwriting them."""
    logits -= logits.amax(dim=1, keepdim=True)
    chosen = logits.gather(1, target[:, None]).mean()
    total = logits.exp_().sum(dim=1, keepdim=True)
    value = float(total.log().mean() - chosen)
    logits /= total
    logits.scatter_add_(1, target[:, None], torch.full_like(total, -1.0))
    return value, logits.div_(len(target))
