"""What a model is made of, as JSON, and the model made from it again."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from gduq.anchored import Anchored
from gduq.anchors import Anchors, FixedAnchors, GaussianAnchors, ShuffledAnchors
from gduq.baselines import Ensemble, MCDropout
from gduq.bundle.files import VERSION
from gduq.errors import BundleError, InputError
from gduq.nn.call import Call
from gduq.nn.gnn import GNN

__all__ = ["Spec", "as_json", "leaves", "needs_call", "one_line", "rebuild", "spec_of"]

Spec = Mapping[str, Any]


def spec_of(model: nn.Module) -> dict[str, Any]:
    """Kind and settings of a model; exact types only, as a subclass may do anything."""
    if type(model) is Ensemble:
        members = [spec_of(member) for member in model.members]
        return {"kind": "Ensemble", "call": model.call is not None, "members": members}
    if type(model) is MCDropout:
        settings = _settings(model, "num_samples", "seed")
        return {"kind": "MCDropout", "call": model.call is not None} | settings | _inner(model.net)
    if type(model) is Anchored:
        names = ("at", "num_anchors", "scope", "init", "frozen", "seed", "temper")
        settings = _settings(model, *names)
        source, call = _source_spec(model.source), getattr(model.cut, "call", None) is not None
        kind = {"kind": "Anchored", "call": call, "source": source}
        return kind | settings | _inner(model.cut.net)
    if type(model) is GNN:
        return {"kind": "GNN", "config": as_json(_plain(model.config), "GNN.config")}
    return {"kind": "other", "class": f"{type(model).__module__}.{type(model).__qualname__}"}


def _inner(net: nn.Module) -> dict[str, Any]:
    return {"net": spec_of(net)}


def _settings(model: nn.Module, *names: str) -> dict[str, Any]:
    found = _plain({name: getattr(model, name) for name in names})
    return as_json(found, f"settings of {type(model).__name__}")


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers of numpy and torch as Python's."""
    return {k: v.item() if hasattr(v, "item") else v for k, v in values.items()}


def _source_spec(source: Anchors) -> dict[str, Any]:
    if type(source) is GaussianAnchors:
        settings = _plain({"momentum": source.momentum, "floor": source.floor})
        return {"kind": "gaussian", "channels": source.mean.numel()} | settings
    if type(source) is FixedAnchors:
        return {"kind": "fixed", "shape": list(source.values.shape)}
    if type(source) is ShuffledAnchors:
        return {"kind": "shuffle"}
    raise InputError(
        "anchors a bundle can hold: 'gaussian', 'shuffle' or a fixed tensor",
        f"an object of class {type(source).__name__}",
        "Before saving, set model.source = gduq.anchors.FixedAnchors(model.bank).",
    )


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


def leaves(spec: Spec) -> list[Spec]:
    """The networks inside a model, from the first to the last."""
    inner = spec.get("members") or ([spec["net"]] if "net" in spec else [])
    return [leaf for part in inner for leaf in leaves(part)] or [spec]


def needs_call(spec: Spec) -> bool:
    """Whether any part of a model was made with ``call=``."""
    inner = spec.get("members") or ([spec["net"]] if "net" in spec else [])
    return bool(spec.get("call")) or any(needs_call(part) for part in inner)


def rebuild(
    spec: Spec,
    tensors: Mapping[str, Tensor],
    nets: Iterator[nn.Module],
    call: Call | None,
    version: int = VERSION,
) -> nn.Module:
    """The model of a spec with its weights; torch's global random state is left alone.

    Args:
        spec: From `spec_of`.
        tensors: The model's state.
        nets: Networks for the leaves of kind ``"other"``, from the first to the last; copied.
        call: For the parts that were made with one.
        version: The format of the bundle it comes from.
    """
    with torch.random.fork_rng(devices=[]):
        model = _make(spec, tensors, nets, call)
    surplus = sorted(name for name in set(tensors) ^ set(model.state_dict())
                     if name not in _later(spec, version))  # fmt: skip
    if surplus:
        raise BundleError("one tensor for each name in the model", f"a misfit: {surplus[:3]}")
    return model


