r"""Anchors: the layer that reads relative to them, equation (1), and where they come from.

It reads the pair :math:`[h - c \,\|\, c]`. Its weight :math:`W = [W_h \,\|\, W_c]` splits the map
into a part that never sees the anchor and a part that is a bias:

.. math::
    z = [h - c \,\|\, c] W^\top + b = h W_h^\top + c (W_c - W_h)^\top + b \qquad (1)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gduq._torch import generator_device, normal
from gduq.anchoring.recipe import Init
from gduq.errors import InputError, one_of
from gduq.graphs.sparse import linear, take_rows

__all__ = ["AnchoredLinear", "Anchors", "GaussianAnchors", "ShuffledAnchors"]

_FLOOR = 1e-3  # deviation of Gaussian anchors in a column that is constant in training
_CHUNK = 4096  # rows that are made dense at once


class AnchoredLinear(nn.Module):
    r"""A linear layer that reads :math:`[h - c \,\|\, c]` for an anchor c.

    The pair is never built: `residual` is the part all anchors share, `shift` the bias an anchor
    adds. From "Accurate and Scalable Estimation of Epistemic Uncertainty for Graph Neural
    Networks" (Trivedi et al., ICLR 2024).

    Args:
        in_features: d, the width of ``h`` and ``c``.
        out_features: m.
        bias: Whether to add b.

    Shapes:
        ``h`` is ``[n, d]`` (dense or sparse CSR). ``c`` is one anchor for all rows ``[d]``, one per
        row ``[n, d]``, K shared ones ``[K, 1, d]``, or K per row ``[K, n, d]``. The output is
        ``[n, m]`` or ``[K, n, m]``. ``weight`` is ``[m, 2d]``: its first d columns read ``h - c``.

    Example:
        >>> layer, h, c = AnchoredLinear(8, 3), torch.randn(5, 8), torch.randn(10, 1, 8)
        >>> pair = torch.cat([h - c, c.expand(10, 5, 8)], dim=-1)
        >>> torch.allclose(layer(h, c), pair @ layer.weight.T + layer.bias, atol=1e-5)
        True
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = nn.Parameter(torch.empty(out_features, 2 * in_features))
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None
        self.reset_parameters()

    def reset_parameters(
        self, std: float | None = None, generator: torch.Generator | None = None
    ) -> None:
        """Draw the weight anew, uniformly with deviation ``std`` (default 1/sqrt(6d))."""
        bound = 3.0**0.5 * (std or (6.0 * self.in_features) ** -0.5)
        nn.init.uniform_(self.weight, -bound, bound, generator)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    @classmethod
    def reading_for(
        cls, plain: nn.Linear, init: Init = "random", generator: torch.Generator | None = None
    ) -> AnchoredLinear:
        r"""The anchored layer that takes the place of a plain one.

        ``"identity"`` sets :math:`W_h = W_c` to the plain weight, so the output is the plain
        layer's for every anchor; ``"random"`` draws at the plain weight's scale.
        """
        one_of("init", init, ("random", "identity"))
        with torch.random.fork_rng(devices=[]):  # what is drawn here is replaced below
            layer = cls(plain.in_features, plain.out_features, plain.bias is not None)
        layer = layer.to(plain.weight.dtype)
        if init == "random":
            scale = float(plain.weight.detach().std(correction=0)) / 2.0**0.5
            layer.reset_parameters(scale or None, generator)
        else:
            state = {**plain.state_dict(), "weight": plain.weight.detach().repeat(1, 2)}
            layer.load_state_dict(state)
        return layer.to(plain.weight.device)  # where the generator may not draw

    @property
    def weight_h(self) -> Tensor:
        """The half of the weight that reads the representation, ``[m, d]``."""
        return self.weight[:, : self.in_features]

    def residual(self, h: Tensor) -> Tensor:
        r""":math:`h W_h^\top`, the same for every anchor: ``[n, m]``."""
        return linear(h, self.weight_h)

    def shift(self, c: Tensor, masked: Tensor | None = None) -> Tensor:
        r"""What an anchor ``[..., d]`` adds, ``[..., m]``: :math:`c (W_c - W_h)^\top`.

        Where ``masked`` ``[...]`` is true the anchor half of the pair is zero,
        :math:`[h - c \,\|\, 0]` (reference masking), so the row gets :math:`-c W_h^\top`.
        """
        return self._where(masked, lambda delta: F.linear(c, delta))

    def _where(self, masked: Tensor | None, shift: Callable[[Tensor], Tensor]) -> Tensor:
        """What ``shift`` makes of :math:`W_c - W_h`, and of :math:`-W_h` where rows are masked."""
        w_h, w_c = self.weight.chunk(2, dim=1)
        shown = shift(w_c - w_h)
        return shown if masked is None else torch.where(masked.unsqueeze(-1), shift(-w_h), shown)

    def gaussian_shift(
        self, mean: Tensor, std: Tensor, rows: int, masked: Tensor | None = None
    ) -> Tensor:
        r"""Draw `shift` ``[rows, m]`` of fresh Gaussian anchors, one per row, in m dimensions.

        With :math:`c \sim N(\mu, \mathrm{diag}\,\sigma^2)` and :math:`\Delta = W_c - W_h`, the
        shift :math:`c \Delta^\top` is Gaussian with mean :math:`\mu\Delta^\top` and covariance
        :math:`\Sigma = \Delta\,\mathrm{diag}(\sigma^2)\,\Delta^\top`. Drawing it from a Cholesky
        factor costs ``m²(d + rows)`` instead of ``m·d·rows``: use it where d is larger than m.

        The gradient is not that of the factor, which explodes where :math:`\Sigma` is nearly
        singular, but the mean over all anchors that could have led to the shift z: with
        :math:`z = e A^\top` and :math:`A A^\top = \Sigma`, the mean of e given z is
        :math:`z \Sigma^{-1} A`. It is unbiased as explicit draws are, and has less noise.
        """
        precise = torch.promote_types(self.weight.dtype, torch.float32)  # halves have no factor
        noise = torch.randn(rows, self.out_features, dtype=precise, device=self.weight.device)
        return self._where(masked, lambda delta: _correlated(noise, mean, std, delta))

    def biased(self, z: Tensor) -> Tensor:
        """``z + b``, where there is a bias."""
        return z if self.bias is None else z + self.bias

    def forward(self, h: Tensor, c: Tensor, masked: Tensor | None = None) -> Tensor:
        for name, value in (("h", h), ("c", c)):
            if value.size(-1) != self.in_features:
                raise InputError(f"{name} of width {self.in_features}", list(value.shape))
        return self.biased(self.residual(h)) + self.shift(c, masked)


