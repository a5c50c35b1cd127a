"""Temperatures: one for all rows, blended ones, or one per row by distance or disagreement."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from gduq.calibration.base import Calibrator, RowTemperature
from gduq.calibration.lesson import Lesson, samples_of
from gduq.calibration.optimise import autograd, minimise
from gduq.errors import InputError
from gduq.export_mode import chunks, exporting
from gduq.prediction import Prediction
from gduq.prediction.mixture import deviation, log_mixture
from gduq.prediction.temperature import HOTTEST, tempered_nll

__all__ = [
    "AnchorAwareTemperature",
    "DensityAwareCalibration",
    "EnsembleTemperatureScaling",
    "TemperatureScaling",
]

_HOTTEST = math.log(HOTTEST)
_COOLEST = 0.01
_CHUNK = 1 << 23  # distances held at once


@dataclass(eq=False)
class TemperatureScaling(RowTemperature):
    r"""One temperature for all rows and hypotheses (Guo et al., ICML 2017).

    .. math:: s'_k = s_k / T, \qquad T = \arg\min_T \mathrm{NLL}

    with the NLL of the mixture; see `gduq.prediction.temperature.best_temperature`. Keeps every
    label of a single hypothesis; a mixture of several may change sides.

    Example:
        >>> z = torch.tensor([[4.0, 0.0]] * 4)  # sure of class 0, right three times of four
        >>> p = Prediction(z, target=torch.tensor([0, 0, 0, 1]))
        >>> cal = TemperatureScaling().fit(p)
        >>> round(float(cal.value), 3), cal(p).confidence[0]
        (3.641, tensor(0.7500))
    """

    takes_copies = True
    state_names = ("temperature",)

    @property
    def value(self) -> Tensor:
        """The temperature, a scalar."""
        return self.state()["temperature"]

    def _fit(self, lesson: Lesson) -> dict[str, Tensor]:
        return {"temperature": _doubles(lesson.temperature())}

    def _temperature(self, p: Prediction) -> Tensor:
        return self._state["temperature"].expand(p.samples.size(1))

    def _neutral(self, num_classes: int) -> dict[str, Tensor]:
        return {"temperature": _doubles(1.0)}


@dataclass(eq=False)
class EnsembleTemperatureScaling(Calibrator):
    r"""Tempered, raw and uniform probabilities, blended (ETS; Zhang et al., ICML 2020).

    .. math:: p'_k = v_1\,\mathrm{softmax}(s_k/T) + v_2\,\mathrm{softmax}(s_k) + v_3\,\tfrac1C,
        \qquad v \ge 0,\ \textstyle\sum v = 1

    Keeps every label of a single hypothesis.

    Example:
        >>> z = torch.tensor([[4.0, 0.0]] * 4)
        >>> p = Prediction(z, target=torch.tensor([0, 0, 0, 1]))
        >>> EnsembleTemperatureScaling().fit(p)(p).confidence[0]
        tensor(0.7500)
    """

    takes_copies = True
    keeps_order = True
    defines_logits = False
    state_names = ("temperature", "weights")

    def _fit(self, lesson: Lesson) -> dict[str, Tensor]:
        temperature = lesson.temperature()
        tempered = log_mixture(lesson.samples / temperature, lesson.weights)
        even = torch.full_like(tempered, -float(np.log(lesson.num_classes)))
        parts = torch.stack([tempered, lesson.logs, even])  # [3, n, C]
        chosen = parts.gather(2, lesson.target.expand(3, -1)[..., None]).squeeze(2).exp()
        return {"temperature": _doubles(temperature), "weights": _blend(chosen, lesson.share)}

    def _map(self, p: Prediction) -> Tensor:
        samples, shares = samples_of(p), self._state["weights"].log()
        tempered = (samples / self._state["temperature"]).log_softmax(dim=-1) + shares[0]
        raw = samples.log_softmax(dim=-1) + shares[1]
        return torch.logaddexp(torch.logaddexp(tempered, raw), shares[2] - np.log(p.num_classes))

    def _neutral(self, num_classes: int) -> dict[str, Tensor]:
        return {"temperature": _doubles(1.0), "weights": _doubles([1.0, 0.0, 0.0])}


@dataclass(eq=False)
class AnchorAwareTemperature(RowTemperature):
    r"""A temperature that grows with the disagreement of the hypotheses.

    .. math:: \log T_i = a + b_1 \log(1 + \sigma_i / \bar\sigma)
        + b_2 \log(1 + \iota_i / \bar\iota), \qquad b_1, b_2 \ge 0

    with :math:`\sigma_i` the deviation of the hypotheses' log probabilities, :math:`\iota_i` the
    row's ``epistemic`` uncertainty, and bars for means over the fitting rows. Corrupted copies
    teach it how disagreement grows far away (``"anchor_aware+corrupted"``). Keeps every label of
    one hypothesis.

    Args:
        penalty: :math:`\lambda` of :math:`\frac{\lambda}{2}\|b\|^2`, added to the NLL.

    Example:
        >>> agree = torch.tensor([[4.0, 0.0], [4.0, 0.0]])  # two hypotheses about one row
        >>> differ = torch.tensor([[9.0, 0.0], [2.5, 0.0]])  # about as sure together
        >>> samples = torch.stack([agree] * 20 + [differ] * 20, dim=1)
        >>> target = torch.cat([torch.arange(20) // 19, torch.arange(20) % 2])  # 95 %, 50 % right
        >>> p = Prediction(samples, target=target)
        >>> AnchorAwareTemperature().fit(p)(p).confidence[[0, -1]].round(decimals=1)
        tensor([0.9000, 0.5000])
    """

    takes_copies = True
    state_names = ("weights", "means")

    penalty: float = 1e-3

    def __post_init__(self) -> None:
        if not self.penalty >= 0:
            raise InputError("penalty >= 0", self.penalty)

    def _fit(self, lesson: Lesson) -> dict[str, Tensor]:
        apart = torch.cat([_disagreement(part) for part in lesson.parts])  # [n, 2]
        means = apart[: lesson.rows].mean(dim=0).clamp_min(1e-12)  # the clean rows set the units
        inputs, tempered = apart.div(means).log1p(), lesson.tempered()

        def loss(weights: Tensor) -> Tensor:
            heat = _log_temperature(weights, inputs).neg().exp()
            return tempered_nll(tempered, heat) + 0.5 * self.penalty * (weights[1:] ** 2).sum()

        start = _doubles([math.log(lesson.temperature()), 0.0, 0.0])
        bounds = [(-_HOTTEST, _HOTTEST), (0.0, None), (0.0, None)]
        return {"weights": minimise(autograd(loss), start, bounds), "means": means}

    def _temperature(self, p: Prediction) -> Tensor:
        inputs = _disagreement(p).div(self._state["means"]).log1p()
        return _log_temperature(self._state["weights"], inputs).exp()

    def _neutral(self, num_classes: int) -> dict[str, Tensor]:
        return {"weights": _doubles([0.0, 0.0, 0.0]), "means": _doubles([1.0, 1.0])}


@dataclass(eq=False)
class DensityAwareCalibration(RowTemperature):
    r"""A temperature that grows with the distance to training data (DAC; Tomani et al., ICML 2023).

    .. math:: T_i = w_0 + w_1\, d_i / \bar d, \qquad w \ge 0

    where :math:`d_i` is the mean distance of the row's standardised ``features``, those at the cut,
    to the nearest training rows and :math:`\bar d` its mean over the clean fitting rows. Keeps
    every label of a single hypothesis.

    Args:
        train: Predictions of training rows, with ``features``; needed by `fit` only.
        neighbors: Nearest training rows that count.
        limit: At most so many training rows are kept, drawn at random.
        seed: Of that draw.

    Example:
        >>> x = torch.linspace(0, 1, 50)[:, None]
        >>> train = Prediction(torch.zeros(50, 2), features=x)
        >>> near, far = torch.arange(20) // 19, torch.arange(20) % 2  # 95 % and 50 % right
        >>> features = torch.cat([x[:20], x[:20] + 9])
        >>> z = torch.tensor([[4.0, 0.0]] * 40)
        >>> p = Prediction(z, target=torch.cat([near, far]), features=features)
        >>> DensityAwareCalibration(train).fit(p)(p).confidence[[0, -1]].round(decimals=1)
        tensor([0.9000, 0.5000])
    """

    needs_features = True
    takes_copies = True
    state_names = ("weights", "distance", "centre", "deviation", "reference")

    train: Prediction | None = field(default=None, repr=False, metadata={"saved": False})
    neighbors: int = 10
    limit: int = 10_000
    seed: int = 0

    def __post_init__(self) -> None:
        if self.neighbors < 1 or self.limit < self.neighbors:
            got = f"neighbors={self.neighbors}, limit={self.limit}"
            raise InputError("1 <= neighbors <= limit", got)

    def _fit(self, lesson: Lesson) -> dict[str, Tensor]:
        state = self._reference()
        distance = torch.cat([self._distance(part, state) for part in lesson.parts])
        state["distance"] = distance[: lesson.rows].mean().clamp_min(1e-12)
        distance, tempered = distance / state["distance"], lesson.tempered()

        def loss(weights: Tensor) -> Tensor:
            return tempered_nll(tempered, _heat(weights, distance).reciprocal())

        start = _doubles([lesson.temperature(), 0.0])
        state["weights"] = minimise(autograd(loss), start, bounds=[(0.0, None), (0.0, None)])
        return state

    def _temperature(self, p: Prediction) -> Tensor:
        distance = self._distance(p, self._state) / self._state["distance"]
        return _heat(self._state["weights"], distance)

    def _neutral(self, num_classes: int) -> dict[str, Tensor]:
        return self._reference() | {"weights": _doubles([1.0, 0.0]), "distance": _doubles(1.0)}

    def _reference(self) -> dict[str, Tensor]:
        """Training features, their centre and deviation: ``[n, d]``, ``[d]``, ``[d]``."""
        if self.train is None:
            do = "Pass train=gduq.predict(model, train, features=True)."
            raise InputError("predictions of training rows", "none", do)
        features = _features(self.train)
        if len(features) < self.neighbors:
            raise InputError(f"at least {self.neighbors} training rows", len(features))
        generator = torch.Generator().manual_seed(self.seed)
        kept = torch.randperm(len(features), generator=generator)[: self.limit]
        centre, deviation = features.mean(dim=0), features.std(dim=0, correction=0)
        deviation = torch.where(deviation > 1e-6 * deviation.amax().clamp_min(1e-30), deviation, 1)
        reference = (features[kept] - centre) / deviation
        return {"reference": reference, "centre": centre, "deviation": deviation}

    def _distance(self, p: Prediction, state: Mapping[str, Tensor]) -> Tensor:
        features = _features(p)
        if features.size(1) != len(state["centre"]):
            raise InputError(f"features of width {len(state['centre'])}", features.size(1))
        unit = (features - state["centre"]) / state["deviation"]
        return neighbour_distance(unit, state["reference"], self.neighbors)


def _doubles(values: float | list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


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


def _disagreement(p: Prediction) -> Tensor:
    """Spread of log probabilities, which vanishes nowhere, and epistemic uncertainty ``[m, 2]``."""
    if p.num_samples == 1:
        return torch.zeros(p.samples.size(1), 2, dtype=torch.float64)
    logs = p.samples.double().log_softmax(dim=-1)
    spread = deviation(logs, p.weights).mean(dim=-1)
    return torch.stack([spread, p.epistemic.double()], dim=-1).cpu()


def _log_temperature(weights: Tensor, inputs: Tensor) -> Tensor:
    return (weights[0] + inputs @ weights[1:]).clamp(-_HOTTEST, _HOTTEST)


def _heat(weights: Tensor, distance: Tensor) -> Tensor:
    return (weights[0] + weights[1] * distance).clamp_min(_COOLEST)


def _features(p: Prediction) -> Tensor:
    """The features of a prediction, or an error that says they are missing."""
    if p.features is None:
        do = "Make them with gduq.predict(model, data, features=True)."
        raise InputError("predictions with features", "none", do)
    if p.features.dim() != 2 or not (exporting() or torch.isfinite(p.features).all()):
        raise InputError("finite features of shape [m, d]", list(p.features.shape))
    return p.features.detach().float().cpu()


def neighbour_distance(x: Tensor, reference: Tensor, neighbors: int) -> Tensor:
    """Mean distance of each row of ``x`` to its nearest rows of ``reference``, ``[m]``.

    Neighbours by one fast matrix product; their distances exactly, whatever the batch.
    """
    length, found = reference.square().sum(dim=1), []
    for part in chunks(x, _CHUNK // len(reference)):
        order = torch.addmm(length, part, reference.T, alpha=-2)  # less a row's own square
        near = order.topk(neighbors, dim=1, largest=False).indices
        gap = part[:, None].double() - reference[near].double()  # [m, neighbors, d]
        found.append(gap.square().sum(dim=-1).sqrt().mean(dim=1))
    return torch.cat(found)
