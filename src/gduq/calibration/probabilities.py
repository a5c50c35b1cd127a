"""The mixture's probabilities replaced by what was observed: isotonic, histogram, spline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.interpolate import CubicSpline
from torch import Tensor

from gduq.calibration.base import Calibrator, check_classes, check_missing
from gduq.calibration.lesson import Lesson, mixture_logs
from gduq.errors import InputError
from gduq.export_mode import below
from gduq.prediction import Prediction

__all__ = ["HistogramBinning", "IsotonicCalibration", "SplineCalibration", "replace_top"]

Floats = NDArray[np.float64]

_ORDER = 1e-9  # share of the old probability that keeps classes apart where the function is flat
_FLOOR = 1e-6  # of a frequency: a class never seen in a bin is rare there, not impossible
_TOP = 1.0 - 1e-6  # highest confidence a correction may reach


@dataclass(eq=False)
class IsotonicCalibration(Calibrator):
    r"""One monotone function of the class probabilities (IRM; Zhang et al., ICML 2020).

    .. math:: p'_{ic} \propto g(p_{ic}) + 10^{-9} p_{ic}, \qquad
        g = \arg\min_{g\ \text{monotone}} \sum_{i,c} \big(g(p_{ic}) - [y_i = c]\big)^2

    over all m·C probabilities of the mixture at once; g is linear between its steps and constant
    beyond them. Free of assumptions and hungry for data. Keeps every label.

    Example:
        >>> z = torch.tensor([[4.0, 0.0]] * 4)
        >>> p = Prediction(z, target=torch.tensor([0, 0, 0, 1]))
        >>> IsotonicCalibration().fit(p)(p).confidence[0]
        tensor(0.7500)
    """

    acts_on = "mixture"
    keeps_accuracy = True
    defines_logits = False
    state_names = ("x", "y")

    def _fit(self, lesson: Lesson) -> dict[str, Tensor]:
        probs, target = lesson.logs.exp(), lesson.target
        hit = torch.zeros(probs.shape, dtype=torch.bool).scatter_(1, target[:, None], True)
        x, y = _isotonic(probs.flatten().numpy(), hit.flatten().numpy())
        return {"x": torch.from_numpy(x), "y": torch.from_numpy(y)}

    def _map(self, p: Prediction) -> Tensor:
        probs = mixture_logs(p).exp()
        steps = _interpolated(probs, self._state["x"], self._state["y"])
        return (steps + _ORDER * probs).clamp_min(1e-300).log()

    def _neutral(self, num_classes: int) -> dict[str, Tensor]:
        line = torch.tensor([0.0, 1.0], dtype=torch.float64)
        return {"x": line, "y": line.clone()}


@dataclass(eq=False)
class HistogramBinning(Calibrator):
    """Probabilities replaced by the frequency of their bin (Zadrozny and Elkan, ICML 2001).

    One histogram for each class against the rest, of the mixture's probabilities. A bin without
    validation rows leaves them as they are; frequencies are at least 1e-6. May change labels.

    Args:
        bins: Bins per class.
        scheme: ``"width"`` for bins of equal width, ``"mass"`` for bins with equally many rows.
        missing: As for `VectorScaling`; ``"keep"`` leaves the bins of absent classes empty.

    Example:
        >>> z = torch.tensor([[4.0, 0.0]] * 4)
        >>> p = Prediction(z, target=torch.tensor([0, 0, 0, 1]))
        >>> HistogramBinning(bins=4).fit(p)(p).confidence[0]
        tensor(0.7500)
    """

    acts_on = "mixture"
    defines_logits = False
    state_names = ("edges", "frequency", "filled")

    bins: int = 10
    scheme: Literal["width", "mass"] = "width"
    missing: Literal["error", "keep"] = "error"

    def __post_init__(self) -> None:
        if self.bins < 2:
            raise InputError("bins >= 2", self.bins)
        if self.scheme not in ("width", "mass"):
            raise InputError('scheme="width" or "mass"', repr(self.scheme))
        check_missing(self.missing)

    def _fit(self, lesson: Lesson) -> dict[str, Tensor]:
        target = lesson.target
        if len(target) < self.bins:
            do = "Use fewer bins, or TemperatureScaling."
            raise InputError(f"at least as many rows as bins, {self.bins}", len(target), do)
        seen = check_classes(target, lesson.num_classes, self.missing)
        probs = lesson.logs.exp()
        edges = self._edges(probs)
        where = _bin(probs, edges) + self.bins * torch.arange(lesson.num_classes)  # [n, C]
        cells = self.bins * lesson.num_classes
        count = torch.bincount(where.flatten(), minlength=cells).view(-1, self.bins)
        hits = torch.bincount(where.gather(1, target[:, None]).flatten(), minlength=cells)
        frequency = hits.view(-1, self.bins).double() / count.clamp_min(1)
        filled = (count > 0) & seen[:, None]
        return {"edges": edges, "frequency": frequency, "filled": filled}

    def _map(self, p: Prediction) -> Tensor:
        probs = mixture_logs(p).exp()
        where = _bin(probs, self._state["edges"]).T
        frequency = self._state["frequency"].gather(1, where).T.clamp_min(_FLOOR)
        filled = self._state["filled"].gather(1, where).T
        return torch.where(filled, frequency, probs.clamp_min(1e-300)).log()

    def _neutral(self, num_classes: int) -> dict[str, Tensor]:
        empty = torch.zeros(num_classes, self.bins)
        edges = self._edges(torch.zeros(1, num_classes, dtype=torch.float64))
        return {"edges": edges, "frequency": empty.double(), "filled": empty.bool()}

    def _edges(self, probs: Tensor) -> Tensor:
        """Inner edges of the bins, ``[C, bins - 1]``."""
        inner = np.linspace(0.0, 1.0, self.bins + 1)[1:-1]
        if self.scheme == "width":
            return torch.from_numpy(inner).repeat(probs.size(1), 1)
        return torch.from_numpy(np.quantile(probs.numpy(), inner, axis=0).T.copy())


@dataclass(eq=False)
class SplineCalibration(Calibrator):
    r"""Confidence corrected by the slope of a spline (Gupta et al., ICLR 2021).

    A natural cubic spline S is fitted to :math:`h(t_i) = \frac1n \sum_{j \le i} ([\hat y_j = y_j] -
    s_j)` over sorted confidences, :math:`t_i = i/n`; the new confidence is :math:`s' = s +
    S'(t(s))`, kept within 1/C and 1. Keeps every label.

    Args:
        knots: Knots of the spline, at equal distances in rank.

    Example:
        >>> z = torch.linspace(1, 4, 100)[:, None] * torch.tensor([1.0, 0.0])
        >>> p = Prediction(z, target=torch.arange(100) % 4 // 3)  # right three times of four
        >>> SplineCalibration().fit(p)(p).confidence[::33]
        tensor([0.7..., 0.7..., 0.7..., 0.7...])
    """

    acts_on = "mixture"
    keeps_accuracy = True
    defines_logits = False
    state_names = ("confidence", "correction")

    knots: int = 7

    def __post_init__(self) -> None:
        if self.knots < 3:
            raise InputError("knots >= 3", self.knots)

    def _fit(self, lesson: Lesson) -> dict[str, Tensor]:
        top, label = lesson.logs.exp().max(dim=-1)
        scores, counts = np.unique(top.numpy(), return_counts=True)
        if len(scores) < self.knots:
            wanted = f"at least as many distinct confidences as knots, {self.knots}"
            do = "Use more rows, fewer knots, or TemperatureScaling."
            raise InputError(wanted, len(scores), do)
        gap = ((label == lesson.target).double() - top).numpy()[np.argsort(top.numpy())]
        upto = np.cumsum(counts)  # rows with a confidence up to each one
        h = np.cumsum(gap)[upto - 1] / len(top)
        slope = _spline_slope(upto / len(top), h, self.knots)
        return {"confidence": torch.from_numpy(scores), "correction": torch.from_numpy(slope)}

    def _map(self, p: Prediction) -> Tensor:
        logs = mixture_logs(p)
        top = logs.amax(dim=-1).exp()
        new = top + _interpolated(top, self._state["confidence"], self._state["correction"])
        return replace_top(logs, new.clamp_min(1.0 / logs.size(1)).minimum(top.clamp_min(_TOP)))

    def _neutral(self, num_classes: int) -> dict[str, Tensor]:
        ends = torch.tensor([0.0, 1.0], dtype=torch.float64)
        return {"confidence": ends, "correction": torch.zeros_like(ends)}


def _interpolated(at: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The line through the points ``(x, y)`` at some places; constant beyond its ends."""
    if len(x) == 1:
        return y.expand_as(at)
    right = below(x, at).clamp(1, len(x) - 1)
    start, end = x[right - 1], x[right]
    share = ((at - start) / (end - start)).clamp(0.0, 1.0)
    return torch.lerp(y[right - 1], y[right], share)


def _isotonic(x: Floats, hit: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """The isotonic fit of ``hit`` on ``x``, scikit-learn's but faster, as the ends of its steps."""
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


def _bin(probs: Tensor, edges: Tensor) -> Tensor:
    """The bin of every probability ``[n, C]``; a value on an edge belongs to the bin below."""
    return below(edges.contiguous(), probs.T.contiguous()).T


def _spline_slope(t: Floats, h: Floats, knots: int) -> Floats:
    """Slope at ``t`` of the natural cubic spline nearest to ``(t, h)`` in least squares."""
    basis = CubicSpline(np.linspace(0.0, 1.0, knots), np.eye(knots), bc_type="natural")
    values, *_ = np.linalg.lstsq(basis(t), h, rcond=None)
    slope: Floats = basis(t, 1) @ values
    return slope


def replace_top(logs: Tensor, new: Tensor) -> Tensor:
    r"""Log probabilities ``[m, C]`` whose largest entry becomes ``new`` ``[m]``, still the largest.

    The rest :math:`q = p_{c} / (1 - s)` becomes :math:`(1 - s')\,[(1 - \lambda) q + \lambda/(C -
    1)]`, with the smallest :math:`\lambda \ge 0` that keeps it below :math:`s'`.

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
