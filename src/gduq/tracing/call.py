"""Calling any network with a graph: arguments by their names, and logits of what comes out."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch_geometric.data import HeteroData
from torch_geometric.nn import MessagePassing
from torch_geometric.nn.dense import Linear as PyGLinear

from gduq._torch import exporting
from gduq.errors import InputError
from gduq.graphs import Graph, device_of, num_graphs, row_type

__all__ = [
    *("LAZY", "LINEAR", "Call", "Ending", "as_linear", "as_logits", "call_network"),
    *("check_complete", "check_logits", "copied", "cut_names", "evaluating", "first_input"),
    *("input_width", "is_plain_linear", "redraw"),
]

Call = Callable[[nn.Module, Graph], Tensor]
Ending = Literal["softmax", "log_softmax", "sigmoid"]  # what makes probabilities of logits
_Module = TypeVar("_Module", bound=nn.Module)

_PARTS = (  # taken from the graph where it has them, also where a default exists
    *("x", "edge_index", "edge_weight", "edge_attr", "batch", "pos", "z"),
    *("edge_type", "node_type", "edge_label_index"),
)
_DICT = "_dict"  # of a HeteroData: one entry per type
LAZY = (nn.parameter.UninitializedParameter, nn.parameter.UninitializedBuffer)
LINEAR = (nn.Linear, PyGLinear)
_WIDTHS = ("in_features", "in_channels", "num_features", "embed_dim", "channels")
_ENOUGH = 20  # rows of a single column that all lie in (0, 1): hardly by chance


def call_network(net: nn.Module, graph: Graph, call: Call | None = None) -> Tensor:
    """The network's output for a graph, ``[rows, outputs]``.

    The network gets a copy of the graph that shares its tensors, so that what it writes on it
    (``data.x = ...``) stays its own. Layers with ``cached=True`` do not use their cache: it is of
    one graph, and this may be another. One output per row may come as ``[rows]``. Of one tensor
    per node type of a ``HeteroData`` that of the rows is taken (`gduq.graphs.row_type`).

    Without ``call(net, graph)``, ``x, edge_index, edge_weight, edge_attr, batch, pos, z, edge_type,
    node_type, edge_label_index`` are taken from the graph (for ``HeteroData``: dictionaries by
    type, with or without ``_dict`` in the name), ``data`` or ``graph`` is the graph itself, and any
    other required parameter is an attribute of the graph of that name.

    Example:
        >>> from torch_geometric.data import Data
        >>> from torch_geometric.nn import GCN
        >>> graph = Data(x=torch.ones(2, 4), edge_index=torch.tensor([[0], [1]]))
        >>> call_network(GCN(4, 8, 1, out_channels=3), graph).shape
        torch.Size([2, 3])
    """
    given, net = copy.copy(graph), _without_caches(net)
    arguments = {} if call is not None else _arguments(net, given)
    try:
        out = call(net, given) if call is not None else net(**arguments)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        x, width = graph.get("x"), input_width(net)
        other = isinstance(x, Tensor) and x.dim() == 2 and x.size(1) != width
        if not other or width is None or not x.is_floating_point():
            raise
        raise InputError(
            f"features of width {width}, the width {type(net).__name__} was built for",
            f"width {x.size(1)}",
            f"torch says: {str(error).splitlines()[0]}",
        ) from error
    return _matrix(out, graph)


def _without_caches(net: nn.Module) -> nn.Module:
    """The network; where its layers cache a graph, a copy for one pass, with the same tensors."""
    layers = [m for m in net.modules() if isinstance(m, MessagePassing)]
    layers = [m for m in layers if getattr(m, "cached", False) is True]
    if not layers:
        return net
    known = [v for m in layers for k, v in vars(m).items() if k.startswith("_cached")]
    twin = copied(net, {id(v): v for v in (*net.parameters(), *net.buffers(), *known)})
    for module in twin.modules():
        if isinstance(module, MessagePassing) and getattr(module, "cached", False) is True:
            none = {name: None for name in vars(module) if name.startswith("_cached")}
            module.__dict__.update(none, cached=False)
    return twin


def first_input(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a submodule reads: its first argument, or the keyword ``x`` or ``input``."""
    return args[0] if args else kwargs.get("x", kwargs.get("input"))


