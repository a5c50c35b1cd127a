"""What a bundle may ask for: a forged one must not make us build more than its tensors fill."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from gduq.bundle.networks import Spec, inner
from gduq.errors import BundleError

__all__ = ["Allowance", "check_names", "check_spec"]

_DEPTH = 8  # models inside models
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
_SIZED = (torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn, torch.eye)
_NEW = (Tensor.new_empty, Tensor.new_zeros, Tensor.new_ones, Tensor.new_full)


def check_spec(spec: Spec, tensors: Mapping[str, Tensor]) -> None:
    """Raise where the settings of a model speak of other sizes than its tensors have."""
    _check_model(spec, _Sizes(tensors), 0)


class _Sizes:
    """How many layers the tensors are of, and what widths they have."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.layers = len({i for name in tensors for i in _LAYER.findall(name)})
        self.widths = {width for value in tensors.values() for width in value.shape}


def _check_model(spec: Any, sizes: _Sizes, depth: int) -> None:
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
        _check_network(net["config"], sizes)
    for part in parts:
        _check_model(part, sizes, depth + 1)


def _check_shared(shared: Any, parts: Sequence[Spec]) -> None:
    """Members may stand on the trunk of an earlier one, if that is the same network."""
    if shared is None:
        return
    for i, (first, part) in enumerate(zip(shared, parts, strict=True)):
        known = first is None or (type(first) is int and 0 <= first <= i)
        if not known or (first is not None and part["net"] != parts[first]["net"]):
            raise BundleError("members that share a network of one kind", repr(first)[:50])


def _check_network(config: Mapping[str, Any], sizes: _Sizes) -> None:
    """A network has as many layers as there are tensors of, and widths that tensors have."""
    names = ("hidden_channels", "out_channels", "num_layers")
    for name in (*names, *(["in_channels"] if "in_channels" in config else [])):
        if type(config[name]) is not int:
            raise BundleError(f"{name}, a whole number", repr(config[name])[:50])
    if config["num_layers"] > sizes.layers + 1:  # one may have given its only map away
        raise BundleError(f"num_layers={sizes.layers}, as there are tensors", config["num_layers"])
    if config.get("in_channels", 0) > max(sizes.widths, default=0):
        raise BundleError("in_channels of the tensors' width", config["in_channels"])
    for name in ("hidden_channels", "out_channels"):
        if config[name] not in sizes.widths:
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
    """Within this context torch makes some times as much as given tensors hold, and no more.

    Args:
        tensors: What the model is to be filled with.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        # one tensor of several names counts once
        sizes = {value.data_ptr(): value.numel() for value in tensors.values()}
        # a model is made with copies, of a head or of what it starts from, that do not stay
        self._numbers = 5 * sum(sizes.values()) + 10_000
        self._calls = 10 * len(tensors) + 1_000

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        options = kwargs or {}
        if func in _SIZED or func in _NEW:
            self._spend(_numel(args[func in _NEW :], options))
        elif func is Tensor.clone:
            self._spend(args[0].numel())
        return func(*args, **options)

    def _spend(self, numbers: int) -> None:
        self._numbers -= numbers
        self._calls -= 1
        if self._numbers < 0 or self._calls < 0:
            raise BundleError("settings of a model as large as its tensors", "a larger one")


def _numel(args: Sequence[Any], options: Mapping[str, Any]) -> int:
    """How many numbers a call such as ``torch.zeros(2, 3)`` makes."""
    size = options.get("size", args[0] if args else ())
    if isinstance(size, int):
        size = [value for value in args if isinstance(value, int)]
    return math.prod(size)
