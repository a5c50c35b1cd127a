"""Finding the head: one pass shows a network's layers, its head, its rows and how it ends.

`record` notes which functions and modules made which value out of which. A *value* is a tensor as
it was at one moment: its identity together with its version, which torch raises whenever the
tensor, or a view of it, is changed in place. So a value that was changed by something the recording
did not see has no maker, and nobody can go wrong by reading on. `trace` reads the calls backwards
from the output; what a head does to each row becomes `Step`, data that JSON can hold.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
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

Plain = float | str | tuple[float, ...]
Value = tuple[int, int]  # identity and version of a tensor
_SPELLINGS = {
    **dict.fromkeys(("multiply", "rmul", "imul"), "mul"),
    **dict.fromkeys(("divide", "true_divide", "truediv", "itruediv"), "div"),
    **dict.fromkeys(("radd", "iadd"), "add"),
    **dict.fromkeys(("subtract", "isub"), "sub"),
}

# -- one pass, recorded ----------------------------------------------------------------------------


class Event(NamedTuple):
    """One call in a pass: of a function, or of a module that is one step of a head."""

    function: str  # its name, without the underscore of an in-place version; empty: a module
    path: str  # of that module
    read: tuple[Value, ...]
    before: tuple[int, ...]  # shape of the first value it read
    after: tuple[int, ...]  # shape of the first value it made
    straight: bool = True  # whether it made one value out of one tensor
    args: tuple[Any, ...] = ()  # other arguments; constants of the network are numbers
    kwargs: Mapping[str, Any] = {}  # the same by name


class Recording(TorchFunctionMode):
    """What happens in a pass of a copy of a network while this context is entered."""

    out: Tensor  # what the network gave [rows, O]

    def __init__(self, net: nn.Module, graph: Graph) -> None:
        super().__init__()
        self.net = net
        self._given = {id(leaf) for store in graph.stores for leaf in store.values()}
        self.makers: dict[Value, Event] = {}  # the call that made a value
        self.calls: dict[str, list[tuple[int, ...]]] = {}  # see `Trace.calls`
        self._alive: list[Tensor] = []  # a tensor that lives keeps its identity to itself
        self._inside = ""  # the module at work that is one step

    def value(self, tensor: Tensor) -> Value:
        """The value that a tensor is now."""
        self._alive.append(tensor)
        return id(tensor), -1 if tensor.is_inference() else tensor._version

    def _plain(self, arg: object) -> object:
        """An argument, and the numbers of a tensor that is the same in every pass: no weight, not
        of the graph, and not computed."""
        if not isinstance(arg, Tensor) or arg.dim() > 1 or isinstance(arg, nn.Parameter):
            return arg
        known = id(arg) in self._given or self.value(arg) in self.makers
        if known or arg.is_complex():
            return arg
        return tuple(arg.tolist()) if arg.dim() else arg.item()

    def _note(self, out: object, event: Event) -> None:
        made = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        if made:
            straight = event.straight and len(made) == 1
            event = event._replace(after=tuple(made[0].shape), straight=straight)
            self.makers |= {self.value(tensor): event for tensor in made}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._inside:
            return func(*args, **kwargs)
        plain = [self._plain(arg) for arg in args]
        named = {key: self._plain(value) for key, value in kwargs.items() if value is not None}
        given = [leaf for leaf in tree_leaves((plain, named)) if isinstance(leaf, Tensor)]
        read = tuple(dict.fromkeys(self.value(tensor) for tensor in given))
        before = tuple(given[0].shape) if given else ()
        out = func(*args, **kwargs)
        name = str(getattr(func, "__name__", func)).strip("_")
        name = _SPELLINGS.get(name, name)
        if isinstance(out, Tensor) and any(out is t for t in given) and self.value(out) in read:
            if "dropout" not in name:
                return out  # nothing happened
            out = out.detach()  # dropout in evaluation mode: a tensor of its own
        others = tuple(arg for arg in plain if not isinstance(arg, Tensor))
        named = {key: value for key, value in named.items() if not isinstance(value, Tensor)}
        self._note(out, Event(name, "", read, before, (), len(given) == 1, others, named))
        return out

    def watch(self, path: str, module: nn.Module) -> None:
        """Note the calls of a submodule of the copy that runs."""
        is_step, read = _is_step(module), list[Tensor]()

        def enter(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            h = first_input(args, kwargs)
            known = isinstance(h, Tensor) and h.is_floating_point()
            self.calls.setdefault(path, []).append(tuple(h.shape) if known else ())
            if is_step and known and not self._inside:
                self._inside, read[:] = path, [h]

        def leave(_: nn.Module, __: Any, out: Any) -> None:
            if self._inside == path:
                self._inside, (h,) = "", read
                self._note(out, Event("", path, (self.value(h),), tuple(h.shape), ()))

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


# -- steps of a head -------------------------------------------------------------------------------

# Functions of one tensor that treat every entry by itself, by the name all their spellings share
# (F.relu, torch.relu, x.relu()); `_FUNCTIONS` also with numbers, or constants of the network.
_ACTIVATIONS = (
    *("relu", "relu6", "elu", "celu", "selu", "gelu", "silu", "mish", "softplus", "hardswish"),
    *("tanh", "sigmoid", "leaky_relu"),
)
_ARITHMETIC = ("mul", "div", "add", "sub")
_FUNCTIONS = (*_ACTIVATIONS, *_ARITHMETIC, "dropout")


class Function(nn.Module):
    """A function of torch as a module: ``name(x, *args, **kwargs)``."""

    def __init__(self, name: str, args: Sequence[Plain], kwargs: Mapping[str, Plain]) -> None:
        super().__init__()
        self.name, self.args, self.kwargs = name, tuple(args), dict(kwargs)

    def forward(self, x: Tensor) -> Tensor:
        call = getattr(F, self.name, None) or getattr(torch, self.name)
        args = (x.new_tensor(arg) if isinstance(arg, tuple) else arg for arg in self.args)
        return call(x, *args, **self.kwargs)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return ", ".join([self.name, *map(str, self.args), *map(str, self.kwargs.values())])


@dataclass(frozen=True)
class Step:
    """A module of the network by its dotted path, or a function by its name and its arguments.

    Example:
        >>> Step("function", "dropout", (0.5,)).to_json()
        {'kind': 'function', 'name': 'dropout', 'args': [0.5], 'kwargs': {}}
    """

    kind: Literal["module", "function"]
    name: str
    args: tuple[Plain, ...] = ()
    kwargs: tuple[tuple[str, Plain], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The step as plain values."""
        plain = [list(arg) if isinstance(arg, tuple) else arg for arg in self.args]
        values = {"args": plain, "kwargs": dict(self.kwargs)}
        return {"kind": self.kind, "name": self.name, **values}

    @classmethod
    def from_json(cls, value: Any) -> Step:
        """The step that `to_json` wrote; `InputError` for anything else."""
        with suppress(KeyError, TypeError, ValueError, RuntimeError, AttributeError):
            kind, name, args, kwargs = (value[k] for k in ("kind", "name", "args", "kwargs"))
            args = (tuple(arg) if isinstance(arg, list) else arg for arg in args)
            step = cls(kind, name, tuple(args), tuple(kwargs.items()))
            if kind == "module" and isinstance(name, str) and not (step.args or step.kwargs):
                return step
            if kind == "function" and name in _FUNCTIONS:
                step.function()(torch.ones(1, 1))  # takes these arguments
                return step
        raise InputError("a step of a head: a module, or a function", repr(value))

    def function(self) -> nn.Module:
        """The function as a module."""
        if self.name == "relu":
            return nn.ReLU()
        if self.name == "dropout":
            return nn.Dropout(*self.args)  # type: ignore[arg-type]
        return Function(self.name, self.args, dict(self.kwargs))


