"""Two sets of scores, sorted once, and how well they are told apart in every resample."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

__all__ = ["Curve"]


class Curve:
    """Both sets sorted, and at each positive's score how much of them lies at or above it.

    ``n`` ``[R, n]`` and ``k`` ``[R, k]`` say how often each row counts in each of R resamples;
    once by default.
    """

    def __init__(self, negative: Tensor, positive: Tensor) -> None:
        self.negative, self.n_order = negative.sort()
        self.positive, self.k_order = positive.sort()
        self.left, self.right = (
            torch.searchsorted(self.negative, self.positive, right=r) for r in (False, True)
        )
        self.own = torch.searchsorted(self.positive, self.positive)  # first of equal positives
        self.k = torch.ones(1, len(positive), dtype=torch.float64)
        self._count(torch.ones(1, len(negative), dtype=torch.float64))

    def drawn(self, n: Tensor, k: Tensor) -> Curve:
        """The same sets with other counts."""
        other = copy.copy(self)
        other.k = k[:, self.k_order]
        other._count(n[:, self.n_order])
        return other

    def _count(self, n: Tensor) -> None:
        below_n, below_k = (_padded_cumsum(v) for v in (n, self.k))
        self.total_n, self.total_k = below_n[:, -1:], below_k[:, -1:]
        self.below, self.not_above = below_n[:, self.left], below_n[:, self.right]
        self.found = self.total_k - below_k[:, self.own]  # positives at or above, [R, k]

    def all(self) -> Tensor:
        """``[3, R]``: AUROC, average precision, false positives at 95 % recall."""
        return torch.stack([self.auroc(), self.average_precision(), self.false_positive_rate(0.95)])

    def auroc(self) -> Tensor:
        beaten = torch.einsum("rk,rk->r", self.k, self.below + self.not_above) / 2
        return beaten / (self.total_n * self.total_k).squeeze(1)

    def average_precision(self) -> Tensor:
        precision = self.found / (self.found + (self.total_n - self.below)).clamp_min(1.0)
        return torch.einsum("rk,rk->r", self.k, precision) / self.total_k.squeeze(1)

    def false_positive_rate(self, recall: float) -> Tensor:
        # found falls from left to right: the last position that still finds enough
        enough = (self.found >= recall * self.total_k - 1e-9).sum(dim=1, keepdim=True) - 1
        return 1.0 - (self.below.gather(1, enough) / self.total_n).squeeze(1)


def _padded_cumsum(counts: Tensor) -> Tensor:
    """``[R, m + 1]``, from 0."""
    total = counts.new_zeros(counts.size(0), counts.size(1) + 1)
    torch.cumsum(counts, dim=1, out=total[:, 1:])
    return total
