"""Finding the head: one pass shows a network's layers, its head, its rows and how it ends.

`record` notes which functions and modules made which value out of which. A *value* is a tensor as
it was at one moment: its identity together with its version, which torch raises whenever the
tensor, or a view of it, is changed in place. So a value that was changed by something the recording
did not see has no maker, and nobody can go wrong by reading on. `trace` reads the calls backwards
from the output; what a head does to each row becomes `Step`, data that JSON can hold.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from torch_geometric.data import HeteroData
from torch_geometric.nn import DeepGCNLayer, GPSConv, MessagePassing
from torch_geometric.nn import Sequential as PyGSequential
from torch_geometric.nn.norm import BatchNorm as PyGBatchNorm
from torch_geometric.nn.norm import LayerNorm as PyGLayerNorm

from gduq.errors import InputError
from gduq.graphs import Graph, Rows, check_graph, num_rows, row_kind, row_type
from gduq.tracing.call import (
    LINEAR,
    Call,
    Ending,
    call_network,
    check_complete,
    copied,
    first_input,
    input_width,
    is_plain_linear,
)

__all__ = ["FoundHead", "Step", "Trace", "build_tail", "infer_row_kind", "row_counts", "trace"]

Plain = float | str

# -- one pass, recorded ----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Event:
    """One call in a pass: of a function, or of a module that is one step of a head."""

    name: str  # of the function, without the underscore of an in-place version; empty: a module
    path: str  # of that module
    read: tuple[int, ...]  # numbers of the values it read
    before: tuple[int, ...]  # shape of the first of them
    made: tuple[int, ...] = ()  # numbers of the values it made
    after: tuple[int, ...] = ()  # shape of the first of them
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

    def _add_event(self, out: object, event: Event) -> None:
        made = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        if made:
            numbers = tuple(self._new(tensor) for tensor in made)
            event = replace(event, made=numbers, after=tuple(made[0].shape))
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
        self._add_event(out, Event(name, "", read, before, (), (), len(given), plain, named))
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
                self._add_event(out, Event("", path, (entry.value,), entry.shape))

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


# -- steps of a head -------------------------------------------------------------------------------


class Multiply(nn.Module):
    """Multiplies by a number."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


# Functions of one tensor that treat every entry by itself, by the name all their spellings share
# (F.relu, torch.relu, x.relu()), as the module that does the same.
_ACTIVATIONS: tuple[type[nn.Module], ...] = (
    *(nn.ReLU, nn.ReLU6, nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish),
    *(nn.Softplus, nn.Hardswish, nn.Tanh, nn.Sigmoid, nn.Dropout),
)
_FUNCTIONS: Mapping[str, type[nn.Module]] = {
    **{kind.__name__.lower(): kind for kind in _ACTIVATIONS},
    "leaky_relu": nn.LeakyReLU,
    "scale": Multiply,
}
_TIMES = ("mul", "multiply", "__mul__", "__rmul__", "__imul__")
_OVER = ("div", "divide", "true_divide", "__truediv__", "__itruediv__")


def _defaults(name: str) -> dict[str, Plain]:
    """The arguments of a function, as its module has them."""
    known = inspect.signature(_FUNCTIONS[name]).parameters.values()
    named = (p for p in known if p.default is not p.empty and p.name != "inplace")
    return {p.name: p.default for p in named}


