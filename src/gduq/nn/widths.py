"""How many channels a module reads, told from its attributes without running it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn.dense import Linear as PyGLinear

from gduq.errors import InputError

__all__ = ["LAZY", "as_linear", "check_complete", "cut_names", "input_width", "take_linear"]

_WIDTHS = ("in_features", "in_channels", "num_features", "embed_dim", "channels")
LAZY = (nn.parameter.UninitializedParameter, nn.parameter.UninitializedBuffer)


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


def as_linear(net: nn.Module, path: str) -> nn.Linear | None:
    """A copy of the submodule as a plain linear layer, if it is nothing but that.

    Hooks, parametrisations and weights that other modules share make it more.
    """
    module = net.get_submodule(path)
    if type(module) not in (nn.Linear, PyGLinear) or isinstance(module.weight, LAZY):
        return None
    if module._forward_pre_hooks or module._forward_hooks:
        return None
    own = dict(module.named_parameters(recurse=False)).values()
    names = [p for _, p in net.named_parameters(remove_duplicate=False)]
    if any(sum(p is other for other in names) > 1 for p in own):
        return None
    weight, bias = module.weight, module.bias
    assert isinstance(weight, Tensor)
    plain = nn.Linear(weight.size(1), weight.size(0), bias is not None)
    plain = plain.to(weight.device, weight.dtype)
    with torch.no_grad():
        plain.weight.copy_(weight)
        if isinstance(bias, Tensor):
            plain.bias.copy_(bias)
    return plain


def take_linear(net: nn.Module, path: str) -> nn.Linear | None:
    """`as_linear`; the network's own layer is left without weights, for others to read for it."""
    plain = as_linear(net, path)
    if plain is not None:
        left: Any = net.get_submodule(path)
        left.weight = left.bias = None
        left.forward, left._save_to_state_dict = _called_alone, _save_nothing
    return plain


def _called_alone(*_: object) -> Tensor:
    raise InputError(
        "the model that reads for this layer to be called", "a part of it called alone"
    )


def _save_nothing(*_: object) -> None:
    """PyG's layer would save the weights that it has not."""


def cut_names(net: nn.Module) -> list[str]:
    """Submodules a network can be cut at, as far as can be told without running it."""
    return [
        name
        for name, module in net.named_modules()
        if name
        and not isinstance(module, (nn.ModuleList, nn.ModuleDict))
        and input_width(module) is not None
    ]
