"""How many channels a module reads, told from its attributes; and its plain linear layers."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch_geometric.nn.dense import Linear as PyGLinear

from gduq.errors import InputError

__all__ = [
    "LAZY",
    "LINEAR",
    "as_linear",
    "check_complete",
    "cut_names",
    "input_width",
    "is_plain_linear",
]

LAZY = (nn.parameter.UninitializedParameter, nn.parameter.UninitializedBuffer)
LINEAR = (nn.Linear, PyGLinear)
_WIDTHS = ("in_features", "in_channels", "num_features", "embed_dim", "channels")


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
    plain = plain.to(own.weight.device, own.weight.dtype)
    with torch.no_grad():
        plain.weight.copy_(own.weight)
        if own.bias is not None:
            plain.bias.copy_(own.bias)
    return plain
