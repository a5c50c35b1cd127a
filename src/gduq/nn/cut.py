"""A network in two parts around one linear map: `Cut`, for our backbones and for any module."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from gduq.errors import InputError
from gduq.functional import linear
from gduq.graph import check_graph, num_graphs
from gduq.nn.call import Call, call_network
from gduq.nn.gnn import GNN
from gduq.nn.layers import affine
from gduq.nn.replay import Slot, replaying, widths
from gduq.nn.settings import Point
from gduq.nn.structure import Structure

__all__ = [
    "Cut",
    "GNNCut",
    "InputCut",
    "ModuleCut",
    "State",
    "anchor_names",
    "evaluating",
    "input_width",
    "make_cut",
]

State = list[Tensor]
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

    @property
    def needs_graph(self) -> bool:
        """Whether `suffix` reads the graph."""
        return True

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

    @property
    def needs_graph(self) -> bool:
        return self.point != "readout"

    def prefix_modules(self) -> list[nn.Module]:
        return self.net.prefix_modules(self.point)

    def node_task(self, graph: Data) -> bool:
        return self.net.task == "node"


class InputCut(Cut):
    """Any module, anchored at its input: a map of width d is put before it."""

    def __init__(self, net: nn.Module, call: Call | None) -> None:
        super().__init__()
        self.net, self.call = net, call
        width = widths(net)
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
        check_graph(graph, self.channels)
        if graph.get("x") is None:
            raise InputError("a graph with features x", "none")
        x: Tensor = graph.x
        return [x.to(next(self.net.parameters()).dtype)]

    def suffix(self, z: Tensor, state: State, graph: Data, normed: bool = False) -> Tensor:
        return torch.stack([self._call(part, graph) for part in z])

    def _call(self, z: Tensor, graph: Data) -> Tensor:
        changed = copy.copy(graph)
        changed.x = z
        return call_network(self.net, changed, self.call)


class ModuleCut(Cut):
    """Any module, anchored in front of one of its submodules.

    A ``Linear`` is read for; before anything else a map of width d is put in. The first pass
    records what the submodules before the cut return, later passes play it back, so that the
    prefix is computed once for all anchors.
    """

    def __init__(self, net: nn.Module, path: str, call: Call | None) -> None:
        super().__init__()
        self.net, self.path, self.call = net, path, call
        module = net.get_submodule(path)
        plain, width = _as_linear(module), input_width(module)
        if width is None:
            raise InputError(
                f"a submodule whose input width can be told, to anchor at '{path}'",
                type(module).__name__,
                f"Choose one of: {', '.join(anchor_names(net))}.",
            )
        self.__dict__["plain"] = plain or _identity(width, net)
        self.channels = width
        slot = Slot(None if plain is not None else module, path)
        _replace(net, path, slot)

    @property
    def _slot(self) -> Slot:
        slot = self.net.get_submodule(self.path)
        assert isinstance(slot, Slot)
        return slot

    def run(self, graph: Data, read: Read) -> Tensor:
        check_graph(graph)
        with self._slot.reading(lambda h: read(self._checked(h, graph))[0]):
            out = call_network(self.net, graph, self.call)
        return out.unsqueeze(0)

    def prefix(self, graph: Data) -> State:
        check_graph(graph)
        with replaying(self.net, self._slot) as tape, self._slot.stopping() as caught:
            caught.run(lambda: call_network(self.net, graph, self.call))
        if self.frozen:  # only a pass shows what runs before the cut
            for module in tape.modules:
                module.requires_grad_(False)
        return [self._checked(caught.value(), graph), *tape.records]

    def suffix(self, z: Tensor, state: State, graph: Data, normed: bool = False) -> Tensor:
        return torch.stack([self._call(part, state[1:], graph) for part in z])

    def _call(self, z: Tensor, records: State, graph: Data) -> Tensor:
        def read(_: Tensor) -> Tensor:
            for module in resting:
                module.training = True
            return z

        resting = self._ancestors() if self.frozen and self.net.training else []
        for module in resting:  # their functional dropout rests until the cut is reached
            module.training = False
        with replaying(self.net, self._slot, records), self._slot.reading(read):
            return call_network(self.net, graph, self.call)

    def _ancestors(self) -> list[nn.Module]:
        """The modules that contain the cut."""
        parts = self.path.split(".")
        return [self.net.get_submodule(".".join(parts[:i])) for i in range(len(parts))]

    def _checked(self, h: object, graph: Data) -> Tensor:
        if not isinstance(h, Tensor) or h.dim() != 2 or not h.is_floating_point():
            got = f"a tensor of shape {list(h.shape)}" if isinstance(h, Tensor) else type(h)
            raise InputError(
                f"'{self.path}' to read a float matrix [rows, d]",
                got,
                f"Choose one of: {', '.join(anchor_names(self.net))}.",
            )
        if h.size(1) != self.channels:
            raise InputError(f"'{self.path}' to read {self.channels} channels", h.size(1))
        if not torch.compiler.is_compiling() and h.size(0) not in (
            graph.num_nodes,
            num_graphs(graph),
        ):
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
            raise InputError(f"at one of {', '.join(map(repr, net.points))}", repr(at))
        return GNNCut(net, at, keep)
    lazy = [n for n, p in net.named_parameters() if isinstance(p, _LAZY)]
    if lazy:
        raise InputError(
            "a network with all its parameters",
            f"uninitialised {', '.join(lazy[:3])}",
            "Run it on a graph once, or give every layer its in_channels.",
        )
    if at == "input":
        return InputCut(net, call)
    if not isinstance(at, str) or at not in dict(net.named_modules()) or at == "":
        raise InputError(f"at one of 'input', {', '.join(map(repr, anchor_names(net)))}", repr(at))
    return ModuleCut(net, at, call)


@contextmanager
def evaluating(net: nn.Module) -> Iterator[None]:
    """Within this context the network is in evaluation mode; each module's mode comes back."""
    modes = [(module, module.training) for module in net.modules()]
    net.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


