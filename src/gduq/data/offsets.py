"""Where graphs begin in a long tensor: offsets, the rows of some graphs, the axis to join on."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["cat_dim", "numbers_nodes", "ragged", "share_ptr", "take", "to_ptr"]


def to_ptr(sizes: Tensor) -> Tensor:
    """Offsets ``[G + 1]`` of parts of the given sizes."""
    return torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])


def cat_dim(key: str) -> int:
    """The axis on which PyG joins an attribute: the last for numbers of nodes, else the first."""
    return -1 if numbers_nodes(key) else 0


def numbers_nodes(key: str) -> bool:
    """Whether an attribute holds numbers of nodes, which shift when graphs are joined."""
    return "index" in key or key == "face"  # PyG's own rule


def ragged(ptr: Tensor, index: Tensor) -> tuple[Tensor | slice, Tensor]:
    """Rows of the graphs ``index`` and their new offsets; neighbours come as one slice."""
    starts = ptr[index]
    sizes = ptr[index + 1] - starts
    out = to_ptr(sizes)
    if index.numel() and bool((index.diff() == 1).all()):
        return slice(int(starts[0]), int(starts[0] + out[-1])), out
    total = int(out[-1])
    shift = torch.repeat_interleave(starts - out[:-1], sizes, output_size=total)
    return shift + torch.arange(total), out


def take(key: str, value: Tensor, rows: Tensor | slice) -> Tensor:
    """Some rows of an attribute, on the axis that graphs are joined on."""
    dim = cat_dim(key)
    if isinstance(rows, slice):
        return value[..., rows] if dim == -1 else value[rows]
    return value.index_select(value.dim() - 1 if dim == -1 else 0, rows)


def share_ptr(ptrs: dict[str, Tensor], key: str, ptr: Tensor) -> str:
    """The name of equal offsets that are there already, or a new one."""
    for name, known in ptrs.items():
        if torch.equal(known, ptr):
            return name
    ptrs[key] = ptr
    return key
