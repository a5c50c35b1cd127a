"""Resamples of rows as counts: how often each row is drawn."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from gduq.metrics.value_rows import ValueRows

__all__ = ["Draws", "ValueBlock"]


class Draws(ABC):
    """R resamples of m rows: how often each row is drawn, ``counts`` ``[R, m]`` in float64."""

    counts: Tensor

    def mean(self, values: Tensor) -> Tensor:
        """Mean of one value per row ``[m]`` in each resample ``[R]``."""
        return self.counts @ values.to(self.counts.dtype) / self.counts.sum(dim=1)

    def by(self, scores: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Scores, ascending, and tie-averaged values in each resample of m rows, ``[R, m]``."""
        scores, order = scores.sort()
        counts, values = self.counts[:, order], values[order].expand_as(self.counts)
        _, group = torch.unique_consecutive(scores, return_inverse=True)
        groups, rows = int(group[-1]) + 1, counts.size(1)
        if groups < rows:
            size = counts.new_zeros(counts.size(0), groups).index_add_(1, group, counts)
            sums = torch.zeros_like(size).index_add_(1, group, counts * values)
            values = (sums / size.clamp_min(1.0))[:, group]
        # row numbers repeated as often as drawn: sorted resamples without sorting any of them
        numbers = torch.arange(rows, device=counts.device).expand(counts.shape)
        drawn = torch.repeat_interleave(numbers.flatten(), counts.long().flatten())
        drawn = drawn.view(counts.shape)
        return scores[drawn], values.gather(1, drawn)

    @property
    @abstractmethod
    def losses(self) -> Tensor:
        """Loss per row, from the most certain row to the least ``[R, m]``."""

    @cached_property
    def risks(self) -> Tensor:
        """Mean loss of the i most certain rows ``[R, m]``."""
        return running_mean(self.losses)

    @property
    def aurc(self) -> Tensor:
        """Area under the curve of `risks` ``[R]``."""
        return self.risks.mean(dim=-1)

    @property
    @abstractmethod
    def best_aurc(self) -> Tensor:
        """The smallest `aurc` that these losses allow ``[R]``."""


@dataclass(frozen=True, eq=False)
class ValueBlock(Draws):
    """R resamples of m rows about values."""

    rows: ValueRows
    counts: Tensor

    @property
    def losses(self) -> Tensor:
        return self.by(self.rows.std, self.rows.loss)[1]

    @property
    def best_aurc(self) -> Tensor:
        return running_mean(self.by(self.rows.loss, self.rows.loss)[0]).mean(dim=-1)


def running_mean(values: Tensor) -> Tensor:
    """The mean of the first i values, for every i along the last axis."""
    size = torch.arange(1, values.size(-1) + 1, dtype=values.dtype, device=values.device)
    return values.cumsum(dim=-1) / size
