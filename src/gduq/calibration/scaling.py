"""Temperatures, a weight per class or a matrix; factors on deviations; labels one by one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gduq.calibration.base import (
    CalibrationSet,
    Calibrator,
    ClassCalibrator,
    RowTemperature,
    doubles,
    minimise,
    same_energy,
    samples_of,
)
from gduq.errors import InputError, warn_user
from gduq.prediction import ClassPrediction, LabelPrediction, ValuePrediction, Values
from gduq.prediction.mixture import log_mixture

__all__ = ["DeviationScaling", "DirichletCalibration", "EnsembleTemperatureScaling", "PerLabel",
           "TemperatureScaling", "VectorScaling"]  # fmt: skip

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
        return {"temperature": doubles(data.temperature())}

    def _temperature(self, p: ClassPrediction) -> Tensor:
        return self._state["temperature"].expand(p.samples.size(1))

    def _neutral(self, num_classes: int) -> dict[str, Tensor]:
        return {"temperature": doubles(1.0)}


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

        def loss(v: Tensor) -> Tensor:
            return -data.share @ (v @ chosen / v.sum()).clamp_min(1e-300).log()

        found = minimise(loss, doubles([0.8, 0.1, 0.1]), [(0.0, None)] * 3, tolerance=1e-14)
        return {"temperature": doubles(temperature), "weights": found / found.sum()}

    def _map(self, p: ClassPrediction) -> Tensor:
        samples, shares = samples_of(p), self._state["weights"].log()
        tempered = (samples / self._state["temperature"]).log_softmax(dim=-1) + shares[0]
        raw = samples.log_softmax(dim=-1) + shares[1]
        blend = torch.logaddexp(torch.logaddexp(tempered, raw), shares[2] - math.log(p.num_classes))
        return same_energy(samples, blend)

    def _neutral(self, num_classes: int) -> dict[str, Tensor]:
        return {"temperature": doubles(1.0), "weights": doubles([1.0, 0.0, 0.0])}


@dataclass(eq=False)
class _Affine(ClassCalibrator):
    r"""A linear map of what every hypothesis gives, :math:`s'_k = W x_k + b`, near 1/T and 0.

    Classes without rows stay at 1/T and 0.
    """

    full: ClassVar[bool] = False  # whether W is a matrix, not a diagonal, kept as ``[C]``

    penalty: float | None = None

    def __post_init__(self) -> None:
        if self.penalty is not None and not self.penalty >= 0:
            raise InputError("penalty >= 0 or None", self.penalty)

    def _inputs(self, logits: Tensor) -> Tensor:
        """x, of logits ``[K, n, C]``."""
        return logits

    def _fit(self, data: CalibrationSet) -> dict[str, Tensor]:
        """W and b by L-BFGS on centred inputs of unit variance, which takes tens of steps."""
        x, scale = self._inputs(data.samples), 1.0 / data.temperature()
        classes, centre = x.size(2), x.mean(dim=(0, 1))
        unit = (x - centre).square().mean().sqrt().clamp_min(1e-12)
        present = (torch.bincount(data.target, minlength=classes) > 0).double()
        free = (present[:, None] if self.full else present) / unit
        eye = self._neutral(classes)["weight"]
        # factors of squared distances: of W from 1/T, on the diagonal and off it, and of b from 0
        near, bias_pull = 0.5 / (data.rows * (_WEIGHT * scale) ** 2), 0.5 / (data.rows * _BIAS**2)
        away = classes * near
        if self.penalty is not None:
            near, bias_pull = 0.0, self.penalty / classes
            away = self.penalty / max(classes * (classes - 1), 1)
        pull = near * eye + away * (1.0 - eye)

        def weight_and_bias(vector: Tensor) -> tuple[Tensor, Tensor]:
            weight = scale * eye + free * vector[:-classes].view_as(eye)
            return weight, scale * centre + present * vector[-classes:] - _times(weight, centre)

        def loss(vector: Tensor) -> Tensor:
            weight, bias = weight_and_bias(vector)
            off = (pull * (weight - scale * eye).square()).sum()
            return data.nll(_times(weight, x) + bias) + off + bias_pull * bias.square().sum()

        found = minimise(loss, torch.zeros(eye.numel() + classes, dtype=torch.float64))
        weight, bias = weight_and_bias(found)
        return {"weight": weight, "bias": bias}

    def _map(self, p: ClassPrediction) -> Tensor:
        return _times(self._state["weight"], self._inputs(samples_of(p))) + self._state["bias"]

    def _neutral(self, num_classes: int) -> dict[str, Tensor]:
        one = torch.ones(num_classes, dtype=torch.float64)
        return {"weight": one.diag() if self.full else one, "bias": torch.zeros_like(one)}


def _times(weight: Tensor, x: Tensor) -> Tensor:
    """A matrix, or the diagonal ``[C]`` of one, times vectors ``[..., C]``."""
    return x @ weight.T if weight.dim() == 2 else x * weight


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
class DeviationScaling(Calibrator):
    r"""One factor per value on all deviations; the mean of the mixture :math:`\bar\mu` stays.

    .. math:: \mu'_k = \bar\mu + s (\mu_k - \bar\mu), \qquad \sigma'_k = s\,\sigma_k, \qquad
        s = \arg\min_s \mathrm{NLL}

    The NLL is that of the mixture, with one more row whose error is as large as said: a few exact
    answers would else say s = 0.

    Example:
        >>> p = ValuePrediction(torch.zeros(1, 3, 2), target=torch.tensor([2.0, -2.0, 3.0]))
        >>> DeviationScaling().fit(p)(p).std  # the root of (1 + 4 + 4 + 9) / 4
        tensor([2.1213, 2.1213, 2.1213])
    """

    kind = "values"

    @property
    def value(self) -> Tensor:
        """The factors ``[T]``."""
        return self.state()["scale"]

    def _fit(self, data: CalibrationSet) -> dict[str, Tensor]:
        count, unit = data.samples.size(2) // 2, _standard(1)
        target = data.target.double().view(-1, count)
        columns = ((data.samples[..., [t, t + count]], target[:, t : t + 1]) for t in range(count))
        scales = [unit.best_temperature(data.split(*one), data.weights) for one in columns]
        return {"scale": doubles(scales)}

    def _map(self, p: ValuePrediction) -> Tensor:
        weights = None if p.weights is None else p.weights.cpu()
        return _standard(p.num_values).scaled(samples_of(p), self._state["scale"], weights)

    def _neutral(self, num_values: int) -> dict[str, Tensor]:
        return {"scale": torch.ones(num_values, dtype=torch.float64)}


def _standard(count: int) -> Values:
    return Values(shift=(0.0,) * count, scale=(1.0,) * count)


@dataclass(eq=False)
class PerLabel(Calibrator):
    """A temperature for every label, fitted as for two classes on the rows that know it.

    A label whose known rows are all "yes" or all "no" stays as it is, which a warning says.
    """

    kind = "labels"

    @property
    def value(self) -> Tensor:
        """The temperatures ``[T]``."""
        return self.state()["temperature"]

    def _fit(self, data: CalibrationSet) -> dict[str, Tensor]:
        p, kept = data.parts[0], list[str]()
        found = self._neutral(p.num_labels)["temperature"]
        for t in range(p.num_labels):
            column = p.column(t)
            if len(column.require_target().unique()) < 2:
                kept.append(p.names[t] if p.names else str(t))
                continue
            copies = [copy.column(t) for copy in data.copies if bool(copy.known[:, t].any())]
            found[t] = CalibrationSet(column, copies=copies).temperature()
        if kept:
            warn_user(
                f"{len(kept)} of {p.num_labels} labels stay as they are, among them "
                f'{", ".join(kept[:5])}: to calibrate a label takes rows of "yes" and of "no"'
            )
        return {"temperature": found}

    def _map(self, p: LabelPrediction) -> Tensor:
        return samples_of(p) / self._state["temperature"]

    def _neutral(self, num_labels: int) -> dict[str, Tensor]:
        return {"temperature": torch.ones(num_labels, dtype=torch.float64)}
