"""What a model is made of, as JSON and tensors, and the model made from both again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from gduq.bundle.forged import Allowance
from gduq.bundle.networks import BundleSupply, Spec, leaves, needs_call
from gduq.errors import BundleError, InputError, one_line
from gduq.prediction.predictor import Predictor

__all__ = [
    "Spec",
    "as_json",
    "each_once",
    "leaves",
    "needs_call",
    "rebuild",
    "state_of",
    "with_aliases",
]


def as_json(value: Mapping[str, Any], what: str) -> dict[str, Any]:
    """A copy of a dictionary that comes back from JSON as it went in."""
    do = "Use dictionaries with text keys, lists, text, finite numbers, True, False and None."
    try:
        again: dict[str, Any] = json.loads(json.dumps(dict(value), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{what} that JSON can hold", error, do) from error
    if again != value:
        raise InputError(f"{what} that JSON can hold unchanged", value, do)
    return again


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


def rebuild(spec: Spec, tensors: Mapping[str, Tensor], supply: BundleSupply) -> Predictor:
    """The model of a spec with its weights; torch's global random state is left alone.

    Args:
        spec: From `inner_spec`.
        tensors: The model's state.
        supply: The networks and the call that the user handed in.
    """
    with torch.random.fork_rng(devices=[]), Allowance(tensors):
        model = supply.model(spec)
    _take_precision(model.state_dict(keep_vars=True), tensors)
    try:
        model.load_state_dict(dict(tensors))
    except RuntimeError as error:
        raise BundleError(
            f"tensors that fit {', '.join(supply.classes)}",
            one_line(error),
            "Build the network with the arguments it had when it was saved.",
        ) from error
    for part in model.modules():
        getattr(part, "calibration", None)  # raises for a number that stands for none
    model.check_ready()
    return model


def _take_precision(own: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    """Bring a fresh model to the precision of the saved one, which must be one and the same."""
    found: dict[torch.dtype, tuple[torch.dtype, str]] = {}
    for name, value in own.items():
        saved = tensors.get(name)
        if saved is None or is_lazy(value):
            continue
        before = value.dtype
        both = before.is_floating_point and saved.dtype.is_floating_point
        if not both and before != saved.dtype:
            raise BundleError(f"{name} of {before}", saved.dtype)
        if both and value.dim() and value.size(-1):  # others are of any size, or single numbers
            dtype, first = found.setdefault(before, (saved.dtype, name))
            if dtype != saved.dtype:
                raise BundleError(f"{name} of {dtype}, as {first} is", saved.dtype)
        if both:
            value.data = value.data.to(saved.dtype)
