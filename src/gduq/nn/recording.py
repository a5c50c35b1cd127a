"""One pass of a network, recorded: which functions and modules made which value out of which.

A *value* is a tensor as it was at one moment: its identity together with its version, which torch
raises whenever the tensor, or a view of it, is changed in place. So a value that was changed by
something the recording did not see has no maker, and nobody can go wrong by reading on.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from torch_geometric.nn.norm import BatchNorm as PyGBatchNorm
from torch_geometric.nn.norm import LayerNorm as PyGLayerNorm

from gduq.nn.call import ONE_PASS, Call, call_network, evaluating, first_input
from gduq.nn.widths import LINEAR

__all__ = ["Entry", "Event", "Recording", "kept_as_it_was", "record"]


@dataclass(frozen=True, eq=False)
class Event:
    """One call in a pass: of a function, or of a module that is recorded as a whole."""

    name: str  # of the function, without the underscore of an in-place version; empty: a module
    path: str  # of that module
    read: tuple[int, ...]  # numbers of the values it read
    before: tuple[int, ...]  # shape of the first of them
    made: tuple[int, ...]  # numbers of the values it made
    after: tuple[int, ...]  # shape of the first of them
    tensors: int = 1  # how many tensors it was given
    args: tuple[Any, ...] = ()  # positional arguments that are no tensors
    kwargs: dict[str, Any] = field(default_factory=dict)  # the same by name

    @property
    def is_straight(self) -> bool:
        """Whether it made one value out of one."""
        return self.tensors == len(self.read) == len(self.made) == 1

    @property
    def over(self) -> Any:
        """Its argument ``dim``, or the first one without a name."""
        return self.kwargs.get("dim", self.args[0] if self.args else None)


class Entry(NamedTuple):
    """What a module read first in one of its calls; nothing where that is no tensor of floats."""

    shape: tuple[int, ...] = ()
    value: int | None = None


class Recording(TorchFunctionMode):
    """Notes what happens to a network and a graph while it is entered."""

    out: Tensor  # what the network gave [rows, O]

    def __init__(self, net: nn.Module, graph: Any) -> None:
        super().__init__()
        self.net, self.graph = net, graph
        self.events: list[Event] = []  # all calls, in order
        self.makers: dict[int, Event] = {}  # the call that made a value, by the value's number
        self.entered: dict[str, list[Entry]] = {}  # calls by module, in the order of first calls
        self._numbers: dict[tuple[int, int], int] = {}
        self._count = itertools.count()
        self._kept: list[Tensor] = []  # a tensor that lives keeps its id to itself
        self._whole = ""  # the module that is at work and recorded as a whole

    def number(self, tensor: Tensor) -> int:
        """The number of the value that a tensor is now."""
        if tensor.is_inference():  # has no version, so changes cannot be seen
            return next(self._count)
        key = (id(tensor), tensor._version)
        return self._numbers[key] if key in self._numbers else self._new(tensor)

    def _new(self, tensor: Tensor) -> int:
        number = next(self._count)
        self._kept.append(tensor)
        if not tensor.is_inference():
            self._numbers[id(tensor), tensor._version] = number
        return number

    def _note(
        self, out: Any, name: str, path: str, read: Any, before: tuple[int, ...], **more: Any
    ) -> None:
        """Note a call by what it made."""
        made = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        if made:
            numbers = tuple(self._new(tensor) for tensor in made)
            event = Event(name, path, read, before, numbers, tuple(made[0].shape), **more)
            self.events.append(event)
            self.makers |= dict.fromkeys(numbers, event)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._whole:
            return func(*args, **kwargs)
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        read = tuple(dict.fromkeys(self.number(tensor) for tensor in given))
        before = tuple(given[0].shape) if given else ()
        out = func(*args, **kwargs)
        name = str(getattr(func, "__name__", func))
        name = name if name.endswith("__") else name.rstrip("_")
        if isinstance(out, Tensor) and any(out is t for t in given) and self.number(out) in read:
            if "dropout" not in name:
                return out  # nothing happened
            out = out.detach()  # dropout in evaluation mode: a name of its own for its value
        plain = tuple(a for a in args if not isinstance(a, Tensor))
        named = {k: v for k, v in kwargs.items() if v is not None and not isinstance(v, Tensor)}
        self._note(out, name, "", read, before, tensors=len(given), args=plain, kwargs=named)
        return out

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Within this context the calls of all submodules are noted."""
        with ExitStack() as ends:
            for path, module in self.net.named_modules():
                if path and not isinstance(module, torch.jit.ScriptModule):
                    enter, leave = self._hooks(path, _is_whole(module))
                    before = module.register_forward_pre_hook(enter, prepend=True, with_kwargs=True)
                    ends.callback(before.remove)
                    ends.callback(module.register_forward_hook(leave).remove)
            yield

    def _hooks(self, path: str, whole: bool) -> tuple[Callable[..., None], Callable[..., None]]:
        def enter(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            h = first_input(args, kwargs)
            known = isinstance(h, Tensor) and h.is_floating_point()
            entry = Entry(tuple(h.shape), self.number(h)) if known else Entry()
            self.entered.setdefault(path, []).append(entry)
            if whole and known and not self._whole:
                self._whole = path

        def leave(_: nn.Module, __: Any, out: Any) -> None:
            if self._whole == path:
                self._whole, entry = "", self.entered[path][-1]
                self._note(out, "", path, (entry.value,), entry.shape)

        return enter, leave


def _is_whole(module: nn.Module) -> bool:
    """Whether a module is one step of a head: it reads rows one by one, and has weights."""
    if module._forward_hooks or module._forward_pre_hooks or "forward" in module.__dict__:
        return False
    if type(module) is PyGBatchNorm:
        return _is_whole(module.module)  # type: ignore[arg-type]
    if type(module) is nn.BatchNorm1d:
        return module.running_mean is not None  # else it reads the statistics of all rows
    if type(module) is PyGLayerNorm:
        return bool(module.mode == "node")
    if type(module) is nn.LayerNorm:
        return len(module.normalized_shape) == 1
    return type(module) in (*LINEAR, nn.PReLU)


def record(net: nn.Module, graph: Any, call: Call | None = None) -> Recording:
    """A pass of a network in evaluation mode; it, and torch's randomness, stay as they were."""
    seen = Recording(net, graph)
    devices = {p.device.index for p in net.parameters() if p.device.type == "cuda"}
    with (
        ONE_PASS,
        kept_as_it_was(net),
        evaluating(net),
        torch.random.fork_rng(sorted(devices)),
        torch.inference_mode(False),
        torch.no_grad(),
        seen.watching(),
        seen,
    ):
        seen.out = call_network(net, copy.copy(graph), call)
    return seen


@contextmanager
def kept_as_it_was(net: nn.Module) -> Iterator[None]:
    """Attributes and buffers get their values back: convolutions, for one, may cache a graph."""
    modules = [m for m in net.modules() if not isinstance(m, torch.jit.ScriptModule)]
    held = [(store, dict(store)) for m in modules for store in (m.__dict__, m._buffers)]
    buffers = [(b, b._version, b.clone()) for b in net.buffers() if not b.is_inference()]
    try:
        yield
    finally:
        for store, before in held:
            for name in [name for name in store if name not in before]:
                del store[name]
            store.update((k, v) for k, v in before.items() if store.get(k, held) is not v)
        with torch.no_grad():
            for buffer, version, value in buffers:
                if buffer._version != version:
                    buffer.copy_(value)
