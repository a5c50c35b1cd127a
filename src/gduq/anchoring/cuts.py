"""Where a network is cut: `Cut` and its kinds, and how a recipe's place is found."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from gduq._torch import exporting
from gduq.anchoring.anchors import AnchoredLinear
from gduq.anchoring.recipe import Recipe
from gduq.errors import InputError, did_you_mean
from gduq.graphs import Graph, check_graph, num_rows
from gduq.nn.gnn import GNN, as_chain
from gduq.nn.gnn_settings import ChainPoint
from gduq.nn.layers import PropagationLayer, Structure
from gduq.prediction import Target, Values
from gduq.tracing.call import (
    LINEAR,
    Call,
    as_logits,
    call_network,
    check_complete,
    check_logits,
    copied,
    cut_names,
    evaluating,
    row_counts,
)
from gduq.tracing.trace import ADVICE, Location, Trace, record, trace
from gduq.tracing.trunk import Trunk, no_place, run_through, take_linear

__all__ = ["AnchoredHead", "Cut", "GNNCut", "HeadCut", "Read", "Tail", "cut_from", "cut_points",
           "find_cut"]  # fmt: skip

Read = Callable[[Tensor, slice], Tensor]  # of h [n, d] and a part of D copies: z [len, n, m]

_CHUNK = 2**19  # most numbers of a layer held at once while copies pass through a `GNN`
_MOST = 4096  # channels of an input that a new map is put before
_FOUND = ("head", "readout")  # places in any network


class Cut(nn.Module):
    """Any network, cut where its trunk ends: before a submodule, or at its input (``""``).

    Somebody else provides the linear map there: its own, or one of width d that is put in. Every
    copy is a pass; the other kinds know a shorter way.

    Args:
        trunk: The network up to the cut.
        earlier: Paths of the modules that run before the cut only.
    """

    kind: ClassVar[str] = "module"
    description: str  # where it is, for people
    frozen = False  # whether what runs before the cut stays as it is, in evaluation mode
    layer: PropagationLayer | None = None  # whose linear operator on rows follows the map

    def __init__(self, trunk: Trunk, earlier: Sequence[str]) -> None:
        net, path, width = trunk.net, trunk.path, trunk.channels
        where, taken = (f"'{path}'", take_linear(net, path)) if path else ("the input", None)
        if path and taken is None:
            where += f", the input of a {type(net.get_submodule(path)).__name__}"
        if width > _MOST and taken is None:
            got = f"{width}, which would add {2 * width**2:,} weights"
            do = "Anchor at a linear layer: see gduq.cut_points."
            raise InputError(f"at most {_MOST} channels for a map put before {where}", got, do)
        self._open(trunk, taken, map(net.get_submodule, earlier), earlier=list(earlier))
        self.description, self.moves = f"{where}, {self.description}", bool(path)

    def _open(
        self, trunk: Trunk, taken: nn.Linear | None, before: Iterable[nn.Module], **found: object
    ) -> None:
        """Cut before the network's own map or, where that is ``None``, an identity map. ``found``
        are the arguments beside the trunk, as JSON holds them."""
        super().__init__()
        like = next(trunk.net.parameters(), torch.empty(0))
        plain = taken or _linear(torch.eye(trunk.channels).to(like))
        self.trunk, self.rows, self.row_kind = trunk, trunk.rows, trunk.row_kind
        self.unread = [plain]  # no submodule: its parameters are not the model's
        self.channels = plain.in_features  # d, the width of h
        self.before, self.found = list(before), found
        self.moves = True  # whether the representation changes as the network learns
        self.description = f"one row per {trunk.rows}{trunk.ending_note}"

    @property
    def net(self) -> nn.Module:
        return self.trunk.net

    def prefix(self, graph: Graph) -> Tensor:
        """The representation ``h`` ``[n, d]`` at the cut."""
        check_graph(graph)
        return self._checked(self.trunk(graph), graph)

    def run(self, graph: Graph, read: Read, copies: int) -> Tensor:
        """Outputs ``[D, rows, O]`` where ``read`` turns ``h`` into what D copies go on with."""
        check_graph(graph)

        def one(k: int) -> Tensor:
            def go_on(h: object) -> Tensor:
                return read(self._checked(h, graph), slice(k, k + 1)).squeeze(0)

            return run_through(self.net, self.trunk.path, graph, self.trunk.call, go_on)[1]

        return as_logits(torch.stack([one(k) for k in range(copies)]), self.trunk.ending)

    def _checked(self, h: object, graph: Graph) -> Tensor:
        path = self.trunk.path
        if isinstance(h, Tensor) and (h.is_floating_point() or not path):
            rows = h.size(0) if torch.compiler.is_compiling() else num_rows(graph, self.rows)
            if tuple(h.shape) == (rows, self.channels):
                return h if path else h.to(next(self.net.parameters()).dtype)
        wanted = f"floats of {self.channels} channels, one row per {self.rows}"
        got = f"a tensor of shape {list(h.shape)}" if isinstance(h, Tensor) else type(h)
        raise InputError(f"'{path or 'input'}' to read {wanted}", got, ADVICE)

    def spec(self) -> dict[str, object]:
        """What `cut_from` makes it of, as JSON holds it."""
        return {"kind": self.kind, "trunk": self.trunk.spec(), **self.found}

    def mix(self, z: Tensor, graph: Graph) -> Tensor:
        """The operator that follows the map: ``[D, n, m]`` in and out."""
        if self.layer is None:
            return z
        copies = Structure(graph, z.size(0))
        return copies.mix(z.flatten(0, 1), self.layer.kind).view_as(z)

    def shared(self, h: Tensor, linear: AnchoredLinear, graph: Graph) -> tuple[Tensor, Tensor]:
        """``mix(h W_h^T) + b``, computed in the cheaper order, and the factor ``[n, 1]`` by which
        `mix` multiplies an anchor's shift where all rows of a graph have the same."""
        if self.layer is None:
            base = linear.biased(linear.residual(h))
            return base, base.new_ones(1)
        structure = Structure(graph)
        base = linear.biased(self.layer.read(h, linear.weight_h, structure))
        return base, structure.gain(self.layer.kind, base.dtype)

    def freeze(self) -> None:
        """Leave what runs before the cut as it is, whatever is trained."""
        parameters = [p for module in self.before for p in module.parameters()]
        if not (self.moves or parameters):
            do = "Anchor at a later place (see gduq.cut_points), or leave freeze out."
            raise InputError("layers before the anchors for freeze=True", "none at the input", do)
        self.frozen = True
        for p in parameters:
            p.requires_grad_(False)

    def train(self, mode: bool = True) -> Cut:
        super().train(mode)
        if self.frozen:
            for module in self.before:
                module.eval()
            parts = self.trunk.path.split(".")  # functional dropout asks the module it stands in
            for i in range(len(parts)):
                self.net.get_submodule(".".join(parts[:i])).training = False
        return self


