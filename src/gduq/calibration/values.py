"""Calibrators of values: all deviations scaled, or the distribution function recalibrated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gduq.calibration.base import Calibrator
from gduq.calibration.lesson import Lesson, samples_of
from gduq.errors import InputError
from gduq.prediction import ValuePrediction
from gduq.prediction.mixture import weighted_mean, weights_of
from gduq.prediction.temperature import COOLEST, HOTTEST

__all__ = ["DeviationScaling", "IsotonicRecalibration"]

_GRID = 161  # factors tried first, each 6 % above the last
_FEW = 1000  # rows that these look at
_MOST_STEPS, _ROWS_PER_STEP = 20, 10
_EDGE = 1e-12  # levels nearer to 0 or 1 are taken for these


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
    acts_on = "mixture"
    takes_copies = True
    state_names = ("scale",)

    @property
    def value(self) -> Tensor:
        """The factors ``[T]``."""
        return self.state()["scale"]

    def _fit(self, lesson: Lesson) -> dict[str, Tensor]:
        for part in lesson.parts:
            _check_plain(part)
        count = lesson.whole.num_values
        scales = [_Stretched.of(lesson, t).best(1.0 / lesson.rows) for t in range(count)]
        return {"scale": torch.tensor(scales, dtype=torch.float64)}

    def _map(self, p: ValuePrediction) -> Tensor:
        _check_plain(p)
        scale = self._state["scale"]
        means, logs = samples_of(p).chunk(2, dim=-1)
        apart = means - means[:1]  # measured from the first: equal hypotheses stay equal
        centre = weighted_mean(apart, None if p.weights is None else p.weights.cpu())
        moved = means + (scale - 1.0) * (apart - centre)
        return torch.cat([moved, logs + 2.0 * scale.log()], dim=-1)

    def _neutral(self, num_values: int) -> dict[str, Tensor]:
        return {"scale": torch.ones(num_values, dtype=torch.float64)}


@dataclass(frozen=True, eq=False)
class _Stretched:
    """Rows of one value whose deviations are to be multiplied by s = 1/a.

    The error of hypothesis k in units of its deviation is then :math:`z_k = a u_k - v_k`.
    """

    u: Tensor  # the error of the mixture's mean over the deviation [K, n]
    v: Tensor  # the distance of a hypothesis' mean from the mixture's, over the deviation [K, n]
    logs: Tensor  # log of the weight over the deviation [K, n]
    share: Tensor  # of every row in the loss [n]; sums to 1

    @classmethod
    def of(cls, lesson: Lesson, t: int) -> _Stretched:
        count = lesson.samples.size(2) // 2
        means, logs = lesson.samples[..., t], lesson.samples[..., t + count]  # [K, n]
        target = lesson.target.double().view(means.size(1), count)[:, t]
        centre = weighted_mean(means, lesson.weights)
        shrink = (-0.5 * logs).exp()
        weight = weights_of(means, lesson.weights).log().unsqueeze(1)
        u, v = (target - centre) * shrink, (means - centre) * shrink
        return cls(u, v, weight - 0.5 * logs, lesson.share)

    def best(self, extra: float) -> float:
        """The factor s, with one more row, of weight ``extra``, that says 1."""
        if self.u.size(0) == 1:
            square = (float(self.share @ self.u[0].square()) + extra) / (1.0 + extra)
            return min(max(math.sqrt(square), COOLEST), HOTTEST)
        low, high = -math.log(HOTTEST), -math.log(COOLEST)
        step = (high - low) / (_GRID - 1)
        few = self._every(math.ceil(self.share.numel() / _FEW))
        start = min((low + i * step for i in range(_GRID)), key=lambda g: few.slopes(g, extra)[0])
        ends = max(start - step, low), min(start + step, high)
        return math.exp(-self._bottom(start, *ends, extra))

    def _every(self, step: int) -> _Stretched:
        """Every so many rows, with the weight of all."""
        share = self.share[::step] * (self.share.sum() / self.share[::step].sum())
        return _Stretched(self.u[:, ::step], self.v[:, ::step], self.logs[:, ::step], share)

    def _bottom(self, at: float, low: float, high: float, extra: float) -> float:
        """Newton's method in log a between two bounds, halved where it leads out of them."""
        for _ in range(60):
            _, slope, bend = self.slopes(at, extra)
            step = at - slope / bend if bend > 1e-300 else math.inf
            if slope == 0.0 or abs(step - at) <= 1e-10:
                return at
            low, high = (at, high) if slope < 0.0 else (low, at)
            if high - low <= 1e-10:  # at once, if the best is the first or the last of all
                break
            at = step if low < step < high else (low + high) / 2
        return at

    def slopes(self, log_a: float, extra: float) -> tuple[float, float, float]:
        """The loss, and its first and second derivative in log a."""
        a = math.exp(log_a)
        z = a * self.u - self.v
        terms = self.logs - 0.5 * z.square()
        total = terms.logsumexp(dim=0)
        blame = (terms - total).exp()  # of every hypothesis for the true value, sums to 1
        rise = z * self.u
        first = (blame * rise).sum(dim=0)
        bend = (blame * (self.u.square() - rise.square())).sum(dim=0) + first.square()
        slope = a * float(self.share @ first)
        square = extra * a * a
        value = -(1.0 + extra) * log_a - float(self.share @ total) + 0.5 * square
        second = slope + a * a * float(self.share @ bend) + 2.0 * square
        return value, slope + square - (1.0 + extra), second


