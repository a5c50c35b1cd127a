"""The mixture's probabilities under a monotone map: isotonic, spline, order-invariant network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from scipy.interpolate import CubicSpline
from torch import Tensor, nn

from gduq._torch import below
from gduq.calibration.base import CalibrationSet, MixtureCalibrator, NetworkCalibrator, doubles
from gduq.errors import InputError
from gduq.prediction.mixture import best_temperature

__all__ = ["UNIT", "IsotonicCalibration", "OrderInvariantCalibration", "SplineCalibration",
           "replace_top"]  # fmt: skip

UNIT = 0.5413248546129181  # softplus(UNIT) = 1
_KNOTS = 7  # of the spline, at equal distances in rank
_ORDER = 1e-9  # share of the old probability that keeps classes apart where the function is flat
_TOP = 1.0 - 1e-6  # highest confidence a correction may reach


@dataclass(eq=False)
class IsotonicCalibration(MixtureCalibrator):
    r"""One monotone function of the class probabilities (IRM; Zhang et al., ICML 2020).

    .. math:: p'_{ic} \propto g(p_{ic}) + 10^{-9} p_{ic}, \qquad
        g = \arg\min_{g\ \text{monotone}} \sum_{i,c} \big(g(p_{ic}) - [y_i = c]\big)^2

    over all m·C probabilities of the mixture at once; g is linear between its steps and constant
    beyond them. Free of assumptions and hungry for data. Keeps every label.
    """

    def _fit(self, data: CalibrationSet) -> dict[str, Tensor]:
        from sklearn.isotonic import IsotonicRegression

        probs = data.log_probs.exp()
        hit = F.one_hot(data.target, probs.size(1)).double()
        weight = (data.share * len(probs)).unsqueeze(1).expand_as(probs)
        flat = (part.flatten().numpy() for part in (probs, hit, weight))
        found = IsotonicRegression().fit(*flat)
        steps = found.X_thresholds_, found.y_thresholds_
        return {k: torch.from_numpy(v.copy()) for k, v in zip("xy", steps, strict=True)}

    def _map_mixture(self, logs: Tensor) -> Tensor:
        probs = logs.exp()
        steps = _interpolated(probs, self._state["x"], self._state["y"])
        return (steps + _ORDER * probs).clamp_min(1e-300).log()

    def _neutral(self, num_classes: int) -> dict[str, Tensor]:
        return {"x": doubles([0.0, 1.0]), "y": doubles([0.0, 1.0])}


@dataclass(eq=False)
class SplineCalibration(MixtureCalibrator):
    r"""Confidence corrected by the slope of a spline (Gupta et al., ICLR 2021).

    A natural cubic spline S of 7 knots is fitted to :math:`h(t_i) = \frac1n \sum_{j \le i} ([\hat
    y_j = y_j] - s_j)` over sorted confidences, :math:`t_i = i/n`; the new confidence is :math:`s' =
    s + S'(t(s))`, kept below 1 and above the second class. Keeps every label.
    """

    def _fit(self, data: CalibrationSet) -> dict[str, Tensor]:
        top, label = data.log_probs.exp().max(dim=-1)
        scores, group = top.unique(return_inverse=True)
        if len(scores) < _KNOTS:
            wanted = f"at least as many distinct confidences as knots, {_KNOTS}"
            raise InputError(wanted, len(scores), "Use more rows, or TemperatureScaling.")
        gap = data.share * ((label == data.target).double() - top)
        none = torch.zeros_like(scores)
        t, h = (none.index_add(0, group, x).cumsum(0).numpy() for x in (data.share, gap))
        # the nearest spline in least squares, by its values at the knots
        knots = np.linspace(0.0, 1.0, _KNOTS)
        spline = CubicSpline(knots, np.eye(_KNOTS), bc_type="natural")
        values, *_ = np.linalg.lstsq(spline(t), h, rcond=None)
        return {"confidence": scores, "correction": torch.from_numpy(spline(t, 1) @ values)}

    def _map_mixture(self, logs: Tensor) -> Tensor:
        top = logs.amax(dim=-1).exp()
        new = top + _interpolated(top, self._state["confidence"], self._state["correction"])
        return replace_top(logs, new.minimum(top.clamp_min(_TOP)))

    def _neutral(self, num_classes: int) -> dict[str, Tensor]:
        return {"confidence": doubles([0.0, 1.0]), "correction": doubles([0.0, 0.0])}


def _interpolated(at: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The line through the points ``(x, y)``, constant beyond its ends."""
    if len(x) == 1:
        return y.expand_as(at)
    right = below(x, at).clamp(1, len(x) - 1)
    start, end = x[right - 1], x[right]
    share = ((at - start) / (end - start)).clamp(0.0, 1.0)
    return torch.lerp(y[right - 1], y[right], share)


