"""How well one number tells two sets apart: AUROC, average precision, false positives."""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from gduq.errors import InputError
from gduq.metrics.resampling import FEWEST, Interval, check_sampling, interval, resampled_pairs

__all__ = ["Curve", "Separation", "aupr", "auroc", "false_positive_rate", "separation"]


def auroc(negative: Tensor, positive: Tensor) -> float:
    r"""Area under the ROC curve: :math:`P(s^+ > s^-) + \frac12 P(s^+ = s^-)`.

    Args:
        negative: Scores of the negative set ``[n]``.
        positive: Scores of the positive set ``[k]``, which should be larger.

    Example:
        >>> auroc(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 2.0]))
        0.875
    """
    return float(Curve(*_checked(negative, positive)).auroc())


def aupr(negative: Tensor, positive: Tensor) -> float:
    r"""Average precision, :math:`\sum_t (R_t - R_{t-1}) P_t`: area under precision and recall.

    A score without information gets the share of positives.

    Example:
        >>> aupr(torch.tensor([0.0, 1.0]), torch.tensor([2.0, 3.0]))
        1.0
    """
    return float(Curve(*_checked(negative, positive)).average_precision())


def false_positive_rate(negative: Tensor, positive: Tensor, recall: float = 0.95) -> float:
    """Share of negatives flagged by the highest threshold that finds ``recall`` of the positives.

    Example:
        >>> false_positive_rate(torch.tensor([0.0, 1.0]), torch.tensor([0.5, 2.0]))
        0.5
    """
    if not 0 < recall <= 1:
        raise InputError("recall above 0 and at most 1", recall)
    return float(Curve(*_checked(negative, positive)).false_positive_rate(recall))


class Separation(NamedTuple):
    """How well a score tells two sets apart."""

    auroc: Interval
    aupr: Interval
    fpr95: Interval


def separation(
    negative: Tensor, positive: Tensor, *, resamples: int = 1000, level: float = 0.95, seed: int = 0
) -> Separation:
    """`auroc`, `aupr` and `false_positive_rate` with intervals; NaN for sets below 5 rows."""
    check_sampling(resamples, level)
    negative, positive = _checked(negative, positive)
    ranked = Curve(negative, positive)
    blocks = resampled_pairs(len(negative), len(positive), resamples, seed)
    draws = torch.cat([ranked.drawn(n, k).all() for n, k in blocks], dim=1)
    value = ranked.all().squeeze(1)
    if min(len(negative), len(positive)) < FEWEST:
        draws = draws.fill_(torch.nan)
    found = [interval(float(v), d, level, 0.0, 1.0) for v, d in zip(value, draws, strict=True)]
    return Separation(*found)


def _checked(negative: Tensor, positive: Tensor) -> tuple[Tensor, Tensor]:
    sets = []
    for name, given in (("negative", negative), ("positive", positive)):
        scores = torch.as_tensor(given).detach().cpu()
        if scores.dim() != 1 or scores.numel() == 0:
            raise InputError(f"{name} scores of shape [m], m >= 1", list(scores.shape))
        if torch.isnan(scores).any():
            raise InputError(f"{name} scores that are numbers", "NaN")
        sets.append(scores.double())
    return sets[0], sets[1]


class Curve:
    """Both sets sorted, and at each positive's score how much of them lies at or above it.

    Rows count once; in a curve that is `drawn` as often as each of R resamples says.
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
        below_n, below_k = (F.pad(v.cumsum(dim=1), (1, 0)) for v in (n, self.k))
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
