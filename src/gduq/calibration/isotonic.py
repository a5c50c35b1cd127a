"""Multi-class isotonic regression: one monotone function for all classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gduq.calibration.base import Calibrator
from gduq.calibration.lesson import Lesson, mixture_logs
from gduq.prediction import Prediction

__all__ = ["IsotonicCalibration"]

Floats = NDArray[np.float64]

_ORDER = 1e-9  # share of the old probability that keeps classes apart where the function is flat


@dataclass(eq=False)
class IsotonicCalibration(Calibrator):
    r"""One monotone function of the class probabilities (IRM; Zhang et al., ICML 2020).

    .. math:: p'_{ic} \propto g(p_{ic}) + 10^{-9} p_{ic}, \qquad
        g = \arg\min_{g\ \text{monotone}} \sum_{i,c} \big(g(p_{ic}) - [y_i = c]\big)^2

    over all m·C probabilities of the mixture at once; g is linear between its steps and constant
    beyond them. The small term keeps the order of classes that share a step, so every label stays.
    Free of assumptions and hungry for data; where g is 0 it is very sure, which NLL on other data
    punishes.

    Example:
        >>> z = torch.tensor([[4.0, 0.0]] * 4)
        >>> p = Prediction(z, target=torch.tensor([0, 0, 0, 1]))
        >>> IsotonicCalibration().fit(p)(p).confidence[0]
        tensor(0.7500)
    """

    acts_on: ClassVar[Literal["samples", "mixture"]] = "mixture"
    keeps_accuracy: ClassVar[bool] = True
    defines_logits: ClassVar[bool] = False
    state_names: ClassVar[tuple[str, ...]] = ("x", "y")

    def _fit(self, lesson: Lesson) -> dict[str, Tensor]:
        probs, target = lesson.logs.exp(), lesson.target
        hit = torch.zeros(probs.shape, dtype=torch.bool).scatter_(1, target[:, None], True)
        x, y = _isotonic(probs.flatten().numpy(), hit.flatten().numpy())
        return {"x": torch.from_numpy(x), "y": torch.from_numpy(y)}

    def _map(self, p: Prediction) -> Tensor:
        probs = mixture_logs(p).exp()
        x, y = self._state["x"].numpy(), self._state["y"].numpy()
        steps = torch.from_numpy(np.interp(probs.numpy(), x, y))
        return (steps + _ORDER * probs).clamp_min(1e-300).log()

    def _neutral(self, num_classes: int) -> dict[str, Tensor]:
        line = torch.tensor([0.0, 1.0], dtype=torch.float64)
        return {"x": line, "y": line.clone()}


def _isotonic(x: Floats, hit: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """The isotonic fit of ``hit`` on ``x`` as the ends of its steps: thresholds and values.

    Equal x are pooled first, and of every step only the two ends are kept: the same function as
    scikit-learn's ``IsotonicRegression``, found faster.
    """
    from sklearn.isotonic import isotonic_regression

    order = np.argsort(x)
    x = x[order]
    starts = np.flatnonzero(np.concatenate([[True], x[1:] != x[:-1]]))
    weight = np.diff(np.append(starts, len(x))).astype(np.float64)
    y = np.add.reduceat(hit[order].astype(np.float64), starts) / weight
    x = x[starts]
    y = isotonic_regression(y, sample_weight=weight)
    change = y[1:] != y[:-1]
    ends = np.concatenate([[True], change]) | np.concatenate([change, [True]])
    return x[ends].copy(), y[ends].copy()