def _later(spec: Spec, version: int, prefix: str = "") -> set[str]:
    """Names of tensors that models have today and bundles of an earlier format do not."""
    if spec["kind"] == "Ensemble":
        inner = [_later(m, version, f"{prefix}members.{i}.") for i, m in enumerate(spec["members"])]
        return set().union(*inner)
    if spec["kind"] == "MCDropout":
        return _later(spec["net"], version, f"{prefix}net.")
    since = {"reach": 2, "temperature": 3}
    found = {f"{prefix}{tensor}" for tensor, first in since.items() if version < first}
    return found if spec["kind"] == "Anchored" else set()


def _make(
    spec: Spec, tensors: Mapping[str, Tensor], nets: Iterator[nn.Module], call: Call | None
) -> nn.Module:
    own_call = call if spec.get("call") else None
    if spec["kind"] == "Ensemble":  # filled one by one: an ensemble of equal members is refused
        members = [
            _make(member, _under(tensors, f"members.{i}."), nets, call)
            for i, member in enumerate(spec["members"])
        ]
        return Ensemble(members, call=own_call)
    if spec["kind"] == "MCDropout":
        net = _make(spec["net"], _under(tensors, "net."), nets, call)
        return MCDropout(net, spec["num_samples"], spec["seed"], own_call)
    model = _network(spec, nets) if spec["kind"] != "Anchored" else _anchored(spec, nets, own_call)
    _fill(model, tensors)
    return model


def _anchored(spec: Spec, nets: Iterator[nn.Module], call: Call | None) -> Anchored:
    return Anchored(
        _network(spec["net"], nets),
        spec["at"],
        spec["num_anchors"],
        _source(spec["source"]),
        spec["scope"],
        spec["init"],
        spec["frozen"],
        call,
        spec["seed"],
        spec.get("temper", False),  # not in format 1
    )


def _network(spec: Spec, nets: Iterator[nn.Module]) -> nn.Module:
    if spec["kind"] == "GNN":
        return GNN(**spec["config"])
    if spec["kind"] == "other":
        return copy.deepcopy(next(nets))
    raise BundleError("a kind of model this gduq knows", repr(spec["kind"]), "Upgrade gduq.")


def _source(spec: Spec) -> Anchors:
    if spec["kind"] == "gaussian":
        return GaussianAnchors(spec["channels"], spec["momentum"], spec["floor"])
    if spec["kind"] == "fixed":
        return FixedAnchors(torch.zeros(spec["shape"]))
    if spec["kind"] == "shuffle":
        return ShuffledAnchors()
    raise BundleError("a kind of anchors this gduq knows", repr(spec["kind"]), "Upgrade gduq.")


def _under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): t for k, t in tensors.items() if k.startswith(prefix)}


def _fill(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Put saved tensors into a model, in the precision they were saved in."""
    for name, own in model.state_dict(keep_vars=True).items():
        saved = tensors.get(name)
        if saved is not None and not is_lazy(own) and own.dtype != saved.dtype:
            if own.is_floating_point() != saved.is_floating_point():
                raise BundleError(f"{name} of {own.dtype}", saved.dtype)
            own.data = own.data.to(saved.dtype)
    try:
        model.load_state_dict(dict(tensors))
    except RuntimeError as error:
        net = model.cut.net if isinstance(model, Anchored) else model
        raise BundleError(
            f"tensors that fit {type(net).__name__}",
            one_line(error),
            "Build the network with the arguments it had when it was saved.",
        ) from error


def one_line(error: Exception) -> str:
    """An exception's text, without line breaks and not too long."""
    text = " ".join(f"{error}".split())
    return text if len(text) < 300 else f"{text[:300]} ..."
