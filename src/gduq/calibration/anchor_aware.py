"""Anchor-aware temperature: hotter the less the hypotheses agree."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gduq.calibration.base import RowTemperature
from gduq.calibration.lesson import Lesson
from gduq.calibration.optimise import autograd, minimise
from gduq.errors import InputError
from gduq.prediction import Prediction
from gduq.prediction.mixture import deviation
from gduq.prediction.temperature import HOTTEST, tempered_nll

__all__ = ["AnchorAwareTemperature"]

_HOTTEST = math.log(HOTTEST)


@dataclass(eq=False)
class AnchorAwareTemperature(RowTemperature):
    r"""A temperature that grows with the disagreement of the hypotheses.

    .. math:: \log T_i = a + b_1 \log(1 + \sigma_i / \bar\sigma)
        + b_2 \log(1 + \iota_i / \bar\iota), \qquad b_1, b_2 \ge 0

    with :math:`\sigma_i` the deviation of the hypotheses' log probabilities (mean over classes),
    :math:`\iota_i` the row's ``epistemic`` uncertainty, and bars for means over the fitting rows.
    The spread is taken of log probabilities because that of probabilities vanishes exactly where
    a model is too sure; the logarithms keep T a power, not an exponential, of disagreement never
    seen in fitting. Fitted by the NLL of the mixture plus a small
    :math:`\frac{\lambda}{2}\|b\|^2`, starting from plain temperature scaling; where disagreement
    says nothing about errors beyond what the mixture says already, the slopes are 0 and, as with
    one hypothesis, it *is* temperature scaling. Keeps every label of a single hypothesis.

    In-distribution rows say little about rows far away: give corrupted copies of the validation
    rows (features noised, edges dropped, ...), predicted by the same model, and the slopes learn
    how disagreement grows when predictions go wrong. This trades some calibration in distribution
    for calibration under shifts like the copies'. By name, `gduq.evaluate` and ``gduq calibrate``
    make such copies themselves: ``"anchor_aware+corrupted"``.

    Args:
        penalty: :math:`\lambda`.

    Example:
        >>> agree = torch.tensor([[4.0, 0.0], [4.0, 0.0]])  # two hypotheses about one row
        >>> differ = torch.tensor([[9.0, 0.0], [2.5, 0.0]])  # about as sure together
        >>> samples = torch.stack([agree] * 20 + [differ] * 20, dim=1)
        >>> target = torch.cat([torch.arange(20) // 19, torch.arange(20) % 2])  # 95 %, 50 % right
        >>> p = Prediction(samples, target=target)
        >>> q = AnchorAwareTemperature().fit(p)(p)
        >>> [round(c, 1) for c in q.confidence[[0, -1]].tolist()]
        [0.9, 0.5]
    """

    takes_copies: ClassVar[bool] = True
    state_names: ClassVar[tuple[str, ...]] = ("weights", "means")

    penalty: float = 1e-3

    def __post_init__(self) -> None:
        if not self.penalty >= 0:
            raise InputError("penalty >= 0", self.penalty)

    def _fit(self, lesson: Lesson) -> dict[str, Tensor]:
        apart = torch.cat([_disagreement(part) for part in lesson.parts])  # [n, 2]
        means = apart[: lesson.rows].mean(dim=0).clamp_min(1e-12)  # the clean rows set the units
        inputs = apart.div(means).log1p()
        tempered = lesson.tempered()

        def loss(weights: Tensor) -> Tensor:
            heat = _log_temperature(weights, inputs).neg().exp()
            return tempered_nll(tempered, heat) + 0.5 * self.penalty * (weights[1:] ** 2).sum()

        start = torch.tensor([math.log(lesson.temperature()), 0.0, 0.0], dtype=torch.float64)
        bounds = [(-_HOTTEST, _HOTTEST), (0.0, None), (0.0, None)]
        return {"weights": minimise(autograd(loss), start, bounds), "means": means}

    def _temperature(self, p: Prediction) -> Tensor:
        inputs = _disagreement(p).div(self._state["means"]).log1p()
        return _log_temperature(self._state["weights"], inputs).exp()

    def _neutral(self, num_classes: int) -> dict[str, Tensor]:
        zero = torch.zeros(3, dtype=torch.float64)
        return {"weights": zero, "means": torch.ones(2, dtype=torch.float64)}


def _disagreement(p: Prediction) -> Tensor:
    """Spread of log probabilities and epistemic uncertainty, ``[m, 2]``, float64 on the CPU."""
    if p.num_samples == 1:
        return torch.zeros(len(p), 2, dtype=torch.float64)
    logs = p.samples.double().log_softmax(dim=-1)
    spread = deviation(logs, p.weights).mean(dim=-1)
    return torch.stack([spread, p.epistemic.double()], dim=-1).cpu()


def _log_temperature(weights: Tensor, inputs: Tensor) -> Tensor:
    return (weights[0] + inputs @ weights[1:]).clamp(-_HOTTEST, _HOTTEST)