_LAZY = (nn.parameter.UninitializedParameter, nn.parameter.UninitializedBuffer)


def anchor_names(net: nn.Module) -> list[str]:
    """Submodules that can be anchored at, as far as can be told without running the network."""
    return [
        name
        for name, module in net.named_modules()
        if name
        and not isinstance(module, (nn.ModuleList, nn.ModuleDict))
        and (_as_linear(module) is not None or widths(module) is not None)
    ]


def _identity(width: int, like: nn.Module) -> nn.Linear:
    reference = next(like.parameters(), torch.empty(0))
    plain = nn.Linear(width, width)
    with torch.no_grad():
        nn.init.eye_(plain.weight)
        nn.init.zeros_(plain.bias)
    return plain.to(reference.device, reference.dtype)


def _as_linear(module: nn.Module) -> nn.Linear | None:
    """The module as a plain linear layer, if it is one (torch's or PyG's)."""
    if type(module).__name__ != "Linear" or not isinstance(module.weight, Tensor):
        return None
    if isinstance(module.weight, _LAZY) or module.weight.dim() != 2:
        return None
    plain = nn.Linear(module.weight.size(1), module.weight.size(0), module.bias is not None)
    plain = plain.to(module.weight.device, module.weight.dtype)
    with torch.no_grad():
        plain.weight.copy_(module.weight)
        if module.bias is not None:
            plain.bias.copy_(module.bias)  # type: ignore[arg-type]
    return plain


def _replace(net: nn.Module, path: str, module: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    owner = net.get_submodule(parent)
    if isinstance(owner, nn.ModuleDict):
        owner[name] = module
    else:
        setattr(owner, name, module)


def input_width(module: nn.Module) -> int | None:
    """How many channels a submodule reads, as far as it can be told."""
    plain = _as_linear(module)
    return widths(module) if plain is None else plain.in_features
