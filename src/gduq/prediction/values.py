"""`ValuePrediction`: K Gaussian hypotheses about T real values per row, and their mixture."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from gduq.errors import InputError
from gduq.prediction import checks, gaussians, mixture
from gduq.prediction.base import Hypotheses

__all__ = ["ValuePrediction"]

_EDGE = 1e-12  # quantiles of levels nearer to 0 or 1 are not looked for


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
        levels: Points ``[n, 2]`` of a rising line from (0, 0) to (1, 1), or ``[T, n, 2]`` for one
            line per value: what levels of the mixture's distribution function become (see
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
        self._set("names", checks.as_names(self.names, self.num_values, "names of values"))
        if self.units is not None:
            units: Any = self.units
            if isinstance(units, str) or len(units) != self.num_values:
                raise InputError(f"{self.num_values} units, one per value", units)
            self._set("units", tuple(str(unit) for unit in units))
        if self.levels is not None:
            self._set("levels", gaussians.checked_levels(self.levels, self.num_values))

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
        return f"{self.num_values} value{'s' * (self.num_values != 1)}"

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
        return self._variances.to(self.samples.dtype)

    @cached_property
    def _variances(self) -> Tensor:
        """In float64: squares of small units leave single precision."""
        return self.samples[..., self.num_values :].double().exp()

    @cached_property
    def mean(self) -> Tensor:
        return self._out(self._moments[0] if self.levels is None else self._recalibrated[0])

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
        return self._out(((self._moments[1] + self._moments[2]) * self._stretch).sqrt())

    @cached_property
    def _moments(self) -> tuple[Tensor, Tensor, Tensor]:
        """Mean, mean of the variances, variance of the means: each ``[m, T]`` in float64."""
        means = self.means.double()
        apart = means - means[:1]  # measured from the first: equal hypotheses give exactly 0
        centre = mixture.weighted_mean(apart, self.weights)
        between = mixture.weighted_mean((apart - centre).square(), self.weights)
        within = mixture.weighted_mean(self._variances, self.weights)
        return means[0] + centre, within, between

    @cached_property
    def _recalibrated(self) -> tuple[Tensor, Tensor]:
        """Mean and variance of the recalibrated distribution.

        Its density is the mixture's times the slope of the line, so each piece of the line adds its
        slope times the moments of the mixture between two quantiles, which are known exactly.
        """
        lines = self._lines
        slopes = (lines[:, 1:, 1] - lines[:, :-1, 1]) / (lines[:, 1:, 0] - lines[:, :-1, 0])
        centre, within, between = self._moments
        apart, spread = self.means.double() - centre, self._variances.sqrt()
        first = torch.zeros_like(centre)  # moments about the mixture's mean, up to a knot
        second = slopes[:, -1] * (within + between)
        for knot in range(1, lines.size(1) - 1):
            drop = slopes[:, knot - 1] - slopes[:, knot]
            end = self._at(lines[:, knot, 0]) - centre
            below, below_squared = gaussians.moments_below(end, apart, spread, self.weights)
            first, second = first + drop * below, second + drop * below_squared
        return centre + first, (second - first.square()).clamp_min(0.0)

    @cached_property
    def _stretch(self) -> Tensor | float:
        """What recalibration multiplies variances by."""
        if self.levels is None:
            return 1.0
        return self._recalibrated[1] / (self._moments[1] + self._moments[2])

    # -- the distribution ----------------------------------------------------------------------

    def cdf(self, y: Tensor | float) -> Tensor:
        """The probability of a value of at most ``y``, which is a number or one entry per row."""
        found = self._cdf(self._given(y))
        lines = None if self.levels is None else self._lines
        return self._out(found if lines is None else gaussians.interpolated(found, lines))

    def log_prob(self, y: Tensor | float) -> Tensor:
        """Log-density at ``y``, which is a number or one entry per row."""
        values = self._given(y)
        logs, means = self.samples[..., self.num_values :].double(), self.means.double()
        share = mixture.weights_of(self.samples, self.weights).log().view(-1, 1, 1)
        found = (share - gaussians.surprise((values - means).square(), logs)).logsumexp(dim=0)
        if self.levels is not None:
            found = found + gaussians.slopes(self._cdf(values), self._lines).log()
        return self._out(found)

    def quantile(self, q: float) -> Tensor:
        """The value below which the truth lies with probability ``q``."""
        if not 0 < q < 1:
            raise InputError("q between 0 and 1", q)
        level = torch.full((1, self.num_values), q, dtype=torch.float64, device=self.samples.device)
        if self.levels is not None:  # the level of the mixture itself that becomes q
            level = gaussians.interpolated(level, self._lines.flip(2)).clamp(_EDGE, 1 - _EDGE)
        return self._out(self._at(level[0]))

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """The ends of the central interval that holds the truth with probability ``level``."""
        if not 0 < level < 1:
            raise InputError("level between 0 and 1", level)
        return self.quantile((1 - level) / 2), self.quantile((1 + level) / 2)

    @property
    def _lines(self) -> Tensor:
        """The levels as one line per value, ``[T, n, 2]`` in float64."""
        assert self.levels is not None
        lines = self.levels if self.levels.dim() == 3 else self.levels.unsqueeze(0)
        return lines.to(self.samples.device).expand(self.num_values, -1, -1)

    def _at(self, q: Tensor) -> Tensor:
        """The quantiles ``[m, T]`` of the mixture at levels ``[T]``."""
        return gaussians.quantile(self.means.double(), self._variances.sqrt(), q, self.weights)

    def _cdf(self, y: Tensor) -> Tensor:
        """Of the mixture itself ``[m, T]`` at ``y`` ``[m, T]``, float64."""
        z = (y - self.means.double()) / self._variances.sqrt()
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

    def column(self, t: int) -> ValuePrediction:
        """Value number ``t`` alone."""
        if (t, self.num_values) == (0, 1):
            return self
        every = self.levels is None or self.levels.dim() == 2
        return replace(
            self,
            samples=self.samples[..., [t, t + self.num_values]],
            target=None if self.target is None else self.target[:, t],
            names=self.names and (self.names[t],),
            units=self.units and (self.units[t],),
            levels=self.levels if every else self._lines[t],
        )

    def _columns(self) -> dict[str, Tensor]:
        columns: dict[str, Tensor] = {}
        for t, name in enumerate(self.names or range(self.num_values)):
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
        return columns | ({} if self.novelty is None else {"novelty": self.novelty})
