"""The head of a frozen network, which reads every row by itself and anchors beside it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gduq.anchored_linear import AnchoredLinear
from gduq.anchoring.points import Point, State
from gduq.nn.recording import LINEAR
from gduq.nn.trunk import Trunk

__all__ = ["AnchoredHead", "HeadPoint", "Tail"]


class HeadPoint(Point):
    """The head of a frozen network, which reads every row by itself: the cheapest point.

    Args:
        trunk: The network with the place of its head; it is shared, not changed, and frozen.
        branch: Where the head is one linear map: keep it as it is and add a second branch of two
            layers that starts at zero, so that there is something behind the anchors.
    """

    holds_copies = True
    frozen = True

    def __init__(self, trunk: Trunk, branch: bool) -> None:
        super().__init__()
        self.trunk = trunk.requires_grad_(False)
        self.rows = self.answers = trunk.answers
        first, rest = trunk.head()
        self.channels = first.in_features
        alone = not any(isinstance(part, LINEAR) for part in rest.modules())
        self.tail = Tail(rest, first if branch and alone else None)
        self.branch = branch
        plain = _branch_start(first) if branch and alone else first
        self.__dict__["plain"] = plain

    @property
    def net(self) -> nn.Module:  # type: ignore[override]
        return self.trunk.net

    def prefix(self, graph: Any) -> State:
        with torch.no_grad():
            return State(self.trunk(graph))

    def suffix(self, z: Tensor, state: State, graph: Any, normed: bool = False) -> Tensor:
        return self.tail(z, state.h)  # type: ignore[no-any-return]

    @property
    def needs_graph(self) -> bool:
        return False

    def prefix_modules(self) -> list[nn.Module]:
        return [self.trunk]

    @property
    def description(self) -> str:
        return f"{self.trunk.description}{self.tail.note}"

    def spec(self) -> dict[str, Any]:
        return {"kind": "head", "trunk": self.trunk.spec(), "branch": self.branch}


class Tail(nn.Module):
    """What follows the anchored map of a head.

    Args:
        rest: The steps after the head's first linear map.
        plain: The head's only linear map, to which a branch is added; ``None`` without a branch.
    """

    def __init__(self, rest: nn.Module, plain: nn.Linear | None) -> None:
        super().__init__()
        self.rest, self.plain = rest, plain
        self.out = None
        if plain is not None:
            plain.requires_grad_(False)
            self.out = nn.Linear(_width(plain), plain.out_features).to(plain.weight)
            nn.init.zeros_(self.out.weight)
            nn.init.zeros_(self.out.bias)

    def forward(self, z: Tensor, h: Tensor) -> Tensor:
        """Outputs ``[D, n, O]`` of ``z`` ``[D, n, m]``."""
        branch = self.plain is not None and self.out is not None
        read = self.plain(h) + self.out(z.relu()) if branch else z  # type: ignore[misc]
        flat = self.rest(read.flatten(0, 1))
        return flat.view(z.size(0), z.size(1), -1)  # type: ignore[no-any-return]

    @property
    def note(self) -> str:
        return "" if self.plain is None else "; a second branch reads the anchors"


def _width(plain: nn.Linear) -> int:
    """The width of a branch beside a linear map."""
    return max(32, min(plain.in_features, 256))


def _branch_start(plain: nn.Linear) -> nn.Linear:
    """A fresh linear map, the first of a branch."""
    return nn.Linear(plain.in_features, _width(plain)).to(plain.weight)


class AnchoredHead(nn.Module):
    """The part of a frozen model that learns: the anchored map and what follows.

    Args:
        linear: Reads the pair.
        tail: The rest of the head.
    """

    def __init__(self, linear: AnchoredLinear, tail: Tail) -> None:
        super().__init__()
        self.linear, self.tail = linear, tail

    def forward(self, h: Tensor, c: Tensor, masked: Tensor | None = None) -> Tensor:
        """Outputs ``[D, n, O]`` of rows ``h`` ``[n, d]`` for anchors ``c`` ``[D, n, d]``."""
        z = self.linear.residual(h) + self.linear.shift(c, masked)
        if self.linear.bias is not None:
            z = z + self.linear.bias
        return self.tail(z, h)  # type: ignore[no-any-return]
