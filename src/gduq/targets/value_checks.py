"""What true values must be like: finite, of an ordinary size, different from each other."""

from __future__ import annotations

import torch
from torch import Tensor

from gduq.errors import InputError

__all__ = ["check_range", "value_columns"]


def check_range(name: str, mean: float, deviation: float) -> None:
    """Raise for values that are all the same, or that single precision cannot hold: it has 24 bits
    and ends at 1e38."""
    if deviation <= 1e-12 * abs(mean):
        raise InputError(
            "values that differ between training rows",
            f"{mean:g} in every row for {name}",
            "There is nothing to learn: leave it out.",
        )
    if not 1e-15 < deviation < 1e15:
        raise InputError(
            "values of an ordinary size",
            f"a deviation of {deviation:.1g} for {name}",
            f"Change the unit: multiply y by {1 / deviation:.0e}.",
        )
    if abs(mean) > 1e5 * deviation:
        raise InputError(
            "values whose differences single precision can hold",
            f"{mean:.6g} plus or minus {deviation:.2g} for {name}",
            "Subtract a constant from y.",
        )


def value_columns(y: Tensor, name: str) -> Tensor:
    """Values ``[m, T]``, finite."""
    if y.dim() > 2:
        raise InputError(f"y of shape [m] or [m, T] in {name}", list(y.shape))
    values = y.unsqueeze(1) if y.dim() == 1 else y
    if not bool(torch.isfinite(values).all()):
        bad = int((~torch.isfinite(values)).any(dim=1).sum())
        raise InputError(
            f"finite values y in {name}",
            f"NaN or infinity in {bad} of {values.size(0)} rows",
            "Leave those rows out, or train one value at a time.",
        )
    return values if values.is_floating_point() else values.to(torch.get_default_dtype())
