"""The answers of a head for a whole bank of anchors, in blocks that a processor's cache holds."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gduq.anchoring.equation import anchored_relu_map
from gduq.anchoring.head_point import Tail
from gduq.anchoring.linear import AnchoredLinear
from gduq.export_mode import chunks
from gduq.nn.forced_dropout import ForcedDropout
from gduq.nn.recording import LINEAR

__all__ = ["head_outputs"]

_BLOCK = 2**18  # numbers of a hidden layer that are computed at once


def head_outputs(linear: AnchoredLinear, tail: Tail, bank: Tensor, h: Tensor) -> Tensor:
    """Outputs ``[K, n, O]`` of a head for rows ``h`` ``[n, d]`` and anchors ``bank`` ``[K, d]``.

    Rows are read by themselves, so a block of them passes with all anchors before the next one
    starts: memory stays small, and what one step writes the next finds in the cache.
    """
    shift = linear.shift(bank)  # [K, m]
    last = _map_of_relu(tail)
    parts = []
    for rows in chunks(h, _BLOCK // max(1, shift.numel())):
        if last is None:
            parts.append(tail(_read(linear, rows) + shift.unsqueeze(1), rows))
            continue
        weight = linear.weight[:, : linear.in_features]
        found = anchored_relu_map(rows, shift, weight, linear.bias, last.weight, last.bias)
        parts.append(found if tail.plain is None else found + tail.plain(rows))
    return torch.cat(parts, dim=1)


def _read(linear: AnchoredLinear, h: Tensor) -> Tensor:
    z = linear.residual(h)
    return z if linear.bias is None else z + linear.bias


def _map_of_relu(tail: Tail) -> nn.Linear | None:
    """The linear map that a tail amounts to behind a ReLU, if that is all there is to it."""
    if tail.training or ForcedDropout.active() or tail.noise is not None:
        return None
    rest = [*tail.rest] if isinstance(tail.rest, nn.Sequential) else [tail.rest]
    steps = [step for step in rest if type(step) not in (nn.Dropout, nn.Identity)]
    if tail.plain is not None:
        return None if steps else tail.out
    fits = len(steps) == 2 and type(steps[0]) is nn.ReLU and type(steps[1]) in LINEAR
    return steps[1] if fits else None  # type: ignore[return-value]
