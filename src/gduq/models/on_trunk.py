"""Models that read the rows of a frozen trunk: heads of their own, votes of neighbours."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gduq.anchoring.cuts import Tail
from gduq.errors import InputError, NotFittedError, check_int
from gduq.graphs import Graph
from gduq.graphs.sparse import take_rows
from gduq.models.predictor import HeadTask, ModelFactory, ModelOutput, Predictor, RowFit, Spec
from gduq.nn.gnn import as_chain, network_spec
from gduq.nn.layers import AnySize
from gduq.ood.nearest import in_blocks, polar
from gduq.prediction import Classes, Labels
from gduq.tracing.call import Call, copied, redraw
from gduq.tracing.trunk import Trunk

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["HeadEnsemble", "Neighbours", "OnTrunk", "PlainHead"]

_SAME = 1e-6  # lengths that differ by less, between directions, are a tie


class OnTrunk(Predictor):
    """A model that reads the rows of a frozen trunk: one that is given, and may be shared with
    other models, or that of a copy of ``net``."""

    settings: ClassVar[tuple[str, ...]]  # arguments, kept as attributes, that make it again

    def __init__(self, net: nn.Module | Trunk, call: Call | None = None) -> None:
        super().__init__()
        if isinstance(net, Predictor) or not isinstance(net, nn.Module):
            do = "Pass the network itself."
            raise InputError("a network that is not wrapped", type(net).__name__, do)
        self.call = call
        self._trunk = net if isinstance(net, Trunk) else copied(net)  # until a graph shows a trunk
        if isinstance(net, Trunk):
            self._build(net)
        elif as_chain(net) is not None:
            self._build(Trunk.of(self._trunk))

    @property
    def trunk(self) -> Trunk | None:
        return self._trunk if isinstance(self._trunk, Trunk) else None

    def locate(self, graph: Graph) -> None:
        if self.trunk is None:
            self._build(Trunk.of(self._trunk, graph, self.call))

    def _build(self, trunk: Trunk) -> None:
        """Stand on a trunk from now on."""
        if not trunk.has_head:
            got = f"{type(trunk.net).__name__}, whose last layer reads the graph"
            do = f"{type(self).__name__} needs a head; use gduq.Ensemble instead."
            raise InputError("a network whose last part is a head of linear layers", got, do)
        self._trunk = trunk.requires_grad_(False)

    def forward_samples(self, graph: Graph, features: bool = False) -> ModelOutput:
        self.locate(graph)
        trunk = cast(Trunk, self._trunk)
        with torch.no_grad():
            h = trunk.labelled(trunk(graph), graph)
        return ModelOutput(self.from_rows(h, h), h)

    def _spec(self) -> Spec:
        trunk, own = cast(Trunk, self._trunk), {name: getattr(self, name) for name in self.settings}
        call = trunk.call is not None  # of a trunk that was handed in, too
        return {"call": call, "net": network_spec(trunk.net), "trunk": trunk.spec(), **own}

    @classmethod
    def from_spec(cls, spec: Spec, factory: ModelFactory) -> Self:
        trunk = Trunk.from_spec(spec["trunk"], factory.net(spec["net"]), factory.call(spec))
        return cls(trunk, **{name: spec[name] for name in cls.settings})

    def __repr__(self) -> str:
        where = "found at the first graph" if self.trunk is None else self.trunk.description
        known = ", ".join(f"{name}={getattr(self, name)}" for name in self.settings)
        return f"{type(self).__name__}({where}; {known})"


class PlainHead(nn.Module):
    """A head as the network has it, without anchors.

    Masked rows are read as the difference to another row, as an anchored head reads them.
    """

    def __init__(self, first: nn.Linear, rest: nn.Module, values: int) -> None:
        super().__init__()
        self.first, self.tail = first, Tail(rest, first.out_features, None, values)

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
        net: A trained network with a head, which is copied; or a trunk, to share it.
        size: K.
        mask: Share of rows that are trained to know nothing.
        call: As in `gduq.anchor`.
        seed: For the heads' weights.
    """

    settings: ClassVar[tuple[str, ...]] = ("size", "mask", "seed")

    def __init__(
        self,
        net: nn.Module | Trunk,
        size: int = 10,
        mask: float = 0.0,
        call: Call | None = None,
        seed: int = 0,
    ) -> None:
        if not 0 <= mask < 1:
            raise InputError("mask from 0 to below 1", mask)
        self.size, self.mask, self.seed = check_int("size", size, 1), mask, seed
        super().__init__(net, call)
        self.heads = nn.ModuleList()  # none before training

    def _fresh_heads(self, values: int = 0) -> list[PlainHead]:
        trunk = cast(Trunk, self._trunk)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            heads = [redraw(PlainHead(*trunk.head(), values)) for _ in range(self.size)]
        return [head.requires_grad_(True) for head in heads]

    def fit_rows(self, work: RowFit) -> None:
        target, h, held = self.target, work.train.h, work.held
        assert target is not None
        goes_on = len(self.heads) > 0 and target.fits(work.before)
        heads = list(copy.deepcopy(self.heads)) if goes_on else self._fresh_heads()
        anew = not cast(Trunk, self._trunk).bounded  # else they stay in the units of the network
        for head in heads:
            cast(PlainHead, head.to(h.device)).tail.widen(target, held.outputs, held.y, anew)
        self.target = target.combined()

        def draw(count: int, generator: torch.Generator) -> Tensor:
            return h[torch.randint(h.size(0), (count,), generator=generator).to(h.device)]

        task = HeadTask(heads, [self.mask] * self.size, self.target, draw)
        self.heads = nn.ModuleList(work.learn(task))

    def from_rows(self, h: Tensor, outputs: Tensor) -> Tensor:
        self.check_ready()
        return torch.cat([head(h) for head in self.heads])

    def check_ready(self) -> None:
        if not len(self.heads):
            raise NotFittedError("trained heads", "none yet", "Call gduq.fit(model, train, val).")

    def _spec(self) -> Spec:
        values = cast(PlainHead, self.heads[0]).tail.num_values
        return super()._spec() | {"values": values}

    @classmethod
    def from_spec(cls, spec: Spec, factory: ModelFactory) -> Self:
        model = super().from_spec(spec, factory)
        model.heads = nn.ModuleList(model._fresh_heads(spec["values"]))
        return model