class _WithoutHistory(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__deepcopy__ and not args[0].is_leaf:
            return args[0].detach().clone()
        return func(*args, **(kwargs or {}))


def copied(net: _Module, memo: dict[int, Any] | None = None) -> _Module:
    """A copy of a network (``memo`` as in `copy.deepcopy`); activations that it keeps
    (``self.h = ...``) lose their history, which torch does not copy."""
    with _WithoutHistory():
        return copy.deepcopy(net, memo)


def redraw(module: _Module) -> _Module:
    """The module with all weights drawn anew, in place; raises where some cannot be.

    Weights that were all the same number (a fresh bias, a single scale) may stay.
    """
    before = {name: value.detach().clone() for name, value in module.named_parameters()}
    for part in module.modules():
        for name in ("reset_parameters", "_reset_parameters"):  # attention has the second
            own: Any = getattr(part, name, None)
            if callable(own):
                own()
                break
    for name, value in module.named_parameters():
        old = before[name]
        if torch.equal(value, old) and bool((old != old.flatten()[:1]).any()):
            raise InputError(
                "weights that can be drawn anew",
                f"{name}, which no reset_parameters changes",
                "Give the module that holds it a method reset_parameters().",
            )
    return module


@contextmanager
def evaluating(net: nn.Module) -> Iterator[None]:
    """Within this context the network is in evaluation mode; each module's mode comes back."""
    changed = [module for module in net.modules() if module.training]
    for module in changed:
        module.training = False
    try:
        yield
    finally:
        for module in changed:
            module.training = True


# -- arguments -----------------------------------------------------------------------------------


def _arguments(net: nn.Module, graph: Graph) -> Mapping[str, Any]:
    """What a network is called with: attributes of the graph by the names of its parameters."""
    parameters = _parameters(net)
    if not parameters:
        raise InputError(
            f"named parameters of {type(net).__name__}.forward",
            "none",
            "Pass call=lambda net, graph: net(graph.x, graph.edge_index), or what it takes.",
        )
    if [name for name, required in parameters.items() if required] == ["batch"]:
        return {"batch": graph}  # the name of a whole mini-batch
    found: dict[str, Any] = {}
    for name, required in parameters.items():
        if name in ("data", "graph"):
            found[name] = graph
        elif required or name.removesuffix(_DICT) in _PARTS:
            found[name] = _attribute(net, graph, name, required)
    return {name: value for name, value in found.items() if value is not None}


def _parameters(net: nn.Module) -> dict[str, bool]:
    """The parameters of ``forward``, and whether each must be given."""
    net = getattr(net, "_orig_mod", net)  # a compiled module shows none of its own
    signature = getattr(net, "signature", None)
    if signature is not None and hasattr(signature, "param_dict"):  # torch_geometric.nn.Sequential
        return dict.fromkeys(signature.param_dict, True)
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    known = inspect.signature(net.forward).parameters.values()
    return {p.name: p.default is inspect.Parameter.empty for p in known if p.kind in kinds}


def _attribute(net: nn.Module, graph: Graph, name: str, required: bool) -> object:
    if name.startswith("edge_attr") and not required:
        widths = [m.edge_dim for m in net.modules() if hasattr(m, "edge_dim")]
        if widths and all(width is None for width in widths):
            return None  # convolutions that were built without edge features
    value = _stored(graph, name)
    if value is None and name == "edge_index":
        value = _stored(graph, "adj_t")
    if value is None and required:
        value = _implied(graph, name)
    if value is None and required:
        raise InputError(
            f"a graph with '{name}', which {type(net).__name__}.forward asks for",
            f"{type(graph).__name__} with {', '.join(sorted(graph.keys())) or 'nothing'}",
            "Pass call=lambda net, graph: ... that calls it.",
        )
    return value


def _stored(graph: Graph, name: str) -> object:
    """What a graph stores under a name; a dictionary by type for what types have."""
    if not isinstance(graph, HeteroData):
        return graph.get(name)
    value = None if name.endswith(_DICT) else graph.get(name)  # of the graph as a whole
    return graph.collect(name.removesuffix(_DICT), True) or None if value is None else value


def _implied(graph: Graph, name: str) -> object:
    """What follows from a graph that does not store it: a single graph is a batch of one."""
    if name == "batch_size":
        return num_graphs(graph)
    if name.removesuffix(_DICT) != "batch":
        return None
    if isinstance(graph, HeteroData):
        return {kind: _zeros(graph, store) for kind, store in graph.node_items()}
    return _zeros(graph, graph)


def _zeros(graph: Graph, store: Any) -> Tensor:
    return torch.zeros(int(store.num_nodes or 0), dtype=torch.int64, device=device_of(graph))


# -- output --------------------------------------------------------------------------------------


def _matrix(out: Any, graph: Graph) -> Tensor:
    """Whatever a network gave as ``[rows, outputs]``."""
    if isinstance(out, dict) and isinstance(graph, HeteroData):
        kind = row_type(graph)
        if kind not in out:
            given = ", ".join(map(str, out))
            raise InputError(f"an output for node type '{kind}'", f"only {given}")
        out = out[kind]
    if isinstance(out, Tensor) and out.dim() == 2:
        return out
    if isinstance(out, Tensor) and out.dim() == 1 and (exporting() or _fits(out.size(0), graph)):
        return out.unsqueeze(1)  # one logit per row
    several = isinstance(out, (tuple, list))
    raise InputError(
        "logits of shape [rows, classes] from the network, one row per node, graph or edge",
        f"shape {list(out.shape)}"
        if isinstance(out, Tensor)
        else f"a {type(out).__name__}" + (f" of {len(out)}" if several else ""),
        f"Pass call=lambda net, graph: {'net(...)[0]' if several else '...'} that returns them.",
    )


def _fits(rows: int, graph: Graph) -> bool:
    """Whether an output may have so many rows."""
    stores = graph.node_stores if isinstance(graph, HeteroData) else [graph]
    counts = {num_graphs(graph), *(int(store.num_nodes or 0) for store in stores)}
    counts |= {int(store["batch_size"]) for store in stores if "batch_size" in store.keys()}  # noqa: SIM118
    ends = graph.get("edge_label_index")
    return rows in counts or (ends is not None and rows == ends.size(1))


def as_logits(outputs: Tensor, ending: Ending | None) -> Tensor:
    """Logits of a network whose outputs are probabilities, or nearly so."""
    if ending == "softmax":
        return outputs.clamp_min(torch.finfo(outputs.dtype).tiny).log()
    if ending == "sigmoid":
        return torch.logit(outputs, eps=torch.finfo(outputs.dtype).eps)
    return outputs  # of a log-softmax, too


def check_logits(outputs: Tensor, known: bool = False) -> Tensor:
    """The outputs ``[rows, O]``, unless they are probabilities by means that cannot be undone.

    In training they are not looked at. If it is ``known`` what made them, a single column in (0, 1)
    is chance.
    """
    if exporting() or outputs.size(0) == 0 or outputs.requires_grad:
        return outputs
    single = outputs.size(1) == 1
    if single and (known or outputs.size(0) < _ENOUGH):
        return outputs
    inside = (outputs > 0) & (outputs < 1) if single else (outputs >= 0) & (outputs <= 1)
    if bool(inside.all()) and (single or bool(((outputs.sum(dim=1) - 1).abs() < 1e-4).all())):
        where = "in (0, 1)" if single else "in [0, 1] and every row sums to 1"
        raise InputError(
            "logits from the network",
            f"what looks like probabilities: all outputs lie {where}",
            "Return what the sigmoid or softmax is applied to, or pass call= that undoes it.",
        )
    return outputs


# -- widths and linear layers ----------------------------------------------------------------------


def check_complete(net: nn.Module) -> None:
    """Raise for a network whose parameters a first pass has yet to shape."""
    lazy = [name for name, p in net.named_parameters() if isinstance(p, LAZY)]
    if lazy:
        raise InputError(
            "a network with all its parameters",
            f"uninitialised {', '.join(lazy[:3])}",
            "Run it on a graph once, or give every layer its in_channels.",
        )


def input_width(module: nn.Module) -> int | None:
    """How many channels a module reads, from its attributes or its first layer's."""
    for name in _WIDTHS:
        value = getattr(module, name, None)
        value = value[0] if isinstance(value, tuple) and value else value
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    shape = getattr(module, "normalized_shape", None)
    if shape:
        return int(shape[-1])
    children = (input_width(child) for child in module.children())
    first = next((width for width in children if width is not None), None)
    if first is not None and type(module).__name__ in ("EdgeConv", "DynamicEdgeConv"):
        return first // 2  # their MLP reads the features of both ends
    return first


def cut_names(net: nn.Module) -> list[str]:
    """Submodules a network can be cut at, as far as can be told without running it."""
    return [
        name
        for name, module in net.named_modules()
        if name
        and not isinstance(module, (nn.ModuleList, nn.ModuleDict))
        and input_width(module) is not None
    ]


def is_plain_linear(net: nn.Module, path: str) -> bool:
    """Whether a submodule is nothing but a linear layer: without hooks, parametrisations or
    weights that other modules share."""
    module = net.get_submodule(path)
    if type(module) not in LINEAR or isinstance(module.weight, LAZY):
        return False
    if module._forward_pre_hooks or module._forward_hooks or "forward" in module.__dict__:
        return False
    every = [id(p) for _, p in net.named_parameters(remove_duplicate=False)]
    return all(every.count(id(p)) == 1 for p in module.parameters(recurse=False))


def as_linear(net: nn.Module, path: str) -> nn.Linear | None:
    """A copy of the submodule as a plain linear layer, if it is nothing but that."""
    if not is_plain_linear(net, path):
        return None
    own: Any = net.get_submodule(path)
    plain = nn.Linear(own.weight.size(1), own.weight.size(0), own.bias is not None)
    plain.to(own.weight).load_state_dict(own.state_dict())
    return plain
