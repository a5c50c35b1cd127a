"""A model made again from its settings and tensors; never more than the tensors fill."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

import gduq.anchoring
import gduq.models  # noqa: F401  (both: their models are known once they are imported)
from gduq.errors import BundleError, InputError, one_line
from gduq.models.predictor import Predictor, kinds
from gduq.nn.network_specs import class_name, network_from
from gduq.prediction import target_from
from gduq.tracing.call import Call, check_complete, copied

__all__ = [
    "Factory",
    "Net",
    "Spec",
    "check_names",
    "check_spec",
    "needs_call",
    "networks",
    "rebuild",
]

Net = nn.Module | Sequence[nn.Module]
Spec = dict[str, Any]

_DEPTH = 8  # models inside models


def _inner(spec: Spec) -> list[Spec]:
    """The models inside a model."""
    return [*spec.get("members", ()), *([spec["model"]] if "model" in spec else [])]


def networks(spec: Spec) -> list[Spec]:
    """The networks inside a model, from the first to the last; a shared one counts once."""
    found, parts = [spec["net"]] if "net" in spec else [], _inner(spec)
    shared = spec.get("shared") or [None] * len(parts)
    for i, (part, first) in enumerate(zip(parts, shared, strict=True)):
        found += networks(part) if first in (None, i) else []
    return found


def needs_call(spec: Spec) -> bool:
    """Whether any part of a model was made with ``call=``."""
    return bool(spec.get("call")) or any(map(needs_call, _inner(spec)))


# -- checks before anything is made ----------------------------------------------------------------


def check_spec(spec: Spec, tensors: Mapping[str, Tensor]) -> None:
    """Raise where settings speak of a larger model than the tensors are of.

    Networks are made on the meta device for that, which allocates nothing. Members of a stack that
    share a network hold one and the same entry afterwards.
    """
    numbers = sum({value.data_ptr(): value.numel() for value in tensors.values()}.values())
    _check_model(spec, tensors, numbers)
    needed = 0
    for net in networks(spec):
        if "config" in net:
            layers, columns = (net["config"].get(k) for k in ("num_layers", "categories"))
            if not isinstance(layers, int) or max(layers, len(columns or ())) > len(tensors):
                raise BundleError(f"at most {len(tensors)} layers, as there are tensors", "more")
            with torch.device("meta"):
                needed += sum(v.numel() for v in network_from(net).state_dict().values())
        if needed > 2 * numbers + 10_000:  # a head may be kept in another form
            raise _too_large()


def _too_large() -> BundleError:
    return BundleError("settings of a model as large as its tensors", "a larger one")


def _check_model(spec: Any, tensors: Mapping[str, Tensor], numbers: int, depth: int = 0) -> None:
    if not isinstance(spec, dict) or depth > _DEPTH:
        got = "more" if isinstance(spec, dict) else type(spec).__name__
        raise BundleError(f"settings of a model, at most {_DEPTH} models deep", got)
    seed, parts = spec.get("seed", 0), _inner(spec)
    if type(seed) is not int or not -(2**63) <= seed < 2**64:
        raise BundleError("seed, a whole number of 64 bits", repr(seed)[:50])
    if spec["target"] is not None:
        check_names(spec["target"].get("names"))
    most, source = max(numbers, 10_000), spec.get("source") or {}
    heads = len(tensors) if spec["kind"] == "HeadEnsemble" else most
    sizes = (math.prod(source.get("shape") or [0]), source.get("channels", 0))
    if spec.get("size", 0) > heads or max(sizes) > most:
        raise _too_large()
    shared = spec.get("shared") or [None] * len(parts)
    for i, (part, first) in enumerate(zip(parts, shared, strict=True)):
        _check_model(part, tensors, numbers, depth + 1)
        if first is not None:
            known = type(first) is int and 0 <= first <= i
            if not known or part["net"] != parts[first]["net"]:
                raise BundleError("members that share a network of one kind", repr(first)[:50])
            part["net"] = parts[first]["net"]


def check_names(names: Any) -> None:
    """Raise unless class names are ``None`` or different texts that a file can hold."""
    if names is None:
        return
    texts = isinstance(names, (list, tuple)) and all(isinstance(name, str) for name in names)
    if not texts or len(set(names)) < len(names):
        raise BundleError("class_names, a list of different texts", repr(names)[:100])
    if any("\ud800" <= letter <= "\udfff" for name in names for letter in name):
        raise BundleError("class_names of complete letters", "half of a surrogate pair")


# -- the model made again --------------------------------------------------------------------------


class Factory:
    """Networks of gduq's own made anew, the user's copied, and the user's call.

    Args:
        spec: Of the model, as `check_spec` left it.
        net: The user's network, or several; one for each network that is not gduq's own.
        call: The user's call.
    """

    def __init__(self, spec: Spec, net: Net | None = None, call: Call | None = None) -> None:
        if call is None and needs_call(spec):
            do = "A function cannot be saved: gduq.load(path, ..., call=call)."
            raise BundleError("call=, the function this model was made with", "none", do)
        if call is not None and not needs_call(spec):
            raise InputError("no call= for a model that was made without one", repr(call))
        others = [own for own in networks(spec) if own["kind"] == "other"]
        given = _match_networks([own["class"] for own in others], net)
        self._call = call
        self._made: dict[int, nn.Module] = {
            id(own): copied(network) for own, network in zip(others, given, strict=True)
        }

    def net(self, spec: Any) -> nn.Module:
        if id(spec) not in self._made:
            self._made[id(spec)] = network_from(spec)
        return self._made[id(spec)]

    def model(self, spec: Any) -> Predictor:
        if spec["kind"] not in kinds():
            raise BundleError("a kind of model this gduq knows", repr(spec["kind"]))
        model = kinds()[spec["kind"]].from_spec(spec, self)
        model.target = None if spec["target"] is None else target_from(spec["target"])
        return model

    def call(self, spec: Any) -> Any:
        return self._call if spec["call"] else None


def _match_networks(wanted: Sequence[str], net: Net | None) -> list[nn.Module]:
    """The user's networks, one for each class that is wanted."""
    if net is None and wanted:
        do = "Build it as it was built before and call gduq.load(path, net=...)."
        raise BundleError(f"net=, a network of class {wanted[0]}", "none", do)
    if net is not None and not wanted:
        raise InputError("no net= for a model made of gduq's own networks", type(net).__name__)
    anything: Any = net
    if not isinstance(anything, (nn.Module, Sequence, type(None))):
        got = f"{getattr(anything, '__name__', anything)!r}, which is none yet"
        raise InputError("net=, a network or a list of them", got, "Build it: net=MyNet(...).")
    given = [] if net is None else [net] * len(wanted) if isinstance(net, nn.Module) else list(net)
    if len(given) != len(wanted):
        raise InputError(f"{len(wanted)} networks in net=, one per network saved", len(given))
    for network, name in zip(given, wanted, strict=True):
        check_complete(network)
        if class_name(network).rpartition(".")[2] != name.rpartition(".")[2]:
            do = "Pass the network itself, as it was before gduq wrapped it."
            raise BundleError(f"a network of class {name}", type(network).__name__, do)
    return given


def rebuild(spec: Spec, tensors: Mapping[str, Tensor], factory: Factory) -> Predictor:
    """The model of a spec with its weights; torch's global random state is left alone."""
    with torch.random.fork_rng(devices=[]):
        model = factory.model(spec)
    for name, value in model.state_dict(keep_vars=True).items():
        saved = tensors.get(name)
        if saved is None or is_lazy(value):
            continue
        both = value.is_floating_point() and saved.is_floating_point()
        if not both and value.dtype != saved.dtype:
            raise BundleError(f"{name} of {value.dtype}", saved.dtype)
        value.data = value.data.to(saved.dtype)  # the precision it was saved in
    try:
        model.load_state_dict(dict(tensors))
    except RuntimeError as error:
        do = "Build the network with the arguments it had when it was saved."
        raise BundleError("tensors that fit the network", one_line(error), do) from error
    for name, parameter in model.named_parameters():
        if not bool(parameter.isfinite().all()):
            raise BundleError("finite weights", f"NaN or infinite ones in {name}")
    for part in model.modules():
        getattr(part, "calibration", None)  # raises for a number that stands for none
    model.check_ready()
    return model
