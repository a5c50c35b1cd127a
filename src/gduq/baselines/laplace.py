"""`LastLayerLaplace`: a Gaussian over the weights of a trained network's last linear layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from gduq.baselines.head_ensemble import OnTrunk
from gduq.baselines.joint_posterior import JointPosterior
from gduq.baselines.separate_posteriors import SeparatePosteriors
from gduq.errors import InputError, NotFittedError
from gduq.export_mode import exporting
from gduq.nn.call import Call
from gduq.nn.trunk import Trunk
from gduq.nn.widths import LINEAR
from gduq.prediction.predictor import Supply
from gduq.targets import Labels, Values
from gduq.whole import whole

__all__ = ["LastLayerLaplace"]

Link = Literal["samples", "probit"]


class LastLayerLaplace(OnTrunk):
    """A trained network with a Laplace approximation of its last layer (Daxberger et al., 2021).

    In closed form from one pass over the training rows, with the prior by marginal likelihood:
    nothing is trained. For classes from the generalised Gauss-Newton matrix, whole or as a
    Kronecker product by its size. Labels are yes/no questions of their own, each with the prior
    that suits it. For values it is Bayesian linear regression around the trained weights; the
    noise is the network's own or, where it gives means only, by marginal likelihood too.

    Args:
        net: A trained network with a head; it is copied.
        num_samples: K.
        link: ``"samples"``: K draws of the last layer's weights. ``"probit"``: classes and labels
            have one hypothesis with moderated logits, whose probabilities are better but have no
            epistemic part; values have K Gaussians whose means are spaced like the quantiles of
            the posterior, with exactly its mean and variance (for K = 1 it widens the noise).
        call: As in `gduq.anchor`.
        seed: For the draws.
        trunk: A trunk to share with other models.
    """

    kind: ClassVar[str] = "LastLayerLaplace"

    def __init__(
        self,
        net: nn.Module | None,
        num_samples: int = 10,
        link: Link = "probit",
        call: Call | None = None,
        seed: int = 0,
        trunk: Trunk | None = None,
    ) -> None:
        num_samples = whole("num_samples", num_samples, 1)
        if link not in ("samples", "probit"):
            raise InputError("link 'samples' or 'probit'", repr(link))
        self.num_samples, self.link, self.seed = num_samples, link, seed
        self._drawn: tuple[Tensor, Tensor] | None = None  # of which posterior, and the draws
        super().__init__(net, call, trunk)

    def _build(self, trunk: Trunk) -> None:
        first, rest = trunk.head()
        steps = [first, *(rest.children() if isinstance(rest, nn.Sequential) else [])]
        last = max(i for i, step in enumerate(steps) if isinstance(step, LINEAR))
        if any(not isinstance(step, (nn.Dropout, nn.Identity)) for step in steps[last + 1 :]):
            raise InputError("a head that ends in a linear map", f"{steps[-1]} at its end")
        self.lead = nn.Sequential(*steps[:last]).requires_grad_(False)
        self.last = steps[last].requires_grad_(False)
        self.posterior: JointPosterior | SeparatePosteriors = JointPosterior()

    def fit_rows(self, h: Tensor, y: Tensor) -> None:
        with torch.no_grad():
            phi = self.lead(h)
            bias, target = getattr(self.last, "bias", None), self.target
            if isinstance(target, Values):
                self._fit_values(phi, y, target)
            elif isinstance(target, Labels):
                p = self.last(phi).sigmoid()
                curvature = p * (1 - p) * ~y.isnan()
                self._separate(phi).fit(phi, self.last.weight, bias, curvature)  # type: ignore[arg-type]
            else:
                joint = JointPosterior().to(phi.device)
                self.posterior = joint.fit(phi, self.last.weight, bias)  # type: ignore[arg-type]

    def _fit_values(self, phi: Tensor, y: Tensor, target: Values) -> None:
        """In standardised units, with the noise that the network says, if it says any."""
        count, bias = target.num_values, getattr(self.last, "bias", None)
        weight: Tensor = self.last.weight[:count]  # type: ignore[index]
        bias = None if bias is None else bias[:count]
        if target.raw:
            shift, scale = (weight.new_tensor(given) for given in (target.shift, target.scale))
            weight = weight / scale.unsqueeze(1)
            bias = None if bias is None else (bias - shift) / scale
        means, logs = self._own(phi, target)
        residuals = y - means if target.is_open else None
        self._separate(phi).fit(phi, weight, bias, (-logs).exp(), residuals)

    def _separate(self, phi: Tensor) -> SeparatePosteriors:
        self.posterior = found = SeparatePosteriors().to(phi.device)
        return found

    def from_rows(self, h: Tensor, outputs: Tensor) -> Tensor:
        self.check_ready()
        phi = self.lead(h)
        if isinstance(self.target, Values):
            return self._values(phi, self.target)
        if self.link == "probit":
            return self.posterior.probit(phi).unsqueeze(0)
        return self.posterior.outputs(phi, self._draws)

    def _values(self, phi: Tensor, target: Values) -> Tensor:
        """Means and log-variances of K Gaussians ``[K, m, 2T]``, standardised."""
        assert isinstance(self.posterior, SeparatePosteriors)
        means, logs = self._own(phi, target)
        logs = logs + self.posterior.noise.log().to(logs)
        if self.link == "samples":
            drawn = self.posterior.outputs(phi, self._draws)
            means = means + drawn - self.posterior.mean(phi)
        elif self.num_samples == 1:
            means, logs = means[None], (logs.exp() + self.posterior.variance(phi)).log()[None]
        else:
            steps = _spaced(self.num_samples).to(means).view(-1, 1, 1)
            means = means + steps * self.posterior.variance(phi).sqrt()
        return torch.cat([means, logs.expand_as(means)], dim=-1)

    def _own(self, phi: Tensor, target: Values) -> tuple[Tensor, Tensor]:
        """The network's means and log-variances ``[m, T]``, standardised; 0 where it has none."""
        means, logs = target.completed(self.last(phi)).chunk(2, dim=-1)
        return means, torch.zeros_like(logs) if target.is_open else logs

    @property
    def _draws(self) -> Tensor:
        """K draws of the weights ``[K, C, D]``, made anew where the posterior is another one.

        An exported program holds those of the last answer before it was made.
        """
        values, known = self.posterior.values, self._drawn
        if known is None or not (exporting() or known[0] is values):
            generator = torch.Generator().manual_seed(self.seed)
            known = self._drawn = (values, self.posterior.draw(self.num_samples, generator))
        return known[1]

    def check_ready(self) -> None:
        if self.trunk is None or not self.posterior.fitted:
            raise NotFittedError("a posterior", "none yet", "Call gduq.fit(model, train, val).")

    def spec(self) -> dict[str, Any]:
        return super().spec() | {
            "num_samples": self.num_samples,
            "link": self.link,
            "seed": self.seed,
            "separate": isinstance(self.posterior, SeparatePosteriors),
        }

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any], supply: Supply) -> LastLayerLaplace:
        trunk, call = cls.trunk_from(spec, supply), supply.call(spec)
        model = cls(None, spec["num_samples"], spec["link"], call, spec["seed"], trunk)
        if spec["separate"]:
            model.posterior = SeparatePosteriors()
        return model

    def __repr__(self) -> str:
        where = "found at the first graph" if self.trunk is None else self.trunk.description
        return f"LastLayerLaplace({where}; {self.link})"


def _spaced(k: int) -> Tensor:
    """K quantiles of the standard normal distribution, stretched to a variance of 1.

    Example:
        >>> _spaced(2)
        tensor([-1.,  1.], dtype=torch.float64)
    """
    points = torch.special.ndtri((torch.arange(k, dtype=torch.float64) + 0.5) / k)
    found: Tensor = points / points.square().mean().sqrt()
    return found
