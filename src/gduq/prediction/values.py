"""Values: `Values`, the target, and `ValuePrediction`, what a model says of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from gduq.errors import InputError, warn_user
from gduq.prediction.base import Prediction
from gduq.prediction.mixture import weighted_mean, weights_of
from gduq.prediction.target import IF_CLASSES, Target, TargetSample, log_mean

__all__ = ["ValuePrediction", "Values", "gaussian_nll"]

_LOWEST, _HIGHEST = -14.0, 10.0  # log-variances in standardised units
_ROUNDS = 100  # of bisection for a quantile; about forty are needed


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

    kind: ClassVar[str] = "values"
    metrics: ClassVar[tuple[str, ...]] = (
        "rmse", "mae", "r2", "nll", "crps", "coverage_50", "coverage_80", "coverage_90",
        "coverage_95", "width_50", "width_80", "width_90", "width_95", "miscalibration_area",
        "ence", "spearman", "aurc", "sharpness",
    )  # fmt: skip
    summary: ClassVar[tuple[str, ...]] = ("rmse", "r2", "coverage_90", "width_90", "nll")
    calibrator: ClassVar[str] = "deviation"
    ood_scores: ClassVar[tuple[str, ...]] = ("std", "epistemic", "novelty")
    conformal: ClassVar[str] = "normalised"
    mean_of_parts: ClassVar[bool] = False  # each has a unit of its own
    shift_columns: ClassVar[tuple[str, ...]] = ("mean", "std", "epistemic", "novelty")

    units: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.units is not None:
            units: Any = self.units
            if isinstance(units, str) or len(units) != self.num_values:
                raise InputError(f"{self.num_values} units, one per value", units)
            self._set("units", tuple(str(unit) for unit in units))

    def _checked_samples(self, samples: Tensor) -> Tensor:
        if samples.size(2) % 2:
            wanted = "T means, then T log-variances: an even number of columns"
            raise InputError(wanted, list(samples.shape))
        return samples

    def _checked_target(self, target: Tensor) -> Tensor:
        values = _columns(target.to(self.samples.dtype), "the targets", self.num_values)
        if len(values) != len(self):
            raise InputError(f"true values of {len(self)} rows", len(values))
        return self._out(values)

    @property
    def width(self) -> int:
        return self.samples.size(2) // 2

    @property
    def num_values(self) -> int:
        """T, the number of values per row."""
        return self.width

    # -- mean and variances -------------------------------------------------------------------

    @property
    def means(self) -> Tensor:
        """Of every hypothesis ``[K, m, T]``."""
        return self.samples[..., : self.width]

    @property
    def variances(self) -> Tensor:
        """Of every hypothesis ``[K, m, T]``."""
        return self._variances.to(self.samples.dtype)

    @cached_property
    def _variances(self) -> Tensor:
        """In float64: squares of small units leave single precision."""
        return self.samples[..., self.width :].double().exp()

    @cached_property
    def _parts(self) -> tuple[Tensor, Tensor, Tensor]:
        """Mean, mean of the variances, variance of the means: each ``[m, T]`` in float64."""
        means = self.means.double()
        apart = means - means[:1]  # measured from the first: equal hypotheses give exactly 0
        centre = weighted_mean(apart, self.weights)
        between = weighted_mean((apart - centre).square(), self.weights)
        return means[0] + centre, weighted_mean(self._variances, self.weights), between

    @cached_property
    def mean(self) -> Tensor:
        return self._out(self._parts[0])

    @cached_property
    def aleatoric(self) -> Tensor:
        return self._out(self._parts[1])

    @cached_property
    def epistemic(self) -> Tensor:
        return self._out(self._parts[2])

    @cached_property
    def variance(self) -> Tensor:
        return self.aleatoric + self.epistemic

    @cached_property
    def std(self) -> Tensor:
        return self._out((self._parts[1] + self._parts[2]).sqrt())

    # -- the distribution ----------------------------------------------------------------------

    def cdf(self, y: Tensor | float) -> Tensor:
        """The probability of a value of at most ``y``, which is a number or one entry per row."""
        z = (self._as_values(y) - self.means.double()) / self._variances.sqrt()
        return self._out(weighted_mean(torch.special.ndtr(z), self.weights))

    def log_prob(self, y: Tensor | float) -> Tensor:
        """Log-density at ``y``, which is a number or one entry per row."""
        values = self._as_values(y)
        logs, means = self.samples[..., self.num_values :].double(), self.means.double()
        share = weights_of(self.samples, self.weights).log().view(-1, 1, 1)
        return self._out((share - gaussian_nll((values - means).square(), logs)).logsumexp(dim=0))

    def quantile(self, q: float) -> Tensor:
        """The value below which the truth lies with probability ``q``; by bisection between the
        quantiles of the hypotheses."""
        if not 0 < q < 1:
            raise InputError("q between 0 and 1", q)
        means, spread = self.means.double(), self._variances.sqrt()
        ends = means + torch.special.ndtri(spread.new_tensor(q)) * spread
        low, high = ends.amin(dim=0), ends.amax(dim=0)
        for _ in range(_ROUNDS):
            at = (low + high) / 2
            if bool((high - low <= 1e-12 * (spread.amax(dim=0) + at.abs())).all()):
                break
            below = weighted_mean(torch.special.ndtr((at - means) / spread), self.weights) < q
            low, high = torch.where(below, at, low), torch.where(below, high, at)
        return self._out((low + high) / 2)

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """The ends of the central interval that holds the truth with probability ``level``."""
        if not 0 < level < 1:
            raise InputError("level between 0 and 1", level)
        return self.quantile((1 - level) / 2), self.quantile((1 + level) / 2)

    def _as_values(self, y: Tensor | float) -> Tensor:
        """Values of the caller ``[m, T]`` in float64."""
        values = torch.as_tensor(y, dtype=torch.float64, device=self.samples.device)
        shape = (len(self), self.num_values)
        if values.dim() == 0:
            return values.expand(shape)
        if values.numel() != shape[0] * shape[1] or values.size(0) != shape[0]:
            raise InputError(f"a number, or values of shape {list(shape)}", list(values.shape))
        return values.view(shape)

    def _out(self, values: Tensor) -> Tensor:
        values = values.to(self.samples.dtype)
        return values.squeeze(1) if self.num_values == 1 else values

    def row_mean(self, values: Tensor) -> Tensor:
        """The same: values have units of their own, so several have no mean."""
        if values.dim() > 1:
            do = "Take p.column(t), or the score 'novelty'."
            raise InputError("one value per row", self.size, do)
        return values

    def column(self, t: int) -> ValuePrediction:
        """Value number ``t`` alone."""
        if (t, self.num_values) == (0, 1):
            return self
        return replace(
            self,
            samples=self.samples[..., [t, t + self.num_values]],
            target=None if self.target is None else self.target[:, t],
            names=self.names[t : t + 1],
            units=self.units and (self.units[t],),
        )

    def _columns(self) -> dict[str, Any]:
        low, high = self.interval(0.9)
        found = {"mean": self.mean, "std": self.std, "low90": low, "high90": high}
        found |= {"aleatoric": self.aleatoric, "epistemic": self.epistemic}
        several = [f"_{name}" for name in self.names or range(self.num_values)]
        return self._per_part(several if self.num_values > 1 else [""], found)


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
        self._set_tuples("names", "units", "shift", "scale", "noise")
        if self.shift or self.scale:
            self._check_widths(len(self.shift), "scale", "noise", "names", "units")
            if not all(spread > 0 for spread in self.scale):
                raise InputError("deviations above 0", list(self.scale))

    @property
    def num_values(self) -> int:
        """T; 0 before training data were seen."""
        return len(self.shift)

    # -- from data -----------------------------------------------------------------------------

    def fit(self, sample: TargetSample) -> Values:
        values, outputs = _columns(sample.y, "train"), sample.outputs
        width = values.size(1)
        if outputs.size(1) not in (width, 2 * width):
            wanted = f"{width} outputs (means) or {2 * width} (means, log-variances) for y"
            raise InputError(wanted, f"a network with {outputs.size(1)}", IF_CLASSES)
        deviation, mean = torch.std_mean(values.double(), dim=0, correction=0)
        shift, scale = tuple(mean.tolist()), tuple(deviation.tolist())
        for t, (centre, spread) in enumerate(zip(shift, scale, strict=True)):
            _check_range(self._name(t), centre, spread)
        self._check_widths(width, "names", "units")
        noise = (0.0,) * width if outputs.size(1) == width else None
        found = replace(self, shift=shift, scale=scale, raw=False, noise=noise)
        # a ReLU, say, cannot give what lies below the mean of y
        return replace(found, raw=sample.bounded or found._fits_raw(sample))

    def _fits_raw(self, sample: TargetSample) -> bool:
        """Whether outputs explain the truth better as they are than as standardised ones.

        A network that is still to be trained and explains nothing learns in standardised units.
        """
        means = sample.outputs[:, : self.num_values].detach().cpu().double()
        y = _columns(sample.truth, "train").cpu().double()
        shift, scale = self._shift(means), self._scale(means)
        as_is = float(((means - y) / scale).square().mean())
        scaled = float((means - (y - shift) / scale).square().mean())
        nothing = float(((y - shift) / scale).square().mean())  # what the mean of y leaves open
        if sample.trained and min(as_is, scaled) > nothing:
            warn_user(
                "the network explains nothing of y on its training rows "
                f"(R2 = {1 - min(as_is, scaled) / nothing:.2g}): are its outputs in the units of y?"
            )
        return as_is < scaled and (sample.trained or as_is < 0.98 * nothing)

    def check_val(self, y: Tensor, train: Tensor) -> Tensor:
        values = self.check(y, "val")
        far = float(values.mean(dim=0).abs().max())
        if values.size(0) >= 10 and far > 4:
            away = f"{far:.1f} deviations of the training values away from their mean"
            warn_user(f"the validation values lie {away}: are both in the same units?")
        return values

    def check(self, y: Tensor, name: str) -> Tensor:
        values = _columns(y, name, self.num_values)
        values = values.to(torch.promote_types(values.dtype, torch.float32))
        return (values - self._shift(values)) / self._scale(values)

    @property
    def needs_noise(self) -> bool:
        return self.noise is not None

    def with_noise(self, outputs: Tensor, y: Tensor, weights: Tensor | None = None) -> Values:
        """With the noise that the means of a model leave unexplained."""
        if self.noise is None:
            return self
        means = outputs[..., : self.num_values].double()
        centre = weighted_mean(means, weights)
        spread = weighted_mean((means - centre).square(), weights).mean(dim=0)
        error = (y.to(centre) - centre).square().mean(dim=0).clamp_min(1e-6)
        left = torch.maximum(error - spread, 0.01 * error)
        return replace(self, noise=tuple(left.log().tolist()))

    def residual(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Log of the mean squared error ``[T]`` of a network's means ``[n, T]``, standardised."""
        means = self.to_params(outputs)[..., : self.num_values]
        return (y.to(means) - means).square().mean(dim=0).clamp_min(1e-6).log()

    def combined(self) -> Values:
        return replace(self, raw=False, noise=None)

    # -- losses --------------------------------------------------------------------------------

    def to_params(self, outputs: Tensor) -> Tensor:
        """Means and log-variances ``[..., m, 2T]`` in standardised units, once these are known."""
        width = self.num_values
        if width == 0:
            return outputs
        means, rest = outputs[..., :width], outputs[..., width:]
        if self.raw:
            means = (means - self._shift(means)) / self._scale(means)
            rest = rest - 2 * self._scale(rest).log() if rest.size(-1) else rest
        if self.noise is not None:
            rest = means.new_tensor(self.noise).expand(means.shape)
        return torch.cat([means, rest.clamp(_LOWEST, _HIGHEST)], dim=-1)

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        means, logs = self._halves(outputs)
        return gaussian_nll((y - means).square(), logs).mean(dim=-1)

    def masked_losses(self, outputs: Tensor) -> Tensor:
        means, logs = self._halves(outputs)
        return gaussian_nll(means.square() + 1.0, logs).mean(dim=-1)

    def nll(self, samples: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        """In standardised units; the mean over the values of a row, each by itself."""
        means, logs = self._halves(samples)  # [..., K, m, T]
        return -log_mean(-gaussian_nll((y - means).square(), logs), weights).mean(dim=-1)

    def figures(
        self, samples: Tensor, y: Tensor, weights: Tensor | None = None
    ) -> dict[str, float]:
        """With the RMSE in the units of a single value, in deviations of several."""
        means = weighted_mean(self._halves(samples)[0].double(), weights)
        scale = self.scale[0] if self.num_values == 1 else 1.0
        error = (y.to(means) - means).square().mean().sqrt()
        return {
            "val_loss": float(self.nll(samples, y, weights).mean()),
            "val_rmse": scale * float(error),
        }

    # -- confidence ----------------------------------------------------------------------------

    def scaled(self, samples: Tensor, temperature: Tensor, weights: Tensor | None = None) -> Tensor:
        """All deviations times the temperature: noise, and the hypotheses about their mean."""
        means, logs = self._halves(samples)
        factor = temperature.to(samples)
        apart = means - means[..., :1, :, :]  # from the first: equal hypotheses stay equal
        if means.size(-3) > 1:
            centre = weighted_mean(apart.movedim(-3, 0), weights).unsqueeze(-3)
            means = means + (factor - 1.0) * (apart - centre)
        return torch.cat([means, logs + 2 * factor.log()], dim=-1)

    def temperature_prior(self, temperature: float) -> float:
        return math.log(temperature) + 0.5 / temperature**2

    def novelty_slope(
        self, samples: Tensor, y: Tensor, novelty: Tensor, weights: Tensor | None = None
    ) -> float:
        """By likelihood, from 0 to 2; before any row is seen it is 0, give or take 1."""
        samples, y, centred = samples.double(), y.double(), novelty.double().unsqueeze(1) - 0.5

        def loss(slope: float) -> float:
            scaled = self.scaled(samples, (slope * centred).exp(), weights)
            return float(self.nll(scaled, y, weights).mean()) + slope**2 / (2 * y.size(0))

        found = minimize_scalar(loss, bounds=(0.0, 2.0), method="bounded", options={"xatol": 1e-4})
        return float(found.x) if found.fun < loss(0.0) else 0.0

    def prediction(self, samples: Tensor, y: Tensor | None = None, **more: Any) -> ValuePrediction:
        if y is not None and y.is_floating_point() and bool(y.isnan().any()):
            y = None  # unknown, as in files of new rows
        means, logs = self._halves(samples)
        means = means * self._scale(means) + self._shift(means)
        inside = torch.cat([means, logs + 2 * self._scale(logs).log()], dim=-1)
        return ValuePrediction(inside, y, self.names or (), self.units, **more)

    def agree(self, samples: Tensor) -> bool:
        found = self.prediction(samples)
        share = (found.epistemic / found.variance).mean()
        return samples.size(0) > 1 and float(share) < 1e-4

    def _halves(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        if outputs.size(-1) != 2 * self.num_values:
            raise InputError(f"{2 * self.num_values} outputs per row", outputs.size(-1))
        return outputs[..., : self.num_values], outputs[..., self.num_values :]

    def _shift(self, like: Tensor) -> Tensor:
        return like.new_tensor(self.shift)

    def _scale(self, like: Tensor) -> Tensor:
        return like.new_tensor(self.scale)


def _check_range(name: str, mean: float, deviation: float) -> None:
    """Raise for values that are all the same, or that single precision cannot hold: it has 24 bits
    and ends at 1e38."""
    if deviation <= 1e-12 * abs(mean):
        got = f"{mean:g} in every row for {name}"
        raise InputError("values that differ between training rows", got, "Leave it out.")
    if not 1e-15 < deviation < 1e15 or abs(mean) > 1e5 * deviation:
        raise InputError(
            "values of which single precision can hold size and differences",
            f"{mean:.6g} plus or minus {deviation:.2g} for {name}",
            "Subtract a constant from y, or change its unit.",
        )


def _columns(y: Tensor, name: str, width: int | None = None) -> Tensor:
    """Values ``[m, T]``, finite."""
    values = y.unsqueeze(1) if y.dim() == 1 else y
    if values.dim() != 2 or width not in (None, values.size(1)):
        raise InputError(f"y of shape [m, {width or 'T'}] in {name}", list(y.shape))
    if not bool(torch.isfinite(values).all()):
        bad = int((~torch.isfinite(values)).any(dim=1).sum())
        got = f"NaN or infinity in {bad} of {values.size(0)} rows"
        do = "Leave those rows out, or train one value at a time."
        raise InputError(f"finite values y in {name}", got, do)
    return values if values.is_floating_point() else values.to(torch.get_default_dtype())
