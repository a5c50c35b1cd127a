"""Vector, matrix and Dirichlet calibration: one linear map of every hypothesis's logits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from gduq.calibration.base import Calibrator, check_classes, check_missing
from gduq.calibration.lesson import Lesson, samples_of
from gduq.calibration.optimise import minimise
from gduq.errors import InputError
from gduq.prediction import Prediction
from gduq.prediction.mixture import weights_of

__all__ = ["Diagonal", "DirichletCalibration", "Full", "MatrixScaling", "VectorScaling"]

_WEIGHT, _BIAS = 0.25, 0.5  # deviations of the default prior, weights as a share of 1/T


class Affine(ABC):
    r"""The problem of finding W and b near temperature scaling, in coordinates L-BFGS likes.

    With :math:`u = (x - \bar x) P` of unit variance and :math:`W = A P` it finds A and the shift
    :math:`b + W \bar x`. Log probabilities of many classes are strongly correlated: on u, L-BFGS
    needs tens of steps instead of thousands.
    """

    pull: float | Tensor  # factor of the squared distance of W from `home`
    home: float | Tensor  # W of temperature scaling
    start: Tensor  # A of temperature scaling, flat
    unit: Tensor  # u

    def __init__(self, lesson: Lesson, x: Tensor, free: Tensor, penalty: float | None) -> None:
        self.lesson, self.free, self.classes = lesson, free, x.size(2)
        self.scale = 1.0 / lesson.temperature()
        prior = penalty is None
        self.weight_pull = 0.5 / (lesson.rows * (_WEIGHT * self.scale) ** 2) if prior else 0.0
        self.bias_pull = 0.5 / (lesson.rows * _BIAS**2) if penalty is None else penalty / x.size(2)
        self.centre = self.prepare(x, penalty)

    @abstractmethod
    def prepare(self, x: Tensor, penalty: float | None) -> Tensor:
        """Choose the coordinates of x ``[K, n, C]``; gives their centre ``[C]``."""

    @abstractmethod
    def weight(self, inner: Tensor) -> Tensor:
        """W of A; as P is symmetric, also the slope in A of a slope in W."""

    @abstractmethod
    def logits(self, inner: Tensor, shift: Tensor) -> Tensor: ...

    @abstractmethod
    def slope(self, error: Tensor) -> Tensor:
        """In A, of the slope in the logits ``[K, n, C]``."""

    def solve(self) -> dict[str, Tensor]:
        """The best W and b, starting from temperature scaling."""
        found = minimise(self.objective, torch.cat([self.start, self.scale * self.centre]))
        inner, shift = self._split(found)
        weight = self.weight(inner)
        return {"weight": weight, "bias": shift - _times(weight, self.centre)}

    def objective(self, vector: Tensor) -> tuple[float, Tensor]:
        inner, shift = self._split(vector)
        weight = self.weight(inner)
        bias, off = shift - _times(weight, self.centre), weight - self.home
        value, error = nll_and_slope(self.logits(inner, shift), self.lesson)
        value += float((self.pull * off * off).sum()) + self.bias_pull * float(bias @ bias)
        bias_slope = 2 * self.bias_pull * bias
        outer = torch.outer(bias_slope, self.centre) if off.dim() == 2 else bias_slope * self.centre
        inner_slope = self.slope(error) + self.weight(2 * self.pull * off - outer)
        shift_slope = error.sum(dim=(0, 1)) + bias_slope
        free = self.free if off.dim() == 1 else self.free[:, None]
        return value, torch.cat([(inner_slope * free).flatten(), shift_slope * self.free])

    def _split(self, vector: Tensor) -> tuple[Tensor, Tensor]:
        inner = vector[: -self.classes]
        square = len(inner) > self.classes
        return inner.view(self.classes, -1) if square else inner, vector[-self.classes :]


def _times(weight: Tensor, x: Tensor) -> Tensor:
    return weight @ x if weight.dim() == 2 else weight * x


class Diagonal(Affine):
    """That of `VectorScaling`: W, A and P are diagonal and kept as ``[C]``."""

    def prepare(self, x: Tensor, penalty: float | None) -> Tensor:
        centre, width = x.mean(dim=(0, 1)), x.std(dim=(0, 1), correction=0)
        self.width = torch.where(width > 1e-9, width, 1.0)
        self.unit = (x - centre) / self.width
        self.home, self.pull, self.start = self.scale, self.weight_pull, self.scale * self.width
        return centre

    def weight(self, inner: Tensor) -> Tensor:
        return inner / self.width

    def logits(self, inner: Tensor, shift: Tensor) -> Tensor:
        return self.unit * inner + shift

    def slope(self, error: Tensor) -> Tensor:
        return torch.einsum("knc,knc->c", error, self.unit)


class Full(Affine):
    """That of `MatrixScaling`: all are ``[C, C]``."""

    def prepare(self, x: Tensor, penalty: float | None) -> Tensor:
        flat, self.shape = x.flatten(0, 1), x.shape
        centre = flat.mean(dim=0)
        centred = flat - centre
        values, vectors = torch.linalg.eigh(centred.T @ centred / len(flat))
        values = values.clamp_min(1e-4 * float(values[-1].clamp_min(1e-9)))
        self.whiten: Tensor = (vectors * values.rsqrt()) @ vectors.T  # P
        self.start = (self.scale * ((vectors * values.sqrt()) @ vectors.T)).flatten()
        self.unit, eye = centred @ self.whiten, torch.eye(self.classes, dtype=torch.float64)
        self.home, away = self.scale * eye, self.classes * self.weight_pull
        if penalty is not None:
            away = penalty / max(self.classes * (self.classes - 1), 1)
        self.pull = self.weight_pull * eye + away * (1.0 - eye)
        return centre

    def weight(self, inner: Tensor) -> Tensor:
        return inner @ self.whiten

    def logits(self, inner: Tensor, shift: Tensor) -> Tensor:
        return torch.addmm(shift, self.unit, inner.T).view(self.shape)

    def slope(self, error: Tensor) -> Tensor:
        return error.flatten(0, 1).T @ self.unit


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


@dataclass(eq=False)
class VectorScaling(Calibrator):
    r"""A weight and a bias for each class (Guo et al., ICML 2017).

    .. math:: s'_k = w \odot s_k + b

    by the NLL of the mixture. By default a normal prior holds the weights near 1/T of temperature
    scaling and the biases near 0, and fades as rows grow: without it fifty rows are enough to make
    predictions much worse. May change labels.

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

    takes_copies = True
    state_names = ("weight", "bias")
    problem: ClassVar[type[Affine]] = Diagonal

    penalty: float | None = None
    missing: Literal["error", "keep"] = "error"

    def __post_init__(self) -> None:
        check_missing(self.missing)
        if self.penalty is not None and not self.penalty >= 0:
            raise InputError("penalty >= 0 or None", self.penalty)

    def _features(self, logits: Tensor) -> Tensor:
        return logits

    def _fit(self, lesson: Lesson) -> dict[str, Tensor]:
        free = check_classes(lesson.target, lesson.num_classes, self.missing).double()
        return self.problem(lesson, self._features(lesson.samples), free, self.penalty).solve()

    def _map(self, p: Prediction) -> Tensor:
        x, weight = self._features(samples_of(p)), self._state["weight"]
        return (x @ weight.T if weight.dim() == 2 else x * weight) + self._state["bias"]

    def _neutral(self, num_classes: int) -> dict[str, Tensor]:
        one = torch.ones(num_classes, dtype=torch.float64)
        weight = one if self.problem is Diagonal else one.diag()
        return {"weight": weight, "bias": torch.zeros_like(one)}


