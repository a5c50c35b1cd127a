"""`HeadEnsemble`: K heads on one frozen trunk; what anchors add shows beside it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from torch import Tensor, nn

from gduq._checks import check_int
from gduq.anchoring.cuts import Tail
from gduq.errors import InputError, NotFittedError
from gduq.models.predictor import CachedRows, ModelFactory, ModelOutput, Predictor, TrainHeads
from gduq.nn.gnn import as_chain
from gduq.nn.network_specs import network_spec
from gduq.prediction import Target, Values
from gduq.tracing.call import Call, copied, redraw
from gduq.tracing.trunk import NoiseHead, Trunk

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["HeadEnsemble", "OnTrunk", "PlainHead"]


class OnTrunk(Predictor):
    """A model that reads the rows of a frozen trunk: one of a copy of ``net``, or one that is
    shared with other models."""

    settings: ClassVar[tuple[str, ...]]  # arguments, kept as attributes, that make it again

    def __init__(
        self, net: nn.Module | None, call: Call | None = None, trunk: Trunk | None = None
    ) -> None:
        super().__init__()
        if net is not None and (isinstance(net, Predictor) or not isinstance(net, nn.Module)):
            do = "Pass the network itself."
            raise InputError("a network that is not wrapped", type(net).__name__, do)
        self.call = call
        self._trunk: Trunk | None = None
        self._waiting: nn.Module | None = None
        if trunk is not None:
            self._stand_on(trunk)
        elif net is not None and as_chain(net) is not None:
            self._stand_on(Trunk.of(copied(net)))
        else:
            self._waiting = None if net is None else copied(net)

    @property
    def trunk(self) -> Trunk | None:
        return self._trunk

    def _stand_on(self, trunk: Trunk) -> None:
        if not trunk.has_head:
            got = f"{type(trunk.net).__name__}, whose last layer reads the graph"
            do = f"{type(self).__name__} needs a head; use gduq.Ensemble instead."
            raise InputError("a network whose last part is a head of linear layers", got, do)
        self._trunk, self._waiting = trunk.requires_grad_(False), None
        with torch.random.fork_rng(devices=[]):  # new modules draw weights, if only to lose them
            self._build(trunk)

    def _build(self, trunk: Trunk) -> None:
        """Make what stands on the trunk; torch's global state comes back as it was."""

    def locate(self, graph: Any) -> None:
        if self._waiting is not None:
            self._stand_on(Trunk.of(self._waiting, graph, self.call))

    def share_trunk(self, trunk: Trunk) -> None:
        self._trunk = trunk

    def train(self, mode: bool = True) -> OnTrunk:
        super().train(mode)
        if self._trunk is not None:
            self._trunk.eval()
        return self

    def forward_samples(self, graph: Any, features: bool = False) -> ModelOutput:
        self.locate(graph)
        assert self._trunk is not None
        with torch.no_grad():
            h = self._trunk.labelled(self._trunk(graph), graph)
        return ModelOutput(self.from_rows(h, h), h)

    def spec(self) -> dict[str, Any]:
        assert self._trunk is not None
        return {
            "kind": self.kind,
            "call": self._trunk.call is not None,  # of a trunk that was handed in, too
            "net": network_spec(self._trunk.net),
            "trunk": self._trunk.spec(),
            **{name: getattr(self, name) for name in self.settings},
        }

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any], factory: ModelFactory) -> Self:
        call = factory.call(spec)
        trunk = Trunk.from_spec(spec["trunk"], factory.net(spec["net"]), call)
        known = {name: spec[name] for name in cls.settings}
        return cls(None, call=call, trunk=trunk, **known)

    def __repr__(self) -> str:
        where = "found at the first graph" if self._trunk is None else self._trunk.description
        known = ", ".join(f"{name}={getattr(self, name)}" for name in self.settings)
        return f"{type(self).__name__}({where}; {known})"


