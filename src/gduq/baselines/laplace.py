"""`LastLayerLaplace`: a Gaussian over the weights of a trained network's last linear layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from gduq.baselines.heads import OnTrunk
from gduq.baselines.posterior import LastLayerPosterior
from gduq.errors import InputError, NotFittedError
from gduq.nn.call import Call
from gduq.nn.recording import LINEAR
from gduq.nn.trunk import Trunk
from gduq.prediction.predictor import Supply

__all__ = ["LastLayerLaplace"]

Link = Literal["samples", "probit"]


class LastLayerLaplace(OnTrunk):
    """A trained network with a Laplace approximation of its last layer (Daxberger et al., 2021).

    In closed form from one pass over the training rows: the generalised Gauss-Newton matrix, whole
    or as a Kronecker product by its size, and the prior by marginal likelihood. Nothing is trained.

    Args:
        net: A trained network with a head; it is copied.
        num_samples: K, draws of the last layer's weights.
        link: ``"probit"``, one hypothesis with moderated logits; or ``"samples"``, K draws, which
            have an epistemic part too, but worse probabilities.
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
        if isinstance(num_samples, bool) or not isinstance(num_samples, int) or num_samples < 1:
            raise InputError("num_samples >= 1, a whole number", repr(num_samples))
        if link not in ("samples", "probit"):
            raise InputError("link 'samples' or 'probit'", repr(link))
        self.num_samples, self.link, self.seed = num_samples, link, seed
        super().__init__(net, call, trunk)

    def _build(self, trunk: Trunk) -> None:
        first, rest = trunk.head()
        steps = [first, *(rest.children() if isinstance(rest, nn.Sequential) else [])]
        last = max(i for i, step in enumerate(steps) if isinstance(step, LINEAR))
        if any(not isinstance(step, (nn.Dropout, nn.Identity)) for step in steps[last + 1 :]):
            raise InputError("a head that ends in a linear map", f"{steps[-1]} at its end")
        self.lead = nn.Sequential(*steps[:last]).requires_grad_(False)
        self.last = steps[last].requires_grad_(False)
        self.posterior = LastLayerPosterior()

    def fit_rows(self, h: Tensor) -> None:
        with torch.no_grad():
            phi = self.lead(h)
            bias = getattr(self.last, "bias", None)
            self.posterior.fit(phi, self.last.weight, bias)  # type: ignore[arg-type]

    def from_rows(self, h: Tensor, outputs: Tensor) -> Tensor:
        self.check_ready()
        phi = self.lead(h)
        if self.link == "probit":
            return self.posterior.probit(phi).unsqueeze(0)
        generator = torch.Generator().manual_seed(self.seed)
        return self.posterior.sample(phi, self.num_samples, generator)

    def check_ready(self) -> None:
        if self.trunk is None or not self.posterior.fitted:
            raise NotFittedError("a posterior", "none yet", "Call gduq.fit(model, train, val).")

    def spec(self) -> dict[str, Any]:
        settings = {"num_samples": self.num_samples, "link": self.link, "seed": self.seed}
        return super().spec() | settings

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any], supply: Supply) -> LastLayerLaplace:
        trunk, call = cls.trunk_from(spec, supply), supply.call(spec)
        return cls(None, spec["num_samples"], spec["link"], call, spec["seed"], trunk)

    def __repr__(self) -> str:
        where = "found at the first graph" if self.trunk is None else self.trunk.description
        return f"LastLayerLaplace({where}; {self.link})"
