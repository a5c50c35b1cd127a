"""Finding the head: one pass shows a network's layers, its head, its rows and how it ends.

`record` notes which functions and modules made which value out of which. A *value* is a tensor as
it was at one moment: its identity together with its version, which torch raises whenever the
tensor, or a view of it, is changed in place. So a value that was changed by something the recording
did not see has no maker, and nobody can go wrong by reading on. `trace` reads the calls backwards
from the output; what a head does to each row becomes `Step`, data that JSON can hold.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from torch_geometric.data import Batch
from torch_geometric.nn import DeepGCNLayer, GPSConv, MessagePassing

from gduq.errors import InputError
from gduq.graphs import Graph, Rows, check_graph, row_kind
from gduq.tracing.call import (
    LINEAR,
    Call,
    Ending,
    call_network,
    check_complete,
    copied,
    first_input,
    is_untouched,
    row_counts,
    shares_weights,
)

__all__ = ["ADVICE", "Location", "Step", "Trace", "record", "trace"]

ADVICE = "See gduq.cut_points(net, graph) for the places one can anchor at."
Plain = float | str | list[float]
Value = tuple[int, int]  # identity and version of a tensor

# What a pass consists of, by the name that F.relu, torch.relu, x.relu() and x.relu_() share.
_ACTIVATIONS = (  # of one tensor, entry by entry
    *("relu", "relu6", "elu", "celu", "selu", "gelu", "silu", "mish", "softplus", "hardswish"),
    *("tanh", "sigmoid", "leaky_relu"),
)
_ARITHMETIC = ("mul", "div", "add", "sub")  # with numbers, or constants of the network, a step, too
_STEPS: dict[str, Callable[..., Tensor]] = {
    name: getattr(F, name, None) or getattr(torch, name)
    for name in (*_ACTIVATIONS, *_ARITHMETIC, "dropout")
}
_SHAPES = ("view", "reshape", "squeeze", "unsqueeze", "flatten", "contiguous", "clone")
_SUMS = (
    *("sum", "dot", "inner", "linear", "bilinear", "addmm", "mm", "matmul", "bmm", "einsum"),
    *("spmm", "index_add", "scatter_add"),
)


# -- steps of a head -------------------------------------------------------------------------------


class Function(nn.Module):
    """A function of torch as a module: ``name(x, *args, **kwargs)``; lists become vectors."""

    def __init__(self, step: Step) -> None:
        super().__init__()
        self.step = step
        self(torch.ones(1, 1))  # raises where there is no such function, or not of these arguments

    def forward(self, x: Tensor) -> Tensor:
        _, name, args, kwargs = self.step
        numbers = (x.new_tensor(arg) if isinstance(arg, list) else arg for arg in args)
        return _STEPS[name](x, *numbers, **kwargs)


class Step(NamedTuple):
    """A module of the network by its dotted path, or a function by its name and its arguments."""

    kind: Literal["module", "function"]
    name: str
    args: Sequence[Plain] = []
    kwargs: Mapping[str, Plain] = {}

    def build(self, net: nn.Module) -> nn.Module:
        """A copy of the network's module, or the function as a module."""
        if self.kind == "module":
            return copy.deepcopy(net.get_submodule(self.name))
        return nn.Dropout(*self.args) if self.name == "dropout" else Function(self)  # type: ignore[arg-type]


# -- one pass, recorded ----------------------------------------------------------------------------


class Event(NamedTuple):
    """One call in a pass."""

    step: Step  # as it was called; constants of the network are numbers among its arguments
    read: Value | None  # the first value it read, if any
    before: tuple[int, ...]  # its shape
    after: tuple[int, ...]  # shape of the first value it made
    straight: bool  # whether it made one value out of one tensor


