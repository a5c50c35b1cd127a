"""Where a network is cut: `CutPoint` and its kinds, and how a recipe's place is found."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from gduq._torch import exporting
from gduq.anchoring.equation import AnchoredLinear
from gduq.anchoring.recipe import Recipe
from gduq.errors import InputError, did_you_mean
from gduq.graphs import Graph, Rows, check_graph, num_rows
from gduq.graphs.sparse import linear
from gduq.nn.forced_dropout import ForcedDropout
from gduq.nn.gnn import GNN, as_chain
from gduq.nn.gnn_settings import ChainPoint
from gduq.nn.layers import PropagationLayer, Structure
from gduq.prediction import Values
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
    input_width,
    redraw,
)
from gduq.tracing.trace import Trace, infer_row_kind, row_counts, trace
from gduq.tracing.trunk import (
    NoiseHead,
    Replay,
    Trunk,
    arriving,
    no_place,
    run_through,
    standardised_last,
    take_linear,
)

__all__ = [
    *("AnchoredHead", "CutPoint", "GNNCut", "HeadCut", "ModuleCut", "Read", "Tail", "Uncut"),
    *("cut_from", "cut_points", "needs_graph", "resolve_cut"),
]

Read = Callable[[Tensor, slice], Tensor]  # of h [n, d] and a part of D copies: z [len, n, m]

_CHUNK = 2**19  # most numbers of a layer held at once while copies pass through a `GNN`
_MOST = 4096  # channels of an input that a new map is put before
_FOUND = ("head", "readout")  # places in any network
_ADVICE = "See gduq.cut_points(net, graph) for the places one can anchor at."


class Uncut(nn.Module):
    """A network before a graph has shown where it is cut."""

    channels, row_kind = 0, None  # no width: nothing is cut yet

    def __init__(self, net: nn.Module, at: int | str) -> None:
        super().__init__()
        self.net, self.description = net, f"at={at!r}, found at the first graph"

    def prefix_modules(self) -> list[nn.Module]:
        return []


class CutPoint(nn.Module, ABC):
    """A network cut in front of one linear map, which somebody else provides.

    Between that map and the rest a layer may mix rows by a linear operator (`layer`).

    Args:
        plain: The network's own map, or an identity map where a new layer is put in.
        rows: What the rows of ``h`` are.
        row_kind: What the rows of the output are.
    """

    net: nn.Module
    plain: nn.Linear
    holds_copies = False  # whether several copies pass through `run` as in one batch
    frozen = False  # whether what runs before the point stays in evaluation mode
    moves = True  # whether the representation changes as the network learns
    has_prefix = True  # whether something that learns comes before the point
    layer: PropagationLayer | None = None  # whose linear operator on rows follows the map

    def __init__(self, plain: nn.Linear, rows: Rows, row_kind: Rows) -> None:
        super().__init__()
        self.__dict__["plain"] = plain  # not a submodule: its parameters are not the model's
        self.channels = plain.in_features  # d, the width of h
        self.rows: Rows = rows
        self.row_kind: Rows = row_kind

    @abstractmethod
    def prefix(self, graph: Graph) -> Tensor:
        """The representation ``h`` ``[n, d]`` at the point."""

    @abstractmethod
    def run(self, graph: Graph, read: Read, copies: int) -> Tensor:
        """Outputs ``[D, rows, O]`` where ``read`` turns ``h`` into what D copies go on with."""

    def read(self, h: Tensor, weight: Tensor, graph: Graph) -> Tensor:
        """``mix(h W^T)``, in the cheaper order."""
        layer = self.layer
        return linear(h, weight) if layer is None else layer.read(h, weight, Structure(graph))

    def mix(self, z: Tensor, graph: Graph) -> Tensor:
        """The operator that follows the map: ``[D, n, m]`` in and out."""
        if self.layer is None:
            return z
        copies = Structure(graph, z.size(0))
        return copies.mix(z.flatten(0, 1), self.layer.kind).view_as(z)

    def gain(self, graph: Graph, like: Tensor) -> Tensor | None:
        """What `mix` does to a vector that all rows share, ``[n, 1]``; ``None`` means 1."""
        return None if self.layer is None else Structure(graph).gain(self.layer.kind, like.dtype)

    @abstractmethod
    def prefix_modules(self) -> list[nn.Module]:
        """The modules known to run before the point only."""

    @property
    @abstractmethod
    def description(self) -> str:
        """Where it is, for people."""

    @abstractmethod
    def spec(self) -> dict[str, Any]:
        """What was found in the network, as JSON holds it."""


class GNNCut(CutPoint):
    """A point of a `GNN`, whose chain can be entered there."""

    holds_copies = True
    net: GNN

    def __init__(self, net: GNN, point: ChainPoint, keep: bool) -> None:
        taken = net.release(point, keep)
        plain = _identity_map(net.hidden_channels, net) if taken is None else taken
        super().__init__(plain, net.task if point == "readout" else "node", net.task)
        self.net, self.point, self.keep = net, point, keep
        self.moves = point != "input"
        self.has_prefix = self.moves or len(net.embeddings) > 0

    def prefix(self, graph: Graph) -> Tensor:
        return self.net.prefix(graph, self.point)[0]

    def run(self, graph: Graph, read: Read, copies: int) -> Tensor:
        with evaluating(self) if self.frozen else nullcontext():
            h, virtual = self.net.prefix(graph, self.point)
        at_once = copies
        if not (self.training or exporting()):  # BatchNorm sees all copies; a program has no chunks
            at_once = max(1, _CHUNK // max(1, self.net.layer_size(graph, self.point, h)))
        parts = []
        for start in range(0, copies, at_once):
            z = read(h, slice(start, min(start + at_once, copies)))
            structure = Structure(graph, z.size(0))
            logits = self.net.suffix(z.flatten(0, 1), virtual, structure, self.point)
            parts.append(logits.view(z.size(0), -1, logits.size(-1)))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    @property
    def layer(self) -> PropagationLayer | None:  # type: ignore[override]
        return self.net.propagation_layer(self.point)

    def prefix_modules(self) -> list[nn.Module]:
        return self.net.prefix_modules(self.point)

    @property
    def description(self) -> str:
        where = f"layer {self.point}" if isinstance(self.point, int) else f"the {self.point}"
        return f"{where}, one row per {self.rows}"

    def spec(self) -> dict[str, Any]:
        return {"kind": "chain", "at": self.point, "keep": self.keep}


class _TrunkCut(CutPoint):
    trunk: Trunk

    @property
    def net(self) -> nn.Module:  # type: ignore[override]
        return self.trunk.net


class ModuleCut(_TrunkCut):
    """Any module, cut where its trunk ends: in front of a submodule, or at its input (``""``).

    A plain ``Linear`` is read for; before anything else a map of width d is put in. What comes
    before the cut is computed once for all copies, what follows for each of them.

    Args:
        before: Paths of the submodules that run before the cut.
    """

    def __init__(self, trunk: Trunk, before: Sequence[str] = ()) -> None:
        net, path = trunk.net, trunk.path
        part = net.get_submodule(path)
        width = input_width(part)
        if width is None:
            raise InputError(
                f"a submodule whose input width can be told, to anchor at '{path or 'input'}'",
                type(part).__name__,
                "Set its in_channels, or choose one of: " + ", ".join(cut_names(net)),
            )
        if width > _MOST and not path:
            raise InputError(
                f"an input of at most {_MOST} channels for a map put before the network",
                f"{width}, which would add {2 * width**2:,} weights",
                "Anchor at the linear layer that reads the input: see gduq.cut_points.",
            )
        taken = take_linear(net, path) if path else None
        super().__init__(taken or _identity_map(width, net), trunk.rows, trunk.row_kind)
        self.trunk, self.path, self.before = trunk, path, list(before)
        self.moves = self.has_prefix = bool(path)
        self._where = f"'{path}'" if path else "the input"
        if path and taken is None:
            self._where += f", the input of a {type(part).__name__}"

    def prefix(self, graph: Graph) -> Tensor:
        check_graph(graph)
        found = arriving(self.net, self.path, graph, self.trunk.call) if self.path else graph.x
        return self._checked(found, graph)

    def run(self, graph: Graph, read: Read, copies: int) -> Tensor:
        check_graph(graph)
        dynamo: Any = torch._C._dynamo.eval_frame  # compiled parts of a pass hide their calls
        traced = exporting() or dynamo.get_eval_frame_callback() or ForcedDropout.active()
        replay = Replay() if self.path and copies > 1 and not traced else None
        found = []
        for part in (slice(k, k + 1) for k in range(copies)):

            def go_on(h: Any, part: slice = part) -> Tensor:
                if replay is not None:
                    replay.reach()
                return read(self._checked(h, graph), part).squeeze(0)

            with replay or nullcontext():
                found.append(self._pass(graph, go_on))
        return as_logits(torch.stack(found), self.trunk.ending)

    def _pass(self, graph: Graph, go_on: Callable[[Any], Tensor]) -> Tensor:
        if self.path:
            return run_through(self.net, self.path, graph, self.trunk.call, go_on)
        graph = copy.copy(graph)
        graph.x = go_on(graph.get("x"))
        return call_network(self.net, graph, self.trunk.call)

    def train(self, mode: bool = True) -> ModuleCut:
        super().train(mode)
        if self.frozen:  # functional dropout looks at the mode of the module it stands in
            parts = self.path.split(".")
            for i in range(len(parts)):
                self.net.get_submodule(".".join(parts[:i])).training = False
        return self

    def prefix_modules(self) -> list[nn.Module]:
        return [self.net.get_submodule(path) for path in self.before]

    def _checked(self, h: object, graph: Graph) -> Tensor:
        where = f"'{self.path}'" if self.path else "the network's first layer"
        if not isinstance(h, Tensor) or h.dim() != 2 or (self.path and not h.is_floating_point()):
            got = f"a tensor of shape {list(h.shape)}" if isinstance(h, Tensor) else type(h)
            raise InputError(f"{where} to read a float matrix [rows, d]", got)
        if h.size(1) != self.channels:
            do = "" if self.path else "Set net.in_channels if that is another layer's width."
            raise InputError(f"{where} to read {self.channels} channels", h.size(1), do)
        if not self.path:
            return h.to(next(self.net.parameters()).dtype)
        expected = h.size(0) if torch.compiler.is_compiling() else num_rows(graph, self.rows)
        if h.size(0) != expected:
            wanted = f"{expected} rows, one per {self.rows}, at {where}"
            raise InputError(wanted, h.size(0), _ADVICE)
        return h

    @property
    def description(self) -> str:
        return f"{self._where}, one row per {self.rows}{self.trunk.ending_note}"

    def spec(self) -> dict[str, Any]:
        return {"kind": "module", "trunk": self.trunk.spec(), "before": self.before}


def _identity_map(width: int, like: nn.Module) -> nn.Linear:
    """A linear map that changes nothing, on the device and in the precision of a network."""
    plain = nn.Linear(width, width)
    nn.init.eye_(plain.weight)
    nn.init.zeros_(plain.bias)
    return plain.to(next(like.parameters(), torch.empty(0)))


# -- the head of a frozen network ------------------------------------------------------------------


class HeadCut(_TrunkCut):
    """The head of a frozen network, which reads every row by itself: the cheapest point.

    The trunk is shared, not changed. With ``branch`` a head of one linear map stays as it is and
    gets a second branch of two layers that starts at zero, so that something is behind the anchors.
    ``values``: how many the head gives log-variances of; see `Tail.widen`.
    """

    holds_copies = True
    frozen = True

    def __init__(self, trunk: Trunk, branch: bool, values: int = 0) -> None:
        first, rest = trunk.requires_grad_(False).head()  # what follows the first map stays, too
        beside = branch and not any(isinstance(part, LINEAR) for part in rest.modules())
        width = max(32, min(first.in_features, 256))
        plain = nn.Linear(first.in_features, width).to(first.weight) if beside else first
        super().__init__(plain, trunk.row_kind, trunk.row_kind)
        self.trunk, self.branch = trunk, branch
        self.tail = Tail(rest, plain.out_features, first if beside else None)
        if values:
            self.tail.noise = NoiseHead(plain.out_features, values)

    def prefix(self, graph: Graph) -> Tensor:
        with torch.no_grad():
            h: Tensor = self.trunk(graph)
        return h

    def run(self, graph: Graph, read: Read, copies: int) -> Tensor:
        h = self.prefix(graph)
        return self.tail(read(h, slice(0, copies)), h)  # type: ignore[no-any-return]

    def prefix_modules(self) -> list[nn.Module]:
        return [self.trunk]

    @property
    def description(self) -> str:
        note = "" if self.tail.plain is None else "; a second branch reads the anchors"
        return self.trunk.description + note

    def spec(self) -> dict[str, Any]:
        values = 0 if self.tail.noise is None else self.tail.noise.linear.out_features
        return {"kind": "head", "trunk": self.trunk.spec(), "branch": self.branch, "values": values}


class Tail(nn.Module):
    """What follows the anchored map of a head: the ``rest`` of it, which reads ``channels``, and
    perhaps a branch beside its only linear map ``plain``."""

    def __init__(self, rest: nn.Module, channels: int, plain: nn.Linear | None) -> None:
        super().__init__()
        self.rest, self.channels, self.plain = rest, channels, plain
        self.out: nn.Linear | None = None
        self.noise: NoiseHead | None = None
        self.anew = False  # whether it is no longer the network's
        if plain is not None:
            plain.requires_grad_(False)
            self.out = nn.Linear(channels, plain.out_features).to(plain.weight)
            nn.init.zeros_(self.out.weight)
            nn.init.zeros_(self.out.bias)

    def forward(self, z: Tensor, h: Tensor) -> Tensor:
        """Outputs ``[D, n, O]`` of ``z`` ``[D, n, m]``."""
        read = z
        if self.plain is not None and self.out is not None:
            read = self.plain(h) + self.out(z.relu())
        found: Tensor = self.rest(read.flatten(0, 1)).unflatten(0, z.shape[:2])
        return found if self.noise is None else self.noise(found, z.relu())

    def begin_anew(self) -> None:
        """Draw all of it anew, and let it learn, as the paper does with the head of a network."""
        redraw(self.rest.requires_grad_(True))
        self.anew = True

    def widen(self, target: Values, outputs: Tensor, y: Tensor) -> None:
        """Give log-variances beside the means, both in standardised units.

        They start from what the network says of some rows ``[n, T]`` and their truth.
        """
        self.noise = NoiseHead(self.channels, target.num_values)
        self.noise.to(outputs).start(target.residual(outputs, y).to(outputs))
        if target.raw and not self.anew:
            ends = nn.Sequential(self.plain, self.rest) if self.plain is not None else self.rest
            shift, scale = outputs.new_tensor(target.shift), outputs.new_tensor(target.scale)
            if not standardised_last(ends, shift, scale):
                self.noise.standardise(shift, scale)


class AnchoredHead(nn.Module):
    """The head of a frozen model: the map that reads the pair, which learns, and what follows."""

    def __init__(self, linear: AnchoredLinear, tail: Tail) -> None:
        super().__init__()
        self.linear, self.tail = linear, tail

    def forward(self, h: Tensor, c: Tensor, masked: Tensor | None = None) -> Tensor:
        """Outputs ``[D, n, O]`` of rows ``h`` ``[n, d]`` for anchors ``c``, ``[D, n, d]`` or
        ``[D, 1, d]``."""
        z = self.linear.biased(self.linear.residual(h)) + self.linear.shift(c, masked)
        return self.tail(z, h)  # type: ignore[no-any-return]


# -- finding a place -------------------------------------------------------------------------------


def needs_graph(net: nn.Module, at: int | str) -> bool:
    """Whether only a pass over a graph shows where a place is; raises where there is none."""
    if as_chain(net) is not None:
        return False
    check_complete(net)
    if at not in _FOUND and (isinstance(at, bool) or not isinstance(at, int)):
        _check_name(net, at)
    return True


def resolve_cut(
    net: nn.Module, recipe: Recipe, call: Call | None, graph: Graph | None, trunk: Trunk | None
) -> CutPoint:
    """The point of a network (which it changes) that a recipe names.

    The graph is one that the network takes; a `GNN` needs none. A frozen head may stand on a trunk
    that it shares with other models.
    """
    chain, at = as_chain(net), recipe.at
    seen = None if graph is None or chain is not None else trace(net, graph, call)
    if recipe.freeze and at in _FOUND:
        if trunk is None:
            trunk = Trunk.of(net) if seen is None else Trunk.from_trace(net, seen, call)
        if trunk is not None and trunk.has_head:
            return HeadCut(trunk, branch=at == "head")
    if chain is not None:
        place, inner = "readout" if at == "head" else at, chain.points[:-1]
        if isinstance(place, int) and -len(inner) <= place < 0:
            place = inner[place]
        if place not in chain.points or isinstance(place, bool):
            known = ", ".join(map(repr, chain.points))
            raise InputError(f"at one of 'head', {known}", repr(at))
        return GNNCut(chain, place, keep=recipe.init == "identity")
    assert graph is not None
    assert seen is not None
    if seen.head is None and seen.ending is None:  # else it is known to give logits
        with torch.no_grad(), evaluating(net):
            check_logits(call_network(net, graph, call), known=not seen.bounded)
    if at == "input":
        return ModuleCut(Trunk(net, "", "node", seen.rows, call, seen.ending))
    matters = cache(partial(_matters, net, graph, call))
    path = _path(net, seen, at, matters)
    rows = _rows_at(net, path, seen, graph, call)
    if not matters(path):
        wanted = "a place that the outputs of evaluation mode depend on"
        raise InputError(wanted, f"at='{path}', which changes nothing there", _ADVICE)
    names = list(seen.calls)
    before = [name for name in names[: names.index(path)] if not f"{path}.".startswith(f"{name}.")]
    return ModuleCut(Trunk(net, path, rows, seen.rows, call, seen.ending), before)


def _path(net: nn.Module, seen: Trace, at: int | str, matters: Callable[[str], bool]) -> str:
    """The submodule that reads the pair; of layers at the end only one that matters."""
    many = len(seen.layers)
    if at in _FOUND and seen.head is not None:
        return seen.head.path
    if at in _FOUND and not many:
        raise no_place(net)
    if at in _FOUND or (at == -1 and many):  # the last layer is a convolution: its input
        return next(filter(matters, seen.layers[::-1]), seen.layers[-1])
    if isinstance(at, bool) or not isinstance(at, int):
        return _check_name(net, at)
    if -many <= at < many:
        return seen.layers[at]
    raise InputError(
        f"a layer from 0 to {many - 1} (or -{many} to -1) as at",
        at,
        f"The layers of message passing are {', '.join(seen.layers) or 'none'}.",
    )


def _matters(net: nn.Module, graph: Graph, call: Call | None, path: str) -> bool:
    """Whether the outputs of evaluation mode depend on what a submodule reads."""

    def out(change: Callable[[Tensor], Tensor]) -> Tensor:
        with torch.no_grad():
            return run_through(copied(net).eval(), path, graph, call, change)

    try:
        if bool(out(lambda h: h * math.nan).isnan().any()):
            return True
        return not torch.equal(out(lambda h: 1 - 2 * h), out(lambda h: h))  # it may drop NaN
    except Exception:  # a network may refuse any other numbers than its own
        return True


def _check_name(net: nn.Module, at: object) -> str:
    names = list(dict.fromkeys(["head", "input", *cut_names(net)]))
    if not isinstance(at, str) or at not in names:
        do = did_you_mean(at, names, otherwise="")
        raise InputError(f"at one of {', '.join(map(repr, names))}", repr(at), do)
    return at


def _rows_at(net: nn.Module, path: str, seen: Trace, graph: Graph, call: Call | None) -> Rows:
    """What the rows are that a submodule reads."""
    if seen.head is not None and path == seen.head.path:
        return seen.rows
    if path in seen.layers:
        return "node"
    shapes = seen.calls.get(path, [])
    if len(shapes) != 1:
        raise InputError(f"'{path}' to be called once in a pass", f"{len(shapes)} calls", _ADVICE)
    if len(shapes[0]) != 2:
        got = f"shape {list(shapes[0])}" if shapes[0] else "something else"
        raise InputError(f"'{path}' to read a float matrix [rows, d]", got, _ADVICE)
    return infer_row_kind(net, graph, call, shapes[0][0], path)


def cut_from(spec: Mapping[str, Any], net: nn.Module, call: Call | None) -> CutPoint:
    """The point of a fresh network that `CutPoint.spec` described."""
    if spec["kind"] == "chain":
        return GNNCut(net, spec["at"], spec["keep"])  # type: ignore[arg-type]
    if spec["kind"] not in ("module", "head"):
        raise InputError("a kind of point this gduq knows", repr(spec["kind"]), "Upgrade gduq.")
    trunk = Trunk.from_spec(spec["trunk"], net, call)
    if spec["kind"] == "module":
        return ModuleCut(trunk, spec["before"])
    return HeadCut(trunk, spec["branch"], spec["values"])


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
    chain = as_chain(net)
    if chain is not None:
        with torch.no_grad(), evaluating(net):
            shapes = [(point, chain.prefix(graph, point)[0].shape) for point in chain.points]
        return [(point, (shape[0], shape[1])) for point, shape in shapes]
    names, sizes = set(cut_names(net)), row_counts(graph).values()
    read = {name: shapes[0] for name, shapes in trace(net, graph, call).calls.items()
            if name in names and len(shapes) == 1}  # fmt: skip
    x = graph.get("x")
    if isinstance(x, Tensor) and x.is_floating_point():
        read = {"": tuple(x.shape), **read}
    return [
        (name or "input", (shape[0], shape[1]))
        for name, shape in read.items()
        if len(shape) == 2
        and (not name or shape[0] in sizes)
        and shape[1] == input_width(net.get_submodule(name))
    ]
