"""Calling any network with a graph: arguments are found by their names."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from gduq.errors import InputError

__all__ = ["Call", "call_network"]

Call = Callable[[nn.Module, Data], Tensor]

_WHOLE = ("data", "graph")  # parameters that take the graph itself
_PARTS = ("x", "edge_index", "edge_weight", "edge_attr", "batch", "pos")


def call_network(net: nn.Module, graph: Data, call: Call | None = None) -> Tensor:
    """The network's output for a graph.

    Args:
        net: Any module.
        graph: Its input.
        call: ``call(net, graph)`` for a network whose parameter names say too little. Otherwise
            ``x, edge_index, edge_weight, edge_attr, batch, pos`` are taken from the graph,
            ``data`` or ``graph`` is the graph itself, and any other required parameter is an
            attribute of the graph of that name.

    Example:
        >>> from torch_geometric.nn import GCN
        >>> graph = Data(x=torch.ones(2, 4), edge_index=torch.tensor([[0], [1]]))
        >>> call_network(GCN(4, 8, 1, out_channels=3), graph).shape
        torch.Size([2, 3])
    """
    try:
        out = call(net, graph) if call is not None else net(**_arguments(net, graph))
    except RuntimeError as error:
        if "shapes cannot be multiplied" not in str(error):
            raise
        x = graph.get("x")
        raise InputError(
            f"features of the width {type(net).__name__} was built for",
            f"width {x.size(1) if isinstance(x, Tensor) and x.dim() == 2 else 'unknown'}",
            f"torch says: {error}",
        ) from error
    if not isinstance(out, Tensor) or out.dim() != 2:
        got = f"shape {list(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
        raise InputError(
            "logits of shape [rows, classes] from the network",
            got,
            "Pass call=lambda net, graph: ... that returns them.",
        )
    return out


def _arguments(net: nn.Module, graph: Data) -> dict[str, Any]:
    found: dict[str, Any] = {}
    parameters = _parameters(net)
    if not parameters:
        raise InputError(
            f"named parameters of {type(net).__name__}.forward",
            "none",
            "Pass call=lambda net, graph: ... that calls it.",
        )
    if [name for name, required in parameters if required] == ["batch"]:
        return {"batch": graph}  # the name of a whole mini-batch
    for name, required in parameters:
        if name in _WHOLE:
            found[name] = graph
        elif name in _PARTS or required:
            value = _attribute(net, graph, name, required)
            if value is not None:
                found[name] = value
    return found


def _parameters(net: nn.Module) -> list[tuple[str, bool]]:
    """Names of the parameters of ``forward``, and whether each must be given."""
    signature = getattr(net, "signature", None)
    if signature is not None and hasattr(signature, "param_dict"):  # torch_geometric.nn.Sequential
        return [(name, True) for name in signature.param_dict]
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [
        (p.name, p.default is inspect.Parameter.empty)
        for p in inspect.signature(net.forward).parameters.values()
        if p.kind in kinds
    ]


def _attribute(net: nn.Module, graph: Data, name: str, required: bool) -> Any:
    value = graph.get(name)
    if name == "edge_attr" and not required and _reads_no_edge_features(net):
        return None
    if value is None and name == "batch" and required:
        nodes = int(graph.num_nodes or 0)
        return torch.zeros(nodes, dtype=torch.int64, device=graph.edge_index.device)
    if value is None and name == "edge_index":
        value = graph.get("adj_t")
    if value is None and required:
        raise InputError(
            f"a graph with '{name}', which {type(net).__name__}.forward asks for",
            f"only {', '.join(sorted(graph.keys()))}",
            "Pass call=lambda net, graph: ... to gduq.anchor.",
        )
    return value


def _reads_no_edge_features(net: nn.Module) -> bool:
    """Whether every convolution that could read edge features was built without them."""
    widths = [m.edge_dim for m in net.modules() if hasattr(m, "edge_dim")]
    return bool(widths) and all(width is None for width in widths)
