"""Calibration of values: all deviations scaled by one factor."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from gduq.calibration.base import Calibrator
from gduq.calibration.calibration_set import CalibrationSet, samples_of
from gduq.prediction import ValuePrediction
from gduq.prediction.mixture import weighted_mean, weights_of
from gduq.prediction.temperature import COOLEST, HOTTEST

__all__ = ["DeviationScaling"]

_GRID = 161  # factors tried first, each 6 % above the last
_FEW = 1000  # rows that these look at


@dataclass(eq=False)
class DeviationScaling(Calibrator):
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

    @property
    def value(self) -> Tensor:
        """The factors ``[T]``."""
        return self.state()["scale"]

    def _fit(self, data: CalibrationSet) -> dict[str, Tensor]:
        means, logs = data.samples.chunk(2, dim=-1)  # [K, n, T] each
        target = data.target.double().view(means.shape[1:])
        scales = [
            _best_scale(means[..., t], logs[..., t], target[:, t], data)
            for t in range(means.size(2))
        ]
        return {"scale": torch.tensor(scales, dtype=torch.float64)}

    def _map(self, p: ValuePrediction) -> Tensor:
        scale = self._state["scale"]
        means, logs = samples_of(p).chunk(2, dim=-1)
        apart = means - means[:1]  # measured from the first: equal hypotheses stay equal
        centre = weighted_mean(apart, None if p.weights is None else p.weights.cpu())
        moved = means + (scale - 1.0) * (apart - centre)
        return torch.cat([moved, logs + 2.0 * scale.log()], dim=-1)

    def _neutral(self, num_values: int) -> dict[str, Tensor]:
        return {"scale": torch.ones(num_values, dtype=torch.float64)}


def _best_scale(means: Tensor, logs: Tensor, target: Tensor, data: CalibrationSet) -> float:
    """The factor for one value, of means and log-variances ``[K, n]`` and the truth ``[n]``."""
    centre, shrink, extra = weighted_mean(means, data.weights), (-0.5 * logs).exp(), 1 / data.rows
    error, apart = (target - centre) * shrink, (means - centre) * shrink  # in deviations
    if len(means) == 1:
        square = (float(data.share @ error[0].square()) + extra) / (1.0 + extra)
        return min(max(math.sqrt(square), COOLEST), HOTTEST)
    density = weights_of(means, data.weights).log().unsqueeze(1) - 0.5 * logs

    def loss(log: float, step: int = 1) -> float:
        """The NLL at a factor, of every so many rows."""
        z, share = error[:, ::step] * math.exp(-log) - apart[:, ::step], data.share[::step]
        found = (density[:, ::step] - 0.5 * z.square()).logsumexp(dim=0)
        more = extra * (log + 0.5 * math.exp(-2.0 * log))
        return log - float(share @ found) / float(share.sum()) + more

    # several bottoms are possible: a grid finds the deepest
    grid = np.linspace(math.log(COOLEST), math.log(HOTTEST), _GRID)
    step = math.ceil(len(target) / _FEW)
    best = int(np.argmin([loss(log, step) for log in grid]))
    ends = grid[max(best - 1, 0)], grid[min(best + 1, _GRID - 1)]
    found = minimize_scalar(loss, bounds=ends, method="bounded", options={"xatol": 1e-9})
    return min(max(math.exp(found.x), COOLEST), HOTTEST)
