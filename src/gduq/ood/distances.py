"""The nearest of known rows, in blocks of bounded memory: of representations, and of structures."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from gduq._torch import exporting
from gduq.graphs.sparse import take_rows

__all__ = ["in_blocks", "nearest", "polar", "structure_distance"]

_BLOCK = 4_000_000  # numbers in one block, of distances or of dense rows
_NEAR = 3  # so many training rows make a structure known


def nearest(
    rows: Tensor, known: Tensor, k: int, distance: Callable[[Tensor], Tensor] | None = None
) -> Tensor:
    """The k smallest distances ``[m, k]`` of rows ``[m, d]`` to known ones ``[R, d]``, rising.

    Args:
        rows: Dense or sparse CSR.
        known: Those they are compared with.
        k: How many; all of them if there are fewer.
        distance: From some rows, dense, to their distances to all known ones ``[b, R]``; the
            Euclidean one by default.

    Example:
        >>> nearest(torch.zeros(1, 1), torch.tensor([[3.0], [1.0], [2.0]]), k=2)
        tensor([[1., 2.]])
    """
    k = min(k, known.size(0))
    measure = distance or (lambda part: torch.cdist(part, known))
    parts = (measure(part) for part in in_blocks(rows, known))
    return torch.cat([part.topk(k, dim=1, largest=False).values for part in parts])


def in_blocks(rows: Tensor, known: Tensor) -> Iterator[Tensor]:
    """Rows, dense, in parts that can be compared with all known rows in bounded memory."""
    if exporting():
        yield rows
        return
    size = max(1, _BLOCK // max(1, *known.shape))
    for part in torch.arange(rows.size(0), device=rows.device).split(size):
        yield take_rows(rows.detach(), part)


def polar(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Directions ``[m, d]`` and lengths ``[m, 1]`` in double precision: near 1, cosines need it.
    Zeros stay."""
    rows = rows.double()
    largest = rows.abs().amax(dim=1, keepdim=True)
    rows = rows / torch.where(largest > 0, largest, 1.0)  # squares neither overflow nor vanish
    length = rows.norm(dim=1, keepdim=True)
    return rows / torch.where(length > 0, length, 1.0), length * largest


@torch.no_grad()
def structure_distance(rows: Tensor, known: Tensor) -> Tensor:
    """Mean distance ``[m]`` of rows ``[m, s]`` to the 3 nearest of known rows ``[R, s]``.

    The distance of two rows is their largest difference, so that of logarithms it tells by which
    factor the counts differ.

    Example:
        >>> sizes = torch.tensor([[10.0], [10.0], [10.0], [20.0]]).log()
        >>> structure_distance(torch.tensor([[10.0], [40.0]]).log(), sizes).exp()
        tensor([1.0000, 3.1748], dtype=torch.float64)
    """
    rows, known = rows.double(), known.double()

    def largest(part: Tensor) -> Tensor:
        apart = (part[:, :1] - known[:, 0]).abs()
        for column in range(1, known.size(1)):
            apart = torch.maximum(apart, (part[:, column, None] - known[:, column]).abs())
        return apart

    if exporting():
        return nearest(rows, known, _NEAR, largest).mean(dim=1)
    rows, place = _distinct(rows)  # counts repeat: every structure is compared once
    return nearest(rows, known, _NEAR, largest).mean(dim=1)[place]


def _distinct(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The different rows, and which of them each row is; torch's own way is slow for rows."""
    code = torch.zeros_like(rows[:, 0], dtype=torch.int64)
    for column in rows.T:
        values, number = column.unique(return_inverse=True)
        code = code * len(values) + number
    codes, place = code.unique(return_inverse=True)
    some = torch.empty_like(codes).scatter_(0, place, torch.arange(len(rows), device=rows.device))
    return rows[some], place
