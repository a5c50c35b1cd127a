"""Temperatures, a weight per class or a matrix; factors on deviations; labels one by one."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from gduq.calibration.base import (
    CalibrationSet,
    Calibrator,
    ClassCalibrator,
    doubles,
    minimise,
    same_energy,
    samples_of,
)
from gduq.errors import warn_user
from gduq.prediction import ClassPrediction, ValuePrediction, Values
from gduq.prediction.mixture import log_mixture

__all__ = ["DeviationScaling", "DirichletCalibration", "EnsembleTemperatureScaling", "PerLabel",
           "TemperatureScaling", "VectorScaling"]  # fmt: skip


@dataclass(eq=False)
class _Factors(Calibrator):
    """A temperature for every task, by likelihood on the rows that know it.

    A task is a choice of classes, one label or one value.
    """

    fewest: ClassVar[int] = 1  # different truths; below, a task stays as it is

    @property
    def value(self) -> Tensor:
        """The temperatures, one per task."""
        return self.state()["temperature"]

    def _fit(self, data: CalibrationSet) -> dict[str, Tensor]:
        parts, kept = [part.parts() for part in data.parts], list[str]()
        found = self._neutral(data.p.width)["temperature"]
        for t, name in enumerate(parts[0]):
            clean, *copies = (part[name] for part in parts)
            if clean.require_target().unique().numel() < self.fewest:
                kept.append(name or "0")
                continue
            known = [copy for copy in copies if len(copy)]
            found[t] = self._best(CalibrationSet(clean, copies=known))
        if kept:
            warn_user(
                f"{len(kept)} of {data.p.size} stay as they are, among them "
                f'{", ".join(kept[:5])}: to calibrate a label takes rows of "yes" and of "no"'
            )
        return {"temperature": found}

    def _best(self, data: CalibrationSet) -> float:
        """The temperature of one task."""
        return data.temperature()

    def _map(self, p: Any) -> Tensor:
        return samples_of(p) / self._state["temperature"]

    def _neutral(self, size: int) -> dict[str, Tensor]:
        return {"temperature": torch.ones(size, dtype=torch.float64)}


@dataclass(eq=False)
class TemperatureScaling(_Factors, ClassCalibrator):
    r"""One temperature for all rows and hypotheses (Guo et al., ICML 2017).

    .. math:: s'_k = s_k / T, \qquad T = \arg\min_T \mathrm{NLL}

    with the NLL of the mixture; see `gduq.prediction.mixture.best_temperature`. Keeps every label
    of a single hypothesis; a mixture of several may change sides.

    Example:
        >>> z = torch.tensor([[4.0, 0.0]] * 4)  # sure of class 0, right three times of four
        >>> p = ClassPrediction(z, target=torch.tensor([0, 0, 0, 1]))
        >>> cal = TemperatureScaling().fit(p)
        >>> round(float(cal.value), 3), cal(p).confidence[0]
        (3.641, tensor(0.7500))
    """

    def _neutral(self, num_classes: int) -> dict[str, Tensor]:
        return super()._neutral(1)


@dataclass(eq=False)
class PerLabel(_Factors):
    """A temperature for every label, fitted as for two classes on the rows that know it.

    A label whose known rows are all "yes" or all "no" stays as it is, which a warning says.
    """

    kind = "labels"
    fewest = 2


@dataclass(eq=False)
class DeviationScaling(_Factors):
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

    def _best(self, data: CalibrationSet) -> float:
        parts = data.split(data.samples, data.target.double().view(-1, 1))
        return _standard(1).best_temperature(parts, data.weights)

    def _map(self, p: ValuePrediction) -> Tensor:
        return _standard(p.width).scaled(samples_of(p), self._state["temperature"], p.weights)


def _standard(count: int) -> Values:
    return Values(shift=(0.0,) * count, scale=(1.0,) * count)


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

        def loss(values: dict[str, Tensor]) -> Tensor:
            v = values["weights"]
            return -data.share @ (v @ chosen / v.sum()).clamp_min(1e-300).log()

        start = {"weights": doubles([0.8, 0.1, 0.1])}
        v = minimise(loss, start, [(0.0, None)] * 3, tolerance=1e-14)["weights"]
        return {"temperature": doubles(temperature), "weights": v / v.sum()}

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

    Classes without rows stay at 1/T and 0. ``penalty`` is how much the prior counts: 0, for
    likelihood alone, as it was published.
    """

    full: ClassVar[bool] = False  # whether W is a matrix, not a diagonal, kept as ``[C]``
    weight_prior: ClassVar[float] = 0.25  # deviation of W from 1/T, as a share of that
    bias_prior: ClassVar[float] = 0.5  # and of b from 0

    penalty: float = field(default=1.0, kw_only=True)

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
        near = 0.5 * self.penalty / (data.rows * (self.weight_prior * scale) ** 2)
        pull = near * (eye + classes * (1.0 - eye))
        bias_pull = 0.5 * self.penalty / (data.rows * self.bias_prior**2)

        def from_steps(steps: dict[str, Tensor]) -> dict[str, Tensor]:
            weight = scale * eye + free * steps["weight"]
            bias = scale * centre + present * steps["bias"] - _times(weight, centre)
            return {"weight": weight, "bias": bias}

        def loss(steps: dict[str, Tensor]) -> Tensor:
            weight, bias = from_steps(steps).values()
            off = (pull * (weight - scale * eye).square()).sum()
            return data.nll(_times(weight, x) + bias) + off + bias_pull * bias.square().sum()

        none = {"weight": torch.zeros_like(eye), "bias": torch.zeros_like(centre)}
        return from_steps(minimise(loss, none))

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

    by the NLL of the mixture. A normal prior holds the weights near 1/T of temperature scaling and
    the biases near 0, and fades as rows grow: without it fifty rows are enough to make predictions
    much worse. May change labels.
    """


@dataclass(eq=False)
class DirichletCalibration(_Affine):
    r"""A full linear map of the log probabilities (Kull et al., NeurIPS 2019), held back.

    .. math:: s'_k = W \log\mathrm{softmax}(s_k) + b

    with the prior of `VectorScaling` instead of the published off-diagonal and intercept
    regularisation (ODIR), which overfits below about a hundred rows per class.
    """

    full: ClassVar[bool] = True

    def _inputs(self, logits: Tensor) -> Tensor:
        return logits.log_softmax(dim=-1)

    def _map(self, p: ClassPrediction) -> Tensor:
        return same_energy(samples_of(p), super()._map(p))
