r"""Less confidence far from the anchors.

A row's distance :math:`r` is its mean Euclidean distance to the K anchors of the bank. Nearly all
training rows (95 %) lie within the *reach* :math:`\rho`. Beyond it the network has hardly been
trained, and its logits are divided by how much farther away the row is:

.. math::
    z \;\leftarrow\; z / \max(1, r / \rho)

The classes keep their order; rows within the reach keep their probabilities. Nothing is fitted to
labels, and nothing but training rows is looked at.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gduq.errors import InputError

__all__ = ["NEAR", "ROWS", "reach_of", "tempered"]

NEAR = 0.95  # share of training rows within the reach
ROWS = 4096  # training rows that the reach is told from


def reach_of(rows: Tensor | None, bank: Tensor) -> float:
    """The distance to the anchors within which nearly all of these rows lie; without any: inf."""
    return torch.inf if rows is None else float(_distance(rows, bank).quantile(NEAR))


def tempered(logits: Tensor, h: Tensor, bank: Tensor, reach: Tensor) -> Tensor:
    """Logits ``[K, n, C]`` of rows ``h`` ``[n, d]``, smaller where those are out of reach.

    Example:
        >>> bank, h = torch.zeros(1, 2), torch.tensor([[1.0, 0.0], [0.0, 6.0]])
        >>> tempered(torch.full((1, 2, 1), 3.0), h, bank, torch.tensor(2.0)).flatten()
        tensor([3., 1.])
    """
    if h.size(0) != logits.size(1):
        raise InputError(
            "a place with one representation for every answer with temper=True",
            f"{h.size(0)} rows for {logits.size(1)} answers",
            "Anchor behind the readout, or leave temper out.",
        )
    times = (_distance(h, bank) / reach).clamp_min(1.0)
    return logits / times.unsqueeze(1).to(logits.dtype)


def _distance(h: Tensor, bank: Tensor) -> Tensor:
    """The mean distance of rows to the anchors, ``[n]``; rows may be sparse CSR or half floats."""
    dense = h if h.layout == torch.strided else h.to_dense()
    precise = torch.promote_types(bank.dtype, torch.float32)
    return torch.cdist(dense.to(precise), bank.to(precise)).mean(dim=1)
