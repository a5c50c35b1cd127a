"""How far the structure of a row is from that of training rows: counts, by their logarithms."""

from __future__ import annotations

import torch
from torch import Tensor

from gduq.export_mode import chunks, exporting

__all__ = ["structure_distance"]

_NEAR = 3  # so many training rows make a structure known
_CHUNK = 4_000_000  # numbers in one block of differences


@torch.no_grad()
def structure_distance(rows: Tensor, known: Tensor, among: bool = False) -> Tensor:
    """Mean distance ``[m]`` of rows ``[m, s]`` to the 3 nearest of known rows ``[R, s]``.

    The distance of two rows is their largest difference, so that of logarithms it tells by which
    factor the counts differ. With ``among``, the rows are known themselves, and each is compared
    with the others.

    Example:
        >>> sizes = torch.tensor([[10.0], [10.0], [10.0], [20.0]]).log()
        >>> structure_distance(torch.tensor([[10.0], [40.0]]).log(), sizes).exp()
        tensor([1.0000, 3.1748], dtype=torch.float64)
    """
    rows, known = rows.double(), known.double()
    near = min(_NEAR, known.size(0) - among)
    if exporting():
        return _nearest(rows, known, near)
    # Counts repeat: every structure is compared once.
    rows, place = _distinct(rows)
    parts = chunks(rows, _CHUNK // max(1, known.size(0)))
    # Itself is at distance 0, so that one more row than asked for adds up to the same.
    found = torch.cat([_nearest(part, known, near + among) for part in parts])
    return found[place] * ((near + 1) / max(1, near) if among else 1.0)


def _distinct(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The different rows, and which of them each row is; torch's own way is slow for rows."""
    code = torch.zeros_like(rows[:, 0], dtype=torch.int64)
    for column in rows.T:
        values, number = column.unique(return_inverse=True)
        code = code * len(values) + number
    codes, place = code.unique(return_inverse=True)
    some = torch.empty_like(codes).scatter_(0, place, torch.arange(len(rows), device=rows.device))
    return rows[some], place


def _nearest(rows: Tensor, known: Tensor, near: int) -> Tensor:
    apart = (rows[:, :1] - known[:, 0]).abs()
    for column in range(1, known.size(1)):
        apart = torch.maximum(apart, (rows[:, column, None] - known[:, column]).abs())
    return apart.topk(near, dim=1, largest=False).values.mean(dim=1)
