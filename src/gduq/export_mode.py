"""Whether a pass is recorded as a program, where sizes are symbols and values unknown."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["chunks", "exporting"]


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
