"""Finding the head: one pass shows a network's layers, its head, its rows and how it ends.

`recording` notes the calls of a pass; here they are read backwards from the output. `steps` holds
what a head does as data, and `trunk` cuts the network in front of it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch_geometric.data import HeteroData
from torch_geometric.nn import DeepGCNLayer, GPSConv, MessagePassing
from torch_geometric.nn import Sequential as PyGSequential

from gduq.errors import InputError
from gduq.graphs import Graph, Rows, check_graph, num_rows, row_kind, row_type
from gduq.tracing.call import Call, Ending
from gduq.tracing.recording import Event, Recording, record
from gduq.tracing.steps import Step, function_step
from gduq.tracing.widths import LINEAR, check_complete, input_width, is_plain_linear

__all__ = ["FoundHead", "Trace", "infer_row_kind", "row_counts", "trace"]

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
    # shapes that each submodule reads, one per call, in the order of first calls; () is no matrix
    calls: Mapping[str, list[tuple[int, ...]]] = field(default_factory=dict, compare=False)


def trace(net: nn.Module, graph: Graph, call: Call | None = None) -> Trace:
    """Run a copy of a network once on a graph and find the network's parts.

    Example:
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
    rows = infer_row_kind(net, graph, call, seen.out.size(0))
    value, ending = _without_ending(seen, seen.number(seen.out))
    head = _head(seen, value)
    layers = _layers(net, "", seen, row_counts(graph).get("node", -1))
    order = tuple(sorted(layers, key=list(seen.entered).index))
    rescaled = None if head is not None else _rescaled(seen, value)
    calls = {path: [entry.shape for entry in found] for path, found in seen.entered.items()}
    return Trace(rows, order, head, ending, not _is_sum(seen, value), rescaled, calls)


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
        flat = len(event.before) == 2 and event.dim in (1, -1)
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


# -- rows ------------------------------------------------------------------------------------------


def row_counts(graph: Graph) -> dict[Rows, int]:
    """How many rows of each kind a graph has, as far as it has them."""
    found: dict[Rows, int] = {"graph": num_rows(graph, "graph")}
    if graph.get("edge_label_index") is not None:
        found["edge"] = num_rows(graph, "edge")
    with suppress(InputError):  # several node types, none of which is the one with labels
        found["node"] = num_rows(graph, "node")
    return found


def infer_row_kind(
    net: nn.Module, graph: Graph, call: Call | None, count: int, path: str | None = None
) -> Rows:
    """What the ``count`` rows are that a network gives, or that the submodule at ``path`` reads.

    Where their number fits several kinds, a pass over a slightly larger graph tells them apart
    and, where the network refuses that, what the graph says of its labels.
    """
    sizes = row_counts(graph)
    where = "of the output" if path is None else f"at '{path}'"
    fits = [kind for kind, size in sizes.items() if size == count]
    if not fits:
        have = ", ".join(f"{size} {kind}(s)" for kind, size in sizes.items())
        raise InputError(
            f"one row per node, graph or judged edge ({have}) {where}",
            f"{count} rows",
            "Pass call=lambda net, graph: ... that returns one row for each."
            if path is None
            else "See gduq.cut_points(net, graph) for the places one can anchor at.",
        )
    if len(fits) == 1:
        return fits[0]
    kinds: list[Rows | None] = []
    with suppress(Exception):  # a network may refuse any other graph than its own
        seen = record(net, _larger(graph), call)
        more = (seen.out.size(0) if path is None else seen.entered[path][0].shape[0]) - count
        kinds.append({0: "graph", 1: "node", 2: "edge"}.get(more))  # type: ignore[arg-type]
    if path is None:
        kinds += [row_kind(graph), "node" if graph.get("train_mask") is not None else None]
    for kind in kinds:
        if kind in fits:
            return kind
    raise InputError(
        f"a graph that shows what the {count} row(s) {where} are",
        f"one with as many {'s as '.join(fits)}s",
        "Pass a larger graph.",
    )


def _larger(graph: Graph) -> Graph:
    """The graph with its last node once more, and its last judged edge twice more."""
    graph = copy.copy(graph)
    store = graph[row_type(graph)] if isinstance(graph, HeteroData) else graph
    nodes, values = store.num_nodes, store.to_dict()
    for name, value in values.items():
        of_nodes = isinstance(value, Tensor) and value.dim() > 0 and value.size(0) == nodes
        if of_nodes and "edge" not in name and "adj" not in name and name != "ptr":
            store[name] = torch.cat([value, value[-1:]])
    if "num_nodes" in values:
        store.num_nodes = nodes + 1
    if "ptr" in values:
        store.ptr = torch.cat([values["ptr"][:-1], values["ptr"][-1:] + 1])
    judged = graph.get("edge_label_index")
    if judged is not None:
        graph.edge_label_index = torch.cat([judged, judged[:, -1:], judged[:, -1:]], dim=1)
    return graph
