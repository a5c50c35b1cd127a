"""Points of any module: at its input, or in front of one of its submodules."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from gduq.anchoring.points import Point, Read, State, identity_map
from gduq.errors import InputError
from gduq.graph import Rows, check_graph, num_rows
from gduq.nn.call import ONE_PASS, Call, Ending, as_logits, call_network, undone
from gduq.nn.replay import Cut, Recorder, playing
from gduq.nn.widths import cut_names, input_width, take_linear

__all__ = ["InputPoint", "ModulePoint"]

_MOST = 4096  # channels of an input that a new map is put before


def _apart(z: Tensor) -> Iterator[Tensor]:
    """The copies in ``z`` one by one; a network may change them in place."""
    return (part.clone() if part.requires_grad else part for part in z)


class InputPoint(Point):
    """Any module, anchored at its input: a map of width d is put before it."""

    moves = False
    has_prefix = False

    def __init__(
        self, net: nn.Module, call: Call | None, answers: Rows, ending: Ending | None = None
    ) -> None:
        width = input_width(net)
        if width is None:
            raise InputError(
                "a network whose input width can be told from its first layer (in_channels)",
                type(net).__name__,
                "Set net.in_channels, or anchor at a layer.",
            )
        if width > _MOST:
            raise InputError(
                f"an input of at most {_MOST} channels for a map put before the network",
                f"{width}, which would add {2 * width**2:,} weights",
                "Anchor at the linear layer that reads the input: see gduq.cut_points.",
            )
        super().__init__(identity_map(width, net), "node", answers)
        self.net, self.call, self.ending = net, call, ending

    def prefix(self, graph: Any) -> State:
        check_graph(graph)
        x = graph.get("x")
        if x is None:
            raise InputError("a graph with features x", "none")
        if x.size(1) != self.channels:
            raise InputError(
                f"node features of width {self.channels}, which the network's first layer reads",
                x.size(1),
                "If that is another layer's width, set net.in_channels before gduq.anchor.",
            )
        return State(x.to(next(self.net.parameters()).dtype))

    def suffix(self, z: Tensor, state: State, graph: Any, normed: bool = False) -> Tensor:
        outputs = []
        for part in _apart(z):
            changed = copy.copy(graph)
            changed.x = part
            outputs.append(call_network(self.net, changed, self.call))
        return as_logits(torch.stack(outputs), self.ending)

    @property
    def description(self) -> str:
        return f"the input, one row per node{undone(self.ending)}"

    def spec(self) -> dict[str, Any]:
        return {"kind": "input", "answers": self.answers, "ending": self.ending}


class ModulePoint(Point):
    """Any module, anchored in front of one of its submodules.

    A plain ``Linear`` is read for; before anything else a map of width d is put in. `prefix`
    records what the submodules before the cut return and `suffix` plays it back, so that the
    prefix is computed once for all anchors.
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
        choose = f"Choose one of: {', '.join(cut_names(net))}."
        width = input_width(net.get_submodule(path))
        if width is None:
            raise InputError(
                f"a submodule whose input width can be told, to anchor at '{path}'",
                type(net.get_submodule(path)).__name__,
                choose,
            )
        taken = take_linear(net, path)
        super().__init__(taken or identity_map(width, net), rows, answers)
        self.net, self.path, self.call, self.ending = net, path, call, ending
        self._choose = choose
        self._cut = Cut(path, takes_over=taken is not None)
        self._before: list[nn.Module] = []  # what runs before the cut, once a pass has shown it

    def run(self, graph: Any, read: Read) -> Tensor:
        check_graph(graph)
        out = self._cut.run(self.net, graph, self.call, lambda h: read(self._checked(h, graph))[0])
        return as_logits(out, self.ending).unsqueeze(0)

    def prefix(self, graph: Any) -> State:
        check_graph(graph)
        seen = Recorder()
        h = self._cut.arriving(self.net, graph, self.call, seen)
        if self.frozen and not self._before:  # only a pass shows what runs before the cut
            self._before = [module.requires_grad_(False) for module in seen.modules]
        return State(self._checked(h, graph), seen.outputs)

    def prefix_modules(self) -> list[nn.Module]:
        return self._before

    def suffix(self, z: Tensor, state: State, graph: Any, normed: bool = False) -> Tensor:
        return torch.stack([self._continued(part, state, graph) for part in _apart(z)])

    def _continued(self, z: Tensor, state: State, graph: Any) -> Tensor:
        with ONE_PASS, self._resting() as wake:

            def read(_: Tensor) -> Tensor:
                wake()
                return z

            out = self._cut.run(self.net, graph, self.call, read, playing(state.rest))
        return as_logits(out, self.ending)

    @contextmanager
    def _resting(self) -> Iterator[Callable[[], None]]:
        """Frozen: what runs before the cut rests, the modules around the cut until it is reached.

        Functional dropout looks at the mode of the module it stands in.
        """
        parts = self.path.split(".")
        around = [self.net.get_submodule(".".join(parts[:i])) for i in range(len(parts))]
        inside = [part for module in self._before for part in module.modules()]
        active = self.frozen and self.net.training
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
            raise InputError(f"'{self.path}' to read a float matrix [rows, d]", got, self._choose)
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

    @property
    def description(self) -> str:
        kind = type(self.net.get_submodule(self.path)).__name__
        note = "" if self._cut.takes_over else f", the input of a {kind}"
        return f"'{self.path}'{note}, one row per {self.rows}{undone(self.ending)}"

    def spec(self) -> dict[str, Any]:
        names = ("path", "rows", "answers", "ending")
        return {"kind": "module", **{name: getattr(self, name) for name in names}}
