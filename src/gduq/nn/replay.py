"""Entering a network in the middle: a `Cut` reads what arrives there, or goes on from it.

For the length of a pass submodules have another ``forward``; they themselves stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from gduq.errors import InputError
from gduq.export_mode import exporting
from gduq.graph import Graph
from gduq.nn.call import ONE_PASS, Call, call_network, first_input

__all__ = ["Cut", "Recorder", "playing"]

_ADVICE = "See gduq.cut_points(net, graph) for the places where it can be cut."
_PLAIN = (Tensor, int, float, str, bool, type(None))

Forward = Callable[..., Any]
# What is called in the place of a module's forward: with the module, that forward, arguments.
Instead = Callable[[nn.Module, Forward, Any, Any], Any]


class _Reached(Exception):
    """The cut was reached; nothing more of this pass is needed."""


class Cut:
    """The place in front of a submodule, which a pass comes to once.

    Args:
        path: The submodule.
        takes_over: Whether a reader's answer is the submodule's output, or its new input.
    """

    def __init__(self, path: str, takes_over: bool = False) -> None:
        self.path, self.takes_over = path, takes_over

    def run(
        self,
        net: nn.Module,
        graph: Graph,
        call: Call | None,
        reader: Callable[[Any], Any],
        before: Instead | None = None,
    ) -> Tensor:
        """The output of a pass in which ``reader`` is asked what to do with the value here."""
        target, calls = net.get_submodule(self.path), 0

        def at_the_cut(_: nn.Module, own: Forward, args: Any, kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > 1:
                raise self._not_called_once("a second call")
            z = reader(first_input(args, kwargs))
            if self.takes_over:
                return z
            if args:
                return own(z, *args[1:], **kwargs)
            return own(**{**kwargs, "x" if "x" in kwargs else "input": z})

        def earlier(module: nn.Module, own: Forward, args: Any, kwargs: Any) -> Any:
            if calls or before is None:
                return own(*args, **kwargs)
            return before(module, own, args, kwargs)

        parts = () if before is None else _outside(net, target)
        with ONE_PASS, _instead({target: at_the_cut, **dict.fromkeys(parts, earlier)}):
            out = call_network(net, graph, call)
        if not calls:
            raise self._not_called_once("no call")
        return out

    def arriving(
        self, net: nn.Module, graph: Graph, call: Call | None, before: Instead | None = None
    ) -> Any:
        """What arrives here in a pass, which goes no further.

        In an export it goes on with anything: what nobody reads is not part of a program.
        """
        arrived: list[Any] = []

        def stop(h: Any) -> Any:
            arrived.append(h)
            if not exporting():
                raise _Reached
            linear: Any = net.get_submodule(self.path)
            return h.new_zeros(h.size(0), linear.out_features) if self.takes_over else h

        with suppress(_Reached):
            self.run(net, graph, call, stop, before)
        return arrived[0]

    def _not_called_once(self, got: str) -> InputError:
        return InputError(f"'{self.path}' to be called once in a pass", got, _ADVICE)


class Recorder:
    """Keeps copies of what submodules before a cut give, in the order of their calls.

    An output that is neither tensors nor plain values spoils the record.
    """

    def __init__(self) -> None:
        self.modules: dict[nn.Module, None] = {}
        self._outputs: list[Any] | None = []

    def __call__(self, module: nn.Module, forward: Forward, args: Any, kw: Any) -> Any:
        self.modules[module] = None
        out = forward(*args, **kw)
        if not all(isinstance(leaf, _PLAIN) for leaf in tree_leaves(out)):
            self._outputs = None
        if self._outputs is not None:
            self._outputs.append(_copied(out))
        return out

    @property
    def outputs(self) -> tuple[Any, ...]:
        """What was kept; nothing where the record is spoilt."""
        return tuple(self._outputs or ())


def playing(outputs: Iterable[Any]) -> Instead:
    """Plays copies of recorded outputs; modules that nothing is left for run."""
    left, end = iter(outputs), object()

    def play(_: nn.Module, forward: Forward, args: Any, kwargs: Any) -> Any:
        out = next(left, end)
        return forward(*args, **kwargs) if out is end else _copied(out)

    return play


def _copied(value: Any) -> Any:
    return tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, value)


@contextmanager
def _instead(changes: dict[nn.Module, Instead]) -> Iterator[None]:
    """Within this context something is called in the place of modules' ``forward``s."""

    def changed(module: nn.Module, own: Forward) -> Forward:
        return lambda *args, **kwargs: changes[module](module, own, args, kwargs)

    before = [(module, module.__dict__.get("forward")) for module in changes]
    for module in changes:
        module.__dict__["forward"] = changed(module, module.forward)
    try:
        yield
    finally:
        for module, own in before:
            del module.__dict__["forward"]
            if own is not None:
                module.__dict__["forward"] = own


def _outside(module: nn.Module, target: nn.Module) -> Iterator[nn.Module]:
    """The largest submodules that do not contain the target."""
    for child in module.children():
        if child is target or isinstance(child, torch.jit.ScriptModule):
            continue
        held = isinstance(child, (nn.ModuleList, nn.ModuleDict))
        if held or any(part is target for part in child.modules()):
            yield from _outside(child, target)
        else:
            yield child