def _function_step(event: Event) -> Step | None:
    """A call of a torch function on one tensor as a step, or ``None``."""
    args, kwargs = list(event.args), {k: v for k, v in event.kwargs.items() if k != "inplace"}
    if event.function == "dropout":
        known: dict[str, Any] = {"p": 0.5, "training": True}
        known |= dict(zip(("p", "training"), args, strict=False))
        known |= {"training": kwargs.pop("train", known["training"])} | kwargs
        return None if known["training"] else Step("function", "dropout", (known["p"],))
    args = [arg for arg in args if not isinstance(arg, bool)]  # "inplace"
    plain = all(isinstance(v, (int, float, str, tuple)) for v in (*args, *kwargs.values()))
    if event.function not in _FUNCTIONS or not plain:
        return None
    return Step("function", event.function, tuple(args), tuple(kwargs.items()))


def build_tail(net: nn.Module, steps: Sequence[Step]) -> nn.Sequential:
    """What follows the first linear map of a head: copies of modules, and functions as modules."""
    tail, known = nn.Sequential(), dict(net.named_modules())
    for step in steps:
        if step.kind == "function":
            tail.append(step.function().train(net.training))
        elif step.name in known:
            tail.append(copy.deepcopy(known[step.name]))
        else:
            raise InputError(f"a network with a submodule '{step.name}'", type(net).__name__)
    tail.training = net.training
    return tail


# -- what a pass shows -----------------------------------------------------------------------------

_SHAPES = ("view", "reshape", "squeeze", "unsqueeze", "flatten", "contiguous", "clone")
_SUMS = (
    *("sum", "dot", "inner", "linear", "bilinear", "addmm", "mm", "matmul", "rmatmul", "bmm"),
    *("einsum", "spmm", "index_add", "scatter_add"),
)
_IDLE = Step("function", "dropout", (0.0,))


class FoundHead(NamedTuple):
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
    value, ending = _without_ending(seen, seen.value(seen.out))
    layers = _layers(seen, row_counts(graph).get("node", -1))
    bounded = not _is_sum(seen, value)
    return Trace(rows, layers, _head(seen, value), ending, bounded, seen.calls)


def _is_shape(event: Event, exactly: bool = False) -> bool:
    """Whether a call gives the same numbers in the same shape, or as a vector of a column."""
    before, after = event.before, event.after
    if not exactly:
        before = (*before, 1) if len(before) == 1 else before
        after = (*after, 1) if len(after) == 1 else after
    return event.function in _SHAPES and event.straight and before == after