class PlainHead(nn.Module):
    """A head as the network has it, without anchors.

    Masked rows are read as the difference to another row, as an anchored head reads them.
    """

    def __init__(self, first: nn.Linear, rest: nn.Module) -> None:
        super().__init__()
        self.first, self.tail = first, Tail(rest, first.out_features, None)

    def forward(self, h: Tensor, c: Tensor | None = None, masked: Tensor | None = None) -> Tensor:
        """Outputs ``[D, n, O]`` of rows ``h`` ``[n, d]``, with other rows ``c`` ``[D, n, d]``."""
        read = h.unsqueeze(0)
        if masked is not None and c is not None:
            read = torch.where(masked.unsqueeze(-1), h - c, read)
        return self.tail(self.first(read), h)  # type: ignore[no-any-return]


class HeadEnsemble(OnTrunk):
    """K heads on a frozen network, each started anew and all trained side by side.

    The cheap ensemble: diversity in the head only. With ``mask`` its rows are masked as those of
    an anchored head are, so that the difference between the two is what anchors add.

    Args:
        net: A trained network with a head; it is copied.
        size: K.
        mask: Share of rows that are trained to know nothing.
        call: As in `gduq.anchor`.
        seed: For the heads' weights.
        trunk: A trunk to share with other models.
    """

    kind: ClassVar[str] = "HeadEnsemble"
    settings: ClassVar[tuple[str, ...]] = ("size", "mask", "seed")
    trained: Tensor

    def __init__(
        self,
        net: nn.Module | None,
        size: int = 10,
        mask: float = 0.0,
        call: Call | None = None,
        seed: int = 0,
        trunk: Trunk | None = None,
    ) -> None:
        if not 0 <= mask < 1:
            raise InputError("mask from 0 to below 1", mask)
        self.size, self.mask, self.seed = check_int("size", size, 1), mask, seed
        super().__init__(net, call, trunk)

    def _build(self, trunk: Trunk) -> None:
        torch.manual_seed(self.seed)
        self.heads = nn.ModuleList(redraw(PlainHead(*trunk.head())) for _ in range(self.size))
        self.heads.requires_grad_(True)
        for tail in self._tails:  # fresh heads learn in standardised units, unless they are bounded
            tail.anew = not trunk.bounded
        self.register_buffer("trained", torch.zeros((), dtype=torch.bool))

    @property
    def _tails(self) -> list[Tail]:
        return [cast(PlainHead, head).tail for head in self.heads]

    def fit_rows(
        self, train: CachedRows, held: CachedRows, learn: TrainHeads, before: Target | None = None
    ) -> None:
        target, h = self.target, train.h
        assert target is not None
        assert self._trunk is not None
        if not target.fits(before):  # the heads learn anew
            with torch.random.fork_rng(devices=[]):
                self._build(self._trunk)
            self.to(h.device)
        if isinstance(target, Values) and target.needs_noise:
            for tail in self._tails:
                if tail.noise is None:
                    tail.widen(target, held.outputs, held.y)
        self.target = target = target.combined()

        def draw(count: int, generator: torch.Generator) -> Tensor:
            return h[torch.randint(h.size(0), (count,), generator=generator).to(h.device)]

        heads = [copy.deepcopy(head) for head in self.heads]
        self.heads = nn.ModuleList(learn(heads, [self.mask] * self.size, target, draw))
        self.trained = torch.ones_like(self.trained)

    def from_rows(self, h: Tensor, outputs: Tensor) -> Tensor:
        self.check_ready()
        return torch.cat([head(h) for head in self.heads])

    def check_ready(self) -> None:
        if self._trunk is None or not bool(self.trained):
            raise NotFittedError("trained heads", "fresh ones", "Call gduq.fit(model, train, val).")

    def spec(self) -> dict[str, Any]:
        noise = self._tails[0].noise
        return super().spec() | {"values": 0 if noise is None else noise.linear.out_features}

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any], factory: ModelFactory) -> Self:
        model = super().from_spec(spec, factory)
        for tail in model._tails if spec["values"] else ():
            tail.noise = NoiseHead(tail.channels, spec["values"])
        return model
