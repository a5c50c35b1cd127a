"""The classifier at the end of a `GNN`."""

from __future__ import annotations

from torch import Tensor, nn

from gduq.nn.gnn_settings import HeadKind

__all__ = ["Head"]


class Head(nn.Module):
    """The classifier: a linear map, or two with ReLU and dropout between.

    ``first`` is ``None`` while somebody else reads for it.
    """

    def __init__(self, channels: int, classes: int, kind: HeadKind, dropout: float) -> None:
        super().__init__()
        hidden = channels if kind == "mlp" else classes
        self.first: nn.Linear | None = nn.Linear(channels, hidden)
        self.rest = (
            nn.Sequential(nn.ReLU(), nn.Dropout(dropout), nn.Linear(channels, classes))
            if kind == "mlp"
            else nn.Identity()
        )

    @property
    def is_deep(self) -> bool:
        """Whether it has several layers."""
        return not isinstance(self.rest, nn.Identity)

    def forward(self, h: Tensor) -> Tensor:
        assert self.first is not None
        return self.rest(self.first(h))  # type: ignore[no-any-return]
