"""Calling any network with a graph: arguments by their names, and logits of what comes out."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch_geometric.data import HeteroData
from torch_geometric.nn import MessagePassing
from torch_geometric.nn.dense import Linear as PyGLinear

from gduq._torch import exporting
from gduq.errors import InputError
from gduq.graphs import Graph, Rows, device_of, num_rows, row_type

__all__ = ["LAZY", "LINEAR", "Call", "Ending", "as_linear", "as_logits", "call_network",
           "check_complete", "check_logits", "copied", "cut_names", "evaluating", "first_input",
           "is_untouched", "redraw", "row_counts", "shares_weights"]  # fmt: skip

Call = Callable[[nn.Module, Graph], Tensor]
Ending = Literal["softmax", "log_softmax", "sigmoid"]  # what makes probabilities of logits
_Module = TypeVar("_Module", bound=nn.Module)

_PARTS = (  # taken from the graph where it has them, also where a default exists
    *("x", "edge_index", "edge_weight", "edge_attr", "batch", "pos", "z"),
    *("edge_type", "node_type", "edge_label_index", "data", "graph"),
)
LAZY = (nn.parameter.UninitializedParameter, nn.parameter.UninitializedBuffer)
LINEAR = (nn.Linear, PyGLinear)
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
    """
    given = copy.copy(graph)
    if _caching(net):
        net = copied(net, {id(t): t for t in (*net.parameters(), *net.buffers())})
    out: object = net(**_arguments(net, given)) if call is None else call(net, given)
    return _matrix(out, graph)


def first_input(args: Sequence[object], kwargs: Mapping[str, object]) -> Any:
    """What a submodule reads: its first argument, or the keyword ``x`` or ``input``."""
    return args[0] if args else kwargs.get("x", kwargs.get("input"))


