"""`Network`: any module with the face of a predictor, one hypothesis per row."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from gduq.errors import InputError, warn_user
from gduq.graphs import check_graph, label_rows
from gduq.models.predictor import Calibrate, ModelFactory, ModelOutput, Predictor
from gduq.nn.gnn import as_chain
from gduq.nn.network_specs import network_spec
from gduq.ood.nearest import Novelty
from gduq.tracing.call import (
    LAZY,
    Call,
    Ending,
    as_logits,
    call_network,
    check_logits,
    evaluating,
)
from gduq.tracing.trace import trace
from gduq.tracing.trunk import Trunk

__all__ = ["Network", "as_predictor", "checked_predictor"]

# What is known of users' networks: the `Network` around one while it lives, and all of it but the
# network. Nothing is written into the network, and nothing here keeps it alive.
_KNOWN: WeakIdKeyDictionary = WeakIdKeyDictionary()


class _Found(NamedTuple):
    """What a first pass showed."""

    trunk: Trunk | None  # the network before its last part, where there is such a part
    ending: Ending | None  # what it ends in, where its outputs are no logits
    bounded: bool  # whether something bounds its outputs


@torch.no_grad()
def _fingerprint(net: nn.Module) -> Tensor:
    """Three sums per weight or buffer ``[t, 3]``: of all entries, of the first half of them, and
    of their sizes. Copies and moves to another device leave them alone."""
    found = []
    for flat in (t.detach().flatten() for t in _tensors(net)):
        parts = (flat, flat[: flat.numel() // 2], flat if flat.dtype == torch.bool else flat.abs())
        found.append(torch.stack([part.sum(dtype=torch.float64) for part in parts]))
    return torch.stack(found).cpu() if found else torch.zeros(0, 3, dtype=torch.float64)


def _tensors(net: nn.Module) -> list[Tensor]:
    return [t for t in (*net.parameters(), *net.buffers()) if not isinstance(t, LAZY)]


def _same(one: Tensor, two: Tensor) -> bool:
    return one.shape == two.shape and bool(
        ((one - two).abs() <= 1e-9 * torch.maximum(one, two)[:, 2:]).all()
    )


class Network(Predictor):
    """A plain network; it is not copied, so that training it trains yours.

    What it ends in (softmax, sigmoid), which rows it answers for and where its head is, a first
    pass over a graph shows.

    Args:
        net: Any module.
        call: As in `gduq.anchor`.
    """

    kind: ClassVar[str] = "Network"

    def __init__(self, net: nn.Module, call: Call | None = None) -> None:
        super().__init__()
        if isinstance(net, Predictor):
            raise InputError("a network that is not wrapped yet", type(net).__name__)
        self.net, self.call = net, call
        self._found: _Found | None = None
        self._fitted: Tensor | None = None  # fingerprint of the weights that were calibrated
        self._noted = False  # whether `as_predictor` made it, so that what it knows is kept
        if as_chain(net) is not None:
            self._found = _Found(Trunk.of(net), None, bounded=False)

    def locate(self, graph: Any) -> None:
        if self._found is None and not self._lazy:
            seen = trace(self.net, graph, self.call)
            trunk = Trunk.from_trace(self.net, seen, self.call)  # it may answer without one, too
            self._found = _Found(trunk, seen.ending, seen.bounded)
            self.note()

    @property
    def _lazy(self) -> bool:
        return any(isinstance(p, LAZY) for p in self.net.parameters())

    def _ensure_found(self, graph: Any) -> _Found:
        """`locate`, after a first pass where parameters have no shape yet.

        Not in `locate`: `gduq.fit` seeds what the first pass draws.
        """
        if self._found is None and self._lazy:
            with torch.no_grad(), evaluating(self.net):
                call_network(self.net, graph, self.call)
        self.locate(graph)
        assert self._found is not None
        return self._found

    @property
    def trunk(self) -> Trunk | None:
        return None if self._found is None else self._found.trunk

    @property
    def bounded(self) -> bool:
        return self._found is not None and self._found.bounded and self._found.ending is None

    def forward(self, graph: Any) -> Tensor:
        """Logits ``[rows, O]``."""
        found = self._ensure_found(graph)
        if as_chain(self.net) is not None:
            return self._checked(call_network(self.net, graph, self.call))
        outputs = call_network(self.net, graph, self.call)
        return self._checked(as_logits(outputs, found.ending))

    def _checked(self, outputs: Tensor) -> Tensor:
        assert self._found is not None
        known = not self._found.bounded or self._found.ending is not None
        values = self.target is not None and self.target.has_units
        return outputs if values else check_logits(outputs, known)

    def forward_samples(self, graph: Any, features: bool = False) -> ModelOutput:
        check_graph(graph)
        self._ensure_found(graph)
        if not features or self.trunk is None:
            outputs = self(graph)
            rows = self._formed(outputs[label_rows(graph, outputs.size(0))])
            return ModelOutput(rows.unsqueeze(0))
        h, outputs = self.trunk.run(graph)
        rows = self._checked(outputs)[label_rows(graph, outputs.size(0))]
        return ModelOutput(self._formed(rows).unsqueeze(0), self.trunk.features(h, graph))

    # -- calibration ---------------------------------------------------------------------------

    def set_temperature(self, value: float, how: Calibrate) -> None:
        super().set_temperature(value, how)
        self._fitted = _fingerprint(self.net)
        self.note()

    @property
    def _knows(self) -> bool:
        return self.calibration is not None or self.novelty.fitted

    def _forget(self) -> None:
        self.novelty = Novelty()
        self.set_temperature(1.0, None)

    def forget_if_changed(self) -> None:
        """Drop what `gduq.fit` found out about weights that are no longer these."""
        if self._fitted is None or not self._knows or _same(self._fitted, _fingerprint(self.net)):
            return
        self._forget()
        warn_user(
            "the network's weights have changed since gduq.fit: not calibrated any more, and "
            "without novelty, until gduq.fit is called again"
        )

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self._fitted = None  # they come with what is known of them

    # -- what is known of a user's network -----------------------------------------------------

    def note(self) -> None:
        """For the next call with the network; see `Predictor.note`."""
        if self._noted:
            trunk = None if self.trunk is None else self.trunk.spec()
            parts = {name: part for name, part in self._modules.items() if name != "net"}
            found = None if self._found is None else self._found._replace(trunk=None)
            state = {**vars(self), "_modules": parts, "_found": found}
            _KNOWN[self.net] = weakref.ref(self), state, trunk

    @classmethod
    def known(cls, net: nn.Module) -> Network | None:
        """The network around a user's one as it was noted, if it was."""
        alive, state, trunk = _KNOWN.get(net) or (lambda: None, None, None)
        made: Network | None = alive()
        if made is None and state is not None:
            made = cls.__new__(cls)
            made.__dict__.update(state, _modules={**state["_modules"], "net": net})
            if trunk is not None and made._found is not None:
                made._found = made._found._replace(trunk=Trunk.from_spec(trunk, net, made.call))
            made.note()
        return made

    # -- training ------------------------------------------------------------------------------

    def from_rows(self, h: Tensor, outputs: Tensor) -> Tensor:
        return self._formed(outputs).unsqueeze(0)

    def share_trunk(self, trunk: Trunk) -> None:
        bounded = not trunk.has_head if self._found is None else self._found.bounded
        self.net, self._found = trunk.net, _Found(trunk, trunk.ending, bounded)

    def loss(self, graph: Any, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        if self.training and self._knows:  # of an earlier fit
            self._forget()
        check_graph(graph)
        return self._losses(graph, self(graph).unsqueeze(0))

    def spec(self) -> dict[str, Any]:
        found, trunk = self._found, self.trunk
        known = None if found is None else {"ending": found.ending, "bounded": found.bounded}
        return {
            "kind": self.kind,
            "call": self.call is not None,
            "net": network_spec(self.net),
            "trunk": None if trunk is None else trunk.spec(),
            "found": known,
        }

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any], factory: ModelFactory) -> Network:
        model = cls(factory.net(spec["net"]), factory.call(spec))
        found, trunk = spec["found"], spec["trunk"]
        if found is not None:
            known = None if trunk is None else Trunk.from_spec(trunk, model.net, model.call)
            model._found = _Found(known, found["ending"], found["bounded"])
        return model

    def __repr__(self) -> str:
        where = "" if self.trunk is None else f"; representation: {self.trunk.description}"
        return f"Network({type(self.net).__name__}{where})"


