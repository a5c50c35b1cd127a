"""Where anchors come from: a Gaussian, or shuffled rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor, nn

from gduq._torch import generator_device, normal
from gduq.errors import InputError
from gduq.graphs.sparse import take_rows

__all__ = ["Anchors", "GaussianAnchors", "ShuffledAnchors", "Source"]

Source = Literal["gaussian", "shuffle"]

_FLOOR = 1e-3  # deviation of Gaussian anchors in a column that is constant in training
_CHUNK = 4096  # rows that are made dense at once


class Anchors(nn.Module, ABC):
    """A source of anchors of width d.

    In training it hands out one anchor per row or graph (`draw`). Once trained it makes the bank: K
    anchors from a stream of training rows.
    """

    name = ""  # that a recipe knows it by

    @abstractmethod
    def draw(self, rows: Tensor, count: int, generator: torch.Generator | None = None) -> Tensor:
        """So many anchors ``[count, d]``, detached; ``rows`` are the batch's training rows."""

    @abstractmethod
    def bank(self, stream: Iterable[Tensor], k: int, generator: torch.Generator) -> Tensor:
        """K anchors ``[K, d]`` from a stream of training rows."""


class ShuffledAnchors(Anchors):
    """Rows of the batch in random order; the bank is a uniform choice of K training rows."""

    name = "shuffle"

    def draw(self, rows: Tensor, count: int, generator: torch.Generator | None = None) -> Tensor:
        n, where, orders = rows.size(0), generator_device(generator), list[Tensor]()
        if n == 0:
            do = "Use larger batches, or anchors='gaussian'."
            raise InputError("training rows to take anchors from", "a batch without any", do)
        for _ in range(0, count, n):
            orders.append(torch.randperm(n, generator=generator, device=where))
        return take_rows(rows.detach(), torch.cat(orders)[:count].to(rows.device))

    def bank(self, stream: Iterable[Tensor], k: int, generator: torch.Generator) -> Tensor:
        found, keys, where = list[Tensor](), [torch.zeros(0).double()], generator.device
        for rows in stream:  # every row gets a random key, and the smallest keys stay
            drawn = torch.rand(rows.size(0), generator=generator, dtype=torch.float64, device=where)
            key, index = drawn.topk(min(k, rows.size(0)), largest=False)
            found.append(take_rows(rows.detach(), index.to(rows.device)))
            keys.append(key.cpu())
        every = torch.cat(keys)
        if every.numel() < k:
            do = "Use fewer anchors, more data, or anchors='gaussian'."
            wanted = f"at least {k} training rows for a bank of {k} anchors"
            raise InputError(wanted, every.numel(), do)
        best = every.topk(k, largest=False).indices
        return torch.cat(found)[best.to(found[0].device)]


class GaussianAnchors(Anchors):
    """Independent normal draws per column: of the rows at hand, or those of `fit`."""

    name = "gaussian"
    fixed: Tensor
    mean: Tensor
    std: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("fixed", torch.zeros((), dtype=torch.bool))
        self.register_buffer("mean", torch.zeros(channels, dtype=torch.float64))
        self.register_buffer("std", torch.ones(channels, dtype=torch.float64))

    def fit(self, stream: Iterable[Tensor]) -> GaussianAnchors:
        """Fit to all rows of a stream in one pass, and keep the result from then on."""
        moments = self._mean_and_std(stream)  # the old ones stay if this fails
        self.mean, self.std, self.fixed = *moments, torch.ones_like(self.fixed)
        return self

    def statistics(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and deviation ``[d]`` that anchors are drawn with beside these rows."""
        return (self.mean, self.std) if self.fixed else self._mean_and_std([rows])

    def _mean_and_std(self, stream: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
        """Mean and deviation of rows, in double precision; 0.001 where a column is constant."""
        count, mean = 0, torch.zeros_like(self.mean, dtype=torch.float64)
        var = torch.zeros_like(mean)
        for rows in stream:
            if rows.dim() != 2 or rows.size(1) != mean.numel():
                raise InputError(f"rows of width {mean.numel()}", list(rows.shape))
            index = torch.arange(rows.size(0), device=rows.device)
            for some in index.split(_CHUNK) if len(index) else ():
                part = take_rows(rows.detach(), some).double()
                spread, new = torch.var_mean(part, dim=0, correction=0)
                count += part.size(0)
                weight, gap = part.size(0) / count, new - mean
                var = (1 - weight) * (var + weight * gap.square()) + weight * spread
                mean = mean + weight * gap
        if not count or not torch.isfinite(mean + var).all():
            got = "NaN or infinite ones" if count else "none"
            raise InputError("finite training rows to fit the Gaussian to", got)
        std = var.clamp_min(0).sqrt()
        constant = std <= 1e-12 * mean.abs()  # what rounding leaves of a constant column
        return mean, std.masked_fill(constant, _FLOOR)

    def draw(self, rows: Tensor, count: int, generator: torch.Generator | None = None) -> Tensor:
        mean, std = (known.to(rows.dtype) for known in self.statistics(rows))
        return mean + normal((count, mean.numel()), rows.dtype, rows.device, generator) * std

    def bank(self, stream: Iterable[Tensor], k: int, generator: torch.Generator) -> Tensor:
        """K draws from a Gaussian fitted to these rows; the one used in training stays."""
        mean, std = self._mean_and_std(stream)
        return mean + normal((k, mean.numel()), torch.float64, mean.device, generator) * std
