"""Where anchors come from: a Gaussian, shuffled rows, or a fixed set."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from gduq._torch import generator_device, normal
from gduq.errors import InputError
from gduq.graphs.sparse import is_sparse, take_rows

__all__ = [
    *("Anchors", "FixedAnchors", "GaussianAnchors", "ShuffledAnchors", "Source"),
    *("make_source", "source_from"),
]

_FLOOR = 1e-3  # deviation of Gaussian anchors in a column that is constant in training


class Anchors(nn.Module, ABC):
    """A source of anchors of width d.

    In training it hands out one anchor per row or graph (`draw`). Once trained it makes the bank: K
    anchors from a stream of training rows.
    """

    name = ""  # that a user asks for it by, and a bundle knows

    @abstractmethod
    def draw(self, rows: Tensor, count: int, generator: torch.Generator | None = None) -> Tensor:
        """``count`` anchors ``[count, d]``, detached; ``rows`` are the batch's training rows."""

    @abstractmethod
    def bank(self, stream: Iterable[Tensor], k: int, generator: torch.Generator) -> Tensor:
        """K anchors ``[K, d]`` from a stream of training rows."""

    def spec(self) -> dict[str, Any]:
        """What makes it again, as JSON holds it; its tensors are the model's."""
        raise InputError(
            "anchors a bundle can hold: 'gaussian', 'shuffle' or a fixed tensor",
            f"an object of class {type(self).__name__}",
            "Before saving, set model.source = gduq.anchoring.anchors.FixedAnchors(model.bank).",
        )


