"""Values: `Values`, the target, and `ValuePrediction`, what a model says of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from gduq._torch import exporting
from gduq.errors import InputError, warn_user
from gduq.prediction.base import Columns, Prediction
from gduq.prediction.mixture import Weights, log_mean, weighted_mean
from gduq.prediction.target import IF_CLASSES, Target, TargetSample, columns_of

__all__ = ["ValuePrediction", "Values", "gaussian_nll"]

_LOWEST, _HIGHEST = -14.0, 10.0  # log-variances in standardised units


@dataclass(frozen=True, eq=False, repr=False)
class ValuePrediction(Prediction):
    r"""K Gaussian hypotheses about T values of m rows, and what follows from their mixture.

    With mean :math:`\mu_k`, variance :math:`\sigma_k^2` and weight :math:`w_k` of hypothesis k.
    For one value per row everything is ``[m]``, for several ``[m, T]``:

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

    Example:
        >>> p = ValuePrediction(torch.tensor([[[0.0, 0.0]], [[4.0, 0.0]]]))  # N(0, 1) and N(4, 1)
        >>> p.mean, p.std.round(decimals=3)
        (tensor([2.]), tensor([2.2360]))
        >>> [round(float(end), 2) for end in p.interval(0.9)]
        [-1.28, 5.28]
    """

    kind = "values"
    metrics = (
        "rmse", "mae", "r2", "nll", "crps", "coverage_50", "coverage_80", "coverage_90",
        "coverage_95", "width_50", "width_80", "width_90", "width_95", "miscalibration_area",
        "ence", "spearman", "aurc", "sharpness",
    )  # fmt: skip
    summary = ("rmse", "r2", "coverage_90", "width_90", "nll")
    calibrator = "deviation"
    ood_scores = ("std", "epistemic", "novelty")
    conformal = "normalised"
    mean_of_parts = False  # each has a unit of its own
    shift_columns = ("mean", "std", "epistemic", "novelty")

    units: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.units is not None:
            given: object = self.units
            if isinstance(given, str) or len(self.units) != self.num_values:
                raise InputError(f"{self.num_values} units, one per value", given)
            self._set("units", tuple(map(str, self.units)))

    def _checked_samples(self, samples: Tensor) -> Tensor:
        if samples.size(2) % 2:
            raise InputError("T means, then T log-variances: 2 T columns", list(samples.shape))
        return samples

    def _checked_target(self, target: Tensor) -> Tensor:
        return self._out(_columns(target, "the targets", self.num_values))

    @property
    def width(self) -> int:
        return self.samples.size(2) // 2

    num_values = width  # T

    @property
    def means(self) -> Tensor:
        """Of every hypothesis ``[K, m, T]``."""
        return self.samples[..., : self.width]

    @cached_property
    def variances(self) -> Tensor:
        """Of every hypothesis ``[K, m, T]``, in float64: squares may leave single precision."""
        return self.samples[..., self.width :].double().exp()

    @cached_property
    def _parts(self) -> tuple[Tensor, ...]:
        """With the mean."""
        means = self.means.double()
        apart = means - means[:1]  # measured from the first: equal hypotheses give exactly 0
        centre = weighted_mean(apart, self.weights)
        between = weighted_mean((apart - centre).square(), self.weights)
        return weighted_mean(self.variances, self.weights), between, means[0] + centre

    @cached_property
    def mean(self) -> Tensor:
        return self._out(self._parts[2])

    @cached_property
    def variance(self) -> Tensor:
        return self.aleatoric + self.epistemic

    @cached_property
    def std(self) -> Tensor:
        return self._out((self._parts[0] + self._parts[1]).sqrt())

    def cdf(self, y: Tensor | float) -> Tensor:
        """The probability of a value of at most ``y``, which is a number or one entry per row."""
        z = (self._as_values(y) - self.means.double()) / self.variances.sqrt()
        return self._out(weighted_mean(torch.special.ndtr(z), self.weights))

    def log_prob(self, y: Tensor | float) -> Tensor:
        """Log-density at ``y``, which is a number or one entry per row."""
        squares = (self._as_values(y) - self.means.double()).square()
        logs = self.samples[..., self.num_values :].double()
        return self._out(log_mean(-gaussian_nll(squares, logs), self.weights))

    def certainty(self, tolerance: Tensor) -> Tensor:
        spread = self.variances.sqrt()
        apart = (self.means.double() - self._parts[2]) / spread
        near = tolerance.to(apart) / spread
        high, low = apart + near, apart - near
        if exporting():  # onnxruntime has the error function in single precision only
            high, low = high.float(), low.float()
        inside = (torch.special.ndtr(high) - torch.special.ndtr(low)).to(apart)
        return self._out(weighted_mean(inside, self.weights))

    def is_right(self, tolerance: Tensor) -> Tensor:
        errors = (self._as_values(self.require_target()) - self._parts[2]).abs()
        right = (errors <= tolerance.to(errors)).double().masked_fill(errors.isnan(), torch.nan)
        return right.squeeze(1) if self.width == 1 else right

    def usual_error(self) -> Tensor:
        errors = self._as_values(self.require_target()) - self._parts[2]
        return errors.square().nanmean(dim=0).sqrt()

    def quantile(self, q: float) -> Tensor:
        """The value below which the truth lies with probability ``q``; by bisection between the
        quantiles of the hypotheses."""
        if not 0 < q < 1:
            raise InputError("q between 0 and 1", q)
        means, spread = self.means.double(), self.variances.sqrt()
        ends = means + torch.special.ndtri(spread.new_tensor(q)) * spread
        low, high, widest = ends.amin(dim=0), ends.amax(dim=0), spread.amax(dim=0)
        at = (low + high) / 2
        while bool((high - low > 1e-12 * (widest + at.abs())).any()):
            below = weighted_mean(torch.special.ndtr((at - means) / spread), self.weights) < q
            low, high = torch.where(below, at, low), torch.where(below, high, at)
            at = (low + high) / 2
        return self._out(at)

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """The ends of the central interval that holds the truth with probability ``level``."""
        if not 0 < level < 1:
            raise InputError("level between 0 and 1", level)
        return self.quantile((1 - level) / 2), self.quantile((1 + level) / 2)

    def _as_values(self, y: Tensor | float) -> Tensor:
        """Values of the caller ``[m, T]`` in float64."""
        values = torch.as_tensor(y, dtype=torch.float64, device=self.samples.device)
        shape = (len(self), self.num_values)
        if values.dim() and (values.size(0) != shape[0] or values.numel() != math.prod(shape)):
            raise InputError(f"a number, or values of shape {list(shape)}", list(values.shape))
        return values.view(shape) if values.dim() else values.expand(shape)

    def _out(self, values: Tensor) -> Tensor:
        values = values.to(self.samples.dtype)
        return values.squeeze(1) if self.num_values == 1 else values

    def column(self, t: int) -> ValuePrediction:
        if self.num_values == 1 and (self.target is None or bool(self.known.all())):
            return self
        found = self._fields_of(t, [t, t + self.num_values])
        names, units = self.names[t : t + 1], self.units and (self.units[t],)
        return ValuePrediction(**found | {"names": names, "units": units})

    def _answers(self) -> Columns:
        low, high = self.interval(0.9)
        return {"mean": self.mean, "std": self.std, "low90": low, "high90": high}


def gaussian_nll(squares: Tensor, logs: Tensor) -> Tensor:
    """Minus the log-density of Gaussians: of squared distances to the mean, and log-variances."""
    return 0.5 * (squares * (-logs).exp() + logs + math.log(2 * math.pi))


@dataclass(frozen=True)
class Values(Target):
    r"""T real values per row, each with Gaussian noise whose size is learned.

    A network gives T means, or T means and then T log-variances. With means only, the noise is one
    number per value, fitted at the end of training; a head on a frozen network is widened. A
    network that comes trained may work in the units of ``y``: what fits ``y`` better tells.

    The loss of a row is the mean over its values of minus the log-likelihood, in standardised
    units; a masked row is trained towards the marginal of ``y``.

    Args:
        names: One name per value.
        units: One unit per value.
        shift: Mean of each value in training; `gduq.fit` sets it and all that follows.
        scale: Their deviations.
        raw: Whether the network works in the units of ``y``.
        noise: Log-variance of each value, for a network that gives means only.

    Example:
        >>> y = torch.tensor([1.0, 2.0, 4.5])
        >>> target = Values().fit(TargetSample(y, torch.zeros(3, 1), y))
        >>> target.shift, target.raw
        ((2.5,), False)
        >>> target.prediction(target.to_params(torch.zeros(1, 2, 1))).mean  # nothing learned yet
        tensor([2.5000, 2.5000])
    """

    kind: ClassVar[str] = "values"
    noun: ClassVar[str] = "value"
    form: ClassVar[tuple[str, ...]] = ("shift", "scale")
    price: ClassVar[float] = 0.001  # intervals about 1.03 times as wide
    has_units: ClassVar[bool] = True

    names: tuple[str, ...] | None = None
    units: tuple[str, ...] | None = None
    shift: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    raw: bool = False
    noise: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not all(spread > 0 for spread in self.scale):
            raise InputError("deviations above 0", list(self.scale))

    @property
    def width(self) -> int:
        return len(self.shift)

    num_values = width

    def fit(self, sample: TargetSample) -> Values:
        values, outputs = _columns(sample.y, "train"), sample.outputs
        width = values.size(1)
        if outputs.size(1) not in (width, 2 * width):
            wanted = f"{width} outputs (means) or {2 * width} (means, log-variances) for y"
            raise InputError(wanted, f"a network with {outputs.size(1)}", IF_CLASSES)
        known = [column[~column.isnan()].double() for column in values.unbind(dim=1)]
        moments = [torch.std_mean(column, correction=0) for column in known]
        scale, shift = (tuple(map(float, found)) for found in zip(*moments, strict=True))
        for t, (mean, spread) in enumerate(zip(shift, scale, strict=True)):
            if not 1e-15 < spread < 1e15 or abs(mean) > 1e5 * spread:  # 24 bits, up to 1e38
                wanted = "training values that differ, as far as single precision can tell"
                got = f"{mean:.6g} plus or minus {spread:.2g} for {self._name(t)}"
                raise InputError(wanted, got, "Leave it out, subtract a constant, or change units.")
        noise = (0.0,) * width if outputs.size(1) == width else None
        found = replace(self, shift=shift, scale=scale, raw=False, noise=noise)
        # a ReLU, say, cannot give what lies below the mean of y
        return replace(found, raw=sample.bounded or found._fits_raw(sample))

    def _fits_raw(self, sample: TargetSample) -> bool:
        """Whether outputs explain the truth better as they are than as standardised ones; those of
        a network that is still to be trained by 2 % at least."""
        means = sample.outputs[:, : self.num_values].detach().cpu().double()
        y = self._standardised(_columns(sample.truth, "train").cpu().double())
        guesses = self._standardised(means), means, torch.zeros_like(means)
        as_is, scaled, mean_of_y = (float((guess - y).square().nanmean()) for guess in guesses)
        if sample.trained and min(as_is, scaled) > mean_of_y:
            r2 = 1 - min(as_is, scaled) / mean_of_y
            what = f"the network explains nothing of its training rows (R2 = {r2:.2g})"
            warn_user(f"{what}: are its outputs in the units of y?")
        return as_is < scaled and (sample.trained or as_is < 0.98 * mean_of_y)

    def check_val(self, y: Tensor, train: Tensor) -> Tensor:
        values = super().check_val(y, train)
        far = float(values.nanmean(dim=0).abs().nan_to_num().max())
        if values.size(0) >= 10 and far > 4:
            away = f"{far:.1f} deviations of the training values away from their mean"
            warn_user(f"the validation values lie {away}: are both in the same units?")
        return values

    def check(self, y: Tensor, name: str) -> Tensor:
        values = _columns(y, name, self.num_values)
        return self._standardised(values.to(torch.promote_types(values.dtype, torch.float32)))

    def decode(self, y: Tensor) -> Tensor:
        return y * y.new_tensor(self.scale) + y.new_tensor(self.shift)

    @property
    def needs_noise(self) -> bool:
        return self.noise is not None

    def with_noise(self, outputs: Tensor, y: Tensor, weights: Weights = None) -> Values:
        if self.noise is None:
            return self
        means = outputs[..., : self.num_values].double()
        centre = weighted_mean(means, weights)
        spread = weighted_mean((means - centre).square(), weights).mean(dim=0)
        error = (y.to(centre) - centre).square().nanmean(dim=0).clamp_min(1e-6)
        left = torch.maximum(error - spread, 0.01 * error)
        return replace(self, noise=tuple(left.log().tolist()))

    def combined(self) -> Values:
        return replace(self, raw=False, noise=None)

    def to_params(self, outputs: Tensor) -> Tensor:
        """Means and log-variances ``[..., m, 2T]`` in standardised units, once these are known."""
        width = self.num_values
        if width == 0:
            return outputs
        means, rest = outputs[..., :width], outputs[..., width:]
        if self.raw:
            means = self._standardised(means)
            rest = rest - 2 * rest.new_tensor(self.scale).log() if rest.size(-1) else rest
        if self.noise is not None:
            rest = means.new_tensor(self.noise).expand(means.shape)
        return torch.cat([means, rest.clamp(_LOWEST, _HIGHEST)], dim=-1)

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        means, logs = self._halves(outputs)
        return gaussian_nll((y.nan_to_num(0.0) - means).square(), logs)

    def masked_losses(self, outputs: Tensor) -> Tensor:
        means, logs = self._halves(outputs)
        return gaussian_nll(means.square() + 1.0, logs)

    def figures(self, samples: Tensor, y: Tensor, weights: Weights = None) -> dict[str, float]:
        """With the RMSE in the units of a single value, in deviations of several."""
        means = weighted_mean(self._halves(samples)[0].double(), weights)
        scale = self.scale[0] if self.num_values == 1 else 1.0
        rmse = scale * float((y.to(means) - means).square().nanmean().sqrt())
        return super().figures(samples, y, weights) | {"val_rmse": rmse}

    def scaled(self, samples: Tensor, temperature: Tensor, weights: Weights = None) -> Tensor:
        """All deviations times the temperature: noise, and the hypotheses about their mean."""
        means, logs = self._halves(samples)
        factor = temperature.to(samples)
        apart = means - means[..., :1, :, :]  # from the first: equal hypotheses stay equal
        if means.size(-3) > 1:
            centre = weighted_mean(apart.movedim(-3, 0), weights).unsqueeze(-3)
            means = means + (factor - 1.0) * (apart - centre)
        return torch.cat([means, logs + 2 * factor.log()], dim=-1)

    def temperature_prior(self, temperature: Tensor) -> Tensor:
        return temperature.log() + 0.5 / temperature.square()

    def novelty_slope(
        self, samples: Tensor, y: Tensor, novelty: Tensor, weights: Weights = None
    ) -> float:
        """By likelihood, from 0 to 2; before any row is seen it is 0, give or take 1."""
        samples, y, centred = samples.double(), y.double(), novelty.double().unsqueeze(1) - 0.5

        def loss(slope: float) -> float:
            scaled = self.scaled(samples, (slope * centred).exp(), weights)
            return float(self.mean_nll(scaled, y, weights)) + slope**2 / (2 * y.size(0))

        found = minimize_scalar(loss, bounds=(0.0, 2.0), method="bounded", options={"xatol": 1e-4})
        return float(found.x) if found.fun < loss(0.0) else 0.0

    def prediction(self, samples: Tensor, y: Tensor | None = None, **more: Any) -> Prediction:
        means, logs = self._halves(samples)
        inside = torch.cat([self.decode(means), logs + 2 * logs.new_tensor(self.scale).log()], -1)
        return super().prediction(inside, y, units=self.units, **more)

    def _halves(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        if outputs.size(-1) != 2 * self.num_values:
            raise InputError(f"{2 * self.num_values} outputs per row", outputs.size(-1))
        return outputs[..., : self.num_values], outputs[..., self.num_values :]

    def _standardised(self, values: Tensor) -> Tensor:
        return (values - values.new_tensor(self.shift)) / values.new_tensor(self.scale)


def _columns(y: Tensor, name: str, width: int | None = None) -> Tensor:
    """Values ``[m, T]``, finite or NaN, which is unknown."""
    values = columns_of(y, name, width)
    if bool(values.isinf().any()):
        raise InputError(f"finite values y in {name}", "infinite ones", "Leave those rows out.")
    return values