class Recording(TorchFunctionMode):
    """What happens in a pass while this context is entered; ``net`` is the network as it was."""

    out: Tensor  # what the network gave [rows, O]

    def __init__(self, net: nn.Module, graph: Graph) -> None:
        super().__init__()
        self.net = net
        self.calls = {"": [_shape(graph.get("x"))]}  # see `Trace.calls`
        self._given = {id(leaf) for store in graph.stores for leaf in store.values()}
        self._makers: dict[Value | None, Event] = {}  # the call that made a value
        self._alive: list[Tensor] = []  # a tensor that lives keeps its identity to itself

    def history(self) -> Iterator[Event]:
        """The calls that led to the output, the last one first; each read what the next made."""
        event = self._makers.get(self._value(self.out))
        while event is not None:
            yield event
            event = self._makers.get(event.read)

    def _value(self, tensor: Tensor) -> Value:
        """The value that a tensor is now."""
        self._alive.append(tensor)
        return id(tensor), -1 if tensor.is_inference() else tensor._version

    def _plain(self, arg: object) -> object:
        """An argument, or the numbers of a tensor that is the same in every pass: no weight, not
        of the graph, and not computed."""
        if not isinstance(arg, Tensor) or arg.dim() > 1 or isinstance(arg, nn.Parameter):
            return arg
        same = id(arg) not in self._given and self._value(arg) not in self._makers
        return arg.tolist() if same else arg

    def _note(self, out: object, step: Step, read: list[Value], before: tuple[int, ...]) -> None:
        made = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        if made:
            first, straight = read[0] if read else None, len(read) == len(made) == 1
            event = Event(step, first, tuple(before), tuple(made[0].shape), straight)
            self._makers |= {self._value(tensor): event for tensor in made}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        plain = [self._plain(arg) for arg in args]
        named = {key: self._plain(value) for key, value in kwargs.items() if value is not None}
        given = [leaf for leaf in tree_leaves((plain, named)) if isinstance(leaf, Tensor)]
        read, before = [self._value(tensor) for tensor in given], given[0].shape if given else ()
        out = func(*args, **kwargs)
        name = str(getattr(func, "__name__", func)).strip("_")
        if isinstance(out, Tensor) and self._value(out) in read:
            if "dropout" not in name or kwargs.get("p") == 0:
                return out  # nothing happened
            out = out.detach()  # dropout in evaluation mode: a tensor of its own
        if name in _ARITHMETIC and given and first_input(plain, named) is not given[0]:
            name = name if name in ("mul", "add") and not named else f"r{name}"  # 3 - z
        named.pop("inplace", None)
        by_name: Any = {key: arg for key, arg in named.items() if not isinstance(arg, Tensor)}
        others: Any = [arg for arg in plain if not isinstance(arg, Tensor)]
        self._note(out, Step("function", name, others, by_name), read, before)
        return out

    def watch(self, path: str, module: nn.Module) -> None:
        """Note the calls of a submodule of the copy that runs; what is inside a step counts not."""

        def enter(_: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
            self.calls.setdefault(path, []).append(_shape(first_input(args, kwargs)))

        def leave(_: nn.Module, args: tuple[object, ...], kwargs: Any, out: object) -> None:
            h = first_input(args, kwargs)
            self._note(out, Step("module", path), [self._value(h)], h.shape)

        if _is_step(module):  # which has no hooks yet
            module.register_forward_hook(leave, with_kwargs=True)
        module.register_forward_pre_hook(enter, prepend=True, with_kwargs=True)


def _shape(h: object) -> tuple[int, ...]:
    return tuple(h.shape) if isinstance(h, Tensor) and h.is_floating_point() else ()


def _is_step(module: nn.Module) -> bool:
    """Whether a module is one step of a head: it reads rows one by one, and has weights."""
    by_row = type(module) in (*LINEAR, nn.PReLU, nn.BatchNorm1d, nn.LayerNorm)
    of_batch = getattr(module, "track_running_stats", None) is False
    return by_row and not of_batch and is_untouched(module)


def record(net: nn.Module, graph: Graph, call: Call | None = None) -> Recording:
    """A pass of a copy of a network in evaluation mode; torch's randomness stays as it was."""
    pass_ = Recording(net, graph)
    devices = {p.device.index for p in net.parameters() if p.device.type == "cuda"}
    with torch.inference_mode(False), torch.no_grad():
        double = copied(net).eval()
        for path, module in double.named_modules():
            if path and not isinstance(module, torch.jit.ScriptModule):
                pass_.watch(path, module)
        with torch.random.fork_rng(sorted(devices)), pass_:
            pass_.out = call_network(double, graph, call)
    return pass_


# -- what a pass shows -----------------------------------------------------------------------------


class Location(NamedTuple):
    """Where a network is cut: in front of a submodule, which reads a representation h [rows, d]."""

    path: str  # of the submodule; empty: the network's input
    channels: int  # d
    rows: Rows  # what the rows of h are
    row_kind: Rows  # what the rows of the output are
    ending: Ending | None = None  # the function at the end that makes probabilities of logits
    steps: tuple[Step, ...] | None = None  # of a head: what follows its first linear map
    outputs: int = 0  # without a head: how many outputs stand beside h, which it then picks


class Trace(NamedTuple):
    """What one pass of a network showed."""

    rows: Rows  # what the rows of the output are
    layers: tuple[str, ...]  # of message passing in the order of calls; each reads nodes, and once
    head: Location | None  # the last chain of linear maps, activations, dropout and norms
    ending: Ending | None  # see `Location.ending`
    bounded: bool  # whether the output comes neither from a sum nor from a linear map
    # float shapes that each submodule reads, one per call, in the order of first calls; first of
    # all, without a name, that of x
    calls: Mapping[str, list[tuple[int, ...]]]
    sizes: Mapping[Rows, int]  # rows of each kind in the graph of the pass
    width: int  # O, of the output

    def beside(self) -> Location | None:
        """That in front of the last layer, whose rows can stand beside the outputs."""
        if not self.layers or self.rows == "edge":
            return None
        last, rows = self.location(self.layers[-1]), self.rows
        wide = last.channels + self.width
        return Location(last.path, wide, rows, rows, self.ending, (), self.width)

    def location(self, path: str) -> Location:
        """That in front of a submodule, which must read a matrix once in a pass."""
        if self.head is not None and path == self.head.path:
            return self.head
        shapes = self.calls.get(path, [])
        if [len(shape) for shape in shapes] != [2]:
            wanted = f"a float matrix [rows, d] at '{path or 'input'}', once in a pass"
            raise InputError(wanted, f"the shapes {shapes}", ADVICE)
        (count, channels), of_nodes = shapes[0], not path or path in self.layers
        rows = "node" if of_nodes else _kind_of(count, self.sizes, f"at {path!r}")
        return Location(path, channels, rows, self.rows, self.ending)


def trace(net: nn.Module, graph: Graph, call: Call | None = None) -> Trace:
    """Run a copy of a network once on a graph and find the network's parts.

    Where a graph has as many rows of two kinds, the output's are those that the graph says are
    labelled, else the graphs of a batch.
    """
    check_graph(graph)
    check_complete(net)
    seen, sizes = record(net, graph, call), row_counts(graph)
    likely: Rows | None = "graph" if isinstance(graph, Batch) else None
    likely = row_kind(graph) or ("node" if graph.get("train_mask") is not None else likely)
    rows = _kind_of(seen.out.size(0), sizes, "of the output", likely)
    events = [event for event in seen.history() if not _is_shape(event)]
    ending = _ending(events[0]) if events else None
    events = events if ending is None else events[1:]
    head = _head(seen, events, Location("", 0, rows, rows, ending))
    layers, bounded = _layers(seen, sizes.get("node", -1)), _is_bounded(events)
    return Trace(rows, layers, head, ending, bounded, seen.calls, sizes, seen.out.size(1))


def _kind_of(count: int, sizes: Mapping[Rows, int], where: str, likely: Rows | None = None) -> Rows:
    """The kind of rows of which there are so many; the ``likely`` one where several fit."""
    fits = [kind for kind, size in sizes.items() if size == count]
    if likely in fits or len(fits) == 1:
        return likely if likely in fits else fits[0]
    have = ", ".join(f"{size} {kind}(s)" for kind, size in sizes.items())
    raise InputError(
        f"rows {where} that are clearly the nodes, graphs or labelled edges of a graph ({have})",
        f"{count} rows",
        "Pass a larger graph, a gduq.data.View of the rows that are labelled, or call=lambda net, "
        "graph: ... that returns one row for each.",
    )


def _is_shape(event: Event) -> bool:
    """Whether a call gives the same numbers in the same shape, or as a vector of a column."""
    before, after = ((*s, 1) if len(s) == 1 else s for s in (event.before, event.after))
    kind, name, *_ = event.step
    return kind == "function" and name in _SHAPES and event.straight and before == after


def _ending(event: Event) -> Ending | None:
    """What the last call makes of logits, if it makes probabilities."""
    kind, name, args, kwargs = event.step
    dim = kwargs.get("dim", args[0] if args else None)
    by_row = name in ("softmax", "log_softmax") and len(event.before) == 2 and dim in (1, -1)
    found = kind == "function" and event.straight and (by_row or name == "sigmoid")
    return name if found else None  # type: ignore[return-value]


def _is_bounded(events: Sequence[Event]) -> bool:
    """Whether values come from no sum and no linear map; constants, parts and dropout aside."""
    for event in events:
        kind, name, *_ = event.step
        if kind == "module" or name in _SUMS or (name in ("add", "sub") and not event.straight):
            return False
        if name not in ("getitem", "dropout") and not (name in _ARITHMETIC and event.straight):
            return True
    return True


def _head(seen: Recording, events: Sequence[Event], base: Location) -> Location | None:
    """The longest chain of steps that leads to the logits and starts with a linear map."""
    steps: list[Step] = []
    head = None
    for event in events:
        step = _step(seen, event)
        if step is None:
            break
        if step.kind == "module" and type(seen.net.get_submodule(step.name)) in LINEAR:
            path, channels = step.name, event.before[1]
            head = base._replace(path=path, channels=channels, steps=tuple(steps[::-1]))
        steps.append(step)
    return head


def _step(seen: Recording, event: Event) -> Step | None:
    """A call as a step of a head, or ``None`` where it is none."""
    kind, name, args, kwargs = event.step
    if not event.straight or len(event.after) > 2 or event.after[:1] != seen.out.shape[:1]:
        return None
    if kind == "module":  # weights that are used twice do not belong to the head alone
        once = len(event.before) == 2 and len(seen.calls[name]) == 1
        return event.step if once and not shares_weights(seen.net, name) else None
    if name == "dropout":
        return None if kwargs.get("training", True) else Step("function", name, [kwargs["p"]])
    numbers = [arg for arg in args if len(event.before) < 2 or not isinstance(arg, list)]
    plain = all(isinstance(value, (int, float, str)) for value in (*numbers, *kwargs.values()))
    return event.step if plain and name in _STEPS else None


def _layers(seen: Recording, nodes: int) -> tuple[str, ...]:
    """Layers of message passing: the outermost modules of that kind that read all nodes, once."""
    found: list[str] = []
    for path, module in seen.net.named_modules():
        known = path and isinstance(module, (MessagePassing, GPSConv, DeepGCNLayer))
        if known and not any(path.startswith(f"{outer}.") for outer in found):
            found += [path] if [s[:-1] for s in seen.calls.get(path, [])] == [(nodes,)] else []
    return tuple(sorted(found, key=list(seen.calls).index))
