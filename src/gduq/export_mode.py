"""Whether a pass is recorded as a program, where sizes are symbols and values unknown."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["below", "chunks", "exporting"]


def exporting() -> bool:
    """Whether torch.export is at work."""
    return bool(getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)())


def chunks(rows: Tensor, size: int) -> tuple[Tensor, ...]:
    """Rows in parts of at most ``size``, so that memory stays small; in an export, in one part.

    Example:
        >>> [len(part) for part in chunks(torch.zeros(5), 2)]
        [2, 2, 1]
    """
    return (rows,) if exporting() else rows.split(max(1, size))


def below(known: Tensor, values: Tensor, equal: bool = False) -> Tensor:
    """How many of the sorted known numbers are smaller than each value, or equal to it.

    Example:
        >>> below(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2.0, 9.0]))
        tensor([1, 3])
    """
    if not exporting():
        return torch.searchsorted(known, values, right=equal)
    known, values = known.unsqueeze(-2), values.unsqueeze(-1)
    return (known <= values if equal else known < values).sum(dim=-1)
