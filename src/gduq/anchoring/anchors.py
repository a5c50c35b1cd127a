"""Where anchors come from: a Gaussian, shuffled rows, or a fixed set."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from gduq._torch import generator_device, normal
from gduq.anchoring.equation import gaussian_shift
from gduq.errors import InputError, NotFittedError
from gduq.graphs import Graph, label_rows, num_graphs, row_batch
from gduq.graphs.sparse import is_sparse, keep_rows, take_rows

if TYPE_CHECKING:
    from gduq.anchoring.anchored import Anchored
    from gduq.anchoring.cuts import CutPoint

__all__ = [
    *("AnchorSampler", "Anchors", "FixedAnchors", "GaussianAnchors", "ShuffledAnchors"),
    *("Source", "anchor_rows", "make_source", "source_from"),
]

_FLOOR = 1e-3  # deviation of Gaussian anchors in a column that is constant in training


class Anchors(nn.Module, ABC):
    """A source of anchors of width d.

    In training it sees the rows anchors may come from (`observe`) and hands out one anchor per
    row or graph (`draw`). Once trained it makes the bank: K anchors from a stream of training rows.
    """

    name = ""  # that a user asks for it by, and a bundle knows

    def observe(self, rows: Tensor) -> None:
        """Take note of training rows ``[n, d]``; no gradient flows."""

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
    r"""Draws from :math:`N(\mu, \mathrm{diag}\,\sigma^2)` fitted to training rows.

    Left alone it follows the batches it sees in training, with a momentum (as BatchNorm does) or,
    without one, as the exact mean over all rows seen; `fit` makes one pass and fixes the
    statistics.

    Example:
        >>> source = GaussianAnchors(2).fit([torch.tensor([[0.0, 5.0], [2.0, 5.0]])])
        >>> source.mean, source.std
        (tensor([1., 5.], dtype=torch.float64), tensor([1.0000, 0.0010], dtype=torch.float64))
    """

    name = "gaussian"
    count: Tensor
    fixed: Tensor
    mean: Tensor
    _var: Tensor

    def __init__(self, channels: int, momentum: float | None = None) -> None:
        super().__init__()
        self.momentum = momentum
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("fixed", torch.zeros((), dtype=torch.bool))
        self.register_buffer("mean", torch.zeros(channels, dtype=torch.float64))
        self.register_buffer("_var", torch.ones(channels, dtype=torch.float64))

    @property
    def std(self) -> Tensor:
        r""":math:`\sigma`, ``[d]``, in double precision; 0.001 where a column is constant."""
        std = self._var.clamp_min(0).sqrt()
        rounding = 1e-12 if std.dtype == torch.float64 else 1e-6  # what a constant column leaves
        return std.where(std > rounding * self.mean.abs(), _FLOOR)

    def observe(self, rows: Tensor) -> None:
        if rows.dim() != 2 or rows.size(1) != self.mean.numel():
            raise InputError(f"rows of width {self.mean.numel()}", list(rows.shape))
        if self.fixed or rows.size(0) == 0:
            return
        mean, var = _mean_and_variance(rows)
        n, new = float(self.count), float(rows.size(0))
        weight = new / (n + new) if self.momentum is None else self.momentum
        weight = 1.0 if n == 0 else weight
        gap = mean - self.mean
        spread = weight * (1 - weight) * gap.square() if self.momentum is None else 0.0
        self._var.copy_((1 - weight) * self._var + weight * var + spread)
        self.mean.add_(weight * gap)
        self.count.add_(rows.size(0))

    def fit(self, stream: Iterable[Tensor]) -> GaussianAnchors:
        """Fit to all rows of a stream in one pass, and keep the result from then on."""
        fresh = GaussianAnchors(self.mean.numel()).to(self.mean.device)
        for rows in stream:  # beside the old statistics: they stay if this fails
            fresh.observe(rows)
        if not fresh.count:
            raise InputError("training rows to fit the Gaussian to", "none")
        if not torch.isfinite(fresh.mean + fresh._var).all():
            raise InputError("finite training rows to fit the Gaussian to", "NaN or infinite ones")
        self.load_state_dict(fresh.state_dict())
        self.fixed.fill_(True)
        return self

    def fitted(self) -> tuple[Tensor, Tensor]:
        """Mean and deviation ``[d]``; raises unless training rows have been seen."""
        if not self.count:
            raise NotFittedError(
                "a Gaussian that has seen training rows",
                "an unfitted one",
                "Train first, or call model.fit_source(train).",
            )
        return self.mean, self.std

    def draw(self, rows: Tensor, count: int, generator: torch.Generator | None = None) -> Tensor:
        mean, std = (known.to(rows.dtype) for known in self.fitted())
        return mean + normal((count, mean.numel()), rows.dtype, rows.device, generator) * std

    def bank(self, stream: Iterable[Tensor], k: int, generator: torch.Generator) -> Tensor:
        """K draws from a Gaussian fitted to these rows; the one used in training stays."""
        own = GaussianAnchors(self.mean.numel()).to(self.mean.device).fit(stream)
        size, device = (k, self.mean.numel()), self.mean.device
        return own.mean + normal(size, torch.float64, device, generator) * own.std

    def spec(self) -> dict[str, Any]:
        return {"kind": self.name, "channels": self.mean.numel(), "momentum": self.momentum}


Source = Literal["gaussian", "shuffle"] | Anchors | Tensor


def make_source(choice: Source | None, channels: int, moving: bool) -> Anchors:
    """The source a user asked for; ``None``: shuffled rows of a ``moving`` representation, else a
    Gaussian, which forgets where the representation moves."""
    if isinstance(choice, Anchors):
        return copy.deepcopy(choice)
    if isinstance(choice, Tensor):
        if choice.dim() == 2 and choice.size(1) != channels:
            raise InputError(f"fixed anchors of width {channels}", choice.size(1))
        return FixedAnchors(choice)
    if choice == "gaussian" or (choice is None and not moving):
        return GaussianAnchors(channels, momentum=0.1 if moving else None)
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
        return GaussianAnchors(spec["channels"], spec["momentum"])
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


# -- anchors of a training pass --------------------------------------------------------------------


def anchor_rows(point: CutPoint, h: Tensor, graph: Graph) -> Tensor:
    """The rows of ``h`` that anchors may come from: those that count in training."""
    rows = label_rows(graph, h.size(0)) if point.rows == point.row_kind else slice(None)
    if isinstance(rows, slice):
        if rows.stop is None:
            return h
        rows = torch.arange(h.size(0), device=h.device) < rows.stop
    return keep_rows(h, rows)


class AnchorSampler:
    """The anchors of one training pass: D draws for every row, or for every graph.

    A share ``mask`` of rows (nodes, or all rows of a graph) has its anchor half zeroed. Without a
    generator torch's global state is drawn from.
    """

    def __init__(
        self,
        model: Anchored,
        graph: Graph,
        draws: int,
        mask: float,
        generator: torch.Generator | None,
    ) -> None:
        self.model, self.graph, self.draws, self.generator = model, graph, draws, generator
        self.mask = mask
        self._chosen: Tensor | None = None  # [D, rows or graphs]
        self._read: Tensor | None = None  # [D, n, m]
        # nodes of an answered graph, and rows that share an anchor, are masked together
        point = model.point
        self._shared = model.recipe.scope == "graph" and point.rows != "graph"
        self._by_graph = self._shared or point.rows != point.row_kind

    def read(self, h: Tensor, part: slice = slice(None)) -> Tensor:
        """``z`` ``[len, n, m]`` of some of the draws; the first call draws all of them."""
        if self._read is not None:
            return self._read[part]
        model, point, rows = self.model, self.model.point, h.size(0)
        source_rows = anchor_rows(point, h, self.graph)
        model.source.observe(source_rows)
        of_graph = row_batch(self.graph, point.rows, rows) if self._by_graph else None
        if self.mask:
            units = rows if of_graph is None else num_graphs(self.graph)
            where = generator_device(self.generator)
            drawn = torch.rand(self.draws, units, generator=self.generator, device=where)
            self._chosen = drawn.to(model.linear.weight.device) < self.mask
        shift = self._shift(source_rows, rows, of_graph)
        gain = point.gain(self.graph, shift)
        if gain is not None and not self._shared:
            z = point.mix(model.linear.residual(h) + shift, self.graph)
        else:
            z = point.read(h, model.linear.weight_h, self.graph)
            z = z + (shift if gain is None else gain * shift)
        self._read = model.linear.biased(z)
        return self._read[part]

    def _shift(self, source_rows: Tensor, rows: int, of_graph: Tensor | None) -> Tensor:
        """What the anchors add, ``[D, n, m]``."""
        linear, source, masked = self.model.linear, self.model.source, self._chosen
        owners = num_graphs(self.graph) if self._shared else rows
        if masked is not None:  # [D, owners]
            masked = (masked if of_graph is None or self._shared else masked[:, of_graph]).flatten()
        count = self.draws * owners
        wide = linear.in_features > linear.out_features
        if isinstance(source, GaussianAnchors) and wide and owners > linear.out_features:
            mean, std = (known.to(linear.weight) for known in source.fitted())
            shift = gaussian_shift(mean, std, linear.weight, count, masked, self.generator)
        else:
            like = source_rows.values() if is_sparse(source_rows) else source_rows
            c = source.draw(source_rows, count, self.generator).to(like.dtype)
            shift = linear.shift(c, masked)
        shift = shift.view(self.draws, owners, -1)
        return shift[:, of_graph] if self._shared else shift

    def masked(self, rows: int) -> Tensor:
        """Which of the output's rows were masked ``[D, rows]``."""
        if self._chosen is None:
            device = self.model.linear.weight.device
            return torch.zeros(self.draws, rows, dtype=torch.bool, device=device)
        if not self._by_graph:
            return self._chosen
        return self._chosen[:, row_batch(self.graph, self.model.point.row_kind, rows)]