def as_predictor(model: nn.Module, call: Call | None = None, trains: bool = False) -> Predictor:
    """The model itself, or a plain network as a `Network`, with what was found out about it.

    That is noted beside the network, not in it: copies and pickles of it are plain networks.

    Args:
        model: Any model.
        call: As in `gduq.anchor`. Another call than that of `gduq.fit` is used this time only.
        trains: Whether the model is about to be fitted, with this call from now on.
    """
    model = getattr(model, "_orig_mod", model)  # what torch.compile wrapped
    if not isinstance(model, nn.Module):
        raise InputError("a model: a gduq predictor or a torch module", type(model).__name__)
    return model if isinstance(model, Predictor) else _wrapped(model, call, trains)


def checked_predictor(model: nn.Module) -> Predictor:
    """`as_predictor` for what outlives this process, or lasts (a bundle, a service, a report): what
    `gduq.fit` found is dropped, with a warning, where weights have changed since.

    `gduq.predict` does not look: that would take a fifth of the time of a small graph.
    """
    known = as_predictor(model)
    for part in known.modules():
        if isinstance(part, Network):
            part.forget_if_changed()
    return known


def _wrapped(model: nn.Module, call: Call | None, trains: bool) -> Network:
    known = Network.known(model)
    if known is not None and (call is None or known.call is call):
        return known
    if known is not None and not trains:  # the same calibration with another call
        other = copy.copy(known)
        other.call, other._noted = call, False
        other._found = known._found if as_chain(model) is not None else None
        return other
    made = Network(model, call)
    made._noted = True
    made.note()
    return made
