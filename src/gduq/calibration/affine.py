"""Vector, matrix and Dirichlet calibration: one linear map of every hypothesis's logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from gduq.calibration.base import Calibrator, check_classes
from gduq.calibration.lesson import Lesson, samples_of
from gduq.calibration.optimise import minimise
from gduq.errors import InputError
from gduq.prediction import Prediction
from gduq.prediction.mixture import weights_of

__all__ = ["DirichletCalibration", "MatrixScaling", "VectorScaling"]

# Deviations of the default prior: weights as a share of 1/T, off the diagonal divided by sqrt(C).
_DIAGONAL, _OFF_DIAGONAL, _BIAS = 0.25, 0.25, 0.5


@dataclass(eq=False)
class _Affine(Calibrator):
    """Shared by the three: arguments and the linear map."""

    takes_copies: ClassVar[bool] = True
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
        return self._multiply(self._features(samples_of(p))) + self._state["bias"]


@dataclass(eq=False)
class VectorScaling(_Affine):
    r"""A weight and a bias for each class (Guo et al., ICML 2017).

    .. math:: s'_k = w \odot s_k + b

    Both are fitted by the NLL of the mixture with L-BFGS, from temperature scaling; convex for one
    hypothesis. By default a normal prior holds the weights near
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

    def _fit(self, lesson: Lesson) -> dict[str, Tensor]:
        free = check_classes(lesson.target, lesson.num_classes, self.missing).double()
        weight, bias = Diagonal(lesson, lesson.samples, free, self.penalty).solve()
        return {"weight": weight, "bias": bias}

    def _multiply(self, values: Tensor) -> Tensor:
        return values * self._state["weight"]

    def _neutral(self, num_classes: int) -> dict[str, Tensor]:
        one = torch.ones(num_classes, dtype=torch.float64)
        return {"weight": one, "bias": torch.zeros_like(one)}


@dataclass(eq=False)
class MatrixScaling(_Affine):
    r"""A full linear map of the logits (Guo et al., ICML 2017), held back.

    .. math:: s'_k = W s_k + b

    By the NLL of the mixture, with L-BFGS in whitened coordinates; convex for one hypothesis. By
    default a normal prior holds W near temperature scaling, :math:`I/T`, and b near 0, and fades
    as rows grow. The published off-diagonal and intercept regularisation (ODIR; Kull et al.,
    NeurIPS 2019),

    .. math:: \frac{\lambda}{C(C-1)} \sum_{i \ne j} W_{ij}^2 + \frac{\lambda}{C} \sum_i b_i^2,

    leaves the diagonal free and, with its usual :math:`\lambda = 5 \cdot 10^{-4}`, overfits below
    about a hundred rows per class. May change labels.

    Args:
        penalty: ``None`` for the prior, or :math:`\lambda` for ODIR.
        missing: As for `VectorScaling`.

    Example:
        >>> z = torch.tensor([[1.0, 0.0], [0.0, 1.0]] * 4)
        >>> p = Prediction(z, target=torch.tensor([0, 1, 0, 0, 0, 1, 0, 1]))
        >>> MatrixScaling(penalty=0.0).fit(p)(p).probs[1]
        tensor([0.2500, 0.7500])
    """

    def _fit(self, lesson: Lesson) -> dict[str, Tensor]:
        free = check_classes(lesson.target, lesson.num_classes, self.missing).double()
        weight, bias = Full(lesson, self._features(lesson.samples), free, self.penalty).solve()
        return {"weight": weight, "bias": bias}

    def _neutral(self, num_classes: int) -> dict[str, Tensor]:
        eye = torch.eye(num_classes, dtype=torch.float64)
        return {"weight": eye, "bias": torch.zeros(num_classes, dtype=torch.float64)}


@dataclass(eq=False)
class DirichletCalibration(MatrixScaling):
    r"""A full linear map of the log probabilities (Kull et al., NeurIPS 2019).

    .. math:: s'_k = W \log\mathrm{softmax}(s_k) + b

    with the prior or ODIR of `MatrixScaling`. It is what makes Dirichlet-distributed
    probabilities calibrated. May change labels.

    Args:
        penalty, missing: As for `MatrixScaling`.

    Example:
        >>> z = torch.tensor([[1.0, 0.0], [0.0, 1.0]] * 4)
        >>> p = Prediction(z, target=torch.tensor([0, 1, 0, 0, 0, 1, 0, 1]))
        >>> DirichletCalibration(penalty=0.0).fit(p)(p).probs[1]
        tensor([0.2500, 0.7500])
    """

    defines_logits: ClassVar[bool] = False

    def _features(self, logits: Tensor) -> Tensor:
        return logits.log_softmax(dim=-1)


