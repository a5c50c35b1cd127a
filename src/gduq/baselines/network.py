"""`Network`: any module with the face of a predictor, one hypothesis per row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from gduq.errors import InputError
from gduq.graph import check_graph, label_rows, targets
from gduq.nn.call import Call, call_network
from gduq.nn.replay import one_pass
from gduq.nn.specs import network_spec
from gduq.nn.tracing import trace
from gduq.nn.trunk import Ending, Trunk, as_chain, as_logits, check_logits
from gduq.prediction.predictor import Answer, HeadJob, Predictor, Supply

__all__ = ["Network", "as_predictor"]


class _Found(NamedTuple):
    """What a first pass showed.

    Attributes:
        trunk: The network before its last part, where there is such a part.
        ending: What it ends in, where its outputs are no logits.
        linear: Whether nothing bounds its outputs.
    """

    trunk: Trunk | None
    ending: Ending | None
    linear: bool


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
        if as_chain(net) is not None:
            self._found = _Found(Trunk.of(net), None, linear=True)

    def locate(self, graph: Any) -> None:
        if self._found is None:
            seen = trace(self.net, graph, self.call)
            trunk = Trunk.seen(self.net, seen, self.call)  # it may answer without one, too
            self._found = _Found(trunk, seen.ending, seen.linear)

    @property
    def trunk(self) -> Trunk | None:
        return None if self._found is None else self._found.trunk

    def forward(self, graph: Any) -> Tensor:
        """Logits ``[rows, O]``."""
        self.locate(graph)
        assert self._found is not None
        if as_chain(self.net) is not None:
            return self._checked(call_network(self.net, graph, self.call))
        with one_pass():  # another thread may have put a slot into the network
            outputs = call_network(self.net, graph, self.call)
        return self._checked(as_logits(outputs, self._found.ending))

    def _checked(self, outputs: Tensor) -> Tensor:
        assert self._found is not None
        known = self._found.linear or self._found.ending is not None
        return check_logits(outputs, known)

    def answer(self, graph: Any, features: bool = False) -> Answer:
        check_graph(graph)
        self.locate(graph)
        if not features or self.trunk is None:
            outputs = self(graph)
            return Answer(outputs[label_rows(graph, outputs.size(0))].unsqueeze(0))
        h, outputs = self.trunk.run(graph)
        rows = self._checked(outputs)[label_rows(graph, outputs.size(0))]
        return Answer(rows.unsqueeze(0), self.trunk.features(h, graph))

    def from_rows(self, h: Tensor, outputs: Tensor) -> Tensor:
        return outputs.unsqueeze(0)

    def head_job(self, h: Tensor) -> HeadJob | None:
        raise InputError(
            "a network with parameters to train",
            "none that requires_grad",
            "Call net.requires_grad_(True), or gduq.anchor(net) to train a head on it.",
        )

    def share_trunk(self, trunk: Trunk) -> None:
        linear = trunk.has_head if self._found is None else self._found.linear
        self.net, self._found = trunk.net, _Found(trunk, trunk.ending, linear)

    def loss(self, graph: Any, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        assert self.target is not None
        check_graph(graph)
        outputs = self(graph)
        outputs = outputs[label_rows(graph, outputs.size(0))]
        y = targets(graph, outputs.size(0))
        if y is None:
            raise InputError("graphs with labels y", "a batch without")
        y = self.target.check(y, "train")
        losses = self.target.losses(outputs, y).unsqueeze(0)
        weights = self.target.row_weights(y)
        counts = torch.ones_like(losses) if weights is None else weights.to(losses).unsqueeze(0)
        return losses * counts, counts

    def spec(self) -> dict[str, Any]:
        found = self._found
        trunk = self.trunk
        known = None if found is None else {"ending": found.ending, "linear": found.linear}
        return {
            "kind": self.kind,
            "call": self.call is not None,
            "net": network_spec(self.net),
            "trunk": None if trunk is None else trunk.spec(),
            "found": known,
        }

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any], supply: Supply) -> Network:
        model = cls(supply.net(spec["net"]), supply.call(spec))
        found, trunk = spec["found"], spec["trunk"]
        if found is not None:
            known = None if trunk is None else Trunk.from_spec(trunk, model.net, model.call)
            model._found = _Found(known, found["ending"], found["linear"])
        return model

    def __repr__(self) -> str:
        where = "" if self.trunk is None else f"; representation: {self.trunk.description}"
        return f"Network({type(self.net).__name__}{where})"


def as_predictor(model: nn.Module, call: Call | None = None) -> Predictor:
    """The model itself, or a plain network as a `Network`; the same object every time."""
    model = getattr(model, "_orig_mod", model)  # what torch.compile wrapped
    if isinstance(model, Predictor):
        return model
    if not isinstance(model, nn.Module):
        raise InputError("a model: a gduq predictor or a torch module", type(model).__name__)
    known = model.__dict__.get("_gduq_network")
    if not isinstance(known, Network) or (call is not None and known.call is not call):
        known = Network(model, call)
        model.__dict__["_gduq_network"] = known  # beside its modules: state_dict stays its own
    return known
