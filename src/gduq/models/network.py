"""`Network`: any module with the face of a predictor, one hypothesis per row."""

from __future__ import annotations

import copy
import zlib
from typing import Any

from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from gduq.errors import InputError, warn_user
from gduq.graphs import Graph, check_graph, label_rows
from gduq.models.predictor import Calibrate, ModelFactory, ModelOutput, Predictor, Spec
from gduq.nn.gnn import as_chain, network_spec
from gduq.ood.nearest import Novelty
from gduq.ood.trust import Trust
from gduq.tracing.call import Call, as_logits, call_network, check_complete, check_logits
from gduq.tracing.trace import trace
from gduq.tracing.trunk import Trunk, answer_features

__all__ = ["Network", "as_predictor", "checked_predictor", "fingerprint"]

# What is known of users' networks: the `Network` around one, without it. Nothing is written into
# the network, and nothing here keeps it alive.
_KNOWN: WeakIdKeyDictionary = WeakIdKeyDictionary()


def fingerprint(net: nn.Module) -> list[int]:
    """A checksum of every weight and buffer; copies, and moves to another device, have the same."""
    found = (value.detach().double() for value in (*net.parameters(), *net.buffers()))
    return [zlib.crc32(value.cpu().numpy().tobytes()) for value in found]


class Network(Predictor):
    """A plain network; it is not copied, so that training it trains yours.

    What it ends in (softmax, sigmoid), which rows it answers for and where its head is, a first
    pass over a graph shows.

    Args:
        net: Any module.
        call: As in `gduq.anchor`.
    """

    def __init__(self, net: nn.Module, call: Call | None = None) -> None:
        super().__init__()
        if isinstance(net, Predictor):
            raise InputError("a network that is not wrapped yet", type(net).__name__)
        self.net, self.call = net, call
        self._found: Spec = {}  # by a first pass, as JSON holds it
        self._fitted: list[int] | None = None  # fingerprint of the weights that were calibrated
        self._noted = False  # whether `as_predictor` made it, so that what it knows is kept
        if as_chain(net) is not None:
            self._found = {"trunk": Trunk.of(net).spec(), "ending": None, "bounded": False}

    def locate(self, graph: Graph) -> None:
        if not self._found:
            check_complete(self.net)
            seen = trace(self.net, graph, self.call)
            trunk = Trunk.from_trace(self.net, seen, self.call)  # it may answer without one, too
            spec = None if trunk is None else trunk.spec()
            self._found = {"trunk": spec, "ending": seen.ending, "bounded": seen.bounded}
            self.note()

    @property
    def trunk(self) -> Trunk | None:
        if self._found.get("trunk") is None:
            return None
        known = vars(self)  # where it is no part of the state, as the network is
        if "_trunk" not in known:
            known["_trunk"] = Trunk.from_spec(self._found["trunk"], self.net, self.call)
        return known["_trunk"]  # type: ignore[no-any-return]

    @property
    def bounded(self) -> bool:
        return self._found.get("bounded", False) and self._found["ending"] is None

    def forward(self, graph: Graph) -> Tensor:
        """Logits ``[rows, O]``."""
        self.locate(graph)
        outputs = call_network(self.net, graph, self.call)
        return self._checked(as_logits(outputs, self._found["ending"]))

    def _checked(self, outputs: Tensor) -> Tensor:
        values = self.target is not None and self.target.has_units
        return outputs if values else check_logits(outputs, known=not self.bounded)

    def forward_samples(self, graph: Graph, features: bool = False) -> ModelOutput:
        check_graph(graph)
        self.locate(graph)
        trunk, rows = self.trunk if features else None, None
        if trunk is None:
            outputs = self(graph)
        else:
            h, outputs = trunk.run(graph)
            outputs = self._checked(outputs)
            rows = answer_features(h, graph, trunk.rows, trunk.row_kind)
        outputs = self._formed(outputs[label_rows(graph, outputs.size(0))])
        return ModelOutput(outputs.unsqueeze(0), rows)

    # -- calibration ---------------------------------------------------------------------------

    def set_temperature(self, value: float, how: Calibrate) -> None:
        super().set_temperature(value, how)
        self._fitted = fingerprint(self.net)

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self._fitted = None  # they come with what is known of them

    def note(self) -> None:
        if self._noted:
            rest = copy.copy(self)
            rest._modules = {name: part for name, part in self._modules.items() if name != "net"}
            vars(rest).pop("_trunk", None)
            _KNOWN[self.net] = rest

    # -- training ------------------------------------------------------------------------------

    def from_rows(self, h: Tensor, outputs: Tensor) -> Tensor:
        return self._formed(outputs).unsqueeze(0)

    def loss(self, graph: Graph) -> tuple[Tensor, Tensor]:
        check_graph(graph)
        return self._losses(graph, self(graph).unsqueeze(0))

    def _spec(self) -> Spec:
        net, call = network_spec(self.net), self.call is not None
        return {"call": call, "net": net, "found": self._found}

    @classmethod
    def from_spec(cls, spec: Spec, factory: ModelFactory) -> Network:
        model = cls(factory.net(spec["net"]), factory.call(spec))
        model._found = spec["found"]
        model.trunk  # noqa: B018  (raises for a place that the network does not have)
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
    rest: Network | None = _KNOWN.get(model)
    another = rest is not None and call is not None and call is not rest.call
    if rest is None or (another and trains):
        known = Network(model, call)
        known._noted = True
        known.note()
        return known
    known = copy.copy(rest)
    known._modules = {**rest._modules, "net": model}
    if another:  # the same calibration, this time only
        known.call, known._noted = call, False
        known._found = known._found if as_chain(model) is not None else {}
    return known


def checked_predictor(model: nn.Module) -> Predictor:
    """`as_predictor` for what lasts (a bundle, a service, a report): what `gduq.fit` found is
    dropped, with a warning, where weights have changed since. `gduq.predict` does not look: that
    would take a fifth of the time of a small graph."""
    known = as_predictor(model)
    for part in (module for module in known.modules() if isinstance(module, Network)):
        fitted = part.calibration is not None or part.novelty.fitted
        if fitted and part._fitted not in (None, fingerprint(part.net)):
            part.novelty, part.trust = Novelty(), Trust()
            part.set_temperature(1.0, None)
            part.note()
            lost = "not calibrated any more, and without novelty, until gduq.fit is called again"
            warn_user(f"the network's weights have changed since gduq.fit: {lost}")
    return known
