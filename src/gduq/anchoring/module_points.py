"""Points of any module: at its input, or in front of one of its submodules."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from gduq.anchoring.points import Point, Read, State, identity_map
from gduq.errors import InputError
from gduq.graph import Rows, check_graph, num_rows
from gduq.nn.call import Call, call_network
from gduq.nn.endings import Ending, as_logits, undone
from gduq.nn.replay import InputHook, one_pass, replaying
from gduq.nn.widths import cut_names, input_width, take_linear

__all__ = ["InputPoint", "ModulePoint"]


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
        self.__dict__["plain"] = identity_map(width, net)
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
        self.choices = cut_names(net)
        width = input_width(net.get_submodule(path))
        if width is None:
            raise InputError(
                f"a submodule whose input width can be told, to anchor at '{path}'",
                type(net.get_submodule(path)).__name__,
                f"Choose one of: {', '.join(self.choices)}.",
            )
        plain = take_linear(net, path)
        self.__dict__["plain"] = plain or identity_map(width, net)
        self.channels = width
        self._hook = InputHook(path, takes_over=plain is not None)
        self._before: list[nn.Module] = []  # what runs before the cut, once a pass has shown it

    def run(self, graph: Any, read: Read) -> Tensor:
        check_graph(graph)
        with one_pass(), self._hook.reading(self.net, lambda h: read(self._checked(h, graph))[0]):
            out = call_network(self.net, graph, self.call)
        return as_logits(out, self.ending).unsqueeze(0)

    def prefix(self, graph: Any) -> State:
        check_graph(graph)
        with one_pass(), replaying(self.net, self._hook) as recorder:
            h = self._hook.arriving(self.net, lambda: call_network(self.net, graph, self.call))
        if self.frozen and not self._before:  # only a pass shows what runs before the cut
            self._before = list(dict.fromkeys(recorder.modules))
            for module in self._before:
                module.requires_grad_(False)
        return State(self._checked(h, graph), tuple(recorder.records))

    def prefix_modules(self) -> list[nn.Module]:
        return self._before

    def suffix(self, z: Tensor, state: State, graph: Any, normed: bool = False) -> Tensor:
        return torch.stack([self._call(part, state.rest, graph) for part in z])

    def _call(self, z: Tensor, records: Sequence[Any], graph: Any) -> Tensor:
        with one_pass(), self._resting() as wake:

            def read(_: Tensor) -> Tensor:
                wake()
                return z

            with replaying(self.net, self._hook, records), self._hook.reading(self.net, read):
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