class _WithoutHistory(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__deepcopy__ and not args[0].is_leaf:
            return args[0].detach().clone()
        return func(*args, **(kwargs or {}))


def copied(net: _Module, memo: dict[int, object] | None = None) -> _Module:
    """A copy of a network (``memo`` as in `copy.deepcopy`) without what belongs to earlier passes:
    layers of PyG do not cache a graph (``cached=True``) any more, and activations that it keeps
    (``self.h = ...``) lose their history, which torch does not copy."""
    with _WithoutHistory():
        twin = copy.deepcopy(net, memo)
    for layer in _caching(twin):
        caches = [name for name in vars(layer) if name.startswith("_cached")]
        vars(layer).update(dict.fromkeys(caches), cached=False)
    return twin


def _caching(net: nn.Module) -> list[nn.Module]:
    """Layers of PyG that keep a graph in memory and use it for the next one."""
    layers = [m for m in net.modules() if isinstance(m, MessagePassing)]
    return [m for m in layers if getattr(m, "cached", False) is True]


def redraw(module: _Module) -> _Module:
    """The module with all weights drawn anew, in place; raises where some cannot be.

    Weights that were all the same number (a fresh bias, a single scale) may stay.
    """
    before = [value.detach().clone() for value in module.parameters()]
    for part in module.modules():
        reset = getattr(part, "reset_parameters", getattr(part, "_reset_parameters", None))
        if callable(reset):
            reset()
    for old, (name, value) in zip(before, module.named_parameters(), strict=True):
        if torch.equal(value, old) and bool((old != old.flatten()[:1]).any()):
            do = "Give the module that holds it a method reset_parameters()."
            raise InputError("weights that can be drawn anew", f"{name}, which stays", do)
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


def _arguments(net: nn.Module, graph: Graph) -> dict[str, object]:
    """What a network is called with: attributes of the graph by the names of its parameters."""
    parameters, found = _parameters(net), dict[str, object]()
    if not parameters:
        do = "Pass call=lambda net, graph: net(graph.x, graph.edge_index), or what it takes."
        raise InputError(f"named parameters of {type(net).__name__}.forward", "none", do)
    if [name for name, required in parameters.items() if required] == ["batch"]:
        return {"batch": graph}  # the name of a whole mini-batch
    edge_dims = {m.edge_dim for m in net.modules() if hasattr(m, "edge_dim")}
    for name, required in parameters.items():
        plain = name.removesuffix("_dict")
        if not required and (plain not in _PARTS or (plain == "edge_attr" and edge_dims == {None})):
            continue  # convolutions may be built without edge features
        value = graph if name in ("data", "graph") else _stored(graph, name)
        if value is None and required and plain == "batch":
            for store in graph.node_stores:  # a single graph is a batch of one
                one = torch.zeros(store.num_nodes or 0, dtype=torch.int64)
                store.batch = one.to(device_of(graph))
            value = _stored(graph, name)
        if value is not None:
            found[name] = value
        elif required:
            raise InputError(
                f"a graph with '{name}', which {type(net).__name__}.forward asks for",
                f"{type(graph).__name__} with {', '.join(sorted(graph.keys())) or 'nothing'}",
                "Pass call=lambda net, graph: ... that calls it.",
            )
    return found


def _parameters(net: nn.Module) -> dict[str, bool]:
    """The parameters of ``forward``, and whether each must be given."""
    net = getattr(net, "_orig_mod", net)  # a compiled module shows none of its own
    signature = getattr(net, "signature", None)
    if signature is not None and hasattr(signature, "param_dict"):  # torch_geometric.nn.Sequential
        return dict.fromkeys(signature.param_dict, True)
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    known = inspect.signature(net.forward).parameters.values()
    return {p.name: p.default is inspect.Parameter.empty for p in known if p.kind in kinds}


def _stored(graph: Graph, name: str) -> object:
    """What a graph stores under a name; a dictionary by type for what types have."""
    if not isinstance(graph, HeteroData):
        return graph.get(name)
    value = None if name.endswith("_dict") else graph.get(name)  # of the graph as a whole
    return graph.collect(name.removesuffix("_dict"), True) or None if value is None else value


# -- output --------------------------------------------------------------------------------------


def _matrix(out: object, graph: Graph) -> Tensor:
    """Whatever a network gave as ``[rows, outputs]``."""
    if isinstance(out, dict) and isinstance(graph, HeteroData):
        out = out.get(row_type(graph))
    if isinstance(out, Tensor) and out.dim() == 1:  # one logit per row, or a row that got lost
        counts = (*row_counts(graph).values(), graph.get("batch_size"))
        out = out.unsqueeze(1) if exporting() or out.size(0) in counts else out
    if isinstance(out, Tensor) and out.dim() == 2:
        return out
    first = "net(...)[0]" if isinstance(out, (tuple, list)) else "..."
    raise InputError(
        "logits of shape [rows, classes] from the network, one row per node, graph or edge",
        f"shape {list(out.shape)}" if isinstance(out, Tensor) else f"a {type(out).__name__}",
        f"Pass call=lambda net, graph: {first} that returns them.",
    )


def row_counts(graph: Graph) -> dict[Rows, int]:
    """How many rows of each kind a graph has, as far as it has them."""
    found: dict[Rows, int] = {"graph": num_rows(graph, "graph")}
    if graph.get("edge_label_index") is not None:
        found["edge"] = num_rows(graph, "edge")
    with suppress(InputError):  # several node types, none of which is the one with labels
        found["node"] = num_rows(graph, "node")
    return found


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
    single = outputs.size(1) == 1
    if exporting() or outputs.size(0) == 0 or outputs.requires_grad:
        return outputs
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


# -- parts of a network ----------------------------------------------------------------------------


def check_complete(net: nn.Module) -> None:
    """Raise for a network whose parameters a first pass has yet to shape."""
    lazy = [name for name, p in net.named_parameters() if isinstance(p, LAZY)]
    if lazy:
        do = "Run it on a graph once, or give every layer its in_channels."
        raise InputError("a network with all its parameters", f"{lazy[0]} without a shape", do)


def cut_names(net: nn.Module) -> list[str]:
    """Submodules a network can be cut at, as far as can be told without running it."""
    parts = net.named_modules()
    return [name for name, m in parts if name and next(m.parameters(), None) is not None]


def is_untouched(module: nn.Module) -> bool:
    """Whether calling a module runs the ``forward`` of its class and nothing else."""
    hooked = module._forward_pre_hooks or module._forward_hooks
    return not hooked and "forward" not in module.__dict__


def shares_weights(net: nn.Module, path: str) -> bool:
    """Whether a submodule has weights that other modules use, too."""
    every = [id(p) for _, p in net.named_parameters(remove_duplicate=False)]
    return any(every.count(id(p)) > 1 for p in net.get_submodule(path).parameters(recurse=False))


def as_linear(net: nn.Module, path: str) -> nn.Linear | None:
    """A copy of a submodule as a plain linear layer, if it is nothing but that: without hooks,
    parametrisations or shared weights."""
    own: Any = net.get_submodule(path)
    if type(own) not in LINEAR or not is_untouched(own) or shares_weights(net, path):
        return None
    plain = nn.Linear(own.weight.size(1), own.weight.size(0), own.bias is not None)
    plain.to(own.weight).load_state_dict(own.state_dict())
    return plain
