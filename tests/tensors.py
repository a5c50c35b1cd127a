"""Random tensors of a seed."""

from __future__ import annotations

import torch
from torch import Tensor


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def randn(*size: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(size, generator=seeded(seed), dtype=dtype)


def thin(*size: int, seed: int) -> Tensor:
    """Mostly zeros, with whole rows of them."""
    values = randn(*size, seed=seed)
    return values * (torch.rand(size, generator=seeded(seed + 1)) < 0.4)
