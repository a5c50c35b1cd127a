"""What a model is made of, as JSON and tensors, and the model made from both again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

import gduq.anchoring
import gduq.baselines  # noqa: F401  (both: their models are known once they are imported)
from gduq.bundle.forged import Allowance, Spec, inner
from gduq.errors import BundleError, InputError, one_line
from gduq.nn.call import Call, copied
from gduq.nn.network_specs import class_name, network_from
from gduq.nn.widths import check_complete
from gduq.prediction.predictor import Predictor, kinds
from gduq.targets import target_from

__all__ = [
    "BundleSupply",
    "Net",
    "Spec",
    "as_json",
    "each_once",
    "leaves",
    "needs_call",
    "rebuild",
    "state_of",
    "with_aliases",
]

Net = nn.Module | Sequence[nn.Module]


# -- a model as JSON and tensors -------------------------------------------------------------------


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
    bad = [
        name
        for name, value in state.items()
        if not isinstance(value, Tensor) or is_lazy(value) or value.layout != torch.strided
    ]
    if bad:
        raise InputError(
            "a network whose state is initialised, dense tensors only",
            f"something else in {', '.join(bad[:3])}",
            "Run lazy layers once; sparse buffers and get_extra_state cannot be saved.",
        )
    return state


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


def leaves(spec: Spec) -> list[Spec]:
    """The networks inside a model, from the first to the last; a shared one counts once."""
    return [members[0] for members in _groups(spec)]


def needs_call(spec: Spec) -> bool:
    """Whether any part of a model was made with ``call=``."""
    return bool(spec.get("call")) or any(needs_call(part) for part in inner(spec))


def _groups(spec: Spec) -> Iterator[list[Spec]]:
    """All networks of a spec, those that are one and the same together."""
    if "net" in spec:
        yield [spec["net"]]
    parts = inner(spec)
    shared = spec.get("shared") or [None] * len(parts)
    leaders = [i if first is None else first for i, first in enumerate(shared)]
    for i, part in enumerate(parts):
        if leaders[i] == i:  # others stand on the trunk of an earlier one
            own = list(_groups(part))
            if own:  # a model of a user's own may have no network in its spec
                own[0] += [parts[j]["net"] for j in range(i + 1, len(parts)) if leaders[j] == i]
            yield from own


# -- the model made again --------------------------------------------------------------------------


class BundleSupply:
    """Networks of gduq's own made anew, the user's copied, and the user's call.

    Args:
        spec: Of the whole model.
        net: The user's network, or several; one for each network that is not gduq's own.
        call: The user's call.
    """

    def __init__(self, spec: Spec, net: Net | None = None, call: Call | None = None) -> None:
        self._call = call
        groups = list(_groups(spec))
        others = [group for group in groups if group[0]["kind"] == "other"]
        given = _given([group[0]["class"] for group in others], net)
        self._leader = {id(leaf): id(group[0]) for group in groups for leaf in group}
        self._made: dict[int, nn.Module] = {
            id(group[0]): copied(network) for group, network in zip(others, given, strict=True)
        }

    @property
    def classes(self) -> list[str]:
        """What the networks handed out are called."""
        return sorted({type(net).__name__ for net in self._made.values()})

    def net(self, spec: Any) -> nn.Module:
        key = self._leader[id(spec)]
        if key not in self._made:
            self._made[key] = network_from(spec)
        return self._made[key]

    def model(self, spec: Any) -> Predictor:
        if spec["kind"] not in kinds():
            raise BundleError("a kind of model this gduq knows", repr(spec["kind"]))
        model = kinds()[spec["kind"]].from_spec(spec, self)
        model.target = None if spec["target"] is None else target_from(spec["target"])
        return model

    def call(self, spec: Any) -> Any:
        return self._call if spec["call"] else None


def _given(wanted: Sequence[str], net: Net | None) -> list[nn.Module]:
    """The user's networks, one for each class that is wanted."""
    if net is None and wanted:
        raise BundleError(
            f"net=, a network of class {wanted[0]}",
            "none",
            "gduq rebuilds its own networks only: build yours as it was built before "
            "and call gduq.load(path, net=...).",
        )
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
            raise BundleError(
                f"a network of class {name}",
                type(network).__name__,
                "Pass the network itself, as it was before gduq wrapped it.",
            )
    return given


def rebuild(spec: Spec, tensors: Mapping[str, Tensor], supply: BundleSupply) -> Predictor:
    """The model of a spec with its weights; torch's global random state is left alone."""
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
