"""Temperature scaling and its ensemble: maps that keep the order of the classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from gduq.calibration.base import Calibrator, RowTemperature, labelled, mean_logits
from gduq.calibration.optimise import careful_scale, softening_scale
from gduq.prediction import Prediction

__all__ = ["EnsembleTemperatureScaling", "TemperatureScaling", "softening"]


@dataclass(eq=False)
class TemperatureScaling(RowTemperature):
    r"""One temperature for all rows (Guo et al., ICML 2017).

    .. math:: \mu' = \mu / T, \qquad T = \arg\min_T \mathrm{NLL}

    Found by Newton's method in :math:`1/T`, where the loss is convex. A T below 1 must be worth
    it with one row of even target added: rows that are all right would else say T = 0. Keeps every
    label.

    Example:
        >>> z = torch.tensor([[4.0, 0.0]] * 4)  # sure of class 0, right three times of four
        >>> p = Prediction(z, target=torch.tensor([0, 0, 0, 1]))
        >>> cal = TemperatureScaling().fit(p)
        >>> round(float(cal.value), 3), cal(p).confidence[0]
        (3.641, tensor(0.7500))
    """

    state_names: ClassVar[tuple[str, ...]] = ("temperature",)

    @property
    def value(self) -> Tensor:
        """The temperature, a scalar."""
        return self.state()["temperature"]

    def _fit(self, p: Prediction, rows: Tensor | slice) -> dict[str, Tensor]:
        return {"temperature": _scalar(1.0 / careful_scale(*labelled(p, rows)))}

    def _temperature(self, p: Prediction) -> Tensor:
        return self._state["temperature"].expand(len(p))

    def _neutral(self, num_classes: int) -> dict[str, Tensor]:
        return {"temperature": _scalar(1.0)}


def softening(p: Prediction) -> Tensor:
    """The temperature of at least 1 that labelled rows ask for: see `gduq.tempering`."""
    return _scalar(1.0 / softening_scale(*labelled(p, slice(None))))


@dataclass(eq=False)
class EnsembleTemperatureScaling(Calibrator):
    r"""A mixture of tempered, raw and uniform probabilities (ETS; Zhang et al., ICML 2020).

    .. math:: p' = w_1\,\mathrm{softmax}(\mu/T) + w_2\,\mathrm{softmax}(\mu) + w_3\,\tfrac1C,
        \qquad w \ge 0,\ \textstyle\sum w = 1

    T as in `TemperatureScaling`, then the weights by NLL, which is convex in them. Keeps every
    label.

    Example:
        >>> z = torch.tensor([[4.0, 0.0]] * 4)
        >>> p = Prediction(z, target=torch.tensor([0, 0, 0, 1]))
        >>> EnsembleTemperatureScaling().fit(p)(p).confidence[0]
        tensor(0.7500)
    """

    defines_logits: ClassVar[bool] = False
    state_names: ClassVar[tuple[str, ...]] = ("temperature", "weights")

    def _fit(self, p: Prediction, rows: Tensor | slice) -> dict[str, Tensor]:
        logits, target = labelled(p, rows)
        temperature = _scalar(1.0 / careful_scale(logits, target))
        parts = _components(logits, temperature)  # [3, n, C]
        chosen = parts.gather(2, target.expand(3, -1)[..., None]).squeeze(2).exp()
        return {"temperature": temperature, "weights": _mixture(chosen)}

    def _map(self, p: Prediction) -> Tensor:
        parts = _components(mean_logits(p), self._state["temperature"])
        return (parts + self._state["weights"].log()[:, None, None]).logsumexp(dim=0)

    def _neutral(self, num_classes: int) -> dict[str, Tensor]:
        weights = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
        return {"temperature": _scalar(1.0), "weights": weights}


def _scalar(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def _components(logits: Tensor, temperature: Tensor) -> Tensor:
    """Log probabilities of the three parts, ``[3, n, C]``."""
    raw = logits.log_softmax(dim=-1)
    uniform = torch.full_like(raw, -float(np.log(raw.size(1))))
    return torch.stack([(logits / temperature).log_softmax(dim=-1), raw, uniform])


def _mixture(chosen: Tensor) -> Tensor:
    """Simplex weights that maximise the mean log of ``weights @ chosen``, ``[3, n] -> [3]``."""
    table = chosen.clamp_min(1e-300).numpy()

    def objective(w: np.ndarray) -> tuple[float, np.ndarray]:
        mixed = np.maximum(w @ table, 1e-300)
        return -float(np.log(mixed).mean()), -(table / mixed).mean(axis=1)

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