# -- the problems behind them, in coordinates that L-BFGS likes ------------------------------------


class Diagonal:
    """The problem of `VectorScaling`, in units of each class's deviation."""

    def __init__(self, lesson: Lesson, x: Tensor, free: Tensor, penalty: float | None) -> None:
        self.lesson, self.free = lesson, free
        self.centre, width = x.mean(dim=(0, 1)), x.std(dim=(0, 1), correction=0)
        self.width = torch.where(width > 1e-9, width, 1.0)
        self.unit = (x - self.centre) / self.width
        self.scale, self.classes = 1.0 / lesson.temperature(), x.size(2)
        rows = lesson.rows
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
        value, error = nll_and_slope(self.unit * inner + shift, self.lesson)
        off = weight - self.scale
        value += self.pull * float(off @ off) + self.bias_pull * float(bias @ bias)
        bias_slope = 2 * self.bias_pull * bias
        weight_slope = 2 * self.pull * off - bias_slope * self.centre
        inner_slope = torch.einsum("knc,knc->c", error, self.unit) + weight_slope / self.width
        shift_slope = error.sum(dim=(0, 1)) + bias_slope
        return value, torch.cat([inner_slope * self.free, shift_slope * self.free])

    def _unpack(self, vector: Tensor) -> tuple[Tensor, Tensor]:
        weight = vector[: self.classes] / self.width
        return weight, vector[self.classes :] - weight * self.centre


class Full:
    r"""The problem of `MatrixScaling` in the coordinates :math:`u = (x - \bar x) P`, W = A P.

    Log probabilities of many classes are strongly correlated; with unit covariance L-BFGS needs
    tens of steps instead of thousands.
    """

    def __init__(self, lesson: Lesson, x: Tensor, free: Tensor, penalty: float | None) -> None:
        self.lesson, self.free = lesson, free
        self.shape, self.classes = x.shape, x.size(2)
        flat = x.flatten(0, 1)
        self.centre = flat.mean(dim=0)
        centred = flat - self.centre
        values, vectors = torch.linalg.eigh(centred.T @ centred / len(flat))
        values = values.clamp_min(1e-4 * float(values[-1].clamp_min(1e-9)))
        self.whiten = (vectors * values.rsqrt()) @ vectors.T  # P, symmetric
        self.colour = (vectors * values.sqrt()) @ vectors.T  # its inverse
        self.unit = centred @ self.whiten
        self.scale = 1.0 / lesson.temperature()
        eye = torch.eye(self.classes, dtype=torch.float64)
        self.home = self.scale * eye
        self.pull, self.bias_pull = _pulls(eye, lesson.rows, self.scale, penalty)

    def solve(self) -> tuple[Tensor, Tensor]:
        """The best weight ``[C, C]`` and bias ``[C]``, starting from temperature scaling."""
        start = torch.cat([(self.scale * self.colour).flatten(), self.scale * self.centre])
        return self._unpack(minimise(self.objective, start))[2:]

    def objective(self, vector: Tensor) -> tuple[float, Tensor]:
        inner, shift, weight, bias = self._unpack(vector)
        logits = torch.addmm(shift, self.unit, inner.T).view(self.shape)
        value, slope = nll_and_slope(logits, self.lesson)
        error = slope.flatten(0, 1)
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


def nll_and_slope(logits: Tensor, lesson: Lesson) -> tuple[float, Tensor]:
    """Weighted NLL of the mixture and its gradient in the logits ``[K, n, C]``, in their place."""
    logits -= logits.amax(dim=2, keepdim=True)
    place = lesson.target.expand(logits.size(0), -1).unsqueeze(2)
    chosen = logits.gather(2, place).squeeze(2)  # [K, n]
    total = logits.exp_().sum(dim=2, keepdim=True)
    weights = weights_of(logits, lesson.weights).log().unsqueeze(1)
    log = chosen - total.squeeze(2).log() + weights
    nll = -log.logsumexp(dim=0)
    blame = (log + nll).exp_() * lesson.share  # of every hypothesis for the right class
    logits /= total
    logits.scatter_add_(2, place, torch.full_like(total, -1.0))
    return float(lesson.share @ nll), logits.mul_(blame.unsqueeze(2))