def _back(seen: Recording, value: Value, through: Callable[[Event], bool]) -> Value:
    """The value that calls one looks through began with."""
    while (event := seen.makers.get(value)) is not None and through(event):
        value = event.read[0]
    return value


def _without_ending(seen: Recording, value: Value) -> tuple[Value, Ending | None]:
    """The logits, and what the network makes of them."""
    event = seen.makers.get(_back(seen, value, _is_shape))
    if event is not None and event.straight:
        dim = event.kwargs.get("dim", event.args[0] if event.args else None)
        flat = len(event.before) == 2 and dim in (1, -1)
        name = event.function
        if name == "sigmoid" or (name in ("softmax", "log_softmax") and flat):
            return event.read[0], name  # type: ignore[return-value]
    return value, None


def _is_sum(seen: Recording, value: Value) -> bool:
    """Whether a value comes from a sum or a linear map; constants, parts and dropout aside."""

    def through(event: Event) -> bool:
        idle = event.function in _ARITHMETIC and event.straight and event.read != ()
        return idle or event.function in ("getitem", "dropout") or _is_shape(event)

    event = seen.makers.get(_back(seen, value, through))
    if event is None:
        return False
    of_two = event.function in ("add", "sub") and not event.straight
    return event.function == "" or event.function in _SUMS or of_two


def _head(seen: Recording, value: Value) -> FoundHead | None:
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


def _is_linear(net: nn.Module, path: str) -> bool:
    return type(net.get_submodule(path)) in LINEAR


def _step(seen: Recording, event: Event) -> Step | None:
    """A call as a step of a head, or ``None`` where it is none."""
    if not event.straight or len(event.after) not in (1, 2):
        return None
    if event.after[0] != seen.out.size(0):
        return None
    if event.function:
        return _function_step(event)
    if len(event.before) != 2 or len(seen.calls[event.path]) != 1:
        return None  # weights that are used twice do not belong to the head alone
    if _is_linear(seen.net, event.path) and not is_plain_linear(seen.net, event.path):
        return None
    return Step("module", event.path)


def _layers(seen: Recording, nodes: int) -> tuple[str, ...]:
    """Layers of message passing: the outermost modules that are called as such."""
    found: list[str] = []
    for path, module in seen.net.named_modules():
        if not path or any(path.startswith(f"{outer}.") for outer in found):
            continue
        around = seen.net.get_submodule(path.rpartition(".")[0])
        listed = isinstance(around, nn.ModuleList) or (
            # a sequence of one such part and a head is a network, not a stack of layers
            isinstance(around, (nn.Sequential, PyGSequential))
            and sum(map(_passes_messages, around.children())) > 1
        )
        if isinstance(module, (MessagePassing, GPSConv, DeepGCNLayer)) or (
            listed and _passes_messages(module)
        ):
            found += [path] if seen.calls.get(path) == [(nodes, input_width(module))] else []
    return tuple(sorted(found, key=list(seen.calls).index))


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
    fits = [kind for kind, size in sizes.items() if size == count]
    if len(fits) > 1:
        told: Sequence[Rows | None] = ()
        with suppress(Exception):  # a network may refuse any other graph than its own
            larger = _larger(graph)
            seen = record(net, larger, call)
            more = seen.out.size(0) if path is None else seen.calls[path][0][0]
            told = [kind for kind, size in row_counts(larger).items() if size == more]
        if not told and path is None:
            told = [row_kind(graph) or ("node" if graph.get("train_mask") is not None else None)]
        fits = [kind for kind in fits if kind in told]
    if len(fits) == 1:
        return fits[0]
    have = ", ".join(f"{size} {kind}(s)" for kind, size in sizes.items())
    raise InputError(
        f"rows {'of the output' if path is None else f'at {path!r}'} that are clearly the nodes, "
        f"graphs or labelled edges of a graph ({have})",
        f"{count} rows",
        "Pass a larger graph, or call=lambda net, graph: ... that returns one row for each; "
        "gduq.cut_points(net, graph) lists the places one can anchor at.",
    )


def _larger(graph: Graph) -> Graph:
    """The graph with its last node once more, and its last labelled edge twice more."""
    graph = copy.copy(graph)
    store = graph[row_type(graph)] if isinstance(graph, HeteroData) else graph
    values, ends = store.to_dict(), graph.get("edge_label_index")
    tensors = [name for name, value in values.items() if isinstance(value, Tensor)]
    of_nodes = [name for name in tensors if name != "ptr" and store.is_node_attr(name)]
    if "num_nodes" in values:
        store.num_nodes = values["num_nodes"] + 1
    if "ptr" in values:
        store.ptr = torch.cat([values["ptr"][:-1], values["ptr"][-1:] + 1])
    for name in of_nodes:
        store[name] = torch.cat([values[name], values[name][-1:]])
    if ends is not None:
        graph.edge_label_index = torch.cat([ends, ends[:, -1:], ends[:, -1:]], dim=1)
    return graph
