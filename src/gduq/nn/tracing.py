"""Finding the head: one pass shows a network's layers, its head, its rows and how it ends.

`recording` notes the calls of a pass; here they are read backwards from the output. `steps` holds
what a head does as data, `row_kinds` tells rows of nodes, graphs and edges apart. `trunk` then cuts
the network in front of its head, `replay` in front of any other part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch_geometric.nn import DeepGCNLayer, GPSConv, MessagePassing
from torch_geometric.nn import Sequential as PyGSequential

from gduq.graph import Rows, check_graph
from gduq.nn.call import Call
from gduq.nn.endings import Ending
from gduq.nn.recording import LINEAR, Entry, Event, Recording, record
from gduq.nn.row_kinds import kind_of_rows, row_counts
from gduq.nn.steps import Step, function_step
from gduq.nn.widths import as_linear, check_complete, input_width

__all__ = ["FoundHead", "Trace", "trace"]

_SHAPES = ("view", "reshape", "squeeze", "unsqueeze", "flatten", "contiguous", "clone")
_SUMS = (
    *("sum", "dot", "inner", "linear", "bilinear", "addmm", "mm", "matmul", "rmatmul", "bmm"),
    *("einsum", "spmm", "index_add", "scatter_add"),
)
_OF_TWO = ("add", "iadd", "radd", "sub", "isub")  # sums of two tensors; a number only shifts
_RESCALES = (*_OF_TWO, "rsub", "mul", "rmul", "imul", "div", "truediv", "itruediv")
_IDLE = Step("function", "dropout", (("p", 0.0),))


@dataclass(frozen=True)
class FoundHead:
    """The last part of a network that reads every row by itself.

    Attributes:
        path: The first linear map; what it reads is the representation ``h`` ``[rows, d]``.
        steps: What follows it, up to the logits.
    """

    path: str
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Trace:
    """What one pass of a network showed.

    Attributes:
        rows: What the rows of the output are.
        layers: Paths of the layers of message passing in the order of their calls. Each is called
            once and reads one row of floats per node.
        head: The last chain of linear maps, activations, dropout and norms, or ``None`` where the
            output comes from something else.
        ending: The function the network ends in that makes probabilities of logits, if any.
        bounded: Whether something bounds the output, which then comes neither from a sum nor
            from a linear map.
        rescaled: Without a head: the first linear map of what would be one, if the network did not
            multiply or shift its outputs by constants at the end.
    """

    rows: Rows
    layers: tuple[str, ...]
    head: FoundHead | None
    ending: Ending | None
    bounded: bool
    rescaled: str | None = None


def trace(net: nn.Module, graph: Any, call: Call | None = None) -> Trace:
    """Run a network once on a graph and find its parts. Nothing of the network changes.

    Example:
        >>> import torch
        >>> from torch_geometric.data import Data
        >>> from torch_geometric.nn import GraphSAGE
        >>> graph = Data(x=torch.ones(3, 4), edge_index=torch.tensor([[0, 1], [1, 2]]))
        >>> found = trace(GraphSAGE(4, 8, num_layers=2, out_channels=5, jk="cat"), graph)
        >>> found.head, found.rows
        (FoundHead(path='lin', steps=()), 'node')
        >>> found.layers
        ('convs.0', 'convs.1')
    """
    check_graph(graph)
    check_complete(net)
    out, seen = record(net, graph, call)
    do = "Pass call=lambda net, graph: ... that returns one row for each."
    entry = Entry(tuple(out.shape), seen.number(out))
    rows = kind_of_rows(net, graph, seen, entry, None, do)
    value, ending = _without_ending(seen, seen.number(out))
    head = _head(net, seen, value, out.size(0))
    layers = _layers(net, "", seen, row_counts(graph).get("node", -1))
    order = tuple(sorted(layers, key=list(seen.entered).index))
    rescaled = None if head is not None else _rescaled(net, seen, value, out.size(0))
    return Trace(rows, order, head, ending, not _is_sum(seen, value), rescaled)


# -- the end ---------------------------------------------------------------------------------------


def _matrix(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape, 1) if len(shape) == 1 else shape


def _is_shape(event: Event, exactly: bool) -> bool:
    """Whether a call gives the same numbers in the same shape, or as a vector instead of a column
    (``exactly=False``)."""
    if event.name not in _SHAPES or not event.is_straight:
        return False
    return event.before == event.after or (
        not exactly and _matrix(event.before) == _matrix(event.after)
    )


def _without_ending(seen: Recording, value: int) -> tuple[int, Ending | None]:
    """The number of the logits, and what the network makes of them."""
    last = value
    while last in seen.makers and _is_shape(seen.makers[last], exactly=False):
        last = seen.makers[last].read[0]
    event = seen.makers.get(last)
    if event is None or not event.is_straight:
        return value, None
    if event.name == "sigmoid":
        return event.read[0], "sigmoid"
    over = event.kwargs.get("dim", event.args[0] if event.args else None)
    if event.name in ("softmax", "log_softmax") and len(event.before) == 2 and over in (1, -1):
        return event.read[0], event.name  # type: ignore[return-value]
    return value, None


def _is_sum(seen: Recording, value: int) -> bool:
    """Whether a value comes from a sum or a linear map; shapes, parts and dropout aside."""
    event = seen.makers.get(value)
    while event is not None and (
        event.name in ("__getitem__", "dropout") or _is_shape(event, exactly=False)
    ):
        event = seen.makers.get(event.read[0])
    if event is None:
        return False
    name = event.name.strip("_")
    return not name or name in _SUMS or (name in _OF_TWO and event.tensors > 1)


# -- the head --------------------------------------------------------------------------------------


def _head(net: nn.Module, seen: Recording, value: int, rows: int) -> FoundHead | None:
    """The head that made the logits: found on the way back from them, call by call."""
    steps: list[Step] = []
    event = seen.makers.get(value)
    while event is not None:
        functions_only = all(step.kind == "function" for step in steps)
        if not _is_shape(event, exactly=not functions_only):
            step = _step(net, seen, event, rows)
            if step is None:
                break
            steps.insert(0, step)
        event = seen.makers.get(event.read[0])
    linear = [step.kind == "module" and _is_linear(net, step.name) for step in steps]
    if not any(linear):
        return None
    first = linear.index(True)
    rest = tuple(step for step in steps[first + 1 :] if step != _IDLE)
    return FoundHead(steps[first].name, rest)


def _rescaled(net: nn.Module, seen: Recording, value: int, rows: int) -> str | None:
    """Where the head starts behind products and sums with constants, which no call made."""
    event = seen.makers.get(value)
    while event is not None and (
        event.name.strip("_") in _RESCALES or _is_shape(event, exactly=False)
    ):
        made = [number for number in event.read if number in seen.makers]
        if len(made) != 1:
            return None
        value = made[0]
        event = seen.makers.get(value)
    head = _head(net, seen, value, rows)
    return None if head is None else head.path


def _is_linear(net: nn.Module, path: str) -> bool:
    return type(net.get_submodule(path)) in LINEAR


def _step(net: nn.Module, seen: Recording, event: Event, rows: int) -> Step | None:
    """A call as a step of a head, or ``None`` where it is none."""
    if not event.is_straight or len(event.after) not in (1, 2) or event.after[0] != rows:
        return None
    if event.name:
        return function_step(event.name, event.args, event.kwargs)
    if len(event.before) != 2 or len(seen.entered[event.path]) != 1:
        return None  # weights that are used twice do not belong to the head alone
    with torch.random.fork_rng([]):  # the copy starts with weights drawn at random
        if _is_linear(net, event.path) and as_linear(net, event.path) is None:
            return None
    return Step("module", event.path)


# -- layers ----------------------------------------------------------------------------------------


def _layers(module: nn.Module, path: str, seen: Recording, nodes: int) -> list[str]:
    """Layers inside a module: the outermost ones that are called as such."""
    found: list[str] = []
    children = [(n, c) for n, c in module.named_children() if _passes_messages(c)]
    for name, child in children:
        inner = f"{path}.{name}" if path else name
        layer = isinstance(child, (MessagePassing, GPSConv, DeepGCNLayer)) or (
            isinstance(module, nn.ModuleList)
            # a sequence of one such part and a head is a network, not a stack of layers
            or (isinstance(module, (nn.Sequential, PyGSequential)) and len(children) > 1)
        )
        shapes = [entry.shape for entry in seen.entered.get(inner, [])]
        if layer and shapes == [(nodes, input_width(child))]:
            found.append(inner)
        else:
            found += _layers(child, inner, seen, nodes)
    return found


def _passes_messages(module: nn.Module) -> bool:
    return any(isinstance(part, MessagePassing) for part in module.modules())
