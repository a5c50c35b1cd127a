"""One pass of a network, recorded: which functions and modules made which value out of which.

A *value* is a tensor as it was at one moment: its identity together with its version, which torch
raises whenever the tensor, or a view of it, is changed in place. So a value that was changed by
something the recording did not see has no maker, and nobody can go wrong by reading on.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from torch_geometric.nn.norm import BatchNorm as PyGBatchNorm
from torch_geometric.nn.norm import LayerNorm as PyGLayerNorm

from gduq.graphs import Graph
from gduq.tracing.call import Call, call_network, copied, first_input
from gduq.tracing.widths import LINEAR

__all__ = ["Entry", "Event", "Recording", "record"]


@dataclass(frozen=True, eq=False)
class Event:
    """One call in a pass: of a function, or of a module that is one step of a head."""

    name: str  # of the function, without the underscore of an in-place version; empty: a module
    path: str  # of that module
    read: tuple[int, ...]  # numbers of the values it read
    before: tuple[int, ...]  # shape of the first of them
    made: tuple[int, ...]  # numbers of the values it made
    after: tuple[int, ...]  # shape of the first of them
    tensors: int = 1  # how many tensors it was given
    args: tuple[object, ...] = ()  # positional arguments that are no tensors
    kwargs: Mapping[str, object] = field(default_factory=dict)  # the same by name

    @property
    def is_straight(self) -> bool:
        """Whether it made one value out of one."""
        return self.tensors == len(self.read) == len(self.made) == 1

    @property
    def dim(self) -> object:
        """Its argument ``dim``, or the first one without a name."""
        return self.kwargs.get("dim", self.args[0] if self.args else None)


class Entry(NamedTuple):
    """What a module read first in one of its calls; nothing where that is no tensor of floats."""

    shape: tuple[int, ...] = ()
    value: int = -1


class Recording(TorchFunctionMode):
    """What happens in a pass of a copy of a network while this context is entered."""

    out: Tensor  # what the network gave [rows, O]

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.makers: dict[int, Event] = {}  # the call that made a value, by the value's number
        self.entered: dict[str, list[Entry]] = {}  # calls by module, in the order of first calls
        self._numbers: dict[tuple[int, int], int] = {}
        self._count = itertools.count()
        self._alive: list[Tensor] = []  # a tensor that lives keeps its id to itself
        self._inside = ""  # the module at work that is one step

    def number(self, tensor: Tensor) -> int:
        """The number of the value that a tensor is now."""
        if tensor.is_inference():  # has no version, so changes cannot be seen
            return next(self._count)
        known = self._numbers.get((id(tensor), tensor._version))
        return self._new(tensor) if known is None else known

    def _new(self, tensor: Tensor) -> int:
        number = next(self._count)
        self._alive.append(tensor)
        if not tensor.is_inference():
            self._numbers[id(tensor), tensor._version] = number
        return number

    def _add_event(
        self,
        out: object,
        name: str,
        path: str,
        read: tuple[int, ...],
        before: tuple[int, ...],
        **more: Any,
    ) -> None:
        made = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        if made:
            numbers = tuple(self._new(tensor) for tensor in made)
            event = Event(name, path, read, before, numbers, tuple(made[0].shape), **more)
            self.makers |= dict.fromkeys(numbers, event)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._inside:
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
        more = {"tensors": len(given), "args": plain, "kwargs": named}
        self._add_event(out, name, "", read, before, **more)
        return out

    def watch(self, path: str, module: nn.Module) -> None:
        """Note the calls of a submodule of the copy that runs."""
        is_step = _is_step(module)

        def enter(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            h = first_input(args, kwargs)
            known = isinstance(h, Tensor) and h.is_floating_point()
            entry = Entry(tuple(h.shape), self.number(h)) if known else Entry()
            self.entered.setdefault(path, []).append(entry)
            if is_step and known and not self._inside:
                self._inside = path

        def leave(_: nn.Module, __: Any, out: Any) -> None:
            if self._inside == path:
                self._inside, entry = "", self.entered[path][-1]
                self._add_event(out, "", path, (entry.value,), entry.shape)

        module.register_forward_pre_hook(enter, prepend=True, with_kwargs=True)
        module.register_forward_hook(leave)


def _is_step(module: nn.Module) -> bool:
    """Whether a module is one step of a head: it reads rows one by one, and has weights."""
    if module._forward_hooks or module._forward_pre_hooks or "forward" in module.__dict__:
        return False
    if type(module) is PyGBatchNorm:
        return _is_step(module.module)  # type: ignore[arg-type]
    if type(module) is nn.BatchNorm1d:
        return module.running_mean is not None  # else it reads the statistics of all rows
    if type(module) is PyGLayerNorm:
        return bool(module.mode == "node")
    if type(module) is nn.LayerNorm:
        return len(module.normalized_shape) == 1
    return type(module) in (*LINEAR, nn.PReLU)


def record(net: nn.Module, graph: Graph, call: Call | None = None) -> Recording:
    """A pass of a copy of a network in evaluation mode; torch's randomness stays as it was."""
    pass_ = Recording(net)
    devices = {p.device.index for p in net.parameters() if p.device.type == "cuda"}
    with torch.inference_mode(False), torch.no_grad():
        double = copied(net).eval()
        for path, module in double.named_modules():
            if path and not isinstance(module, torch.jit.ScriptModule):
                pass_.watch(path, module)
        with torch.random.fork_rng(sorted(devices)), pass_:
            pass_.out = call_network(double, graph, call)
    return pass_
