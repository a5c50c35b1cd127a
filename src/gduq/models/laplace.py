"""`LastLayerLaplace`: a Gaussian over the weights of a trained network's last linear layer."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from gduq._checks import check_int
from gduq._torch import exporting
from gduq.errors import InputError, NotFittedError
from gduq.models.head_ensemble import OnTrunk
from gduq.models.posteriors import JointPosterior, SeparatePosteriors
from gduq.models.predictor import CachedRows, ModelFactory, TrainHeads
from gduq.prediction import Labels, Target, Values
from gduq.tracing.call import LINEAR, Call
from gduq.tracing.trunk import Trunk

if TYPE_CHECKING:
    from typing_extensions import Self

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
    settings: ClassVar[tuple[str, ...]] = ("num_samples", "link", "seed")

    def __init__(
        self,
        net: nn.Module | None,
        num_samples: int = 10,
        link: Link = "probit",
        call: Call | None = None,
        seed: int = 0,
        trunk: Trunk | None = None,
    ) -> None:
        if link not in ("samples", "probit"):
            raise InputError("link 'samples' or 'probit'", repr(link))
        self.num_samples, self.link, self.seed = (
            check_int("num_samples", num_samples, 1),
            link,
            seed,
        )
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

    @torch.no_grad()
    def fit_rows(
        self, train: CachedRows, held: CachedRows, learn: TrainHeads, before: Target | None = None
    ) -> None:
        h, y = train.h, train.y
        phi, target = self.lead(h), self.target
        weight: Any = self.last.weight
        bias: Any = getattr(self.last, "bias", None)
        if not isinstance(target, (Labels, Values)):
            self.posterior = JointPosterior().to(phi.device).fit(phi, weight, bias)
            return
        residuals = None
        if isinstance(target, Labels):
            p = self.last(phi).sigmoid()
            curvature = p * (1 - p) * ~y.isnan()
        else:  # in standardised units, with the noise that the network says, if it says any
            count = target.num_values
            weight, bias = weight[:count], None if bias is None else bias[:count]
            if target.raw:
                shift, scale = (weight.new_tensor(given) for given in (target.shift, target.scale))
                weight = weight / scale.unsqueeze(1)
                bias = None if bias is None else (bias - shift) / scale
            means, logs = self._own(phi, target)
            curvature, residuals = (-logs).exp(), y - means if target.needs_noise else None
        separate = SeparatePosteriors().to(phi.device)
        self.posterior = separate.fit(phi, weight, bias, curvature, residuals)

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
        means, logs = target.to_params(self.last(phi)).chunk(2, dim=-1)
        return means, torch.zeros_like(logs) if target.needs_noise else logs

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
        return super().spec() | {"separate": isinstance(self.posterior, SeparatePosteriors)}

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any], factory: ModelFactory) -> Self:
        model = super().from_spec(spec, factory)
        if spec["separate"]:
            model.posterior = SeparatePosteriors()
        return model


def _spaced(k: int) -> Tensor:
    """K quantiles of the standard normal distribution, stretched to a variance of 1."""
    normal = NormalDist()  # ONNX has no such function
    points = torch.tensor([normal.inv_cdf((i + 0.5) / k) for i in range(k)], dtype=torch.float64)
    return points / points.square().mean().sqrt()
