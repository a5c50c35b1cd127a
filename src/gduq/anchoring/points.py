"""A network in two parts around one linear map: `Cut`, for our backbones and for any module."""

from __future__ import annotations

import copy
import difflib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from gduq.errors import InputError
from gduq.functional import linear
from gduq.graph import check_graph, num_graphs
from gduq.nn.call import Call, call_network
from gduq.nn.gnn import GNN
from gduq.nn.layers import affine
from gduq.nn.replay import Slot, one_pass, replaying
from gduq.nn.settings import Point
from gduq.nn.structure import Structure
from gduq.nn.widths import anchor_names, input_width, take_linear, uninitialised

__all__ = [
    "Cut",
    "GNNCut",
    "InputCut",
    "ModuleCut",
    "State",
    "evaluating",
    "make_cut",
]

State = list[Any]  # h first; what comes after it is the cut's own
Read = Callable[[Tensor], Tensor]


class Cut(nn.Module, ABC):
    """A network cut in front of one linear map, which somebody else provides.

    ``prefix`` gives the representation ``h`` there, ``suffix`` goes on from what the map made of
    it. Between the two, the map may be followed by a linear operator on rows (`mix`).

    Attributes:
        net: The network.
        channels: d, the width of ``h``.
        plain: The network's own map at the cut, to take weights from; an identity map of width
            d where a new layer is put in.
        holds_copies: Whether several versions of ``z`` can pass through `run` together.
        frozen: Whether what runs before the cut stays in evaluation mode.
    """

    net: nn.Module
    channels: int
    plain: nn.Linear
    holds_copies = False
    frozen = False

    @abstractmethod
    def prefix(self, graph: Data) -> State:
        """``[h, ...]``: the representation at the cut, and what else `suffix` needs."""

    @abstractmethod
    def suffix(self, z: Tensor, state: State, graph: Data, normed: bool = False) -> Tensor:
        """Logits ``[D, rows, C]`` from ``z`` ``[D, n, m]``."""

    def run(self, graph: Data, read: Read) -> Tensor:
        """One pass: logits ``[D, rows, C]`` where ``read`` turns ``h`` into ``z`` ``[D, n, m]``."""
        state = self.prefix(graph)
        return self.suffix(read(state[0]), state, graph)

    def read(self, h: Tensor, weight: Tensor, graph: Data) -> Tensor:
        """``mix(h W^T)``, in the cheaper order."""
        return linear(h, weight)

    def mix(self, z: Tensor, graph: Data) -> Tensor:
        """The linear operator on rows that follows the map: ``[D, n, m]`` in and out."""
        return z

    def gain(self, graph: Data, like: Tensor) -> Tensor | None:
        """What `mix` does to a vector that all rows share, ``[n, 1]``; ``None`` means 1."""
        return None

    def affine(self) -> tuple[Tensor, Tensor] | None:
        """Scale and offset that `suffix` starts with in evaluation mode, if it does."""
        return None

    def cost(self, z: Tensor, graph: Data) -> int:
        """About how many numbers `suffix` holds at once for one copy of ``z`` ``[n, m]``."""
        return z.numel()

    @property
    def needs_graph(self) -> bool:
        """Whether `suffix` reads the graph."""
        return True

    @property
    def deep_head(self) -> bool:
        """Whether `suffix` is a head of several layers, and nothing else."""
        return False

    def prefix_modules(self) -> list[nn.Module]:
        """The modules known to run before the cut only."""
        return []

    def node_task(self, graph: Data) -> bool:
        """Whether the network answers for nodes and not for graphs."""
        y = graph.get("y")
        return y is not None and y.dim() > 0 and y.size(0) == graph.num_nodes