@dataclass(eq=False)
class MatrixScaling(VectorScaling):
    r"""A full linear map of the logits (Guo et al., ICML 2017), held back.

    .. math:: s'_k = W s_k + b

    As `VectorScaling`; ``penalty`` instead of the prior is the published off-diagonal and intercept
    regularisation (ODIR; Kull et al., NeurIPS 2019),

    .. math:: \frac{\lambda}{C(C-1)} \sum_{i \ne j} W_{ij}^2 + \frac{\lambda}{C} \sum_i b_i^2,

    which leaves the diagonal free and overfits below about a hundred rows per class.

    Example:
        >>> z = torch.tensor([[1.0, 0.0], [0.0, 1.0]] * 4)
        >>> p = Prediction(z, target=torch.tensor([0, 1, 0, 0, 0, 1, 0, 1]))
        >>> MatrixScaling(penalty=0.0).fit(p)(p).probs[1]
        tensor([0.2500, 0.7500])
    """

    problem = Full


@dataclass(eq=False)
class DirichletCalibration(MatrixScaling):
    r"""`MatrixScaling` of the log probabilities (Kull et al., NeurIPS 2019).

    .. math:: s'_k = W \log\mathrm{softmax}(s_k) + b
    """

    defines_logits = False

    def _features(self, logits: Tensor) -> Tensor:
        return logits.log_softmax(dim=-1)
