"""`StackedHeads`: heads of one architecture in one batched pass."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from gduq.errors import InputError

__all__ = ["StackedHeads"]


class StackedHeads:
    """G heads of one architecture as one: every tensor has a leading axis G.

    Args:
        heads: The first lends its forward pass; none of them is changed before `unload`.
    """

    def __init__(self, heads: Sequence[nn.Module]) -> None:
        kinds = [[(n, v.shape, v.dtype) for n, v in head.state_dict().items()] for head in heads]
        if any(kind != kinds[0] for kind in kinds):
            raise InputError("heads of one architecture", "different shapes of weights")
        self.heads, self.module = heads, heads[0]
        parts = [dict(head.named_parameters()) for head in heads]
        self.parameters = {
            name: torch.stack([part[name].detach() for part in parts]).requires_grad_(
                value.requires_grad
            )
            for name, value in parts[0].items()
        }
        stored = [dict(head.named_buffers()) for head in heads]
        self.buffers = {name: torch.stack([b[name] for b in stored]) for name in stored[0]}
        self.width = max(v.size(1) for v in self.parameters.values() if v.dim() > 1)

    def __len__(self) -> int:
        return len(self.heads)

    def __call__(self, h: Tensor, c: Tensor | None, masked: Tensor | None) -> Tensor:
        """``[G, D, n, O]``; h and c are the same for all heads, ``masked`` is ``[G, D, n]``."""

        def alone(
            parameters: dict[str, Tensor], buffers: dict[str, Tensor], masked: Tensor | None
        ) -> Tensor:
            out: Tensor = functional_call(self.module, (parameters, buffers), (h, c, masked))
            return out

        axes = (0, 0, None if masked is None else 0)
        every = vmap(alone, axes, randomness="same")  # a head alone draws the same dropout
        out: Tensor = every(self.parameters, self.buffers, masked)
        return out

    @property
    def state(self) -> dict[str, Tensor]:
        return {**self.parameters, **self.buffers}

    def copy(self) -> dict[str, Tensor]:
        return {name: value.detach().clone() for name, value in self.state.items()}

    @torch.no_grad()
    def unload(self, state: dict[str, Tensor]) -> None:
        """Give every head its own part of a state."""
        for g, head in enumerate(self.heads):
            for name, value in (*head.named_parameters(), *head.named_buffers()):
                value.copy_(state[name][g])