def replace_top(logs: Tensor, new: Tensor) -> Tensor:
    r"""Log probabilities ``[m, C]`` whose largest entry becomes ``new`` ``[m]``.

    The others keep their proportions. Where one of them would become the largest, ``new`` is raised
    until both are equal.
    """
    label = logs.argmax(dim=-1, keepdim=True)
    old, rest = logs.amax(dim=-1, keepdim=True), logs.scatter(1, label, -torch.inf)
    others = rest.logsumexp(dim=-1, keepdim=True)  # log(1 - s)
    second = (rest.amax(dim=-1, keepdim=True) - others).exp()  # of what the others have
    top = torch.maximum(new[:, None], second / (1.0 + second))
    left = torch.where(top == old.exp(), others, torch.log1p(-top).clamp_min(-690.0))
    return (rest - others + left).scatter(1, label, top.log())


@dataclass(eq=False)
class OrderInvariantCalibration(NetworkCalibrator, MixtureCalibrator):
    r"""Gaps between sorted logits, stretched by a network (Rahimi et al., NeurIPS 2020).

    .. math:: z'_i = \sum_{j=i}^{C-1} \mathrm{softplus}(m_j(z))\,(z_j - z_{j+1})

    for :math:`z_1 \ge \dots \ge z_C`, the sorted log of the mixture's probabilities over T, the
    temperature that fits them best, and a network m of one hidden layer as wide as C, which a
    normal prior pulls towards changing nothing more. Fitted by NLL. Keeps every label and the order
    of classes.
    """

    def _fit(self, data: CalibrationSet) -> dict[str, Tensor]:
        scale = doubles(1.0 / best_temperature(data.split(data.log_probs[None], data.target)))
        ordered, order = _sort(data.log_probs * scale)
        place = (order == data.target[:, None]).int().argmax(dim=-1)  # of the right class

        def loss(network: Callable[..., Tensor]) -> Tensor:
            stretched = _stretch(ordered, network)
            return data.share @ F.cross_entropy(stretched, place, reduction="none")

        return self._fitted(data, scale, loss)

    @torch.no_grad()
    def _map_mixture(self, logs: Tensor) -> Tensor:
        state = self._state
        ordered, order = _sort(logs * state["scale"])

        def network(x: Tensor) -> Tensor:
            hidden = F.linear(x, state["0.weight"], state["0.bias"]).relu()
            return F.linear(hidden, state["2.weight"], state["2.bias"])

        return torch.zeros_like(ordered).scatter(1, order, _stretch(ordered, network))

    def _network(self, classes: int) -> nn.Module:
        """The identity, with a hidden layer to start from: its last layer is zero."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            first, last = nn.Linear(classes, classes), nn.Linear(classes, classes - 1)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        return nn.Sequential(first, nn.ReLU(), last).double()


def _sort(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Logits downwards and centred (softmax does not see the shift), and which class is where."""
    ordered, order = logits.topk(logits.size(-1), dim=-1)  # ONNX knows no stable sort
    return ordered - ordered.mean(dim=-1, keepdim=True), order


def _stretch(ordered: Tensor, network: Callable[[Tensor], Tensor]) -> Tensor:
    """Sorted logits with stretched gaps, ``[n, C]``; the last one is 0."""
    gaps = ordered[:, :-1] - ordered[:, 1:]
    wide = network(ordered) + UNIT
    steps = torch.logaddexp(wide, torch.zeros_like(wide)) * gaps  # onnxruntime has no softplus
    return F.pad(steps.flip(-1).cumsum(dim=-1).flip(-1), (0, 1))
