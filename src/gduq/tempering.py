r"""Less confidence far from the anchors, and no more than validation rows bear out.

A row's distance :math:`r` is its mean Euclidean distance to the K anchors of the bank. Nearly all
training rows (95 %) lie within the *reach* :math:`\rho`. Beyond it the network has hardly been
trained, and the mean of its K logits is divided by how much farther away the row is; what the
hypotheses disagree about stays:

.. math::
    z_k \;\leftarrow\; \bar z / \bigl(T \max(1, r / \rho)\bigr) + (z_k - \bar z)

The classes keep their order in the mean. The reach needs no labels and nothing but the rows that
the bank is made from. :math:`T` is 1 until `gduq.fit` has seen labelled validation rows: then it is
the temperature that fits those best, but at least 1, and closer to it if they are few. Rows like
the training rows can say that a network is too sure of itself, as it will be under shift, too; that
it is not sure enough they can say of themselves only.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from gduq.errors import InputError
from gduq.functional import is_sparse

__all__ = ["NEAR", "ROWS", "Temper", "reach_of", "tempered"]

Temper = bool | Literal["distance"]  # the last: by distance only, whatever validation rows say

NEAR = 0.95  # share of training rows within the reach
ROWS = 4096  # training rows that the reach is told from


def reach_of(rows: Tensor | None, bank: Tensor) -> float:
    """The distance to the anchors within which nearly all of these rows lie.

    Infinite where nothing can be told: without rows, or if none differs from the anchors.
    """
    if rows is None or rows.size(0) == 0:
        return torch.inf
    return float(_distance(rows, bank).quantile(NEAR)) or torch.inf


def tempered(
    logits: Tensor, h: Tensor, bank: Tensor, reach: Tensor, temperature: Tensor | float = 1.0
) -> Tensor:
    """Logits ``[K, n, C]`` of rows ``h`` ``[n, d]``, their mean over a temperature, and over more
    where rows are out of reach.

    Example:
        >>> bank, h = torch.zeros(2, 2), torch.tensor([[1.0, 0.0], [0.0, 6.0]])
        >>> logits = torch.tensor([[[2.0], [2.0]], [[4.0], [4.0]]])  # two hypotheses, two rows
        >>> tempered(logits, h, bank, torch.tensor(3.0)).squeeze(2)
        tensor([[2.0000, 0.5000],
                [4.0000, 2.5000]])
    """
    if h.size(0) != logits.size(1):
        raise InputError(
            "a place with one representation for every answer with temper",
            f"{h.size(0)} rows for {logits.size(1)} answers",
            "Anchor behind the readout, or leave temper out.",
        )
    times = (_distance(h, bank) / reach).clamp_min(1.0).unsqueeze(1) * temperature
    return logits - logits.mean(dim=0) * (1.0 - 1.0 / times).to(logits.dtype)


def _distance(h: Tensor, bank: Tensor) -> Tensor:
    """The mean distance of rows to the anchors, ``[n]``, in single precision at least."""
    if is_sparse(h):
        raise InputError(
            "dense representations with temper",
            "sparse ones",
            "Anchor behind the readout, or leave temper out.",
        )
    precise = torch.promote_types(bank.dtype, torch.float32)
    exact = "donot_use_mm_for_euclid_dist"  # else a row's answer depends on how many there are
    return torch.cdist(h.to(precise), bank.to(precise), compute_mode=exact).mean(dim=1)
