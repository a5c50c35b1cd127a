"""What every metric is computed from: rows that count once each, or as often as resamples say."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, TypeVar, cast

import torch
from torch import Tensor

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Uneven", "WeightedRows"]

Kept = TypeVar("Kept")


class Uneven(Exception):
    """Resamples of different sizes cannot be put in order side by side."""


class WeightedRows(ABC):
    """m rows, each counted once, or ``counts`` ``[R, m]`` times in each of R resamples."""

    kind: ClassVar[str]
    counts: Tensor | None = None

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    @abstractmethod
    def device(self) -> torch.device: ...

    @abstractmethod
    def require_target(self) -> Tensor:
        """The truth, or an error that says it is missing."""

    def weighted(self, counts: Tensor) -> Self:
        """The same rows counted ``[R, m]`` times, float64; what is known per row is shared."""
        other = copy.copy(self)
        other.__dict__ |= {"counts": counts.to(self.device), "_drawn": {}}
        return other

    def out(self, found: Tensor) -> float:
        """What a metric gives: a number; of weighted rows one per resample, ``[R]``."""
        return float(found) if self.counts is None else cast(float, found)

    @property
    def weights(self) -> Tensor:
        """How often each row counts ``[R, m]``; R is 1 where each counts once."""
        if self.counts is None:
            return torch.ones(1, len(self), dtype=torch.float64, device=self.device)
        return self.counts

    def mean(self, values: Tensor) -> Tensor:
        """Mean of one value per row ``[m]`` in each resample ``[R]``."""
        if self.counts is None:
            return values.double().mean().unsqueeze(0)
        return self.counts @ values.double() / self.counts.sum(dim=1)

    def sums(self, group: Tensor, groups: int, values: Tensor | None = None) -> Tensor:
        """Sum of one value per row (default: 1) over the rows of each group ``[R, groups]``."""
        if self.counts is None:
            weights = None if values is None else values.double()
            return torch.bincount(group, weights, minlength=groups).double().unsqueeze(0)
        part = self.counts if values is None else self.counts * values.double()
        return part.new_zeros(len(part), groups).index_add_(1, group, part)

    def by(self, scores: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Scores, ascending, and tie-averaged values in each resample, ``[R, m]``."""
        scores, order = scores.sort()
        values = values[order]
        _, group, size = torch.unique_consecutive(scores, return_inverse=True, return_counts=True)
        if self.counts is None:
            if len(size) < len(values):
                means = torch.zeros_like(values[: len(size)]).index_add_(0, group, values) / size
                values = means[group]
            return scores.unsqueeze(0), values.unsqueeze(0)
        counts, values = self.counts[:, order], values.expand_as(self.counts)
        if bool((counts.sum(dim=1) != len(scores)).any()) and len(counts) > 1:
            raise Uneven
        if len(size) < len(scores):
            size = counts.new_zeros(len(counts), len(size)).index_add_(1, group, counts)
            sums = torch.zeros_like(size).index_add_(1, group, counts * values)
            values = (sums / size.clamp_min(1.0))[:, group]
        # row numbers repeated as often as drawn: sorted resamples without sorting any of them
        numbers = torch.arange(len(scores), device=counts.device).expand(counts.shape)
        drawn = torch.repeat_interleave(numbers.flatten(), counts.long().flatten())
        drawn = drawn.view(len(counts), -1)
        return scores[drawn], values.gather(1, drawn)

    def kept(self, name: object, make: Callable[[], Kept]) -> Kept:
        """What several metrics want of the same resamples, made once."""
        drawn: dict[object, Kept] = self.__dict__.setdefault("_drawn", {})
        if name not in drawn:
            drawn[name] = make()
        return drawn[name]
