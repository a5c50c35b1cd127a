"""The head of a frozen network, which reads every row by itself and anchors beside it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gduq._torch import chunks
from gduq.anchoring.cuts import CutPoint, Read
from gduq.anchoring.equation import anchored_relu_map
from gduq.anchoring.linear import AnchoredLinear
from gduq.graphs import Graph
from gduq.nn.forced_dropout import ForcedDropout
from gduq.prediction import Values
from gduq.tracing.call import LINEAR, redraw
from gduq.tracing.trunk import NoiseHead, Trunk, standardised_last

__all__ = ["AnchoredHead", "HeadCut", "Tail", "head_outputs"]

_BLOCK = 2**18  # numbers of a hidden layer that are computed at once: what a cache holds


class HeadCut(CutPoint):
    """The head of a frozen network, which reads every row by itself: the cheapest point.

    The trunk is shared, not changed. With ``branch`` a head of one linear map stays as it is and
    gets a second branch of two layers that starts at zero, so that something is behind the anchors.
    ``values``: how many the head gives log-variances of; see `Tail.widen`.
    """

    holds_copies = True
    frozen = True
    trunk: Trunk

    def __init__(self, trunk: Trunk, branch: bool, values: int = 0) -> None:
        first, rest = trunk.requires_grad_(False).head()  # what follows the first map stays, too
        beside = branch and not any(isinstance(part, LINEAR) for part in rest.modules())
        width = max(32, min(first.in_features, 256))
        plain = nn.Linear(first.in_features, width).to(first.weight) if beside else first
        super().__init__(plain, trunk.row_kind, trunk.row_kind)
        self.trunk, self.branch = trunk, branch
        self.tail = Tail(rest, plain.out_features, first if beside else None)
        if values:
            self.tail.noise = NoiseHead(plain.out_features, values)

    @property
    def net(self) -> nn.Module:  # type: ignore[override]
        return self.trunk.net

    def prefix(self, graph: Graph) -> Tensor:
        with torch.no_grad():
            h: Tensor = self.trunk(graph)
        return h

    def run(self, graph: Graph, read: Read, copies: int) -> Tensor:
        h = self.prefix(graph)
        return self.tail(read(h, slice(0, copies)), h)  # type: ignore[no-any-return]

    def prefix_modules(self) -> list[nn.Module]:
        return [self.trunk]

    @property
    def description(self) -> str:
        note = "" if self.tail.plain is None else "; a second branch reads the anchors"
        return self.trunk.description + note

    def spec(self) -> dict[str, Any]:
        values = 0 if self.tail.noise is None else self.tail.noise.linear.out_features
        return {"kind": "head", "trunk": self.trunk.spec(), "branch": self.branch, "values": values}


class Tail(nn.Module):
    """What follows the anchored map of a head: the ``rest`` of it, which reads ``channels``, and
    perhaps a branch beside its only linear map ``plain``."""

    def __init__(self, rest: nn.Module, channels: int, plain: nn.Linear | None) -> None:
        super().__init__()
        self.rest, self.channels, self.plain = rest, channels, plain
        self.out: nn.Linear | None = None
        self.noise: NoiseHead | None = None
        self.anew = False  # whether it is no longer the network's
        if plain is not None:
            plain.requires_grad_(False)
            self.out = nn.Linear(channels, plain.out_features).to(plain.weight)
            nn.init.zeros_(self.out.weight)
            nn.init.zeros_(self.out.bias)

    def forward(self, z: Tensor, h: Tensor) -> Tensor:
        """Outputs ``[D, n, O]`` of ``z`` ``[D, n, m]``."""
        branch = self.plain is not None and self.out is not None
        read = self.plain(h) + self.out(z.relu()) if branch else z  # type: ignore[misc]
        found: Tensor = self.rest(read.flatten(0, 1)).view(z.size(0), z.size(1), -1)
        return found if self.noise is None else self.noise(found, z.relu())

    def begin_anew(self) -> None:
        """Draw all of it anew, and let it learn, as the paper does with the head of a network."""
        redraw(self.rest.requires_grad_(True))
        self.anew = True

    def widen(self, target: Values, outputs: Tensor, y: Tensor) -> None:
        """Give log-variances beside the means, both in standardised units.

        They start from what the network says of some rows ``[n, T]`` and their truth.
        """
        self.noise = NoiseHead(self.channels, target.num_values)
        self.noise.to(outputs).start(target.residual(outputs, y).to(outputs))
        if target.raw and not self.anew:
            ends = nn.Sequential(self.plain, self.rest) if self.plain is not None else self.rest
            shift, scale = outputs.new_tensor(target.shift), outputs.new_tensor(target.scale)
            if not standardised_last(ends, shift, scale):
                self.noise.standardise(shift, scale)


class AnchoredHead(nn.Module):
    """The head of a frozen model: the map that reads the pair, which learns, and what follows."""

    def __init__(self, linear: AnchoredLinear, tail: Tail) -> None:
        super().__init__()
        self.linear, self.tail = linear, tail

    def forward(self, h: Tensor, c: Tensor, masked: Tensor | None = None) -> Tensor:
        """Outputs ``[D, n, O]`` of rows ``h`` ``[n, d]`` for anchors ``c`` ``[D, n, d]``."""
        z = self.linear.residual(h) + self.linear.shift(c, masked)
        return self.tail(self.linear.biased(z), h)  # type: ignore[no-any-return]


def head_outputs(linear: AnchoredLinear, tail: Tail, bank: Tensor, h: Tensor) -> Tensor:
    """Outputs ``[K, n, O]`` of a head for rows ``h`` ``[n, d]`` and anchors ``bank`` ``[K, d]``.

    A block of rows passes with all anchors before the next one: it stays in the cache.
    """
    shift = linear.shift(bank)  # [K, m]
    last = _map_of_relu(tail)
    parts = []
    for rows in chunks(h, _BLOCK // max(1, shift.numel())):
        if last is None:
            z = linear.biased(linear.residual(rows)) + shift.unsqueeze(1)
            parts.append(tail(z, rows))
            continue
        own = (linear.weight_h, linear.bias, last.weight, last.bias)
        found = anchored_relu_map(rows, shift, *own)
        parts.append(found if tail.plain is None else found + tail.plain(rows))
    return torch.cat(parts, dim=1)


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
