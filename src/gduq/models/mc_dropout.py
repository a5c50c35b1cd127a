"""`MCDropout`: a network whose dropout stays on in prediction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gduq._checks import check_int
from gduq.errors import InputError
from gduq.models.ensemble import inner_spec, mixture
from gduq.models.network import Network
from gduq.models.predictor import ModelFactory, ModelOutput, Predictor
from gduq.nn.forced_dropout import ForcedDropout
from gduq.tracing.call import Call, evaluating

__all__ = ["MCDropout"]


class MCDropout(Predictor):
    """A network whose dropout stays on in prediction (Gal & Ghahramani, ICML 2016).

    Every dropout call is caught, functional ones and attention's own included; everything else,
    BatchNorm above all, stays in evaluation mode. Masks are drawn for a whole batch at once: what
    a graph gets depends on the graphs it is predicted together with.

    Args:
        net: Any network with dropout, plain or anchored.
        num_samples: Passes; an anchored network gives its whole bank in each.
        seed: The masks are the same in every call of `sample`.
        call: As in `gduq.anchor`, for a plain network.
    """

    kind: ClassVar[str] = "MCDropout"

    def __init__(
        self, net: nn.Module, num_samples: int = 10, seed: int = 0, call: Call | None = None
    ) -> None:
        super().__init__()
        self.net = net if isinstance(net, Predictor) else Network(net, call)
        self.num_samples, self.seed = check_int("num_samples", num_samples, 1), seed

    @property
    def parts(self) -> Mapping[str, Predictor]:
        return {"net": self.net}

    def forward(self, graph: Any) -> Tensor:
        """The network's own output, as in training."""
        return self.net(graph)  # type: ignore[no-any-return]

    def forward_samples(self, graph: Any, features: bool = False) -> ModelOutput:
        """Outputs with fresh dropout masks in each pass; the representation is without dropout."""
        self.net.locate(graph)
        devices = range(torch.cuda.device_count())
        with torch.random.fork_rng(devices=devices), evaluating(self):
            torch.manual_seed(self.seed)
            with ForcedDropout() as dropout:
                passes = [self.net.forward_samples(graph) for _ in range(self.num_samples)]
        if dropout.calls == 0:
            got = f"{self.net!r}, which drops nothing"
            raise InputError("a network with dropout", got, "Build it with dropout > 0.")
        rows = self.net.forward_samples(graph, True).features if features else None
        return mixture([self.net] * len(passes), passes)._replace(features=rows)

    def spec(self) -> dict[str, Any]:
        settings = {"num_samples": self.num_samples, "seed": self.seed}
        return {"kind": self.kind, **settings, "model": inner_spec(self.net)}

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any], factory: ModelFactory) -> MCDropout:
        return cls(factory.model(spec["model"]), spec["num_samples"], spec["seed"])

    def __repr__(self) -> str:
        return f"MCDropout({self.net!r}, num_samples={self.num_samples})"