@dataclass(frozen=True)
class Step:
    """A module of the network by its dotted path, or a function by its name and plain arguments.

    Example:
        >>> Step("function", "dropout", (("p", 0.5),)).to_json()
        {'kind': 'function', 'name': 'dropout', 'arguments': {'p': 0.5}}
    """

    kind: Literal["module", "function"]
    name: str
    arguments: tuple[tuple[str, Plain], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The step as plain values."""
        return {"kind": self.kind, "name": self.name, "arguments": dict(self.arguments)}

    @classmethod
    def from_json(cls, value: Any) -> Step:
        """The step that `to_json` wrote; `InputError` for anything else."""
        try:
            kind, name, given = value["kind"], value["name"], dict(value["arguments"])
            known = {"module": dict, "function": lambda: _defaults(name)}[kind]()
        except (KeyError, TypeError, ValueError):
            known = None
        arguments = None if known is None else _check_arguments(known, given)
        if arguments is None or not isinstance(name, str):
            raise InputError("a step of a head: a module, or a function", repr(value))
        return cls(kind, name, arguments)


def _check_arguments(known: Mapping[str, Plain], given: Mapping[Any, Any]) -> Any:
    """All arguments of a function in order, or ``None`` where one is unknown or no plain value."""
    found = {**known, **given}
    for name, value in found.items():
        if name not in known or isinstance(known[name], str) != isinstance(value, str):
            return None
        if not isinstance(value, str):
            if type(value) not in (int, float) or not math.isfinite(value):
                return None
            found[name] = float(value)
    return tuple(found.items())


def _function_step(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Step | None:
    """A call of a torch function on one tensor (``args`` follow it) as a step, or ``None``."""
    given = {key: value for key, value in kwargs.items() if key != "inplace"}
    if name in (*_TIMES, *_OVER):
        factors = [*args, *given.values()]
        if len(factors) != 1 or not isinstance(factors[0], (int, float)):
            return None
        if name in _OVER and factors[0] == 0:
            return None
        given = {"factor": 1 / factors[0] if name in _OVER else factors[0]}
        name, args = "scale", ()
    elif name not in _FUNCTIONS or name == "scale":
        return None
    known = _defaults(name)
    names = [*known, "training"] if name == "dropout" else [*known]
    if not all(isinstance(extra, bool) for extra in args[len(names) :]):  # only "inplace"
        return None
    given = {**dict(zip(names, args, strict=False)), **given}
    if name == "dropout" and given.pop("training", given.pop("train", True)):
        return None  # it drops in evaluation mode too: nn.Dropout would not
    arguments = _check_arguments(known, given)
    return None if arguments is None else Step("function", name, arguments)


def build_tail(net: nn.Module, steps: Sequence[Step]) -> nn.Sequential:
    """What follows the first linear map of a head: copies of modules, and functions as modules."""
    parts: list[nn.Module] = []
    for step in steps:
        if step.kind == "function":
            parts.append(_FUNCTIONS[step.name](**dict(step.arguments)))
            parts[-1].training = net.training
            continue
        if step.name not in dict(net.named_modules()):
            raise InputError(f"a network with a submodule '{step.name}'", type(net).__name__)
        parts.append(copy.deepcopy(net.get_submodule(step.name)))
    tail = nn.Sequential(*parts)
    tail.training = net.training
    return tail


# -- what a pass shows -----------------------------------------------------------------------------

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
    rescaled = None
    if head is None:
        behind = _head(seen, _back(seen, value, lambda event: _rescales(seen, event)))
        rescaled = None if behind is None else behind.path
    calls = {path: [entry.shape for entry in found] for path, found in seen.entered.items()}
    return Trace(rows, order, head, ending, not _is_sum(seen, value), rescaled, calls)


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


def _rescales(seen: Recording, event: Event) -> bool:
    """Whether a call multiplies or shifts by constants, which no call made."""
    made = sum(number in seen.makers for number in event.read)
    return made == 1 and (event.name.strip("_") in _RESCALES or _is_shape(event))


def _is_linear(net: nn.Module, path: str) -> bool:
    return type(net.get_submodule(path)) in LINEAR


def _step(seen: Recording, event: Event) -> Step | None:
    """A call as a step of a head, or ``None`` where it is none."""
    if not event.is_straight or len(event.after) not in (1, 2):
        return None
    if event.after[0] != seen.out.size(0):
        return None
    if event.name:
        return _function_step(event.name, event.args, event.kwargs)
    if len(event.before) != 2 or len(seen.entered[event.path]) != 1:
        return None  # weights that are used twice do not belong to the head alone
    if _is_linear(seen.net, event.path) and not is_plain_linear(seen.net, event.path):
        return None
    return Step("module", event.path)


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
            f"one row per node, graph or labelled edge ({have}) {where}",
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
    """The graph with its last node once more, and its last labelled edge twice more."""
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
    ends = graph.get("edge_label_index")
    if ends is not None:
        graph.edge_label_index = torch.cat([ends, ends[:, -1:], ends[:, -1:]], dim=1)
    return graph
