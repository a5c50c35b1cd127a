"""What a bundle may ask for: a forged one must not make us build more than its tensors fill."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from gduq.errors import BundleError

__all__ = ["Allowance", "Spec", "check_names", "check_spec", "inner"]

Spec = Mapping[str, Any]

_DEPTH = 8  # models inside models
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
_SIZED = (torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn, torch.eye)
_NEW = (Tensor.new_empty, Tensor.new_zeros, Tensor.new_ones, Tensor.new_full)


def inner(spec: Spec) -> list[Spec]:
    """The models inside a model."""
    return [*spec.get("members", ()), *([spec["model"]] if "model" in spec else [])]


def check_spec(spec: Any, tensors: Mapping[str, Tensor], depth: int = 0) -> None:
    """Raise where the settings of a model speak of other sizes than its tensors have."""
    if not isinstance(spec, dict) or depth > _DEPTH:
        got = "more" if isinstance(spec, dict) else type(spec).__name__
        raise BundleError(f"settings of a model, at most {_DEPTH} models deep", got)
    parts = inner(spec)
    _check_shared(spec.get("shared"), parts)
    target, net, seed = spec["target"], spec.get("net"), spec.get("seed", 0)
    if type(seed) is not int or not -(2**63) <= seed < 2**64:
        raise BundleError("seed, a whole number of 64 bits", repr(seed)[:50])
    if target is not None:
        check_names(target.get("names"))
    if net is not None and "config" in net:
        _check_network(net["config"], tensors)
    for part in parts:
        check_spec(part, tensors, depth + 1)


def _check_shared(shared: Any, parts: Sequence[Spec]) -> None:
    """Members may stand on the trunk of an earlier one, if that is the same network."""
    if shared is None:
        return
    for i, (first, part) in enumerate(zip(shared, parts, strict=True)):
        known = first is None or (type(first) is int and 0 <= first <= i)
        if not known or (first is not None and part["net"] != parts[first]["net"]):
            raise BundleError("members that share a network of one kind", repr(first)[:50])


def _check_network(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """A network has as many layers as there are tensors of, and widths that tensors have."""
    layers = len({i for name in tensors for i in _LAYER.findall(name)})
    widths = {width for value in tensors.values() for width in value.shape}
    for name in ("hidden_channels", "out_channels", "num_layers", "in_channels"):
        size = config.get(name, 0) if name == "in_channels" else config[name]
        if type(size) is not int:
            raise BundleError(f"{name}, a whole number", repr(size)[:50])
    if config["num_layers"] > layers + 1:  # one may have given its only map away
        raise BundleError(f"num_layers={layers}, as there are tensors", config["num_layers"])
    if config.get("in_channels", 0) > max(widths, default=0):
        raise BundleError("in_channels of the tensors' width", config["in_channels"])
    for name in ("hidden_channels", "out_channels"):
        if config[name] not in widths:
            raise BundleError(f"{name} of the tensors' width", config[name])


def check_names(names: Any) -> None:
    """Raise unless class names are ``None`` or different texts that a file can hold."""
    if names is None:
        return
    texts = isinstance(names, (list, tuple)) and all(isinstance(name, str) for name in names)
    if not texts:
        raise BundleError("class_names, a list of texts", repr(names)[:100])
    if len(set(names)) < len(names):
        raise BundleError("class_names that differ", repr(names)[:100])
    if any("\ud800" <= letter <= "\udfff" for name in names for letter in name):
        raise BundleError("class_names of whole letters", "half of a surrogate pair")


class Allowance(TorchFunctionMode):
    """Within this context torch makes some times as much as given tensors hold, and no more."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        # one tensor of several names counts once
        sizes = {value.data_ptr(): value.numel() for value in tensors.values()}
        # a model is made with copies, of a head or of what it starts from, that do not stay
        self._numbers = 5 * sum(sizes.values()) + 10_000
        self._calls = 10 * len(tensors) + 1_000

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        options = kwargs or {}
        if func in _SIZED or func in _NEW:
            given = args[func in _NEW :]
            size = options.get("size", given[0] if given else ())
            if isinstance(size, int):  # torch.zeros(2, 3)
                size = [value for value in given if isinstance(value, int)]
            self._spend(math.prod(size))
        elif func is Tensor.clone:
            self._spend(args[0].numel())
        return func(*args, **options)

    def _spend(self, numbers: int) -> None:
        self._numbers -= numbers
        self._calls -= 1
        if self._numbers < 0 or self._calls < 0:
            raise BundleError("settings of a model as large as its tensors", "a larger one")