class Neighbours(AnySize, OnTrunk):
    r"""A trained network with a vote of the nearest training rows in place of its head.

    Where the k training rows nearest to h carry :math:`n_c` votes for class c, and :math:`\pi_c`
    is the share of that class among all rows that are kept (with one row more of every class),
    :math:`p_c(h) = (n_c + \pi_c) / (k + 1)`. A head draws lines that go on for ever; neighbours
    know only what is near: the two err on different rows, which is what a mixture is good for.

    Rows are compared by the direction of what the network makes of them, the cosine. All rows as
    near as the k-th one share in its votes, so the order of training rows does not matter. Nothing
    is trained, and there is one hypothesis: the vote. For classes and labels.

    Args:
        net: A trained network with a head, which is copied; or a trunk, to share it.
        k: How many votes there are; as many as there are rows, if these are fewer.
        size: How many training rows to keep at most, chosen at random.
        call: As in `gduq.anchor`.
        seed: For the choice of rows.
    """

    settings: ClassVar[tuple[str, ...]] = ("k", "size", "seed")

    reference: Tensor
    says: Tensor

    def __init__(
        self,
        net: nn.Module | Trunk,
        k: int = 10,
        size: int = 2048,
        call: Call | None = None,
        seed: int = 0,
    ) -> None:
        self.k, self.size, self.seed = check_int("k", k, 1), check_int("size", size, 1), seed
        super().__init__(net, call)
        self.register_buffer("reference", torch.empty(0, 0))  # kept rows [R, d]
        self.register_buffer("says", torch.empty(0, 0))  # yes (1) or no per answer, or NaN [R, O]

    def check_target(self) -> None:
        if not isinstance(self.target, (Classes, Labels)):
            do = "gduq.LastLayerLaplace and gduq.anchor take values."
            raise InputError("classes or labels, which rows can vote for", self.target, do)

    @torch.no_grad()
    def fit_rows(self, work: RowFit) -> None:
        h, y = work.train.h, work.train.y
        generator = torch.Generator().manual_seed(self.seed)
        kept = torch.randperm(h.size(0), generator=generator)[: self.size].to(h.device)
        rows, says = take_rows(h.detach(), kept), y[kept]
        if isinstance(self.target, Classes):
            several = not self.target.one_logit
            says = F.one_hot(says, self.target.num_classes) if several else says.unsqueeze(1)
        precise = torch.promote_types(rows.dtype, torch.float32)
        self.reference, self.says = rows.to(precise), says.to(precise)

    @torch.no_grad()
    def from_rows(self, h: Tensor, outputs: Tensor) -> Tensor:
        self.check_ready()
        known = polar(self.reference)[0].T
        found = [self._vote(part, known) for part in in_blocks(h, self.reference)]
        return torch.cat(found).to(self.reference.dtype).unsqueeze(0)

    def _vote(self, h: Tensor, directions: Tensor) -> Tensor:
        """Log-probabilities or logits ``[m, O]``; ``directions`` ``[d, R]`` are of kept rows."""
        says, known = self.says.double().nan_to_num(), (~self.says.isnan()).double()
        k, far = min(self.k, says.size(0)), (1.0 - polar(h)[0] @ directions).clamp_min(0.0)
        last = (2.0 * far.topk(k, dim=1, largest=False).values[:, -1:]).sqrt()
        near = (far <= (last + _SAME * (1.0 + last)).square() / 2.0).double()
        votes = near * (k / near.sum(dim=1, keepdim=True))
        share = (says.sum(dim=0) + 1) / (known.sum(dim=0) + 2)
        if isinstance(self.target, Classes) and not self.target.one_logit:
            return ((votes @ says + share / share.sum()) / (k + 1)).log()
        yes = votes @ says + share
        return (yes / (votes @ known + 1 - yes)).log()

    def check_ready(self) -> None:
        complete = self.says.numel() and self.says.size(0) == self.reference.size(0)
        if self.trunk is None or not complete:
            raise NotFittedError("training rows", "none yet", "Call gduq.fit(model, train, val).")
