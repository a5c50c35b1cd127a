"""The problems behind `gduq.calibration.affine`, in coordinates that L-BFGS likes."""

from __future__ import annotations

import torch
from torch import Tensor

from gduq.calibration.lesson import Lesson
from gduq.calibration.optimise import minimise
from gduq.prediction.mixture import weights_of

__all__ = ["Diagonal", "Full", "nll_and_slope"]

# Deviations of the default prior: weights as a share of 1/T, off the diagonal divided by sqrt(C).
_DIAGONAL, _OFF_DIAGONAL, _BIAS = 0.25, 0.25, 0.5


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
