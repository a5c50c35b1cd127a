"""How well one number tells two sets apart: AUROC, average precision, false positives."""

from __future__ import annotations

from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from gduq.errors import InputError
from gduq.metrics.resampling import Interval, check_sampling, interval, resampled_pairs
from gduq.metrics.rows import FEWEST

__all__ = ["Curve", "Separation", "auroc", "separation"]


class Curve:
    """How much of two sets lies at or above each distinct score, as weights ``[R, m]`` count it."""

    def __init__(self, scores: Tensor, positive: Tensor, weights: Tensor) -> None:
        distinct, group = torch.unique(scores, return_inverse=True)
        none = weights.new_zeros(len(weights), len(distinct))
        self.negative, self.positive = (
            none.index_add(1, group[own], weights[:, own]) for own in (~positive, positive)
        )
        self.above_n, self.above_k = (
            part.flip(1).cumsum(1).flip(1) for part in (self.negative, self.positive)
        )
        self.total_n, self.total_k = self.above_n[:, :1], self.above_k[:, :1]

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
    scores, found = _joined(negative, positive)
    return float(Curve(scores, found, torch.ones(1, len(scores)).double()).auroc())


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
    scores, found = _joined(negative, positive)
    sizes = len(negative), len(positive)
    pairs = map(torch.hstack, resampled_pairs(*sizes, resamples, seed))
    blocks = chain([torch.ones(1, len(scores)).double()], pairs)  # first each row once
    every = torch.cat([Curve(scores, found, counts).all() for counts in blocks], dim=1)
    if min(sizes) < FEWEST:
        every[:, 1:] = torch.nan
    return Separation(*(interval(float(one[0]), one[1:], level, 0.0, 1.0) for one in every))


def _joined(negative: Tensor, positive: Tensor) -> tuple[Tensor, Tensor]:
    """The scores of both sets, and which are of the positive one, ``[n + k]``."""
    sets = []
    for name, given in (("negative", negative), ("positive", positive)):
        scores = torch.as_tensor(given).detach().cpu()
        if scores.dim() != 1 or scores.numel() == 0:
            raise InputError(f"{name} scores of shape [m], m >= 1", list(scores.shape))
        if torch.isnan(scores).any():
            raise InputError(f"{name} scores that are numbers", "NaN")
        sets.append(scores.double())
    joined = torch.cat(sets)
    return joined, torch.arange(len(joined)) >= len(sets[0])