class ShuffledAnchors(Anchors):
    """Rows of the batch in random order; the bank is a uniform choice of K training rows."""

    name = "shuffle"

    def draw(self, rows: Tensor, count: int, generator: torch.Generator | None = None) -> Tensor:
        if rows.size(0) == 0:
            raise InputError(
                "training rows to take anchors from",
                "a batch without any",
                "Use larger batches, or anchors='gaussian'.",
            )
        turns, where = -(-count // rows.size(0)), generator_device(generator)
        index = torch.cat(
            [torch.randperm(rows.size(0), generator=generator, device=where) for _ in range(turns)]
        )[:count]
        return take_rows(rows.detach(), index.to(rows.device))

    def bank(self, stream: Iterable[Tensor], k: int, generator: torch.Generator) -> Tensor:
        kept, seen, where = None, 0, generator.device
        keys = torch.empty(0, dtype=torch.float64, device=where)
        for rows in stream:  # every row gets a random key, and the smallest keys stay
            drawn = torch.rand(rows.size(0), generator=generator, dtype=keys.dtype, device=where)
            seen += rows.size(0)
            index = drawn.topk(min(k, rows.size(0)), largest=False).indices
            part = take_rows(rows.detach(), index.to(rows.device))
            keys = torch.cat([keys, drawn[index]])
            best = keys.topk(min(k, keys.numel()), largest=False).indices
            kept = (part if kept is None else torch.cat([kept, part]))[best.to(part.device)]
            keys = keys[best]
        if kept is None or seen < k:
            raise InputError(
                f"at least {k} training rows for a bank of {k} anchors",
                seen,
                "Use fewer anchors, more data, or anchors='gaussian'.",
            )
        return kept

    def spec(self) -> dict[str, Any]:
        return {"kind": self.name}


class FixedAnchors(Anchors):
    """A given set of anchors ``[k, d]``: drawn from in training, the bank in evaluation."""

    name = "fixed"
    values: Tensor

    def __init__(self, values: Tensor) -> None:
        super().__init__()
        values = torch.as_tensor(values)
        if values.dim() != 2 or not values.is_floating_point() or values.size(0) == 0:
            got = f"{values.dtype} of shape {list(values.shape)}"
            raise InputError("fixed anchors as floats of shape [k, d] with k >= 1", got)
        if not torch.isfinite(values).all():
            raise InputError("finite anchors", "NaN or infinite values")
        self.register_buffer("values", values.detach().clone())

    def draw(self, rows: Tensor, count: int, generator: torch.Generator | None = None) -> Tensor:
        where = generator_device(generator)
        index = torch.randint(self.values.size(0), (count,), generator=generator, device=where)
        return self.values[index.to(self.values.device)]

    def bank(self, stream: Iterable[Tensor], k: int, generator: torch.Generator) -> Tensor:
        if k > self.values.size(0):
            do = "Use a smaller num_anchors."
            raise InputError(f"at least {k} fixed anchors", self.values.size(0), do)
        return self.values[:k].clone()

    def spec(self) -> dict[str, Any]:
        return {"kind": self.name, "shape": list(self.values.shape)}


class GaussianAnchors(Anchors):
    r"""Draws from :math:`N(\mu, \mathrm{diag}\,\sigma^2)`: of the rows at hand, or those of `fit`.

    Example:
        >>> source = GaussianAnchors(2).fit([torch.tensor([[0.0, 5.0], [2.0, 5.0]])])
        >>> source.mean, source.std
        (tensor([1., 5.], dtype=torch.float64), tensor([1.0000, 0.0010], dtype=torch.float64))
    """

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
        mean, std = self._mean_and_std(stream)  # the old ones stay if this fails
        self.mean.copy_(mean)
        self.std.copy_(std)
        self.fixed.fill_(True)
        return self

    def statistics(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and deviation ``[d]`` that anchors are drawn with beside these rows."""
        return (self.mean, self.std) if self.fixed else self._mean_and_std([rows])

    def _mean_and_std(self, stream: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
        """Mean and deviation of rows, in double precision; 0.001 where a column is constant."""
        width, count = self.mean.numel(), 0
        mean = var = torch.zeros(width, dtype=torch.float64, device=self.mean.device)
        for rows in stream:
            if rows.dim() != 2 or rows.size(1) != width:
                raise InputError(f"rows of width {width}", list(rows.shape))
            if rows.size(0):
                new, spread = _mean_and_variance(rows)
                count += rows.size(0)
                weight, gap = rows.size(0) / count, new - mean
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

    def spec(self) -> dict[str, Any]:
        return {"kind": self.name, "channels": self.mean.numel()}


Source = Literal["gaussian", "shuffle"] | Anchors | Tensor


def make_source(choice: Source | None, channels: int, moving: bool) -> Anchors:
    """The source a user asked for; ``None``: shuffled rows of a ``moving`` representation, else a
    Gaussian."""
    if isinstance(choice, Anchors):
        return copy.deepcopy(choice)
    if isinstance(choice, Tensor):
        if choice.dim() == 2 and choice.size(1) != channels:
            raise InputError(f"fixed anchors of width {channels}", choice.size(1))
        return FixedAnchors(choice)
    if choice == "gaussian" or (choice is None and not moving):
        return GaussianAnchors(channels)
    if choice == "shuffle" or choice is None:
        return ShuffledAnchors()
    raise InputError(
        "anchors 'gaussian', 'shuffle', a tensor [k, d] or an Anchors object", repr(choice)
    )


def source_from(spec: Mapping[str, Any]) -> Anchors:
    """The source that `Anchors.spec` described."""
    if spec["kind"] == "fixed":
        return FixedAnchors(torch.zeros(spec["shape"]))
    if spec["kind"] == "gaussian":
        return GaussianAnchors(spec["channels"])
    if spec["kind"] == "shuffle":
        return ShuffledAnchors()
    raise InputError("a kind of anchors this gduq knows", repr(spec["kind"]), "Upgrade gduq.")


def _mean_and_variance(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and (population) variance of each column, in double precision."""
    rows = rows.detach()
    if not is_sparse(rows):
        rows = rows.double()
        return rows.mean(dim=0), rows.var(dim=0, correction=0)
    values, columns = rows.values().double(), rows.col_indices().long()
    zeros = values.new_zeros(rows.size(1))
    mean = zeros.index_add(0, columns, values) / rows.size(0)
    absent = rows.size(0) - torch.bincount(columns, minlength=rows.size(1))
    square = zeros.index_add(0, columns, (values - mean[columns]).square())
    return mean, (square + absent * mean.square()) / rows.size(0)
