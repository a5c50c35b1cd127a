"""`Values`: T real values per row, with learned noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from gduq.errors import InputError, warn_user
from gduq.prediction.gaussians import surprise
from gduq.prediction.mixture import weighted_mean
from gduq.prediction.temperature import COOLEST, HOTTEST, counted
from gduq.prediction.values import ValuePrediction
from gduq.targets.base import FirstLook, Part, Target, log_mean

__all__ = ["Values"]

_LOWEST, _HIGHEST = -14.0, 10.0  # log-variances in standardised units
_GRID = 41  # temperatures tried first


@dataclass(frozen=True)
class Values(Target):
    r"""T real values per row, each with Gaussian noise whose size is learned.

    A network gives T means, or T means and then T log-variances. With means only, the noise is one
    number per value, fitted at the end of training; a head on a frozen network is widened to give
    both. A network that `gduq.fit` trains works in standardised units, one that comes trained may
    work in those of ``y``: what fits ``y`` better tells.

    With :math:`\mu, \sigma^2` in standardised units the loss of a row is the mean over its values
    of

    .. math:: \tfrac12 \sigma^{2\beta} \bigl( (y-\mu)^2 / \sigma^2 + \log 2\pi\sigma^2 \bigr)

    where the factor counts as a constant; a masked row is trained towards the marginal of ``y``.

    Args:
        names: One name per value.
        units: One unit per value.
        beta: 0 is the likelihood; 0.5 keeps rows with much noise from being neglected (Seitzer et
            al., ICLR 2022).
        shift: Mean of each value in training; `gduq.fit` sets it and all that follows.
        scale: Their deviations.
        raw: Whether the network works in the units of ``y``.
        noise: Log-variance of each value, for a network that gives means only.

    Example:
        >>> y = torch.tensor([1.0, 2.0, 4.5])
        >>> target = Values().told(FirstLook(y, torch.zeros(3, 1), y))
        >>> target.shift, target.raw
        ((2.5,), False)
        >>> target.prediction(target.completed(torch.zeros(1, 2, 1))).mean  # nothing learned yet
        tensor([2.5000, 2.5000])
    """

    kind: ClassVar[str] = "values"
    noun: ClassVar[str] = "value"
    form: ClassVar[tuple[str, ...]] = ("shift", "scale")
    price: ClassVar[float] = 0.005  # intervals about 1.07 times as wide

    names: tuple[str, ...] | None = None
    units: tuple[str, ...] | None = None
    beta: float = 0.0
    shift: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    raw: bool = False
    noise: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        self._set_tuples("names", "units", "shift", "scale", "noise")
        if not 0 <= self.beta <= 1:
            raise InputError("beta from 0 to 1", self.beta)
        if self.shift or self.scale:
            self._check_widths(len(self.shift), "scale", "noise", "names", "units")
            if not all(spread > 0 for spread in self.scale):
                raise InputError("deviations above 0", list(self.scale))

    @property
    def num_values(self) -> int:
        """T; 0 before training data were seen."""
        return len(self.shift)

    # -- from data -----------------------------------------------------------------------------

    def told(self, look: FirstLook) -> Values:
        values, outputs = _columns(look.y, "train"), look.outputs
        width = values.size(1)
        if outputs.size(1) not in (width, 2 * width):
            raise InputError(
                f"{width} outputs (means) or {2 * width} (means, log-variances) for y of {width} "
                f"value{'s' * (width > 1)} per row",
                f"a network with {outputs.size(1)}",
                "If y should be classes: whole numbers from 0 up, one per row.",
            )
        deviation, mean = torch.std_mean(values.double(), dim=0, correction=0)
        for t, (centre, spread) in enumerate(zip(mean.tolist(), deviation.tolist(), strict=True)):
            _check_range(self._name(t), centre, spread)
        self._check_widths(width, "names", "units")
        noise = (0.0,) * width if outputs.size(1) == width else None
        shift, scale = tuple(mean.tolist()), tuple(deviation.tolist())
        told = replace(self, shift=shift, scale=scale, raw=False, noise=noise)
        # a ReLU, say, cannot give what lies below the mean of y
        return replace(told, raw=look.bounded or told._fits_raw(look))

    def _fits_raw(self, look: FirstLook) -> bool:
        """Whether outputs explain the truth better as they are than as standardised ones.

        A network that is still to be trained and explains nothing learns in standardised units.
        """
        means = look.outputs[:, : self.num_values].detach().cpu().double()
        y = _columns(look.truth, "train").cpu().double()
        shift, scale = self._shift(means), self._scale(means)
        as_is = float(((means - y) / scale).square().mean())
        scaled = float((means - (y - shift) / scale).square().mean())
        nothing = float(((y - shift) / scale).square().mean())  # what the mean of y leaves open
        if look.trained and min(as_is, scaled) > nothing:
            warn_user(
                "the network explains nothing of y on its training rows "
                f"(R2 = {1 - min(as_is, scaled) / nothing:.2g}): are its outputs in the units of y?"
            )
        return as_is < scaled and (look.trained or as_is < 0.98 * nothing)

    def check_val(self, y: Tensor, train: Tensor) -> Tensor:
        values = self.check(y, "val")
        far = float(values.mean(dim=0).abs().max())
        if values.size(0) >= 10 and far > 4:
            warn_user(
                f"the validation values lie {far:.1f} deviations of the training values away from "
                "their mean: are both in the same units?"
            )
        return values

    def check(self, y: Tensor, name: str) -> Tensor:
        values = _columns(y, name)
        if values.size(1) != self.num_values:
            raise InputError(
                f"{self.num_values} value{'s' * (self.num_values > 1)} per row in {name}, "
                "as the model was trained with",
                values.size(1),
            )
        values = values.to(torch.promote_types(values.dtype, torch.float32))
        return (values - self._shift(values)) / self._scale(values)

    @property
    def is_open(self) -> bool:
        return self.noise is not None

    def settled(self, outputs: Tensor, y: Tensor, weights: Tensor | None = None) -> Values:
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
        means = self.completed(outputs)[..., : self.num_values]
        return (y.to(means) - means).square().mean(dim=0).clamp_min(1e-6).log()

    def combined(self) -> Values:
        return replace(self, raw=False, noise=None)

    # -- losses --------------------------------------------------------------------------------

    def completed(self, outputs: Tensor) -> Tensor:
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
        return self._gaussian_loss((y - means).square(), logs)

    def masked_losses(self, outputs: Tensor) -> Tensor:
        means, logs = self._halves(outputs)
        return self._gaussian_loss(means.square() + 1.0, logs)

    def _gaussian_loss(self, squares: Tensor, logs: Tensor) -> Tensor:
        found = surprise(squares, logs)
        if self.beta:
            found = found * (self.beta * logs.detach()).exp()
        return found.mean(dim=-1)

    def nll(self, samples: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        """In standardised units; the mean over the values of a row, each by itself."""
        means, logs = self._halves(samples)  # [..., K, m, T]
        return -log_mean(-surprise((y - means).square(), logs), weights).mean(dim=-1)

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
        if means.size(-3) > 1:
            centre = means.mean(dim=-3, keepdim=True)
            if weights is not None:
                centre = (means * weights.to(means).view(-1, 1, 1)).sum(dim=-3, keepdim=True)
            means = centre + factor * (means - centre)
        return torch.cat([means, logs + 2 * factor.log()], dim=-1)

    def best_temperature(self, parts: Sequence[Part], weights: Tensor | None = None) -> float:
        """By likelihood, from 0.01 to 100; one row that says 1 is among the others, so that a few
        exact answers do not make a model sure of everything."""
        kept, extra = counted([(s.double(), y.double(), share) for s, y, share in parts])

        def loss(log: float) -> float:
            scale = torch.tensor(math.exp(log), dtype=torch.float64)
            tempered = [(self.scaled(s, scale, weights), y, share) for s, y, share in kept]
            found = sum(v * float(self.nll(s, y, weights).mean()) for s, y, v in tempered)
            return found + extra * (log + 0.5 * math.exp(-2 * log))

        low, high = math.log(COOLEST), math.log(HOTTEST)
        step = (high - low) / (_GRID - 1)
        best = min((low + i * step for i in range(_GRID)), key=loss)
        ends = max(low, best - step), min(high, best + step)
        found = minimize_scalar(loss, bounds=ends, method="bounded", options={"xatol": 1e-6})
        return float(math.exp(found.x))

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
        return ValuePrediction(self.in_units(samples), y, self.names, self.units, **more)

    def in_units(self, samples: Tensor) -> Tensor:
        """Means and log-variances in the units of ``y``, from standardised ones."""
        means, logs = self._halves(samples)
        means = means * self._scale(means) + self._shift(means)
        return torch.cat([means, logs + 2 * self._scale(logs).log()], dim=-1)

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
        raise InputError(
            "values that differ between training rows",
            f"{mean:g} in every row for {name}",
            "There is nothing to learn: leave it out.",
        )
    if not 1e-15 < deviation < 1e15:
        raise InputError(
            "values of an ordinary size",
            f"a deviation of {deviation:.1g} for {name}",
            f"Change the unit: multiply y by {1 / deviation:.0e}.",
        )
    if abs(mean) > 1e5 * deviation:
        raise InputError(
            "values whose differences single precision can hold",
            f"{mean:.6g} plus or minus {deviation:.2g} for {name}",
            "Subtract a constant from y.",
        )


def _columns(y: Tensor, name: str) -> Tensor:
    """Values ``[m, T]``, finite."""
    if y.dim() > 2:
        raise InputError(f"y of shape [m] or [m, T] in {name}", list(y.shape))
    values = y.unsqueeze(1) if y.dim() == 1 else y
    if not bool(torch.isfinite(values).all()):
        bad = int((~torch.isfinite(values)).any(dim=1).sum())
        raise InputError(
            f"finite values y in {name}",
            f"NaN or infinity in {bad} of {values.size(0)} rows",
            "Leave those rows out, or train one value at a time.",
        )
    return values if values.is_floating_point() else values.to(torch.get_default_dtype())
