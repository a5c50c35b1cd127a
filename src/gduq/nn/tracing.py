"""Finding the head: one pass shows a network's layers, its head, its rows and how it ends.

`recording` notes the calls of a pass; here they are read backwards from the output. `steps` holds
what a head does as data, `row_kinds` tells rows of nodes, graphs and edges apart. `trunk` then cuts
the network in front of its head, `replay` in front of any other part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch_geometric.nn import DeepGCNLayer, GPSConv, MessagePassing
from torch_geometric.nn import Sequential as PyGSequential

from gduq.graph import Rows, check_graph
from gduq.nn.call import Call, Ending
from gduq.nn.recording import Entry, Event, Recording, record
from gduq.nn.row_kinds import kind_of_rows, row_counts
from gduq.nn.steps import Step, function_step
from gduq.nn.widths import LINEAR, check_complete, input_width, is_plain_linear

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
    """The last part of a network that reads every row by itself."""

    path: str  # the first linear map, which reads the representation h [rows, d]
    steps: tuple[Step, ...]  # what follows it, up to the logits


@dataclass(frozen=True)
class Trace:
    """What one pass of a network showed."""

    rows: Rows  # what the rows of the output are
    layers: tuple[str, ...]  # of message passing in the order of calls; each reads nodes, and once
    head: FoundHead | None  # the last chain of linear maps, activations, dropout and norms
    ending: Ending | None  # the function at the end that makes probabilities of logits
    bounded: bool  # whether the output comes neither from a sum nor from a linear map
    rescaled: str | None = None  # where a head would start but for constants behind it


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
    seen = record(net, graph, call)
    value = seen.number(seen.out)
    do = "Pass call=lambda net, graph: ... that returns one row for each."
    rows = kind_of_rows(seen, Entry(tuple(seen.out.shape), value), None, do)
    value, ending = _without_ending(seen, value)
    head = _head(seen, value)
    layers = _layers(net, "", seen, row_counts(graph).get("node", -1))
    order = tuple(sorted(layers, key=list(seen.entered).index))
    rescaled = None if head is not None else _rescaled(seen, value)
    return Trace(rows, order, head, ending, not _is_sum(seen, value), rescaled)


# -- the end ---------------------------------------------------------------------------------------


def _is_shape(event: Event, exactly: bool = False) -> bool:
    """Whether a call gives the same numbers in the same shape, or as a vector of a column."""
    if event.name not in _SHAPES or not event.is_straight:
        return False
    before, after = event.before, event.after
    if exactly:
        return before == after
    return (before if len(before) != 1 else (*before, 1)) == (
        after if len(after) != 1 else (*after, 1)
    )


def _back(seen: Recording, value: int, through: Callable[[Event], bool]) -> int:
    """The value that calls one looks through began with: what they read first of what was made."""
    while (event := seen.makers.get(value)) is not None and through(event):
        value = next((number for number in event.read if number in seen.makers), event.read[0])
    return value


def _without_ending(seen: Recording, value: int) -> tuple[int, Ending | None]:
    """The number of the logits, and what the network makes of them."""
    event = seen.makers.get(_back(seen, value, _is_shape))
    if event is not None and event.is_straight:
        flat = len(event.before) == 2 and event.over in (1, -1)
        if event.name == "sigmoid" or (event.name in ("softmax", "log_softmax") and flat):
            return event.read[0], event.name  # type: ignore[return-value]
    return value, None


def _is_sum(seen: Recording, value: int) -> bool:
    """Whether a value comes from a sum or a linear map; shapes, parts and dropout aside."""
    parts = ("__getitem__", "dropout")
    event = seen.makers.get(_back(seen, value, lambda e: e.name in parts or _is_shape(e)))
    name = "" if event is None else event.name.strip("_")
    return event is not None and (
        not name or name in _SUMS or (name in _OF_TWO and event.tensors > 1)
    )


# -- the head --------------------------------------------------------------------------------------


def _head(seen: Recording, value: int) -> FoundHead | None:
    """The head that made the logits: found on the way back from them, call by call."""
    steps: list[Step] = []
    event = seen.makers.get(value)
    while event is not None:
        functions_only = all(step.kind == "function" for step in steps)
        if not _is_shape(event, exactly=not functions_only):
            step = _step(seen, event)
            if step is None:
                break
            steps.insert(0, step)
        event = seen.makers.get(event.read[0])
    linear = [step.kind == "module" and _is_linear(seen.net, step.name) for step in steps]
    if not any(linear):
        return None
    first = linear.index(True)
    rest = tuple(step for step in steps[first + 1 :] if step != _IDLE)
    return FoundHead(steps[first].name, rest)


def _rescaled(seen: Recording, value: int) -> str | None:
    """Where the head starts behind products and sums with constants, which no call made."""

    def constant(event: Event) -> bool:
        made = sum(number in seen.makers for number in event.read)
        return made == 1 and (event.name.strip("_") in _RESCALES or _is_shape(event))

    head = _head(seen, _back(seen, value, constant))
    return None if head is None else head.path


def _is_linear(net: nn.Module, path: str) -> bool:
    return type(net.get_submodule(path)) in LINEAR


def _step(seen: Recording, event: Event) -> Step | None:
    """A call as a step of a head, or ``None`` where it is none."""
    if not event.is_straight or len(event.after) not in (1, 2):
        return None
    if event.after[0] != seen.out.size(0):
        return None
    if event.name:
        return function_step(event.name, event.args, event.kwargs)
    if len(event.before) != 2 or len(seen.entered[event.path]) != 1:
        return None  # weights that are used twice do not belong to the head alone
    if _is_linear(seen.net, event.path) and not is_plain_linear(seen.net, event.path):
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