def _correlated(noise: Tensor, mean: Tensor, std: Tensor, delta: Tensor) -> Tensor:
    with torch.autocast(delta.device.type, enabled=False):
        wide, std = delta.to(noise.dtype), std.to(noise.dtype)
        a = wide * std
        with torch.no_grad():
            factor = _factor(a @ a.T)
            z = noise @ factor.T
            known = torch.cholesky_solve(z.T, factor).T  # times A: the mean of e where e A^T is z
        mean_product = known @ (a.detach() @ a.T)
        shift = wide @ mean.to(noise.dtype) + z + (mean_product - mean_product.detach())
        return shift.to(delta.dtype)


def _factor(covariance: Tensor) -> Tensor:
    """A Cholesky factor, also of a singular matrix: variances grow by as little as it takes."""
    limits = torch.finfo(covariance.dtype)
    scale = covariance.diagonal().sqrt().clamp_min(limits.tiny**0.25)  # of a row of zeros, too
    correlation = covariance / torch.outer(scale, scale)
    growth, failed = 8.0 * limits.eps * correlation.size(0), True  # what rounding can take
    while failed and growth <= 16.0:
        correlation.diagonal().fill_(1.0 + growth)
        factor, info = torch.linalg.cholesky_ex(correlation)
        failed, growth = bool(info), growth * 16.0
    return torch.mul(scale.unsqueeze(1), factor)


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