class GNNCut(Cut):
    """The cut of a `GNN`: its chain is entered at a point."""

    holds_copies = True
    net: GNN

    def __init__(self, net: GNN, point: Point, keep: bool) -> None:
        super().__init__()
        self.net, self.point = net, point
        taken = net.release(point, keep)
        plain = _identity(net.hidden_channels, net) if taken is None else taken
        self.__dict__["plain"] = plain  # not a submodule: its parameters are not the model's
        self.channels = plain.in_features

    def prefix(self, graph: Data) -> State:
        h, state = self.net.prefix(graph, self.point)
        return [h] if state is None else [h, state]

    def suffix(self, z: Tensor, state: State, graph: Data, normed: bool = False) -> Tensor:
        copies = z.size(0)
        structure = Structure.of(graph).repeat(copies) if self.needs_graph else None
        virtual = state[1] if len(state) > 1 else None
        logits = self.net.suffix(z.flatten(0, 1), virtual, structure, self.point, normed)
        return logits.view(copies, -1, logits.size(-1))

    def read(self, h: Tensor, weight: Tensor, graph: Data) -> Tensor:
        layer = self.net.mixing_layer(self.point)
        return linear(h, weight) if layer is None else layer.read(h, weight, Structure.of(graph))

    def mix(self, z: Tensor, graph: Data) -> Tensor:
        layer = self.net.mixing_layer(self.point)
        if layer is None:
            return z
        structure = Structure.of(graph).repeat(z.size(0))
        return layer.mix(z.flatten(0, 1), structure).view_as(z)

    def gain(self, graph: Data, like: Tensor) -> Tensor | None:
        layer = self.net.mixing_layer(self.point)
        return None if layer is None else layer.gain(Structure.of(graph), like.dtype)

    def affine(self) -> tuple[Tensor, Tensor] | None:
        layer = self.net.mixing_layer(self.point)
        return None if layer is None or self.net.training else affine(layer.inner_norm)

    def cost(self, z: Tensor, graph: Data) -> int:
        return max(z.numel(), self.net.message_size(graph) if self.needs_graph else 0)

    @property
    def needs_graph(self) -> bool:
        return self.point != "readout"

    @property
    def deep_head(self) -> bool:
        return self.point == "readout" and self.net.head.is_deep

    def prefix_modules(self) -> list[nn.Module]:
        return self.net.prefix_modules(self.point)

    def node_task(self, graph: Data) -> bool:
        return self.net.task == "node"


class InputCut(Cut):
    """Any module, anchored at its input: a map of width d is put before it."""

    def __init__(self, net: nn.Module, call: Call | None) -> None:
        super().__init__()
        self.net, self.call = net, call
        width = input_width(net)
        if width is None:
            raise InputError(
                "a network whose input width can be told from its first layer (in_channels)",
                type(net).__name__,
                "Set net.in_channels, or anchor at a layer.",
            )
        if width > 4096:
            raise InputError(
                "an input of at most 4096 channels for a map put before the network",
                f"{width}, which would add {2 * width**2:,} weights",
                "Anchor at the linear layer that reads the input: see gduq.cut_points.",
            )
        self.__dict__["plain"] = _identity(width, net)
        self.channels = width

    def prefix(self, graph: Data) -> State:
        check_graph(graph)
        x = graph.get("x")
        if x is not None and x.size(1) != self.channels:
            raise InputError(
                f"node features of width {self.channels}, which the network's first layer reads",
                x.size(1),
                "If that is another layer's width, set net.in_channels before gduq.anchor.",
            )
        if graph.get("x") is None:
            raise InputError("a graph with features x", "none")
        return [graph.x.to(next(self.net.parameters()).dtype)]

    def suffix(self, z: Tensor, state: State, graph: Data, normed: bool = False) -> Tensor:
        return torch.stack([self._call(part, graph) for part in z])

    def _call(self, z: Tensor, graph: Data) -> Tensor:
        changed = copy.copy(graph)
        changed.x = z
        return call_network(self.net, changed, self.call)


