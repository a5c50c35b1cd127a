"""A network in two parts around one linear map: `Point`, for our backbones and for any module."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from gduq.errors import InputError
from gduq.functional import linear
from gduq.graph import Rows, check_graph, num_rows
from gduq.nn.call import Call, call_network
from gduq.nn.gnn import GNN
from gduq.nn.layers import affine
from gduq.nn.recording import LINEAR
from gduq.nn.replay import Slot, one_pass, replaying
from gduq.nn.settings import Point as ChainPoint
from gduq.nn.structure import Structure
from gduq.nn.trunk import Ending, Trunk, as_logits, undone
from gduq.nn.widths import anchor_names, input_width, take_linear

__all__ = ["GNNPoint", "HeadPoint", "InputPoint", "ModulePoint", "Point", "State"]

Read = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class State:
    """What a network has come to at a point.

    Attributes:
        h: The representation ``[n, d]``.
        rest: What else the part behind the point needs; the point's own.
    """

    h: Tensor
    rest: tuple[Any, ...] = ()

    def detached(self) -> State:
        """The same without gradients."""
        found: tuple[Any, ...] = tree_map(
            lambda value: value.detach() if isinstance(value, Tensor) else value, self.rest
        )
        return State(self.h.detach(), found)


class Point(nn.Module, ABC):
    """A network cut in front of one linear map, which somebody else provides.

    ``prefix`` gives the representation ``h`` there, ``suffix`` goes on from what the map made of
    it. Between the two, the map may be followed by a linear operator on rows (`mix`).

    Attributes:
        net: The network.
        channels: d, the width of ``h``.
        rows: What the rows of ``h`` are.
        answers: What the rows of the output are.
        plain: The network's own map at the point, to take weights from; an identity map of width
            d where a new layer is put in.
        holds_copies: Whether several versions of ``z`` can pass through `run` together.
        frozen: Whether what runs before the point stays in evaluation mode.
    """

    net: nn.Module
    channels: int
    rows: Rows
    answers: Rows
    plain: nn.Linear
    holds_copies = False
    frozen = False

    @abstractmethod
    def prefix(self, graph: Any) -> State:
        """The representation at the point, and what else `suffix` needs."""

    @abstractmethod
    def suffix(self, z: Tensor, state: State, graph: Any, normed: bool = False) -> Tensor:
        """Outputs ``[D, rows, O]`` from ``z`` ``[D, n, m]``."""

    def run(self, graph: Any, read: Read) -> Tensor:
        """Outputs ``[D, rows, O]`` of one pass; ``read`` turns ``h`` into ``z`` ``[D, n, m]``."""
        state = self.prefix(graph)
        return self.suffix(read(state.h), state, graph)

    def read(self, h: Tensor, weight: Tensor, graph: Any) -> Tensor:
        """``mix(h W^T)``, in the cheaper order."""
        return linear(h, weight)

    def mix(self, z: Tensor, graph: Any) -> Tensor:
        """The linear operator on rows that follows the map: ``[D, n, m]`` in and out."""
        return z

    def gain(self, graph: Any, like: Tensor) -> Tensor | None:
        """What `mix` does to a vector that all rows share, ``[n, 1]``; ``None`` means 1."""
        return None

    def affine(self) -> tuple[Tensor, Tensor] | None:
        """Scale and offset that `suffix` starts with in evaluation mode, if it does."""
        return None

    def cost(self, z: Tensor, graph: Any) -> int:
        """About how many numbers `suffix` holds at once for one copy of ``z`` ``[n, m]``."""
        return z.numel()

    @property
    def needs_graph(self) -> bool:
        """Whether `suffix` reads the graph."""
        return True

    @property
    def moves(self) -> bool:
        """Whether the representation changes as the network learns."""
        return True

    @property
    def has_prefix(self) -> bool:
        """Whether something that learns comes before the point."""
        return True

    @property
    @abstractmethod
    def description(self) -> str:
        """Where it is, for people."""

    @abstractmethod
    def spec(self) -> dict[str, Any]:
        """What was found in the network, as JSON holds it."""

    def prefix_modules(self) -> list[nn.Module]:
        """The modules known to run before the point only."""
        return []


class GNNPoint(Point):
    """A point of a `GNN`, whose chain can be entered there."""

    holds_copies = True
    net: GNN

    def __init__(self, net: GNN, point: ChainPoint, keep: bool) -> None:
        super().__init__()
        self.net, self.point, self.keep = net, point, keep
        self.answers: Rows = net.task
        self.rows: Rows = net.task if point == "readout" else "node"
        taken = net.release(point, keep)
        plain = _identity(net.hidden_channels, net) if taken is None else taken
        self.__dict__["plain"] = plain  # not a submodule: its parameters are not the model's
        self.channels = plain.in_features

    def prefix(self, graph: Any) -> State:
        h, virtual = self.net.prefix(graph, self.point)
        return State(h, () if virtual is None else (virtual,))

    def suffix(self, z: Tensor, state: State, graph: Any, normed: bool = False) -> Tensor:
        copies = z.size(0)
        structure = Structure.of(graph).repeat(copies) if self.needs_graph else None
        virtual = state.rest[0] if state.rest else None
        logits = self.net.suffix(z.flatten(0, 1), virtual, structure, self.point, normed)
        return logits.view(copies, -1, logits.size(-1))

    def read(self, h: Tensor, weight: Tensor, graph: Any) -> Tensor:
        layer = self.net.mixing_layer(self.point)
        return linear(h, weight) if layer is None else layer.read(h, weight, Structure.of(graph))

    def mix(self, z: Tensor, graph: Any) -> Tensor:
        layer = self.net.mixing_layer(self.point)
        if layer is None:
            return z
        structure = Structure.of(graph).repeat(z.size(0))
        return layer.mix(z.flatten(0, 1), structure).view_as(z)

    def gain(self, graph: Any, like: Tensor) -> Tensor | None:
        layer = self.net.mixing_layer(self.point)
        return None if layer is None else layer.gain(Structure.of(graph), like.dtype)

    def affine(self) -> tuple[Tensor, Tensor] | None:
        layer = self.net.mixing_layer(self.point)
        return None if layer is None or self.net.training else affine(layer.inner_norm)

    def cost(self, z: Tensor, graph: Any) -> int:
        return max(z.numel(), self.net.message_size(graph) if self.needs_graph else 0)

    @property
    def needs_graph(self) -> bool:
        return self.point != "readout"

    @property
    def description(self) -> str:
        where = f"layer {self.point}" if isinstance(self.point, int) else f"the {self.point}"
        return f"{where}, one row per {self.rows}"

    def spec(self) -> dict[str, Any]:
        return {"kind": "chain", "at": self.point, "keep": self.keep}

    @property
    def moves(self) -> bool:
        return self.point != "input"

    @property
    def has_prefix(self) -> bool:
        return self.point != "input" or len(self.net.embeddings) > 0

    def prefix_modules(self) -> list[nn.Module]:
        return self.net.prefix_modules(self.point)


class InputPoint(Point):
    """Any module, anchored at its input: a map of width d is put before it."""

    rows: Rows = "node"

    def __init__(
        self, net: nn.Module, call: Call | None, answers: Rows, ending: Ending | None = None
    ) -> None:
        super().__init__()
        self.net, self.call, self.ending = net, call, ending
        self.answers: Rows = answers
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

    def prefix(self, graph: Any) -> State:
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
        return State(graph.x.to(next(self.net.parameters()).dtype))

    def suffix(self, z: Tensor, state: State, graph: Any, normed: bool = False) -> Tensor:
        return torch.stack([self._call(part, graph) for part in z])

    def _call(self, z: Tensor, graph: Any) -> Tensor:
        changed = copy.copy(graph)
        changed.x = z
        return as_logits(call_network(self.net, changed, self.call), self.ending)

    @property
    def moves(self) -> bool:
        return False

    @property
    def has_prefix(self) -> bool:
        return False

    @property
    def description(self) -> str:
        return f"the input, one row per node{undone(self.ending)}"

    def spec(self) -> dict[str, Any]:
        return {"kind": "input", "answers": self.answers, "ending": self.ending}


class ModulePoint(Point):
    """Any module, anchored in front of one of its submodules.

    A plain ``Linear`` is read for; before anything else a map of width d is put in. The first
    pass records what the submodules before the cut return, later passes play it back, so that
    the prefix is computed once for all anchors.
    """

    def __init__(
        self,
        net: nn.Module,
        path: str,
        call: Call | None,
        rows: Rows,
        answers: Rows,
        ending: Ending | None = None,
    ) -> None:
        super().__init__()
        self.net, self.path, self.call, self.ending = net, path, call, ending
        self.rows: Rows = rows
        self.answers: Rows = answers
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

    def run(self, graph: Any, read: Read) -> Tensor:
        check_graph(graph)
        with one_pass(), self._slot.reading(self.net, lambda h: read(self._checked(h, graph))[0]):
            out = call_network(self.net, graph, self.call)
        return as_logits(out, self.ending).unsqueeze(0)

    def prefix(self, graph: Any) -> State:
        check_graph(graph)
        with one_pass(), replaying(self.net, self._slot) as tape:
            h = self._slot.arriving(self.net, lambda: call_network(self.net, graph, self.call))
        if self.frozen and not self._before:  # only a pass shows what runs before the cut
            self._before = list(dict.fromkeys(tape.modules))
            for module in self._before:
                module.requires_grad_(False)
        return State(self._checked(h, graph), tuple(tape.records))

    def prefix_modules(self) -> list[nn.Module]:
        return self._before

    def suffix(self, z: Tensor, state: State, graph: Any, normed: bool = False) -> Tensor:
        return torch.stack([self._call(part, state.rest, graph) for part in z])

    def _call(self, z: Tensor, records: Sequence[Any], graph: Any) -> Tensor:
        with one_pass(), self._resting() as wake:

            def read(_: Tensor) -> Tensor:
                wake()
                return z

            with replaying(self.net, self._slot, records), self._slot.reading(self.net, read):
                return as_logits(call_network(self.net, graph, self.call), self.ending)

    @property
    def description(self) -> str:
        kind = type(self.net.get_submodule(self.path)).__name__.removeprefix("_Taken")
        note = "" if kind in ("", "PyG") else f", the input of a {kind}"
        return f"'{self.path}'{note}, one row per {self.rows}{undone(self.ending)}"

    def spec(self) -> dict[str, Any]:
        return {
            "kind": "module",
            "path": self.path,
            "rows": self.rows,
            "answers": self.answers,
            "ending": self.ending,
        }

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

    def _checked(self, h: object, graph: Any) -> Tensor:
        if not isinstance(h, Tensor) or h.dim() != 2 or not h.is_floating_point():
            got = f"a tensor of shape {list(h.shape)}" if isinstance(h, Tensor) else type(h)
            raise InputError(
                f"'{self.path}' to read a float matrix [rows, d]",
                got,
                f"Choose one of: {', '.join(self.choices)}.",
            )
        if h.size(1) != self.channels:
            raise InputError(f"'{self.path}' to read {self.channels} channels", h.size(1))
        if torch.compiler.is_compiling():
            return h
        expected = num_rows(graph, self.rows)
        if h.size(0) != expected:
            raise InputError(
                f"{expected} rows, one per {self.rows}, at '{self.path}'",
                h.size(0),
                "See gduq.cut_points(net, graph) for the places one can anchor at.",
            )
        return h


def _identity(width: int, like: nn.Module) -> nn.Linear:
    reference = next(like.parameters(), torch.empty(0))
    plain = nn.Linear(width, width)
    with torch.no_grad():
        nn.init.eye_(plain.weight)
        nn.init.zeros_(plain.bias)
    return plain.to(reference.device, reference.dtype)


class HeadPoint(Point):
    """The head of a frozen network, which reads every row by itself: the cheapest point.

    Args:
        trunk: The network with the place of its head; it is shared, not changed, and frozen.
        branch: Where the head is one linear map: keep it as it is and add a second branch of two
            layers that starts at zero, so that there is something behind the anchors.
    """

    holds_copies = True
    frozen = True

    def __init__(self, trunk: Trunk, branch: bool) -> None:
        super().__init__()
        self.trunk = trunk.requires_grad_(False)
        self.rows = self.answers = trunk.answers
        first, rest = trunk.head()
        self.channels = first.in_features
        alone = not any(isinstance(part, LINEAR) for part in rest.modules())
        self.tail = Tail(rest, first if branch and alone else None)
        self.branch = branch
        plain = _branch_start(first) if branch and alone else first
        self.__dict__["plain"] = plain

    @property
    def net(self) -> nn.Module:  # type: ignore[override]
        return self.trunk.net

    def prefix(self, graph: Any) -> State:
        with torch.no_grad():
            return State(self.trunk(graph))

    def suffix(self, z: Tensor, state: State, graph: Any, normed: bool = False) -> Tensor:
        return self.tail(z, state.h)  # type: ignore[no-any-return]

    @property
    def needs_graph(self) -> bool:
        return False

    def prefix_modules(self) -> list[nn.Module]:
        return [self.trunk]

    @property
    def description(self) -> str:
        return f"{self.trunk.description}{self.tail.note}"

    def spec(self) -> dict[str, Any]:
        return {"kind": "head", "trunk": self.trunk.spec(), "branch": self.branch}


class Tail(nn.Module):
    """What follows the anchored map of a head.

    Args:
        rest: The steps after the head's first linear map.
        plain: The head's only linear map, to which a branch is added; ``None`` without a branch.
    """

    def __init__(self, rest: nn.Module, plain: nn.Linear | None) -> None:
        super().__init__()
        self.rest, self.plain = rest, plain
        self.out = None
        if plain is not None:
            plain.requires_grad_(False)
            self.out = nn.Linear(_width(plain), plain.out_features).to(plain.weight)
            nn.init.zeros_(self.out.weight)
            nn.init.zeros_(self.out.bias)

    def forward(self, z: Tensor, h: Tensor) -> Tensor:
        """Outputs ``[D, n, O]`` of ``z`` ``[D, n, m]``."""
        branch = self.plain is not None and self.out is not None
        read = self.plain(h) + self.out(z.relu()) if branch else z  # type: ignore[misc]
        flat = self.rest(read.flatten(0, 1))
        return flat.view(z.size(0), z.size(1), -1)  # type: ignore[no-any-return]

    @property
    def note(self) -> str:
        return "" if self.plain is None else "; a second branch reads the anchors"


def _width(plain: nn.Linear) -> int:
    """The width of a branch beside a linear map."""
    return max(32, min(plain.in_features, 256))


def _branch_start(plain: nn.Linear) -> nn.Linear:
    """A fresh linear map, the first of a branch."""
    return nn.Linear(plain.in_features, _width(plain)).to(plain.weight)
