"""What a cut is made along: domain values and classes, whatever holds them, as tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gduq.errors import InputError

__all__ = ["Values", "as_labels", "as_values"]

Values = Tensor | Sequence[Any] | np.ndarray
_EXPECTED = "one number, text or date per row as domain values"


def as_values(values: Values) -> Tensor:
    """Domain values as numbers ``[n]``: Python's floats in double precision, moments of NumPy in
    microseconds, and text, dates and other things that sort by their rank.

    Example:
        >>> as_values(["b", "a", "b"]), as_values([0.5, 2])
        (tensor([1, 0, 1]), tensor([0.5000, 2.0000], dtype=torch.float64))
    """
    tensor = values if isinstance(values, Tensor) else torch.from_numpy(_as_array(values))
    if tensor.dim() != 1:
        raise InputError("domain values of shape [n], one per row", list(tensor.shape))
    if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
        bad = int((~torch.isfinite(tensor)).sum())
        raise InputError("finite domain values", f"{bad} NaN or infinite")
    return tensor.detach().cpu()


def as_labels(labels: Tensor | Sequence[int] | None) -> Tensor:
    """Class numbers as ``int64 [n]``, or an error that says why they are none."""
    if labels is None:
        raise InputError("integer labels y", "none")
    do = "Cut values with shifts.target, or along any other domain."
    tensor = torch.as_tensor(labels)
    if tensor.dim() > 1 and tensor.size(1) > 1:
        raise InputError("one class per row", f"{tensor.size(1)} targets per row", do)
    tensor = tensor.reshape(-1)
    whole = tensor.long()
    if not torch.equal(whole.to(tensor.dtype), tensor):
        raise InputError("integer labels (classes)", "values with fractions or NaN", do)
    return whole


def _as_array(values: Any) -> np.ndarray:
    try:
        array = np.asarray(values)
    except (ValueError, TypeError) as error:
        raise InputError(_EXPECTED, f"{type(values).__name__}: {error}") from error
    kind = array.dtype.kind
    if kind == "c" or kind == "V" or array.ndim != 1:
        raise InputError(_EXPECTED, f"{array.dtype} of shape {list(array.shape)}")
    if kind in "mM":
        if bool(np.isnat(array).any()):
            raise InputError("domain values without NaT", f"{int(np.isnat(array).sum())} of them")
        return array.astype(f"{array.dtype.str[1:3]}[us]").astype(np.int64)
    if kind in "US":
        return np.unique(array, return_inverse=True)[1].reshape(-1)
    if kind == "O":
        return _ranks(array.tolist())
    return array.astype({"u": np.int64, "i": np.int64, "b": np.bool_}.get(kind, np.float64))


def _ranks(values: list[Any]) -> np.ndarray:
    try:
        rank = {value: i for i, value in enumerate(sorted(set(values)))}
    except TypeError as error:
        raise InputError(_EXPECTED, f"values that cannot be sorted ({error})") from error
    return np.array([rank[value] for value in values], dtype=np.int64)
