"""The networks of a bundle: which ones a spec asks for, and where they come from."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import nn

import gduq.anchoring
import gduq.baselines  # noqa: F401  (both: their models are known once they are imported)
from gduq.errors import BundleError, InputError
from gduq.nn.call import Call
from gduq.nn.network_specs import class_name, network_from
from gduq.nn.widths import check_complete
from gduq.prediction.predictor import Predictor, Supply, kinds
from gduq.targets import target_from

__all__ = ["BundleSupply", "Net", "Spec", "inner", "leaves", "needs_call"]

Spec = Mapping[str, Any]
Net = nn.Module | Sequence[nn.Module]


def inner(spec: Spec) -> list[Spec]:
    """The models inside a model."""
    return [*spec.get("members", ()), *([spec["model"]] if "model" in spec else [])]


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
    for i, part in enumerate(parts):
        if _stands_on(shared[i], i):
            continue
        followers = [p for j, p in enumerate(parts) if shared[j] == i and _stands_on(shared[j], j)]
        for k, group in enumerate(_groups(part)):
            yield group + ([p["net"] for p in followers] if k == 0 else [])


def _stands_on(first: int | None, index: int) -> bool:
    """Whether a member stands on the trunk of an earlier one."""
    return first is not None and first < index


class BundleSupply(Supply):
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
            id(group[0]): _copied(network) for group, network in zip(others, given, strict=True)
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


def _copied(net: nn.Module) -> nn.Module:
    copied = copy.deepcopy(net)
    copied.__dict__.pop("_gduq_network", None)  # what gduq knew of the user's weights
    return copied


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
