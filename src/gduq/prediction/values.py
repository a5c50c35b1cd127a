"""`ValuePrediction`: K Gaussian hypotheses about T real values per row, and their mixture."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from gduq.errors import InputError
from gduq.prediction import checks, mixture
from gduq.prediction.base import Hypotheses

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["ValuePrediction"]

_HALVINGS = 64  # of the interval that holds a quantile
_GRID = 512  # quantiles that stand for a recalibrated distribution


@dataclass(frozen=True, eq=False, repr=False)
class ValuePrediction(Hypotheses):
    r"""K Gaussian hypotheses about T values of m rows, and what follows from their mixture.

    With mean :math:`\mu_k` and variance :math:`\sigma_k^2` of hypothesis k and weights :math:`w_k`
    that sum to 1. For one value per row everything is ``[m]``, for several ``[m, T]``:

    ============= =====================================================================
    ``mean``      :math:`\bar\mu = \sum_k w_k \mu_k`
    ``variance``  equal to ``aleatoric`` + ``epistemic``
    ``aleatoric`` :math:`\sum_k w_k \sigma_k^2`, the noise that the hypotheses agree on
    ``epistemic`` :math:`\sum_k w_k (\mu_k - \bar\mu)^2`, their disagreement
    ``std``       root of ``variance``, in the units of the values
    ============= =====================================================================

    `cdf`, `quantile`, `interval` and `log_prob` are those of the mixture itself, not of a Gaussian
    with its mean and variance.

    Args:
        samples: ``[K, m, 2T]``: T means, then T log-variances, in the units of the values.
        target: True values ``[m]`` or ``[m, T]``, or ``None``.
        names: One name per value, used as column names.
        units: One unit per value, or ``None``.
        levels: Points ``[n, 2]`` of a rising line from (0, 0) to (1, 1): what levels of the
            mixture's distribution function become (see
            `gduq.calibration.IsotonicRecalibration`); ``None`` leaves them.

    Example:
        >>> p = ValuePrediction(torch.tensor([[[0.0, 0.0]], [[4.0, 0.0]]]))  # N(0, 1) and N(4, 1)
        >>> p.mean, p.std.round(decimals=3)
        (tensor([2.]), tensor([2.2360]))
        >>> [round(float(end), 2) for end in p.interval(0.9)]
        [-1.28, 5.28]
    """

    kind: ClassVar[str] = "values"

    names: tuple[str, ...] | None = None
    units: tuple[str, ...] | None = None
    levels: Tensor | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.names is not None:
            self._set("names", checks.as_names(self.names, self.num_values, "values"))
        if self.units is not None:
            self._set("units", tuple(str(unit) for unit in self.units))
        if self.levels is not None:
            self._set("levels", _checked_levels(self.levels))

    def _checked_samples(self, samples: Tensor) -> Tensor:
        samples = checks.as_outputs(samples, "means and log-variances of shape [K, m, 2T]")
        if samples.size(2) % 2:
            raise InputError(
                "means and log-variances: an even number of columns",
                list(samples.shape),
                "Give T means, then T log-variances.",
            )
        return samples

    def _checked_target(self, target: Tensor, rows: int) -> Tensor:
        width = self.num_values
        if target.numel() != rows * width or target.dim() > 2 or target.size(0) != rows:
            wanted = [rows] if width == 1 else [rows, width]
            raise InputError(f"true values of shape {wanted}", list(target.shape))
        values = target.to(self.samples.dtype)
        if not bool(torch.isfinite(values).all()):
            raise InputError("finite true values", "NaN or infinite ones", "Leave those rows out.")
        return self._shaped(values.view(rows, width))

    @property
    def size(self) -> str:
        return f"{self.num_values} value{'' if self.num_values == 1 else 's'}"

    @property
    def num_values(self) -> int:
        """T, the number of values per row."""
        return self.samples.size(2) // 2

    # -- moments -------------------------------------------------------------------------------

    @property
    def means(self) -> Tensor:
        """Of every hypothesis ``[K, m, T]``."""
        return self.samples[..., : self.num_values]

    @cached_property
    def variances(self) -> Tensor:
        """Of every hypothesis ``[K, m, T]``."""
        return self.samples[..., self.num_values :].exp()

    @cached_property
    def mean(self) -> Tensor:
        if self.levels is not None:
            return self._recalibrated[0]
        return self._out(self._moments[0])

    @cached_property
    def aleatoric(self) -> Tensor:
        return self._out(self._moments[1] * self._stretch)

    @cached_property
    def epistemic(self) -> Tensor:
        return self._out(self._moments[2] * self._stretch)

    @cached_property
    def variance(self) -> Tensor:
        return self.aleatoric + self.epistemic

    @cached_property
    def std(self) -> Tensor:
        return self.variance.sqrt()

    @cached_property
    def _moments(self) -> tuple[Tensor, Tensor, Tensor]:
        """Mean, mean of the variances, variance of the means: each ``[m, T]`` in float64."""
        means = self.means.double()
        apart = means - means[:1]  # measured from the first: equal hypotheses give exactly 0
        centre = mixture.weighted_mean(apart, self.weights)
        between = mixture.weighted_mean((apart - centre).square(), self.weights)
        within = mixture.weighted_mean(self.variances.double(), self.weights)
        return means[0] + centre, within, between

    @cached_property
    def _recalibrated(self) -> tuple[Tensor, Tensor]:
        """Mean and variance of the recalibrated distribution, from its quantiles."""
        middle = (torch.arange(_GRID, dtype=torch.float64) + 0.5) / _GRID
        grid = torch.stack([self._at(self._plain_level(float(q))) for q in middle])
        mean = grid.mean(dim=0)
        return self._out(mean), (grid - mean).square().mean(dim=0)

    @cached_property
    def _stretch(self) -> Tensor:
        """What recalibration multiplies variances by."""
        if self.levels is None:
            return torch.ones((), dtype=torch.float64, device=self.samples.device)
        return self._recalibrated[1] / (self._moments[1] + self._moments[2])

    # -- the distribution ----------------------------------------------------------------------

    def cdf(self, y: Tensor | float) -> Tensor:
        """The probability of a value of at most ``y``, which is a number or one entry per row."""
        found = self._cdf(self._given(y))
        return self._out(found if self.levels is None else _interpolated(found, self.levels))

    def log_prob(self, y: Tensor | float) -> Tensor:
        """Log-density at ``y``, which is a number or one entry per row."""
        values = self._given(y)
        logs, means = self.samples[..., self.num_values :].double(), self.means.double()
        terms = -0.5 * ((values - means).square() * (-logs).exp() + logs + math.log(2 * math.pi))
        share = mixture.weights_of(self.samples, self.weights)
        found = (terms + share.log().view(-1, 1, 1)).logsumexp(dim=0)
        if self.levels is not None:
            found = found + _slopes(self._cdf(values), self.levels).log()
        return self._out(found)

    def quantile(self, q: float) -> Tensor:
        """The value below which the truth lies with probability ``q``."""
        if not 0 < q < 1:
            raise InputError("q between 0 and 1", q)
        return self._out(self._at(self._plain_level(q)))

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """The ends of the central interval that holds the truth with probability ``level``."""
        if not 0 < level < 1:
            raise InputError("level between 0 and 1", level)
        return self.quantile((1 - level) / 2), self.quantile((1 + level) / 2)

    def _plain_level(self, q: float) -> float:
        """The level of the mixture itself that becomes ``q``."""
        if self.levels is None:
            return q
        back = _interpolated(torch.tensor([q], dtype=torch.float64), self.levels.cpu().flip(1))
        return float(back.clamp(1e-6, 1 - 1e-6))

    def _at(self, q: float) -> Tensor:
        """The quantile of the mixture ``[m, T]``, by halving an interval that holds it."""
        point = math.sqrt(2) * float(torch.erfinv(torch.tensor(2 * q - 1, dtype=torch.float64)))
        ends = self.means.double() + point * self.variances.double().sqrt()
        low, high = ends.amin(dim=0), ends.amax(dim=0)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            below = self._cdf(middle) < q
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
            if bool((high - low <= 1e-12 * (1 + low.abs())).all()):
                break
        return (low + high) / 2

    def _cdf(self, y: Tensor) -> Tensor:
        """Of the mixture itself ``[m, T]`` at ``y`` ``[m, T]``, float64."""
        z = (y - self.means.double()) / self.variances.double().sqrt()
        return mixture.weighted_mean(torch.special.ndtr(z), self.weights)

    def _given(self, y: Tensor | float) -> Tensor:
        """Values of the caller ``[m, T]`` in float64."""
        values = torch.as_tensor(y, dtype=torch.float64, device=self.samples.device)
        shape = (len(self), self.num_values)
        if values.dim() == 0:
            return values.expand(shape)
        if values.numel() != shape[0] * shape[1] or values.size(0) != shape[0]:
            raise InputError(f"a number, or values of shape {list(shape)}", list(values.shape))
        return values.view(shape)

    def _out(self, values: Tensor) -> Tensor:
        return self._shaped(values.to(self.samples.dtype))

    def _shaped(self, values: Tensor) -> Tensor:
        return values.squeeze(1) if self.num_values == 1 else values

    # -- one of several values -----------------------------------------------------------------

    def column(self, t: int) -> ValuePrediction:
        """Value number ``t`` alone."""
        chosen = self.samples[..., [t, t + self.num_values]]
        several = self.num_values > 1
        target = self.target[:, t] if several and self.target is not None else self.target
        names = None if self.names is None else (self.names[t],)
        units = None if self.units is None else (self.units[t],)
        return ValuePrediction(
            chosen,
            target,
            names,
            units,
            self.levels,
            features=self.features,
            weights=self.weights,
            novelty=self.novelty,
            calibrated=self.calibrated,
        )

    def to_dataframe(self) -> pd.DataFrame:
        """One line per row: per value its mean, deviation, uncertainties and 90 % interval."""
        import pandas as pd

        columns: dict[str, Tensor] = {}
        names = self.names or tuple(str(t) for t in range(self.num_values))
        for t, name in enumerate(names):
            one, end = self.column(t), "" if self.num_values == 1 else f"_{name}"
            low, high = one.interval(0.9)
            columns |= {
                f"mean{end}": one.mean,
                f"std{end}": one.std,
                f"low90{end}": low,
                f"high90{end}": high,
                f"aleatoric{end}": one.aleatoric,
                f"epistemic{end}": one.epistemic,
            }
            if one.target is not None:
                columns[f"target{end}"] = one.target
        if self.novelty is not None:
            columns["novelty"] = self.novelty
        return pd.DataFrame({name: value.cpu().numpy() for name, value in columns.items()})


def _checked_levels(levels: Tensor) -> Tensor:
    points = torch.as_tensor(levels).detach().double()
    good = points.dim() == 2 and points.size(1) == 2 and len(points) >= 2
    good = good and bool((points.diff(dim=0) > 0).all()) and points[0].tolist() == [0.0, 0.0]
    if not good or points[-1].tolist() != [1.0, 1.0]:
        raise InputError("levels [n, 2] that rise from (0, 0) to (1, 1)", list(points.shape))
    return points


def _interpolated(x: Tensor, points: Tensor) -> Tensor:
    """The line through the points, at ``x`` from 0 to 1."""
    points = points.to(x.device)
    place = torch.searchsorted(points[:, 0].contiguous(), x.contiguous()).clamp(1, len(points) - 1)
    left, right = points[place - 1], points[place]
    share = (x - left[..., 0]) / (right[..., 0] - left[..., 0])
    return left[..., 1] + share * (right[..., 1] - left[..., 1])


def _slopes(x: Tensor, points: Tensor) -> Tensor:
    """The slope of the line through the points, at ``x`` from 0 to 1."""
    points = points.to(x.device)
    place = torch.searchsorted(points[:, 0].contiguous(), x.contiguous()).clamp(1, len(points) - 1)
    rise = points[place] - points[place - 1]
    return rise[..., 1] / rise[..., 0]
