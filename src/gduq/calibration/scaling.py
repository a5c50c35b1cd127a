"""Temperature scaling and its ensemble: maps that keep the order of the classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from gduq.calibration.base import Calibrator, RowTemperature
from gduq.calibration.lesson import Lesson, samples_of
from gduq.prediction import Prediction
from gduq.prediction.mixture import log_mixture

__all__ = ["EnsembleTemperatureScaling", "TemperatureScaling"]


@dataclass(eq=False)
class TemperatureScaling(RowTemperature):
    r"""One temperature for all rows and hypotheses (Guo et al., ICML 2017).

    .. math:: s'_k = s_k / T, \qquad T = \arg\min_T \mathrm{NLL}

    with the NLL of the mixture; see `gduq.prediction.temperature.best_temperature`. A T below 1
    must be worth it with one row of even target added: rows that are all right would else say
    T = 0. Keeps every label of a single hypothesis; a mixture of several may change sides.

    Example:
        >>> z = torch.tensor([[4.0, 0.0]] * 4)  # sure of class 0, right three times of four
        >>> p = Prediction(z, target=torch.tensor([0, 0, 0, 1]))
        >>> cal = TemperatureScaling().fit(p)
        >>> round(float(cal.value), 3), cal(p).confidence[0]
        (3.641, tensor(0.7500))
    """

    takes_copies: ClassVar[bool] = True
    state_names: ClassVar[tuple[str, ...]] = ("temperature",)

    @property
    def value(self) -> Tensor:
        """The temperature, a scalar."""
        return self.state()["temperature"]

    def _fit(self, lesson: Lesson) -> dict[str, Tensor]:
        return {"temperature": _scalar(lesson.temperature())}

    def _temperature(self, p: Prediction) -> Tensor:
        return self._state["temperature"].expand(len(p))

    def _neutral(self, num_classes: int) -> dict[str, Tensor]:
        return {"temperature": _scalar(1.0)}


@dataclass(eq=False)
class EnsembleTemperatureScaling(Calibrator):
    r"""Tempered, raw and uniform probabilities, blended (ETS; Zhang et al., ICML 2020).

    .. math:: p'_k = v_1\,\mathrm{softmax}(s_k/T) + v_2\,\mathrm{softmax}(s_k) + v_3\,\tfrac1C,
        \qquad v \ge 0,\ \textstyle\sum v = 1

    Every hypothesis is blended, which blends their mixture just so. T as in `TemperatureScaling`,
    then the shares by NLL, which is convex in them. Keeps every label of a single hypothesis.

    Example:
        >>> z = torch.tensor([[4.0, 0.0]] * 4)
        >>> p = Prediction(z, target=torch.tensor([0, 0, 0, 1]))
        >>> EnsembleTemperatureScaling().fit(p)(p).confidence[0]
        tensor(0.7500)
    """

    takes_copies: ClassVar[bool] = True
    keeps_order: ClassVar[bool] = True
    defines_logits: ClassVar[bool] = False
    state_names: ClassVar[tuple[str, ...]] = ("temperature", "weights")

    def _fit(self, lesson: Lesson) -> dict[str, Tensor]:
        temperature = lesson.temperature()
        tempered = log_mixture(lesson.samples / temperature, lesson.weights)
        even = torch.full_like(tempered, -float(np.log(lesson.num_classes)))
        parts = torch.stack([tempered, lesson.logs, even])  # [3, n, C]
        chosen = parts.gather(2, lesson.target.expand(3, -1)[..., None]).squeeze(2).exp()
        return {"temperature": _scalar(temperature), "weights": _blend(chosen, lesson.share)}

    def _map(self, p: Prediction) -> Tensor:
        samples, shares = samples_of(p), self._state["weights"].log()
        tempered = (samples / self._state["temperature"]).log_softmax(dim=-1) + shares[0]
        raw = samples.log_softmax(dim=-1) + shares[1]
        return torch.logaddexp(torch.logaddexp(tempered, raw), shares[2] - np.log(p.num_classes))

    def _neutral(self, num_classes: int) -> dict[str, Tensor]:
        weights = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
        return {"temperature": _scalar(1.0), "weights": weights}


def _scalar(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def _blend(chosen: Tensor, share: Tensor) -> Tensor:
    """Simplex weights that maximise the mean log of ``weights @ chosen``, ``[3, n] -> [3]``."""
    table, rows = chosen.clamp_min(1e-300).numpy(), share.numpy()

    def objective(w: np.ndarray) -> tuple[float, np.ndarray]:
        mixed = np.maximum(w @ table, 1e-300)
        return -float(np.log(mixed) @ rows), -(table / mixed) @ rows

    result = minimize(
        objective,
        np.array([1.0, 0.0, 0.0]),
        jac=True,
        method="SLSQP",
        bounds=[(0.0, 1.0)] * 3,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1.0, "jac": lambda w: np.ones(3)},
        options={"ftol": 1e-12, "maxiter": 200},
    )
    weights = np.clip(result.x, 0.0, None)
    return torch.from_numpy(weights / weights.sum())
