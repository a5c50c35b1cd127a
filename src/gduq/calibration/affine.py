"""Vector, matrix and Dirichlet calibration: one linear map of every hypothesis's logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from gduq.calibration.affine_fit import Diagonal, Full
from gduq.calibration.base import Calibrator, check_classes
from gduq.calibration.lesson import Lesson, samples_of
from gduq.errors import InputError
from gduq.prediction import Prediction

__all__ = ["DirichletCalibration", "MatrixScaling", "VectorScaling"]


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
