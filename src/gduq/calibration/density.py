"""Density-aware calibration: hotter the farther a row lies from the training data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from gduq.calibration.base import RowTemperature
from gduq.calibration.lesson import Lesson
from gduq.calibration.optimise import autograd, minimise
from gduq.errors import InputError
from gduq.prediction import Prediction
from gduq.prediction.temperature import tempered_nll

__all__ = ["DensityAwareCalibration", "neighbour_distance"]

_COOLEST = 0.01
_CHUNK = 1 << 23  # distances held at once


@dataclass(eq=False)
class DensityAwareCalibration(RowTemperature):
    r"""A temperature that grows with the distance to training data (DAC; Tomani et al., ICML 2023).

    .. math:: T_i = w_0 + w_1\, d_i / \bar d, \qquad w \ge 0

    where :math:`d_i` is the mean distance of the row's ``features`` to the ``neighbors`` nearest
    training rows and :math:`\bar d` its mean over the clean fitting rows. Features are centred and
    divided by their training deviation. The paper sums over all layers; a `Prediction` carries
    one, that at the cut. Weights by NLL of the mixture, starting from plain temperature scaling, so
    never worse than it on the fitting rows. Keeps every label of a single hypothesis.

    Args:
        train: Predictions of training rows, with ``features``. Needed by `fit` only: the rows used
            become part of the state.
        neighbors: Nearest training rows that count.
        limit: At most so many training rows are kept, drawn at random.
        seed: Of that draw.

    Example:
        >>> x = torch.linspace(0, 1, 50)[:, None]
        >>> train = Prediction(torch.zeros(50, 2), features=x)
        >>> z = torch.tensor([[4.0, 0.0]] * 40)
        >>> near, far = torch.arange(20) // 19, torch.arange(20) % 2  # 95 % and 50 % right
        >>> p = Prediction(z, target=torch.cat([near, far]), features=torch.cat([x[:20], x[:20]+9]))
        >>> cal = DensityAwareCalibration(train).fit(p)
        >>> [round(c, 1) for c in cal(p).confidence[[0, -1]].tolist()]
        [0.9, 0.5]
    """

    needs_features: ClassVar[bool] = True
    takes_copies: ClassVar[bool] = True
    state_names: ClassVar[tuple[str, ...]] = (
        "weights",
        "distance",
        "centre",
        "deviation",
        "reference",
    )

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

        start = torch.tensor([lesson.temperature(), 0.0], dtype=torch.float64)
        state["weights"] = minimise(autograd(loss), start, bounds=[(0.0, None), (0.0, None)])
        return state

    def _temperature(self, p: Prediction) -> Tensor:
        distance = self._distance(p, self._state) / self._state["distance"]
        return _heat(self._state["weights"], distance)

    def _neutral(self, num_classes: int) -> dict[str, Tensor]:
        weights = torch.tensor([1.0, 0.0], dtype=torch.float64)
        return self._reference() | {"weights": weights, "distance": torch.ones(()).double()}

    def _reference(self) -> dict[str, Tensor]:
        """Training features, their centre and deviation: ``[n, d]``, ``[d]``, ``[d]``."""
        if self.train is None:
            raise InputError(
                "predictions of training rows",
                "none",
                "Pass train=gduq.predict(model, train, features=True).",
            )
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


def _heat(weights: Tensor, distance: Tensor) -> Tensor:
    return (weights[0] + weights[1] * distance).clamp_min(_COOLEST)


def _features(p: Prediction) -> Tensor:
    """The features of a prediction, or an error that says they are missing."""
    if p.features is None:
        raise InputError(
            "predictions with features",
            "none",
            "Make them with gduq.predict(model, data, features=True).",
        )
    if p.features.dim() != 2 or not torch.isfinite(p.features).all():
        raise InputError("finite features of shape [m, d]", list(p.features.shape))
    return p.features.detach().float().cpu()


def neighbour_distance(x: Tensor, reference: Tensor, neighbors: int) -> Tensor:
    """Mean distance of each row of ``x`` to its nearest rows of ``reference``, ``[m]``.

    Example:
        >>> neighbour_distance(torch.tensor([[0.0]]), torch.tensor([[1.0], [3.0], [9.0]]), 2)
        tensor([2.], dtype=torch.float64)
    """
    parts = [
        _mean_distance(part, reference, neighbors)
        for part in x.split(max(1, _CHUNK // len(reference)))
    ]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)


def _mean_distance(x: Tensor, reference: Tensor, neighbors: int) -> Tensor:
    """Neighbours by one fast matrix product; their distances exactly, whatever the batch."""
    length = reference.square().sum(dim=1)
    order = torch.addmm(length, x, reference.T, alpha=-2)  # squared distance less a row's own part
    near = order.topk(neighbors, dim=1, largest=False).indices
    gap = x[:, None].double() - reference[near].double()  # [m, neighbors, d]
    return gap.square().sum(dim=-1).sqrt().mean(dim=1)
