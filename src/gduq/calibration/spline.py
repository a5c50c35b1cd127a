"""Spline calibration: the gap between accuracy and confidence, as a smooth function of rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.interpolate import CubicSpline
from torch import Tensor

from gduq.calibration.base import Calibrator
from gduq.calibration.lesson import Lesson, mixture_logs
from gduq.errors import InputError
from gduq.prediction import Prediction

__all__ = ["SplineCalibration", "replace_top"]

Floats = NDArray[np.float64]

_TOP = 1.0 - 1e-6  # highest confidence a correction may reach


@dataclass(eq=False)
class SplineCalibration(Calibrator):
    r"""Confidence corrected by the slope of a spline (Gupta et al., ICLR 2021).

    With confidences of the mixture sorted, :math:`t_i = i/n` and the cumulative gap

    .. math:: h(t_i) = \frac1n \sum_{j \le i} \big([\hat y_j = y_j] - s_j\big),

    a natural cubic spline S with ``knots`` knots is fitted to h by least squares; its slope is the
    gap at rank t, so the new confidence is :math:`s' = s + S'(t(s))`, kept within 1/C and 1. The
    other classes share :math:`1 - s'` as before, drawn towards equal shares only as far as needed
    to stay below :math:`s'`. No bins, no likelihood: aims at the confidence alone. Keeps every
    label.

    Args:
        knots: Knots of the spline, at equal distances in rank.

    Example:
        >>> z = torch.linspace(1, 4, 100)[:, None] * torch.tensor([1.0, 0.0])
        >>> p = Prediction(z, target=torch.arange(100) % 4 // 3)  # right three times of four
        >>> SplineCalibration().fit(p)(p).confidence[::33]
        tensor([0.7..., 0.7..., 0.7..., 0.7...])
    """

    acts_on: ClassVar[Literal["samples", "mixture"]] = "mixture"
    keeps_accuracy: ClassVar[bool] = True
    defines_logits: ClassVar[bool] = False
    state_names: ClassVar[tuple[str, ...]] = ("confidence", "correction")

    knots: int = 7

    def __post_init__(self) -> None:
        if self.knots < 3:
            raise InputError("knots >= 3", self.knots)

    def _fit(self, lesson: Lesson) -> dict[str, Tensor]:
        top, label = lesson.logs.exp().max(dim=-1)
        scores, counts = np.unique(top.numpy(), return_counts=True)
        if len(scores) < self.knots:
            raise InputError(
                f"at least as many distinct confidences as knots, {self.knots}",
                len(scores),
                "Use more rows, fewer knots, or TemperatureScaling.",
            )
        gap = ((label == lesson.target).double() - top).numpy()[np.argsort(top.numpy())]
        upto = np.cumsum(counts)  # rows with a confidence up to each one
        h = np.cumsum(gap)[upto - 1] / len(top)
        slope = _spline_slope(upto / len(top), h, self.knots)
        return {"confidence": torch.from_numpy(scores), "correction": torch.from_numpy(slope)}

    def _map(self, p: Prediction) -> Tensor:
        logs = mixture_logs(p)
        top = logs.amax(dim=-1).exp()
        known, shift = self._state["confidence"].numpy(), self._state["correction"].numpy()
        new = top + torch.from_numpy(np.interp(top.numpy(), known, shift))
        highest = top.clamp_min(_TOP)
        return replace_top(logs, new.clamp_min(1.0 / logs.size(1)).minimum(highest))

    def _neutral(self, num_classes: int) -> dict[str, Tensor]:
        ends = torch.tensor([0.0, 1.0], dtype=torch.float64)
        return {"confidence": ends, "correction": torch.zeros_like(ends)}


def replace_top(logs: Tensor, new: Tensor) -> Tensor:
    r"""Log probabilities whose largest entry is ``new``, still the largest.

    The rest :math:`q = p_{c} / (1 - s)` becomes :math:`(1 - s')\,[(1 - \lambda) q + \lambda/(C -
    1)]`, with the smallest :math:`\lambda \ge 0` that keeps it below :math:`s'`.

    Args:
        logs: Log probabilities ``[m, C]``.
        new: New largest probability of every row ``[m]``, from 1/C to 1.

    Example:
        >>> replace_top(torch.tensor([[0.5, 0.4, 0.1]]).log(), torch.tensor([0.4])).exp()
        tensor([[0.4000, 0.4000, 0.2000]])
    """
    label = logs.argmax(dim=-1, keepdim=True)
    rest = logs.scatter(1, label, -torch.inf)
    others = logs.size(1) - 1
    total = rest.logsumexp(dim=-1)  # log(1 - s)
    share = rest - total[:, None]  # log q
    highest = share.amax(dim=-1).exp()
    allowed = new / (1.0 - new).clamp_min(1e-300)
    excess = (highest - allowed).clamp_min(0.0)
    mix = (excess / (highest - 1.0 / others).clamp_min(1e-300)).clamp(max=1.0)[:, None]
    even = (share.exp() * (1.0 - mix) + mix / others).clamp_min(1e-300).log()
    share = torch.where(mix > 0, even, share)
    old = logs.amax(dim=-1).exp()
    left = torch.where(new == old, total, torch.log1p(-new).clamp_min(-690.0))
    return (share + left[:, None]).scatter(1, label, new.log()[:, None])


def _spline_slope(t: Floats, h: Floats, knots: int) -> Floats:
    """Slope at ``t`` of the natural cubic spline nearest to ``(t, h)`` in least squares."""
    basis = CubicSpline(np.linspace(0.0, 1.0, knots), np.eye(knots), bc_type="natural")
    values, *_ = np.linalg.lstsq(basis(t), h, rcond=None)
    slope: Floats = basis(t, 1) @ values
    return slope
