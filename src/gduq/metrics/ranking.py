"""How well one number tells two sets apart: AUROC, average precision, false positives."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gduq.errors import InputError
from gduq.metrics.resampling import Interval, check_sampling, interval, resampled_pairs
from gduq.metrics.rows import FEWEST

__all__ = ["Curve", "Separation", "auroc", "separation"]


class Curve:
    """How much of two sets lies at or above each distinct score, from counts ``[R, G]``."""

    def __init__(self, negative: Tensor, positive: Tensor) -> None:
        self.negative, self.positive = negative, positive
        self.above_n, self.above_k = (s.flip(1).cumsum(1).flip(1) for s in (negative, positive))
        self.total_n, self.total_k = self.above_n[:, :1], self.above_k[:, :1]

    @classmethod
    def of(
        cls, sets: tuple[Tensor, Tensor], n: Tensor | None = None, k: Tensor | None = None
    ) -> Curve:
        """Of scores of both sets, each counted once, or as often as resamples ``[R, m]`` say."""
        distinct, group = torch.unique(torch.cat(sets), return_inverse=True)
        groups, counts = group.split([len(s) for s in sets]), []
        for scores, own, drawn in zip(sets, groups, (n, k), strict=True):
            drawn = torch.ones(1, len(scores)).double() if drawn is None else drawn
            counts.append(drawn.new_zeros(len(drawn), len(distinct)).index_add_(1, own, drawn))
        return cls(*counts)

    def all(self) -> Tensor:
        """``[3, R]``: AUROC, average precision, false positives at 95 % recall."""
        return torch.stack([self.auroc(), self.average_precision(), self.false_positive_rate()])

    def auroc(self) -> Tensor:
        beaten = self.total_n - self.above_n + self.negative / 2
        return torch.einsum("rg,rg->r", self.positive, beaten) / (self.total_n * self.total_k)[:, 0]

    def average_precision(self) -> Tensor:
        precision = self.above_k / (self.above_k + self.above_n).clamp_min(1.0)
        return torch.einsum("rg,rg->r", self.positive, precision) / self.total_k[:, 0]

    def false_positive_rate(self) -> Tensor:
        # fewer are found from left to right: the last score that still finds 95 %
        enough = (self.above_k >= 0.95 * self.total_k - 1e-9).sum(dim=1, keepdim=True) - 1
        return (self.above_n.gather(1, enough) / self.total_n)[:, 0]


def auroc(negative: Tensor, positive: Tensor) -> float:
    r"""Area under the ROC curve: :math:`P(s^+ > s^-) + \frac12 P(s^+ = s^-)`.

    Args:
        negative: Scores of the negative set ``[n]``.
        positive: Scores of the positive set ``[k]``, which should be larger.

    Example:
        >>> auroc(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 2.0]))
        0.875
    """
    return float(Curve.of(_checked(negative, positive)).auroc())


class Separation(NamedTuple):
    """How well a score tells two sets apart."""

    auroc: Interval
    aupr: Interval  # average precision
    fpr95: Interval  # share of negatives above the score that finds 95 % of the positives


def separation(
    negative: Tensor, positive: Tensor, *, resamples: int = 1000, level: float = 0.95, seed: int = 0
) -> Separation:
    """AUROC, average precision and false positives, with intervals; NaN for sets below 5 rows."""
    check_sampling(resamples, level)
    sets = _checked(negative, positive)
    sizes = len(sets[0]), len(sets[1])
    blocks = [Curve.of(sets, n, k).all() for n, k in resampled_pairs(*sizes, resamples, seed)]
    draws = torch.cat(blocks, dim=1)
    if min(sizes) < FEWEST:
        draws = draws.fill_(torch.nan)
    value = Curve.of(sets).all()[:, 0].tolist()
    found = [interval(v, d, level, 0.0, 1.0) for v, d in zip(value, draws, strict=True)]
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
