"""Logits scaled: by a temperature, by blended ones, by a weight per class or a matrix."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from gduq.calibration.base import (
    CalibrationSet,
    ClassCalibrator,
    RowTemperature,
    minimise,
    same_energy,
    samples_of,
)
from gduq.errors import InputError
from gduq.prediction import RESCALING_RULES, ClassPrediction
from gduq.prediction.mixture import log_mixture

__all__ = [
    "DirichletCalibration",
    "EnsembleTemperatureScaling",
    "Fixed",
    "TemperatureScaling",
    "VectorScaling",
]

_WEIGHT, _BIAS = 0.25, 0.5  # deviations of the default prior, weights as a share of 1/T


@dataclass(eq=False)
class TemperatureScaling(RowTemperature):
    r"""One temperature for all rows and hypotheses (Guo et al., ICML 2017).

    .. math:: s'_k = s_k / T, \qquad T = \arg\min_T \mathrm{NLL}

    with the NLL of the mixture; see `gduq.prediction.mixture.best_temperature`.

    Example:
        >>> z = torch.tensor([[4.0, 0.0]] * 4)  # sure of class 0, right three times of four
        >>> p = ClassPrediction(z, target=torch.tensor([0, 0, 0, 1]))
        >>> cal = TemperatureScaling().fit(p)
        >>> round(float(cal.value), 3), cal(p).confidence[0]
        (3.641, tensor(0.7500))
    """

    @property
    def value(self) -> Tensor:
        """The temperature, a scalar."""
        return self.state()["temperature"]

    def _fit(self, data: CalibrationSet) -> dict[str, Tensor]:
        return {"temperature": _doubles(data.temperature())}

    def _temperature(self, p: ClassPrediction) -> Tensor:
        return self._state["temperature"].expand(p.samples.size(1))

    def _neutral(self, num_classes: int) -> dict[str, Tensor]:
        return {"temperature": _doubles(1.0)}


@dataclass(eq=False)
class EnsembleTemperatureScaling(ClassCalibrator):
    r"""Tempered, raw and uniform probabilities, blended (ETS; Zhang et al., ICML 2020).

    .. math:: p'_k = v_1\,\mathrm{softmax}(s_k/T) + v_2\,\mathrm{softmax}(s_k) + v_3\,\tfrac1C,
        \qquad v \ge 0,\ \textstyle\sum v = 1

    Keeps every label of a single hypothesis.
    """

    def _fit(self, data: CalibrationSet) -> dict[str, Tensor]:
        temperature = data.temperature()
        tempered = log_mixture(data.samples / temperature, data.weights)
        even = torch.full_like(tempered, -math.log(tempered.size(1)))
        parts = torch.stack([tempered, data.log_probs, even])  # [3, n, C]
        chosen = parts.gather(2, data.target.expand(3, -1)[..., None]).squeeze(2).exp()
        return {"temperature": _doubles(temperature), "weights": _blend(chosen, data.share)}

    def _map(self, p: ClassPrediction) -> Tensor:
        samples, shares = samples_of(p), self._state["weights"].log()
        tempered = (samples / self._state["temperature"]).log_softmax(dim=-1) + shares[0]
        raw = samples.log_softmax(dim=-1) + shares[1]
        blend = torch.logaddexp(torch.logaddexp(tempered, raw), shares[2] - math.log(p.num_classes))
        return same_energy(samples, blend)

    def _neutral(self, num_classes: int) -> dict[str, Tensor]:
        return {"temperature": _doubles(1.0), "weights": _doubles([1.0, 0.0, 0.0])}


def _doubles(values: float | list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _blend(chosen: Tensor, share: Tensor) -> Tensor:
    """Simplex weights that maximise the mean log of ``weights @ chosen``, ``[3, n] -> [3]``."""

    def loss(weights: Tensor) -> Tensor:
        return -share @ (weights @ chosen / weights.sum()).clamp_min(1e-300).log()

    found = minimise(loss, _doubles([0.8, 0.1, 0.1]), bounds=[(0.0, None)] * 3, tolerance=1e-14)
    return found / found.sum()


@dataclass(eq=False)
class _Affine(ClassCalibrator):
    r"""A linear map of what every hypothesis gives, :math:`s'_k = W x_k + b`, near 1/T and 0."""

    full: ClassVar[bool] = False  # whether W is a matrix, not a diagonal, kept as ``[C]``

    penalty: float | None = None
    missing: Literal["error", "keep"] = "error"

    def __post_init__(self) -> None:
        if self.missing not in ("error", "keep"):
            raise InputError('missing="error" or "keep"', repr(self.missing))
        if self.penalty is not None and not self.penalty >= 0:
            raise InputError("penalty >= 0 or None", self.penalty)

    def _inputs(self, logits: Tensor) -> Tensor:
        """x, of logits ``[K, n, C]``."""
        return logits

    def _fit(self, data: CalibrationSet) -> dict[str, Tensor]:
        r"""W and b by L-BFGS, in coordinates that it likes.

        Log probabilities of many classes are strongly correlated. With :math:`W = A P`, where
        :math:`(x - \bar x) P` has unit variance, and A and :math:`b + W \bar x` to be found, it
        takes tens of steps instead of thousands.
        """
        x, scale = self._inputs(data.samples), 1.0 / data.temperature()
        classes, centre = x.size(2), x.mean(dim=(0, 1))
        present = self._present(data.target, classes)
        free = present[:, None] if self.full else present
        home = scale * self._neutral(classes)["weight"]
        whiten, start = _whitening(x - centre) if self.full else (torch.ones(classes), home)
        start = scale * start if self.full else start
        pull, bias_pull = self._pulls(classes, data.rows, scale)

        def weight_and_bias(vector: Tensor) -> tuple[Tensor, Tensor]:
            inner = start + free * vector[:-classes].view_as(start)
            weight = _times(whiten, inner)  # P is symmetric
            return weight, scale * centre + present * vector[-classes:] - _times(weight, centre)

        def loss(vector: Tensor) -> Tensor:
            weight, bias = weight_and_bias(vector)
            off = (pull * (weight - home).square()).sum()
            return data.nll(_times(weight, x) + bias) + off + bias_pull * bias.square().sum()

        found = minimise(loss, torch.zeros(start.numel() + classes, dtype=torch.float64))
        weight, bias = weight_and_bias(found)
        return {"weight": weight, "bias": bias}

    def _present(self, target: Tensor, classes: int) -> Tensor:
        """1.0 for the classes that have rows ``[C]``; an error where one may not be absent."""
        present = torch.bincount(target, minlength=classes) > 0
        if self.missing == "error" and not bool(present.all()):
            absent = torch.nonzero(~present).flatten().tolist()
            got = f"none of class {', '.join(map(str, absent[:5]))}{' ...' * (len(absent) > 5)}"
            do = 'Pass missing="keep" to leave them as they are, or use TemperatureScaling.'
            raise InputError("validation rows of every class", got, do)
        return present.double()

    def _pulls(self, classes: int, rows: int, scale: float) -> tuple[Tensor, float]:
        """Factors of the squared distances of W from 1/T, and of b from 0."""
        near, bias = 0.5 / (rows * (_WEIGHT * scale) ** 2), 0.5 / (rows * _BIAS**2)
        away = classes * near
        if self.penalty is not None:
            near, bias = 0.0, self.penalty / classes
            away = self.penalty / max(classes * (classes - 1), 1)
        eye = self._neutral(classes)["weight"]
        return near * eye + away * (1.0 - eye), bias

    def _map(self, p: ClassPrediction) -> Tensor:
        return _times(self._state["weight"], self._inputs(samples_of(p))) + self._state["bias"]

    def _neutral(self, num_classes: int) -> dict[str, Tensor]:
        one = torch.ones(num_classes, dtype=torch.float64)
        return {"weight": one.diag() if self.full else one, "bias": torch.zeros_like(one)}


def _times(weight: Tensor, x: Tensor) -> Tensor:
    """A matrix, or the diagonal ``[C]`` of one, times vectors ``[..., C]``."""
    return x @ weight.T if weight.dim() == 2 else x * weight


def _whitening(x: Tensor) -> tuple[Tensor, Tensor]:
    """P such that x P has unit variance, and its inverse ``[C, C]``; both are symmetric."""
    flat = x.flatten(0, 1)
    values, vectors = torch.linalg.eigh(flat.T @ flat / len(flat))
    values = values.clamp_min(1e-4 * float(values[-1].clamp_min(1e-9)))
    return (vectors * values.rsqrt()) @ vectors.T, (vectors * values.sqrt()) @ vectors.T


@dataclass(eq=False)
class VectorScaling(_Affine):
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
        >>> p = ClassPrediction(z, target=torch.tensor([0, 1, 0, 0, 0, 1, 0, 1]))
        >>> VectorScaling(penalty=0.0).fit(p)(p).probs[1]  # class 1 was right three times of four
        tensor([0.2500, 0.7500])
    """


