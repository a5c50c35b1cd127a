"""`NoiseHead`: log-variances beside the means of a head."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["NoiseHead", "ends_linear", "standardised_last"]

_SILENT = (nn.Identity, nn.Dropout, nn.Sequential)


class NoiseHead(nn.Module):
    """Reads what the last layer of a head reads, and adds T log-variances to its T means.

    It starts at one log-variance for all rows, and standardises means that come in other units.
    """

    shift: Tensor
    scale: Tensor

    def __init__(self, channels: int, values: int) -> None:
        super().__init__()
        self.linear = nn.Linear(channels, values)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)
        self.register_buffer("shift", torch.zeros(values))
        self.register_buffer("scale", torch.ones(values))

    @torch.no_grad()
    def start(self, log_variance: Tensor) -> None:
        """Begin with these log-variances ``[T]``."""
        self.linear.bias.copy_(log_variance)

    @torch.no_grad()
    def standardise(self, shift: Tensor, scale: Tensor) -> None:
        """Subtract and divide, of means that come in other units."""
        self.shift.copy_(shift)
        self.scale.copy_(scale)

    def forward(self, means: Tensor, read: Tensor) -> Tensor:
        """Means and log-variances ``[..., n, 2T]`` of means ``[..., n, T]``."""
        logs = self.linear(read)
        centred = (means - self.shift) / self.scale
        return torch.cat([centred, logs.expand_as(centred)], dim=-1)


@torch.no_grad()
def standardised_last(head: nn.Module, shift: Tensor, scale: Tensor) -> bool:
    """Let the last linear map of a head give standardised outputs, if nothing follows it.

    Then steps of training have the same effect whatever the units. Says whether it could be done.

    Example:
        >>> head = nn.Sequential(nn.ReLU(), nn.Linear(2, 1))
        >>> before = head(torch.ones(1, 2))
        >>> standardised_last(head, torch.tensor([5.0]), torch.tensor([2.0]))
        True
        >>> torch.allclose(head(torch.ones(1, 2)), (before - 5) / 2)
        True
    """
    last = _last(head)
    if not isinstance(last, nn.Linear) or last.bias is None:
        return False
    last.weight.div_(scale.to(last.weight).unsqueeze(1))
    last.bias.copy_((last.bias - shift.to(last.bias)) / scale.to(last.bias))
    return True


def ends_linear(head: nn.Module) -> bool:
    """Whether a linear map is the last that changes anything."""
    return isinstance(_last(head), nn.Linear)


def _last(head: nn.Module) -> nn.Module | None:
    parts = [m for m in head.modules() if not list(m.children()) and not isinstance(m, _SILENT)]
    return parts[-1] if parts else None
