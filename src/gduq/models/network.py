"""`Network`: any module with the face of a predictor, one hypothesis per row."""

from __future__ import annotations

import copy
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

# What is known of users' networks: the `Network` around one without it, and the spec of its trunk.
# Nothing is written into the network, and nothing here keeps it alive.
_KNOWN: WeakIdKeyDictionary = WeakIdKeyDictionary()


class _Found(NamedTuple):
    """What a first pass showed."""

    trunk: Trunk | None  # the network before its last part, where there is such a part
    ending: Ending | None  # what it ends in, where its outputs are no logits
    bounded: bool  # whether something bounds its outputs


@torch.no_grad()
def _fingerprint(net: nn.Module) -> Tensor:
    """Two sums per weight or buffer ``[t, 2]``: of all entries, each times its place, and of their
    sizes. Copies and moves to another device leave them alone."""
    found = [torch.zeros(2, dtype=torch.float64)]
    for given in (*net.parameters(), *net.buffers()):
        if not isinstance(given, LAZY):
            flat = given.double().flatten()
            places = torch.linspace(1, 2, flat.numel(), dtype=flat.dtype, device=flat.device)
            found.append(torch.stack([flat @ places, flat.abs().sum()]).cpu())
    return torch.stack(found)


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
        return self._checked(as_logits(call_network(self.net, graph, self.call), found.ending))

    def _checked(self, outputs: Tensor) -> Tensor:
        assert self._found is not None
        known = not self._found.bounded or self._found.ending is not None
        values = self.target is not None and self.target.has_units
        return outputs if values else check_logits(outputs, known)

    def forward_samples(self, graph: Any, features: bool = False) -> ModelOutput:
        check_graph(graph)
        self._ensure_found(graph)
        if not features or self.trunk is None:
            outputs, rows = self(graph), None
        else:
            h, outputs = self.trunk.run(graph)
            outputs, rows = self._checked(outputs), self.trunk.features(h, graph)
        outputs = self._formed(outputs[label_rows(graph, outputs.size(0))])
        return ModelOutput(outputs.unsqueeze(0), rows)

    # -- calibration ---------------------------------------------------------------------------

    def set_temperature(self, value: float, how: Calibrate) -> None:
        super().set_temperature(value, how)
        self._fitted = _fingerprint(self.net)
        self.note()

    def forget_if_changed(self) -> None:
        """Drop what `gduq.fit` found out about weights that are no longer these."""
        if self._fitted is None or not (self.calibration is not None or self.novelty.fitted):
            return
        now, before = _fingerprint(self.net), self._fitted
        alike = now.shape == before.shape
        if alike and bool(((now - before).abs() <= 1e-9 * before[:, 1:]).all()):
            return
        self.novelty = Novelty()
        self.set_temperature(1.0, None)
        lost = "not calibrated any more, and without novelty, until gduq.fit is called again"
        warn_user(f"the network's weights have changed since gduq.fit: {lost}")

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self._fitted = None  # they come with what is known of them

    # -- what is known of a user's network -----------------------------------------------------

    def note(self) -> None:
        """For the next call with the network; see `Predictor.note`."""
        if self._noted:
            rest = copy.copy(self)
            rest._modules = {name: part for name, part in self._modules.items() if name != "net"}
            rest._found = None if self._found is None else self._found._replace(trunk=None)
            _KNOWN[self.net] = rest, None if self.trunk is None else self.trunk.spec()

    @classmethod
    def known(cls, net: nn.Module) -> Network | None:
        """The network around a user's one as it was noted, if it was."""
        rest, trunk = _KNOWN.get(net) or (None, None)
        if rest is None:
            return None
        made: Network = copy.copy(rest)
        made._modules = {**rest._modules, "net": net}
        if trunk is not None and made._found is not None:
            made._found = made._found._replace(trunk=Trunk.from_spec(trunk, net, made.call))
        return made

    # -- training ------------------------------------------------------------------------------

    def from_rows(self, h: Tensor, outputs: Tensor) -> Tensor:
        return self._formed(outputs).unsqueeze(0)

    def share_trunk(self, trunk: Trunk) -> None:
        bounded = not trunk.has_head if self._found is None else self._found.bounded
        self.net, self._found = trunk.net, _Found(trunk, trunk.ending, bounded)

    def loss(self, graph: Any, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
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
    Another ``call`` than that of `gduq.fit` is used this time only, or, for a model that
    ``trains``, from now on.
    """
    model = getattr(model, "_orig_mod", model)  # what torch.compile wrapped
    if not isinstance(model, nn.Module):
        raise InputError("a model: a gduq predictor or a torch module", type(model).__name__)
    if isinstance(model, Predictor):
        return model
    known = Network.known(model)
    if known is None or (trains and call is not None and known.call is not call):
        known = Network(model, call)
        known._noted = True
        known.note()
    elif call is not None and known.call is not call:  # the same calibration, this time only
        known.call, known._noted = call, False
        known._found = known._found if as_chain(model) is not None else None
    return known


def checked_predictor(model: nn.Module) -> Predictor:
    """`as_predictor` for what lasts (a bundle, a service, a report): what `gduq.fit` found is
    dropped, with a warning, where weights have changed since. `gduq.predict` does not look: that
    would take a fifth of the time of a small graph."""
    known = as_predictor(model)
    for part in known.modules():
        if isinstance(part, Network):
            part.forget_if_changed()
    return known
