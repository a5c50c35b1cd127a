"""`Stack`: a convex mixture of models; what `gduq.choose` returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from gduq.errors import InputError
from gduq.graphs import Rows
from gduq.models.ensemble import inner_spec, mixture
from gduq.models.predictor import ModelFactory, ModelOutput, Predictor
from gduq.tracing.trunk import Trunk

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Stack"]


class Stack(Predictor):
    """Models that answer together, each with a weight.

    Models on one trunk share its pass, so that a stack of heads costs about as much as one.

    Args:
        members: Trained models that answer for the same rows.
        shares: Their weights, at least 0 and with a sum of 1.

    Attributes:
        leaderboard: What `gduq.choose` found out about every candidate, a table; or ``None``.
    """

    kind: ClassVar[str] = "Stack"
    shares: Tensor

    def __init__(self, members: Sequence[Predictor], shares: Sequence[float] | Tensor) -> None:
        super().__init__()
        given = torch.as_tensor(shares, dtype=torch.float64)
        if not members or given.shape != (len(members),):
            raise InputError("one weight per member", f"{len(given)} for {len(members)} members")
        if not (bool((given >= 0).all()) and abs(float(given.sum()) - 1) <= 1e-6):
            raise InputError("weights of at least 0 with a sum of 1", given.tolist())
        self.members = nn.ModuleList(members)
        self.register_buffer("shares", given / given.sum())
        first = members[0].target
        self.target = None if first is None else first.combined()
        self.leaderboard: pd.DataFrame | None = None

    def __iter__(self) -> Any:
        return iter(self.members)

    @property
    def row_kind(self) -> Rows | None:
        return next((member.row_kind for member in self), None)

    def forward(self, graph: Any) -> Tensor:
        """Log-probabilities are of the mixture only: see `gduq.predict`."""
        raise InputError("gduq.predict(model, data) for a stack", "model(graph)")

    def forward_samples(self, graph: Any, features: bool = False) -> ModelOutput:
        runs: dict[int, tuple[Tensor, Tensor]] = {}
        found: list[ModelOutput] = []
        for member in self:
            trunk = member.trunk
            if trunk is not None and trunk.has_head:
                if id(trunk) not in runs:
                    runs[id(trunk)] = _rows_of(trunk, graph)
                h, outputs = runs[id(trunk)]
                found.append(ModelOutput(member.from_rows(h, outputs), h))
            else:
                asks = features and all(one.features is None for one in found)
                found.append(member.forward_samples(graph, asks))
        return self.mixed(found)

    def mixed(self, answers: Sequence[ModelOutput]) -> ModelOutput:
        """One answer from one per member, before calibration; the first representation counts."""
        rows = next((one.features for one in answers if one.features is not None), None)
        return mixture(self, answers, self.shares)._replace(features=rows)

    def check_ready(self) -> None:
        for member in self:
            member.check_ready()

    def spec(self) -> dict[str, Any]:
        trunks = [member.trunk for member in self]
        first = [next(j for j, t in enumerate(trunks) if t is trunk) for trunk in trunks]
        board = self.leaderboard
        return {
            "kind": self.kind,
            "members": [inner_spec(member) for member in self],
            "shared": [
                j if trunk is not None else None for j, trunk in zip(first, trunks, strict=True)
            ],
            "leaderboard": None if board is None else board.to_dict("records"),
        }

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any], factory: ModelFactory) -> Stack:
        members: list[Predictor] = []
        for inner, first in zip(spec["members"], spec["shared"], strict=True):
            member = factory.model(inner)
            if first is not None and first < len(members):
                member.share_trunk(members[first].trunk)
            members.append(member)
        even = [1 / len(members)] * len(members)
        stack = cls(members, even)
        if spec["leaderboard"] is not None:
            import pandas as pd

            stack.leaderboard = pd.DataFrame(spec["leaderboard"])
        return stack

    def __repr__(self) -> str:
        inside = ", ".join(
            f"{s:.2f} {m!r}" for s, m in zip(self.shares.tolist(), self, strict=True)
        )
        return f"Stack({inside})"


def _rows_of(trunk: Trunk, graph: Any) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        h, outputs = trunk.run(graph)
    return trunk.labelled(h, graph), trunk.labelled(outputs, graph)