def _linear(weight: Tensor) -> nn.Linear:
    """The linear map with this weight, and a bias of zeros."""
    made = nn.Linear(weight.size(1), weight.size(0)).to(weight)
    made.load_state_dict({"weight": weight, "bias": weight.new_zeros(weight.size(0))})
    return made


class GNNCut(Cut):
    """A cut of a `GNN`, whose chain can be entered there; ``keep`` its function where it grows."""

    kind = "chain"

    def __init__(self, trunk: Trunk, at: ChainPoint, keep: bool = True) -> None:
        net, where = cast(GNN, trunk.net), f"layer {at}" if isinstance(at, int) else f"the {at}"
        self._open(trunk, net.release(at, keep), net.prefix_modules(at), at=at)
        self.at, self.moves, self.description = at, at != "input", f"{where}, {self.description}"

    @property
    def layer(self) -> PropagationLayer | None:  # type: ignore[override]
        return cast(GNN, self.net).propagation_layer(self.at)

    def prefix(self, graph: Graph) -> Tensor:
        return cast(GNN, self.net).prefix(graph, self.at)[0]

    def run(self, graph: Graph, read: Read, copies: int) -> Tensor:
        net, at_once = cast(GNN, self.net), copies
        h, virtual = net.prefix(graph, self.at)
        if not (self.training or exporting()):  # BatchNorm sees all copies; a program has no chunks
            at_once = max(1, _CHUNK // max(1, net.layer_size(graph, self.at, h)))
        parts = []
        for start in range(0, copies, at_once):
            z = read(h, slice(start, min(start + at_once, copies)))
            structure = Structure(graph, z.size(0))
            logits = net.suffix(z.flatten(0, 1), virtual, structure, self.at)
            parts.append(logits.view(z.size(0), -1, logits.size(-1)))
        return parts[0] if len(parts) == 1 else torch.cat(parts)


class HeadCut(Cut):
    """The head of a frozen network, which reads every row by itself: the cheapest cut.

    The trunk is shared, not changed. With ``branch`` a head of one linear map stays as it is and
    gets a second branch of two layers that starts at zero, so that something is behind the anchors.
    ``values``: how many the head gives log-variances of; see `Tail.widen`.
    """

    kind = "head"

    def __init__(self, trunk: Trunk, branch: bool, values: int = 0) -> None:
        first, rest = trunk.requires_grad_(False).head()  # what follows the first map stays, too
        beside = branch and not any(isinstance(part, LINEAR) for part in rest.modules())
        width = max(32, min(first.in_features, 256))
        plain = nn.Linear(first.in_features, width).to(first.weight) if beside else first
        self._open(trunk, plain, [trunk], branch=branch)
        note = "; a second branch reads the anchors" if beside else ""
        self.description = trunk.description + note
        self.tail = Tail(rest, plain.out_features, first if beside else None, values)

    def spec(self) -> dict[str, object]:
        return super().spec() | {"values": self.tail.num_values}

    def prefix(self, graph: Graph) -> Tensor:
        with torch.no_grad():
            return self.trunk(graph)  # type: ignore[no-any-return]

    def run(self, graph: Graph, read: Read, copies: int) -> Tensor:
        h = self.prefix(graph)
        return self.tail(read(h, slice(0, copies)), h)  # type: ignore[no-any-return]


class Tail(nn.Module):
    """What follows the anchored map of a head.

    The ``rest`` of the head, which reads ``channels``; perhaps a branch beside its only linear map
    ``plain``; and perhaps ``values`` log-variances beside its means, see `widen`. Both start at 0.
    """

    shift: Tensor
    scale: Tensor

    def __init__(
        self, rest: nn.Module, channels: int, plain: nn.Linear | None, values: int = 0
    ) -> None:
        super().__init__()
        self.rest, self.channels, self.plain = rest, channels, plain
        self.out: nn.Linear | None = None
        self.noise: nn.Linear | None = None
        self.num_values = 0  # how many means have a log-variance beside them
        if plain is not None:
            plain.requires_grad_(False)
            self.out = _linear(plain.weight.new_zeros(plain.out_features, channels))
        if values:
            self.add_noise(values)

    def add_noise(self, values: int) -> None:
        """Log-variances of so many means, which are standardised by ``shift`` and ``scale``."""
        self.noise, self.num_values = _linear(torch.zeros(values, self.channels)), values
        self.register_buffer("shift", torch.zeros(values))
        self.register_buffer("scale", torch.ones(values))

    def forward(self, z: Tensor, h: Tensor) -> Tensor:
        """Outputs ``[D, n, O]`` of ``z`` ``[D, n, m]``; with log-variances ``[D, n, 2T]``."""
        read = z
        if self.plain is not None and self.out is not None:
            beside = self.out(z.relu())
            read = self.plain(h) + (beside if self.noise is None else beside * self.scale)
        found: Tensor = self.rest(read.flatten(0, 1)).unflatten(0, z.shape[:2])
        if self.noise is None:
            return found
        centred = (found - self.shift) / self.scale
        return torch.cat([centred, self.noise(z.relu()).expand_as(centred)], dim=-1)

    @torch.no_grad()
    def widen(self, target: Target, outputs: Tensor, y: Tensor, anew: bool) -> None:
        """Where noise is wanted, give log-variances beside the means, both in standardised units,
        in which all that is new learns (``anew``: a whole head, but for a branch); they start from
        what the network says of some rows ``[n, T]`` and their truth."""
        if self.num_values or not (isinstance(target, Values) and target.needs_noise):
            return
        self.add_noise(target.num_values)
        self.to(outputs)
        assert self.noise is not None
        start = target.with_noise(target.to_params(outputs).unsqueeze(0), y).noise
        self.noise.bias.copy_(outputs.new_tensor(start))
        if target.raw and not (anew and self.plain is None):
            self.shift.copy_(outputs.new_tensor(target.shift))
            self.scale.copy_(outputs.new_tensor(target.scale))


class AnchoredHead(nn.Module):
    """The head of a frozen model: the map that reads the pair, which learns, and what follows."""

    def __init__(self, linear: AnchoredLinear, tail: Tail) -> None:
        super().__init__()
        self.linear, self.tail = linear, tail

    def forward(self, h: Tensor, c: Tensor, masked: Tensor | None = None) -> Tensor:
        """Outputs ``[D, n, O]`` of rows ``h`` ``[n, d]``; anchors as `AnchoredLinear` has them."""
        return self.tail(self.linear(h, c, masked), h)  # type: ignore[no-any-return]


# -- finding a place -------------------------------------------------------------------------------


def find_cut(
    net: nn.Module, recipe: Recipe, call: Call | None = None, graph: Graph | None = None
) -> Cut | None:
    """The cut that a recipe names, of a network (which it changes) or of a trunk (which it shares).

    ``None`` where only a pass over a ``graph`` that the network takes can show it.
    """
    at, chain, of_head = recipe.at, as_chain(net), recipe.freeze and recipe.at in _FOUND
    if isinstance(net, Trunk) or (chain is not None and of_head):
        return HeadCut(net if isinstance(net, Trunk) else Trunk.of(net), branch=at == "head")
    if chain is not None:
        known = {"head": chain.points[-1]} | {point: point for point in chain.points}
        known |= {-i: point for i, point in enumerate(chain.points[::-1]) if i}
        if at not in known or isinstance(at, bool):
            raise InputError(f"at one of {', '.join(map(repr, known))}", repr(at))
        point, task = known[at], chain.task
        rows = task if point == "readout" else "node"
        trunk = Trunk(net, Location("", chain.hidden_channels, rows, task))
        return GNNCut(trunk, point, keep=recipe.init == "identity")
    if graph is None:
        check_complete(net)
        names = list(dict.fromkeys([*_FOUND, "input", *cut_names(net)]))
        if at not in names and (isinstance(at, bool) or not isinstance(at, int)):
            do = did_you_mean(at, names, otherwise="")
            raise InputError(f"at one of {', '.join(map(repr, names))}", repr(at), do)
        return None
    seen = trace(net, graph, call)
    if seen.head is None and seen.ending is None:  # else it is known to give logits
        with torch.no_grad(), evaluating(net):
            check_logits(call_network(net, graph, call), known=not seen.bounded)
    shown = Trunk.from_trace(net, seen, call) if of_head else None
    if shown is not None and shown.has_head:
        return HeadCut(shown, branch=at == "head")
    paths = _paths(net, seen, at)
    path = next((path for path in paths if _matters(net, graph, call, path)), None)
    if path is None:
        wanted = "a place that the outputs of evaluation mode depend on"
        got = f"at='{paths[0] or 'input'}', which changes nothing there"
        raise InputError(wanted, got, ADVICE)
    names, trunk = list(seen.calls), Trunk(net, seen.location(path), call)  # the first name is ""
    before = [n for n in names[1 : names.index(path)] if not path.startswith(f"{n}.")]
    return Cut(trunk, before)


def _paths(net: nn.Module, seen: Trace, at: int | str) -> Sequence[str]:
    """The submodules that may read the pair, the best one first."""
    layers = seen.layers
    if at in _FOUND and seen.head is not None:
        return [seen.head.path]
    if at in _FOUND and not layers:
        raise no_place(net)
    if at in _FOUND or (at == -1 and layers):  # the last layers are convolutions: their input
        return layers[::-1]
    if isinstance(at, str):
        return ["" if at == "input" else at]
    if -len(layers) <= at < len(layers):
        return [layers[at]]
    wanted = f"at as the number of one of the {len(layers)} layers {', '.join(layers)}"
    raise InputError(wanted, at)


def _matters(net: nn.Module, graph: Graph, call: Call | None, path: str) -> bool:
    """Whether the outputs of evaluation mode depend on what a submodule reads."""

    def outputs(factor: float) -> Tensor:
        with torch.no_grad():
            return run_through(copied(net).eval(), path, graph, call, lambda h: h * factor)[1]

    try:
        if bool(outputs(math.nan).isnan().any()):
            return True
        return not torch.equal(outputs(-2.0), outputs(1.0))  # it may drop NaN
    except Exception:  # a network may refuse any other numbers than its own
        return True


def cut_from(spec: Mapping[str, Any], net: nn.Module, call: Call | None) -> Cut:
    """The cut of a fresh network that `Cut.spec` described."""
    kinds: dict[object, Callable[..., Cut]] = {cut.kind: cut for cut in (Cut, GNNCut, HeadCut)}
    own = {name: value for name, value in spec.items() if name not in ("kind", "trunk")}
    if spec["kind"] not in kinds:
        raise InputError("a kind of cut this gduq knows", repr(spec["kind"]), "Upgrade gduq.")
    return kinds[spec["kind"]](Trunk.from_spec(spec["trunk"], net, call), **own)


def cut_points(
    net: nn.Module, graph: Graph, call: Call | None = None
) -> list[tuple[int | str, tuple[int, int]]]:
    """Where a network can be anchored: names for ``at``, with the shape ``(rows, d)`` there.

    Run on a graph that the network takes; ``call`` is as in `gduq.anchor`.

    Example:
        >>> from torch_geometric.data import Data
        >>> from gduq.nn import GNN
        >>> graph = Data(x=torch.ones(3, 4), edge_index=torch.tensor([[0, 1], [1, 2]]))
        >>> cut_points(GNN(4, 8, 2, num_layers=2, conv="gcn"), graph)
        [('input', (3, 4)), (1, (3, 8)), ('readout', (1, 8))]
    """
    check_graph(graph)
    chain = as_chain(net)
    if chain is not None:
        with torch.no_grad(), evaluating(net):
            read = [(at, chain.prefix(graph, at)[0]) for at in chain.points]
        return [(at, (h.size(0), h.size(1))) for at, h in read]
    check_complete(net)
    names, sizes = ["", *cut_names(net)], row_counts(graph).values()
    return [
        (name or "input", (shapes[0][0], shapes[0][1]))
        for name, shapes in record(net, graph, call).calls.items()
        if name in names and [len(shape) for shape in shapes] == [2] and shapes[0][0] in sizes
    ]
