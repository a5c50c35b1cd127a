"""What `gduq.choose` trains with anchors: where, and for how long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gduq.anchoring.recipe import Scope
from gduq.graph import Rows

__all__ = ["PLANS", "Plan"]


@dataclass(frozen=True)
class Plan:
    """Training with anchors, by 5 % masking unless said otherwise.

    Attributes:
        budget: The least one that has it.
        at: Where the anchors are, as in `Recipe`.
        share: Of the epochs that the network was trained for.
        scope: Who shares an anchor.
        mask: Share of masked rows.
        draws: Anchors per row and step.
        fresh: Whether it starts anew, with other weights, and not from the trained network.
    """

    budget: float
    at: int | str
    share: float
    scope: Scope = "row"
    mask: float = 0.05
    draws: int = 1
    fresh: bool = False

    def __str__(self) -> str:
        layer = "the last layer" if self.at == -1 else f"layer {self.at}"
        place = self.at if isinstance(self.at, str) else layer
        shared = ", one anchor per graph" if self.scope == "graph" else ""
        return f"{'from scratch' if self.fresh else 'trained on'}, anchors at {place}{shared}"


_NODES = (Plan(1.2, -1, 0.08), Plan(1.5, 1, 0.125), Plan(2.5, 1, 0.75, fresh=True))
_GRAPHS = (
    Plan(1.2, "input", 0.08, "graph"),
    Plan(1.5, "input", 0.15),
    Plan(2.5, "input", 0.75, "graph", fresh=True),
)
# Trained with anchors, by what is answered for, the cheapest first; docs/choices.md has the search.
PLANS: Mapping[Rows, Sequence[Plan]] = {"node": _NODES, "edge": _NODES, "graph": _GRAPHS}
