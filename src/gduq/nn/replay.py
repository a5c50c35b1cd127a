"""Entering a module in the middle: a hook puts a value in, a recorder plays what precedes it.

Both work by putting another ``forward`` on submodules for the length of one pass. The modules
themselves, their classes and their names stay as they are. One pass at a time: a lock keeps
threads that share a network apart.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from gduq.errors import InputError
from gduq.export_mode import exporting

__all__ = ["InputHook", "PrefixRecorder", "first_input", "one_pass", "replaying"]

_LOCK = threading.RLock()
_ADVICE = "See gduq.cut_points(net, graph) for the places where it can be cut."


class _Reached(Exception):
    """The hook was reached; nothing more of this pass is needed."""


def first_input(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a submodule reads: its first argument, or the keyword ``x`` or ``input``."""
    return args[0] if args else kwargs.get("x", kwargs.get("input"))


class InputHook:
    """The place in front of a submodule; asks a reader what to do with the submodule's input.

    The reader's answer is the submodule's output (``takes_over``), or what it goes on with.
    """

    def __init__(self, path: str, takes_over: bool) -> None:
        self.path, self.takes_over = path, takes_over
        self.calls = 0

    @contextmanager
    def reading(self, net: nn.Module, reader: Callable[[Any], Tensor]) -> Iterator[None]:
        """Within this context one pass may run, with this reader."""
        module = net.get_submodule(self.path)
        inner = module.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            if self.calls > 1:
                raise InputError(
                    f"'{self.path}' to be called once in a pass", "a second call", _ADVICE
                )
            z = reader(first_input(args, kwargs))
            if self.takes_over:
                return z
            if args:
                return inner(z, *args[1:], **kwargs)
            return inner(**{**kwargs, "x" if "x" in kwargs else "input": z})

        self.calls = 0
        with _forwards({module: forward}):
            yield
        if not self.calls:
            raise InputError(
                f"the network to call '{self.path}' once in a pass", "no call", _ADVICE
            )

    def arriving(self, net: nn.Module, run: Callable[[], object]) -> Any:
        """What arrives at the hook in a pass, which goes no further.

        In an export it goes on with anything: what nobody reads is not part of a program.
        """
        arrived = []

        def stop(h: Any) -> Any:
            arrived.append(h)
            if not exporting():
                raise _Reached
            linear: Any = net.get_submodule(self.path)
            return h.new_zeros(h.size(0), linear.out_features) if self.takes_over else h

        with self.reading(net, stop), suppress(_Reached):
            run()
        return arrived[0]


class PrefixRecorder:
    """Outputs of the submodules before the hook, in the order of their calls.

    Copies are kept and copies are played, so that nothing done to a value in place reaches the
    next pass. An output that is neither tensors nor plain values ends the recording for good.
    """

    def __init__(self, records: Sequence[Any] | None) -> None:
        self.playing = records is not None
        self.records: list[Any] = list(records or ())
        self.modules: list[nn.Module] = []
        self.position = 0
        self.sound = True

    def call(self, module: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        self.modules.append(module)
        if self.playing and self.position < len(self.records):
            self.position += 1
            return _copied(self.records[self.position - 1])
        out = forward(*args, **kwargs)
        if self.playing:
            return out
        plain = (Tensor, int, float, str, bool, type(None))
        if all(isinstance(leaf, plain) for leaf in tree_leaves(out)):
            self.records.append(_copied(out))
        else:
            self.sound = False
        return out


def _copied(value: Any) -> Any:
    return tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, value)


@contextmanager
def one_pass() -> Iterator[None]:
    """Held while a network carries other forwards."""
    with _LOCK:
        yield


@contextmanager
def replaying(
    net: nn.Module, hook: InputHook, records: Sequence[Any] | None = None
) -> Iterator[PrefixRecorder]:
    """Record, or play back, the submodules that are called before the hook in a pass.

    The hook must be read within this context. Without anything recorded all of it runs.
    """
    recorder = PrefixRecorder(records)

    def watched(module: nn.Module) -> Callable[..., Any]:
        forward = module.forward

        def call(*args: Any, **kwargs: Any) -> Any:
            if hook.calls:
                return forward(*args, **kwargs)
            return recorder.call(module, forward, args, kwargs)

        return call

    hook.calls = 0
    with _forwards({module: watched(module) for module in _outside(net, hook.path)}):
        yield recorder
    if not recorder.sound:
        recorder.records = []


@contextmanager
def _forwards(changes: dict[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    """Within this context modules have other ``forward``s."""
    before = [(module, module.__dict__.get("forward")) for module in changes]
    for module, forward in changes.items():
        module.__dict__["forward"] = forward
    try:
        yield
    finally:
        for module, own in before:
            if own is None:
                module.__dict__.pop("forward", None)
            else:
                module.__dict__["forward"] = own


def _outside(net: nn.Module, path: str) -> list[nn.Module]:
    """The largest submodules that do not contain the hook."""
    target = net.get_submodule(path)
    found: dict[nn.Module, None] = {}

    def walk(module: nn.Module) -> None:
        for child in module.children():
            if child is target or isinstance(child, torch.jit.ScriptModule):
                continue
            held = isinstance(child, (nn.ModuleList, nn.ModuleDict))
            if held or any(part is target for part in child.modules()):
                walk(child)
            else:
                found[child] = None

    walk(net)
    return list(found)