@dataclass(eq=False)
class IsotonicRecalibration(Calibrator):
    r"""Levels of the distribution function replaced by what was observed (Kuleshov et al., 2018).

    The new one is :math:`g(F)` with :math:`g(u)` the share of rows whose truth was found at u or
    below, :math:`F_i(y_i) \le u`, smoothed: a line of at most 20 pieces, with at least ten rows
    each. Where deviations are wrong by a factor, use `DeviationScaling` before it.

    Args:
        prior: How many rows with evenly spread levels are added, above 0.

    Example:
        >>> y = torch.linspace(-1, 1, 101)  # of a model that says N(0, 1) for all of them
        >>> p = ValuePrediction(torch.zeros(1, 101, 2), target=y)
        >>> q = IsotonicRecalibration().fit(p)(p)
        >>> [round(float(end[0]), 1) for end in q.interval(0.5)]
        [-0.5, 0.5]
    """

    kind = "values"
    acts_on = "levels"
    state_names = ("levels",)

    prior: float = 1.0

    def __post_init__(self) -> None:
        if not self.prior > 0:
            raise InputError("prior > 0", self.prior)

    def _fit(self, lesson: Lesson) -> dict[str, Tensor]:
        part = lesson.parts[0]
        _check_plain(part)
        precise = part.with_samples(part.samples.double())  # levels near 1 need all their digits
        found = precise.cdf(part.require_target()).view(len(part), part.num_values)
        return {"levels": _same_length([_knots(u, self.prior) for u in found.T])}

    def _map(self, p: ValuePrediction) -> Tensor:
        _check_plain(p)
        return self._state["levels"]

    def _neutral(self, num_values: int) -> dict[str, Tensor]:
        line = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
        return {"levels": line.repeat(num_values, 1, 1)}


def _check_plain(p: ValuePrediction) -> None:
    if p.levels is not None:
        wanted = "predictions whose levels are as the model gives them"
        raise InputError(wanted, "recalibrated ones", "Use IsotonicRecalibration once, and last.")


def _knots(found: Tensor, prior: float) -> Tensor:
    """Points ``[n, 2]`` from (0, 0) to (1, 1): levels, and the share of rows found up to them."""
    u, rows = found.sort().values, found.numel()
    steps = max(1, min(_MOST_STEPS, rows // _ROWS_PER_STEP))
    place = (torch.arange(1, steps) * rows) // steps  # so many rows lie below each knot
    x = (u[place - 1] + u[place]) / 2
    inside = (x > _EDGE) & (x < 1.0 - _EDGE)
    x, place = x[inside], place[inside]
    apart = x.diff(prepend=x.new_zeros(1)) > _EDGE  # of equal levels the first stays
    x, place = x[apart], place[apart]
    y = (place + prior * x) / (rows + prior)
    ends = x.new_tensor([0.0, 1.0])
    return torch.stack([torch.cat([ends[:1], part, ends[1:]]) for part in (x, y)], dim=1)


def _same_length(lines: Sequence[Tensor]) -> Tensor:
    """Lines ``[n, 2]`` as ``[T, n, 2]``: shorter ones get points on their longest pieces."""
    longest = max(len(line) for line in lines)
    full = []
    for line in lines:
        while len(line) < longest:
            at = int(line[:, 0].diff().argmax())
            middle = line[at : at + 2].mean(dim=0, keepdim=True)
            line = torch.cat([line[: at + 1], middle, line[at + 1 :]])
        full.append(line)
    return torch.stack(full)
