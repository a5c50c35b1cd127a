"""What every metric of values reads: a prediction, checked once, and what follows per row."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from gduq.errors import InputError
from gduq.metrics.bins import folded_mean
from gduq.metrics.rows import rows_of
from gduq.metrics.weighted import RankedRows

__all__ = ["ValueRows", "read_values"]

_STEPS = 64  # per hypothesis, of the grid a recalibrated distribution is integrated on
_REACH = 6.5  # deviations to either side of a hypothesis that the grid covers


@dataclass(eq=False)
class ValueRows(RankedRows):
    """m rows of a `gduq.ValuePrediction`; every property is ``[m]`` and float64.

    `read_values` makes one; every metric of values takes one too, so that several metrics on the
    same rows share what they compute.
    """

    kind: ClassVar[str] = "values"

    source: Any

    def __len__(self) -> int:
        return len(self.source)

    @property
    def device(self) -> torch.device:
        found: torch.device = self.source.samples.device
        return found

    def ranked(self) -> tuple[Tensor, Tensor]:
        return self.by(self.std, self.loss)

    def take(self, index: Tensor) -> ValueRows:
        """Some of the rows."""
        return ValueRows(self.source[index])

    @property
    def one(self) -> Any:
        """The prediction, or an error if it is about several values per row."""
        if self.source.num_values > 1:
            raise InputError(
                "one value per row", self.source.size, "Take one of them with p.column(t)."
            )
        return self.source

    @property
    def target(self) -> Tensor:
        """The true values, or an error that says they are missing."""
        target: Tensor = self.source.require_target().double()
        return target

    @cached_property
    def error(self) -> Tensor:
        """Truth minus mean."""
        mean: Tensor = self.one.mean.double()
        return self.target - mean

    @property
    def loss(self) -> Tensor:
        """Squared error."""
        return self.error.square()

    @property
    def variance(self) -> Tensor:
        found: Tensor = self.one.variance.double()
        return found

    @property
    def std(self) -> Tensor:
        return self.variance.sqrt()

    @cached_property
    def nll(self) -> Tensor:
        """Negative log-density of the truth; the mean over values where there are several."""
        found: Tensor = -self.source.log_prob(self.target).double()
        return found if self.source.num_values == 1 else found.mean(dim=1)

    @cached_property
    def depth(self) -> Tensor:
        """The level of the narrowest central interval that holds the truth, from 0 to 1."""
        level: Tensor = self.one.cdf(self.target).double()
        return (2 * level - 1).abs()

    @cached_property
    def crps(self) -> Tensor:
        """Continuous ranked probability score."""
        p, target = self.one, self.target
        return _mixture_crps(p, target) if p.levels is None else _integrated_crps(p, target)

    def width(self, level: float) -> Tensor:
        """Length of the central interval of that level."""
        if level not in self._widths:
            low, high = self.one.interval(level)
            self._widths[level] = (high - low).double()
        return self._widths[level]

    @cached_property
    def _widths(self) -> dict[float, Tensor]:
        return {}


def read_values(p: Any, target: Tensor | None = None, *, labelled: bool = True) -> ValueRows:
    """Check a prediction about values and hand it to a metric.

    Args:
        p: A `gduq.ValuePrediction` or `ValueRows`.
        target: Only ``None``: the truth is part of the prediction.
        labelled: Whether the truth must be there.
    """
    rows = rows_of(p, target, ValueRows, "values")
    if labelled:
        _ = rows.target
    return rows


def _mixture_crps(p: Any, target: Tensor) -> Tensor:
    r"""Of a Gaussian mixture, :math:`E|X - y| - \frac12 E|X - X'|` in closed form.

    Every difference of a hypothesis and the truth, or of two hypotheses, is Gaussian.
    """
    means, variances = p.means[..., 0].double(), p.variances[..., 0].double()  # [K, m]
    count = means.size(0)
    weights = means.new_full((count,), 1.0 / count) if p.weights is None else p.weights
    share = weights.to(means).unsqueeze(1)
    total: Tensor = (share * folded_mean((target - means).abs(), variances.sqrt())).sum(dim=0)
    for k in range(count):  # pairs (k, l) with l > k count twice, and once each for l = k
        apart = (means[k] - means[k:]).abs()
        spread = folded_mean(apart, (variances[k] + variances[k:]).sqrt())
        pairs = share[k] * share[k:]
        total -= (pairs * spread).sum(dim=0) - 0.5 * pairs[0] * spread[0]
    return total.clamp_min(0.0)  # rounding, where hypotheses are almost certain


def _integrated_crps(p: Any, target: Tensor) -> Tensor:
    r"""Of any distribution function, :math:`\int (F(x) - [y \le x])^2 dx` by Gauss's rule.

    The grid is fine around every hypothesis and has the truth, where the integrand jumps, in it.
    """
    means, deviations = p.means[..., 0].double(), p.variances[..., 0].double().sqrt()
    steps = torch.linspace(-_REACH, _REACH, _STEPS + 1, dtype=means.dtype, device=means.device)
    grid = means + deviations * steps.view(-1, 1, 1)  # [steps, K, m]
    grid = torch.cat([grid.flatten(0, 1), target.unsqueeze(0)]).sort(dim=0).values
    half, middle = grid.diff(dim=0) / 2, (grid[1:] + grid[:-1]) / 2
    total = torch.zeros_like(target)
    for length, centre in zip(half, middle, strict=True):
        for side in (-1.0, 1.0):
            x = centre + side * length / 3**0.5
            total += length * (p.cdf(x).double() - (target <= x).double()).square()
    return total