class ModuleCut(Cut):
    """Any module, anchored in front of one of its submodules.

    A plain ``Linear`` is read for; before anything else a map of width d is put in. The first
    pass records what the submodules before the cut return, later passes play it back, so that
    the prefix is computed once for all anchors.
    """

    def __init__(self, net: nn.Module, path: str, call: Call | None) -> None:
        super().__init__()
        self.net, self.path, self.call = net, path, call
        self.choices = anchor_names(net)
        width = input_width(net.get_submodule(path))
        if width is None:
            raise InputError(
                f"a submodule whose input width can be told, to anchor at '{path}'",
                type(net.get_submodule(path)).__name__,
                f"Choose one of: {', '.join(self.choices)}.",
            )
        plain = take_linear(net, path)
        self.__dict__["plain"] = plain or _identity(width, net)
        self.channels = width
        self._slot = Slot(path, takes_over=plain is not None)
        self._before: list[nn.Module] = []  # what runs before the cut, once a pass has shown it

    def run(self, graph: Data, read: Read) -> Tensor:
        check_graph(graph)
        with one_pass(), self._slot.reading(self.net, lambda h: read(self._checked(h, graph))[0]):
            out = call_network(self.net, graph, self.call)
        return out.unsqueeze(0)

    def prefix(self, graph: Data) -> State:
        check_graph(graph)
        with one_pass(), replaying(self.net, self._slot) as tape:
            h = self._slot.arriving(self.net, lambda: call_network(self.net, graph, self.call))
        if self.frozen and not self._before:  # only a pass shows what runs before the cut
            self._before = list(dict.fromkeys(tape.modules))
            for module in self._before:
                module.requires_grad_(False)
        return [self._checked(h, graph), *tape.records]

    def prefix_modules(self) -> list[nn.Module]:
        return self._before

    def suffix(self, z: Tensor, state: State, graph: Data, normed: bool = False) -> Tensor:
        return torch.stack([self._call(part, state[1:], graph) for part in z])

    def _call(self, z: Tensor, records: State, graph: Data) -> Tensor:
        with one_pass(), self._resting() as wake:

            def read(_: Tensor) -> Tensor:
                wake()
                return z

            with replaying(self.net, self._slot, records), self._slot.reading(self.net, read):
                return call_network(self.net, graph, self.call)

    @contextmanager
    def _resting(self) -> Iterator[Callable[[], None]]:
        """Frozen: what runs before the cut rests, the modules around the cut until it is reached.

        Functional dropout looks at the mode of the module it stands in.
        """
        active = self.frozen and self.net.training
        parts = self.path.split(".")
        around = [self.net.get_submodule(".".join(parts[:i])) for i in range(len(parts))]
        inside = [part for module in self._before for part in module.modules()]
        modes = [(module, module.training) for module in [*around, *inside] if active]

        def wake() -> None:
            for module, mode in modes[: len(around)]:
                module.training = mode

        for module, _ in modes:
            module.training = False
        try:
            yield wake
        finally:
            for module, mode in modes:
                module.training = mode

    def _checked(self, h: object, graph: Data) -> Tensor:
        if not isinstance(h, Tensor) or h.dim() != 2 or not h.is_floating_point():
            got = f"a tensor of shape {list(h.shape)}" if isinstance(h, Tensor) else type(h)
            raise InputError(
                f"'{self.path}' to read a float matrix [rows, d]",
                got,
                f"Choose one of: {', '.join(self.choices)}.",
            )
        if h.size(1) != self.channels:
            raise InputError(f"'{self.path}' to read {self.channels} channels", h.size(1))
        sizes = (graph.num_nodes, num_graphs(graph))
        if h.size(0) not in sizes and not torch.compiler.is_compiling():
            raise InputError(
                f"one row a node ({graph.num_nodes}) or a graph ({num_graphs(graph)}) at the "
                f"cut '{self.path}'",
                h.size(0),
                "See gduq.cut_points(net, graph) for the places one can anchor at.",
            )
        return h


def make_cut(net: nn.Module, at: int | str, call: Call | None, keep: bool) -> Cut:
    """The cut of a network (which it changes) at a point."""
    if isinstance(net, GNN):
        if at not in net.points or isinstance(at, bool):
            places = [*map(repr, net.points), "'auto'"]
            raise InputError(f"at one of {', '.join(places)}", repr(at))
        return GNNCut(net, at, keep)
    lazy = uninitialised(net)
    if lazy:
        raise InputError(
            "a network with all its parameters",
            f"uninitialised {', '.join(lazy[:3])}",
            "Run it on a graph once, or give every layer its in_channels.",
        )
    if at == "input":
        return InputCut(net, call)
    if not isinstance(at, str) or at not in dict(net.named_modules()) or at == "":
        names = ["input", *anchor_names(net)]
        near = difflib.get_close_matches(str(at), names, n=1)
        do = f"Did you mean {near[0]!r}?" if near else ""
        if at == "readout" or isinstance(at, int):
            do = (
                "'readout' (the default) and layer numbers are places of a gduq.nn.GNN only; here "
                f"name one, on a trained network a Linear: {_suggested(net)}."
            )
        raise InputError(f"at one of {', '.join(map(repr, names))}", repr(at), do)
    return ModuleCut(net, at, call)


def _suggested(net: nn.Module) -> str:
    """A late place, best a linear map (it keeps its weights) with another one behind it."""
    names = list(anchor_names(net))
    linear = [name for name in names if isinstance(net.get_submodule(name), nn.Linear)]
    late = (linear or names or ["input"])[-2:]
    return f"at={late[0]!r}"


@contextmanager
def evaluating(net: nn.Module) -> Iterator[None]:
    """Within this context the network is in evaluation mode; each module's mode comes back."""
    changed = [module for module in net.modules() if module.training]
    for module in changed:
        module.training = False
    try:
        yield
    finally:
        for module in changed:
            module.training = True


def _identity(width: int, like: nn.Module) -> nn.Linear:
    reference = next(like.parameters(), torch.empty(0))
    plain = nn.Linear(width, width)
    with torch.no_grad():
        nn.init.eye_(plain.weight)
        nn.init.zeros_(plain.bias)
    return plain.to(reference.device, reference.dtype)
