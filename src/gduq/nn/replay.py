"""Entering a module in the middle: a slot where a value is put in, a tape that plays the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from gduq.errors import InputError

__all__ = ["Slot", "Tape", "replaying", "widths"]

_WIDTHS = ("in_features", "in_channels", "num_features", "embed_dim", "channels")


class _Reached(Exception):
    """The slot was reached; nothing more of this pass is needed."""


class Caught:
    """What arrives at a slot, and how to stop there."""

    def __init__(self, path: str) -> None:
        self.path, self.h, self.reached = path, None, False

    def run(self, forward: Callable[[], object]) -> None:
        try:
            forward()
        except _Reached:
            self.reached = True

    def value(self) -> Any:
        if not self.reached:
            raise InputError(
                f"the network to call '{self.path}' once in a pass", "no call", _ADVICE
            )
        return self.h


_ADVICE = "See gduq.cut_points(net, graph) for the places one can anchor at."


class Slot(nn.Module):
    """Stands where a submodule was; asks its reader what to do with the submodule's input.

    Args:
        inner: The submodule that goes on with the reader's answer, or ``None`` if the answer
            takes the place of its output.
        path: Its name, for messages.
    """

    def __init__(self, inner: nn.Module | None, path: str) -> None:
        super().__init__()
        self.inner, self.path = inner, path
        self._reader: Callable[[Any], Tensor] | None = None
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            inner = self.__dict__["_modules"].get("inner")
            if inner is None:
                raise
            return getattr(inner, name)

    @staticmethod
    def first_tensor(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The input a submodule reads: its first argument, or the keyword ``x`` or ``input``."""
        if args:
            return args[0]
        return kwargs.get("x", kwargs.get("input"))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._reader is None:
            raise InputError("the anchored model to be called", "a part of it called alone")
        self.calls += 1
        if self.calls > 1:
            raise InputError(f"'{self.path}' to be called once in a pass", "a second call", _ADVICE)
        z = self._reader(self.first_tensor(args, kwargs))
        if self.inner is None:
            return z
        if args:
            return self.inner(z, *args[1:], **kwargs)
        name = "x" if "x" in kwargs else "input"
        return self.inner(**{**kwargs, name: z})

    @contextmanager
    def reading(self, reader: Callable[[Any], Tensor]) -> Iterator[None]:
        """Within this context one pass may run, with this reader."""
        self._reader, self.calls = reader, 0
        try:
            yield
        finally:
            reached, self._reader, self.calls = self.calls, None, 0
        if not reached:
            raise InputError(
                f"the network to call '{self.path}' once in a pass", "no call", _ADVICE
            )

    @contextmanager
    def stopping(self) -> Iterator[Caught]:
        """Within this context a pass ends at the slot and leaves there what arrived."""
        caught = Caught(self.path)

        def stop(h: Any) -> Tensor:
            caught.h = h
            raise _Reached

        self._reader, self.calls = stop, 0
        try:
            yield caught
        finally:
            self._reader, self.calls = None, 0


class Tape:
    """Outputs of the submodules before the slot, in the order of their calls."""

    def __init__(self, records: list[Tensor] | None) -> None:
        self.playing = bool(records)
        self.records: list[Tensor] = list(records or [])
        self.versions: list[int] = []
        self.modules: list[nn.Module] = []
        self.position = 0
        self.sound = True

    def call(self, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if self.playing and self.position < len(self.records):
            self.position += 1
            return self.records[self.position - 1]
        out = forward(*args, **kwargs)
        if isinstance(out, Tensor):
            self.records.append(out)
            self.versions.append(out._version)
        else:
            self.sound = False  # several outputs: this pass cannot be played back
        return out

    def seal(self) -> None:
        """Forget the recording if something changed a recorded value in place."""
        changed = [r._version for r in self.records] != self.versions
        if not self.sound or changed:
            self.records = []


@contextmanager
def replaying(net: nn.Module, slot: Slot, records: list[Tensor] | None = None) -> Iterator[Tape]:
    """Record, or play back, the submodules that are called before the slot in a pass."""
    tape = Tape(records)
    if records is not None and not records:  # nothing could be recorded: run it all
        yield tape
        return
    modules = _outside(net, slot)
    before = [(m, m.__dict__.get("forward")) for m in modules]
    for module in modules:
        module.__dict__["forward"] = _watched(module, tape, slot)
    try:
        yield tape
    finally:
        for module, forward in before:
            if forward is None:
                module.__dict__.pop("forward", None)
            else:
                module.__dict__["forward"] = forward
        if not tape.playing:
            tape.seal()


def _watched(module: nn.Module, tape: Tape, slot: Slot) -> Callable[..., Any]:
    forward = module.forward

    def call(*args: Any, **kwargs: Any) -> Any:
        if slot.calls:
            return forward(*args, **kwargs)
        tape.modules.append(module)
        return tape.call(forward, args, kwargs)

    return call


def _outside(net: nn.Module, slot: Slot) -> list[nn.Module]:
    """The largest submodules that do not contain the slot."""
    found: list[nn.Module] = []

    def walk(module: nn.Module) -> None:
        for child in module.children():
            if child is slot or isinstance(child, torch.jit.ScriptModule):
                continue
            if any(part is slot for part in child.modules()):
                walk(child)
            elif not isinstance(child, (nn.ModuleList, nn.ModuleDict)):
                found.append(child)
            else:
                walk(child)

    walk(net)
    return list(dict.fromkeys(found))


def widths(module: nn.Module) -> int | None:
    """How many channels a module reads, from its attributes or its first layer's."""
    for name in _WIDTHS:
        value = getattr(module, name, None)
        value = value[0] if isinstance(value, tuple) and value else value
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    shape = getattr(module, "normalized_shape", None)
    if shape:
        return int(shape[-1])
    first = next((w for child in module.children() if (w := widths(child)) is not None), None)
    if first is not None and type(module).__name__ in ("EdgeConv", "DynamicEdgeConv"):
        return first // 2  # their MLP reads the features of both ends
    return first