@dataclass(eq=False)
class DirichletCalibration(_Affine):
    r"""A full linear map of the log probabilities (Kull et al., NeurIPS 2019), held back.

    .. math:: s'_k = W \log\mathrm{softmax}(s_k) + b

    As `VectorScaling`; ``penalty`` instead of the prior is the published off-diagonal and intercept
    regularisation (ODIR),

    .. math:: \frac{\lambda}{C(C-1)} \sum_{i \ne j} W_{ij}^2 + \frac{\lambda}{C} \sum_i b_i^2,

    which leaves the diagonal free and overfits below about a hundred rows per class.
    """

    full: ClassVar[bool] = True

    def _inputs(self, logits: Tensor) -> Tensor:
        return logits.log_softmax(dim=-1)

    def _map(self, p: ClassPrediction) -> Tensor:
        return same_energy(samples_of(p), super()._map(p))


@dataclass(eq=False)
class Fixed(ClassCalibrator):
    r"""A map for which nothing is learnt, with K equal hypotheses left where it averages them.

    Args:
        rule: ``"t2"`` halves the logits, the control that every claim must beat;
            ``"mean_logits"`` is the paper's average :math:`\mu`, ``"rescaled_paper"`` and
            ``"rescaled_released"`` the two readings of its rescaling
            (`gduq.ClassPrediction.rescaled`).
    """

    rule: str = "t2"

    def _fit(self, data: CalibrationSet) -> dict[str, Tensor]:
        return {}

    def _map(self, p: ClassPrediction) -> Tensor:
        if self.rule == "t2":
            return samples_of(p) / 2.0
        rules = {f"rescaled_{rule}": rule for rule in RESCALING_RULES}
        one = p.rescaled(rules[self.rule]) if self.rule in rules else p.mean_logits()
        return samples_of(one).expand(p.num_samples, -1, -1)

    def _neutral(self, num_classes: int) -> dict[str, Tensor]:
        return {}
