"""Points and sources of anchors as JSON, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from gduq.anchoring.anchors import (
    Anchors,
    FixedAnchors,
    GaussianAnchors,
    ShuffledAnchors,
)
from gduq.anchoring.head_point import HeadPoint
from gduq.anchoring.module_points import InputPoint, ModulePoint
from gduq.anchoring.points import GNNPoint, Point
from gduq.errors import InputError
from gduq.nn.call import Call
from gduq.nn.trunk import Trunk

__all__ = ["point_from", "source_from", "source_spec"]


def point_from(spec: Mapping[str, Any], net: nn.Module, call: Call | None) -> Point:
    """The point of a fresh network that `Point.spec` described."""
    kind = spec["kind"]
    if kind == "chain":
        return GNNPoint(net, spec["at"], spec["keep"])  # type: ignore[arg-type]
    if kind == "input":
        return InputPoint(net, call, spec["answers"], spec["ending"])
    if kind == "module":
        return ModulePoint(net, spec["path"], call, spec["rows"], spec["answers"], spec["ending"])
    if kind == "head":
        trunk = Trunk.from_spec(spec["trunk"], net, call)
        return HeadPoint(trunk, spec["branch"], spec["values"])
    raise InputError("a kind of point this gduq knows", repr(kind), "Upgrade gduq.")


def source_spec(source: Anchors) -> dict[str, Any]:
    """What makes a source of anchors again; its tensors are the model's."""
    if type(source) is GaussianAnchors:
        momentum = None if source.momentum is None else float(source.momentum)
        more = {"momentum": momentum, "floor": float(source.floor)}
        return {"kind": "gaussian", "channels": source.mean.numel(), **more}
    if type(source) is FixedAnchors:
        return {"kind": "fixed", "shape": list(source.values.shape)}
    if type(source) is ShuffledAnchors:
        return {"kind": "shuffle"}
    raise InputError(
        "anchors a bundle can hold: 'gaussian', 'shuffle' or a fixed tensor",
        f"an object of class {type(source).__name__}",
        "Before saving, set model.source = gduq.anchoring.anchors.FixedAnchors(model.bank).",
    )


def source_from(spec: Mapping[str, Any]) -> Anchors:
    """The source that `source_spec` described."""
    if spec["kind"] == "gaussian":
        return GaussianAnchors(spec["channels"], spec["momentum"], spec["floor"])
    if spec["kind"] == "fixed":
        return FixedAnchors(torch.zeros(spec["shape"]))
    if spec["kind"] == "shuffle":
        return ShuffledAnchors()
    raise InputError("a kind of anchors this gduq knows", repr(spec["kind"]), "Upgrade gduq.")
