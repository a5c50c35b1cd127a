"""The tensors of a model by name, those of several names once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from gduq.errors import BundleError, InputError
from gduq.prediction.predictor import Predictor

__all__ = ["each_once", "state_of", "with_aliases"]


def state_of(model: Predictor) -> dict[str, Tensor]:
    """All tensors of a model; raises for what a file cannot hold."""
    state = model.state_dict()
    bad = [name for name, value in state.items() if not _can_be_saved(value)]
    if bad:
        raise InputError(
            "a network whose state is initialised, dense tensors only",
            f"something else in {', '.join(bad[:3])}",
            "Run lazy layers once; sparse buffers and get_extra_state cannot be saved.",
        )
    return state


def _can_be_saved(value: object) -> bool:
    return isinstance(value, Tensor) and not is_lazy(value) and value.layout == torch.strided


def each_once(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Each tensor under its first name, and that name for all its others."""
    first: dict[Any, str] = {}
    aliases = {}
    for name, value in state.items():
        place = (value.data_ptr(), value.dtype, value.shape, value.stride(), value.device)
        key = place if value.numel() else name  # empty ones are nowhere
        if first.setdefault(key, name) != name:
            aliases[name] = first[key]
    return {name: value for name, value in state.items() if name not in aliases}, aliases


def with_aliases(tensors: Mapping[str, Tensor], aliases: Mapping[str, str]) -> dict[str, Tensor]:
    """All tensors by all their names."""
    if aliases.keys() & tensors.keys():
        raise BundleError("other names for tensors", "names that tensors of their own have")
    return {**tensors, **{alias: tensors[name] for alias, name in aliases.items()}}
