r"""Equation (1) as pure functions on tensors.

An anchored layer reads the pair :math:`[h - c \,\|\, c]`. Its weight :math:`W = [W_h \,\|\, W_c]`
splits the map into a part that never sees the anchor and a part that is a bias:

.. math::
    z = [h - c \,\|\, c] W^\top + b = h W_h^\top + c (W_c - W_h)^\top + b \qquad (1)
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from gduq._torch import normal
from gduq.graphs.sparse import linear

__all__ = ["anchor_shift", "anchored_linear", "anchored_relu_map", "gaussian_shift"]


def anchored_linear(h: Tensor, c: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    r"""A linear map of :math:`[h - c \,\|\, c]`, the pair not built: ``[n, m]`` or ``[K, n, m]``.

    Args:
        h: Representation ``[n, d]``, dense or sparse CSR.
        c: Anchors, broadcast against ``h``: one for all rows ``[d]``, one per row ``[n, d]``,
            K shared ones ``[K, 1, d]``, or K per row ``[K, n, d]``.
        weight: ``[m, 2d]``; the first d columns read :math:`h - c`, the last d read :math:`c`.
        bias: ``[m]`` or ``None``.

    Example:
        >>> h, c, w = torch.randn(5, 3), torch.randn(4, 1, 3), torch.randn(2, 6)
        >>> pair = torch.cat([h - c, c.expand(4, 5, 3)], dim=-1)
        >>> torch.allclose(anchored_linear(h, c, w), pair @ w.T, atol=1e-5)
        True
    """
    z = linear(h, weight[:, : weight.size(1) // 2]) + anchor_shift(c, weight)
    return z if bias is None else z + bias


def anchored_relu_map(
    h: Tensor,
    shift: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out_weight: Tensor,
    out_bias: Tensor | None,
) -> Tensor:
    r"""Two layers: :math:`\mathrm{relu}(h W_h^\top + b + s_k) V^\top + a`, ``[K, n, o]``.

    The hidden layer is kept with one row per unit. An outer map of few outputs is then a product
    of a flat matrix with a wide one, for which processors take half the time.

    Args:
        h: Representation ``[n, d]``, dense.
        shift: What each anchor adds, ``[K, m]``; see `anchor_shift`.
        weight: :math:`W_h`, ``[m, d]``; with ``bias`` b ``[m]`` or ``None``.
        out_weight: V, ``[o, m]``; with ``out_bias`` a ``[o]`` or ``None``.

    Example:
        >>> h, s, w, v = torch.randn(5, 3), torch.randn(4, 6), torch.randn(6, 3), torch.randn(2, 6)
        >>> plain = (h @ w.T + s.unsqueeze(1)).relu() @ v.T
        >>> torch.allclose(anchored_relu_map(h, s, w, None, v, None), plain, atol=1e-5)
        True
    """
    added = shift if bias is None else shift + bias
    hidden = (weight @ h.T + added.unsqueeze(2)).relu_()  # [K, m, n]
    wide = out_weight.expand(shift.size(0), *out_weight.shape)
    if out_bias is None:
        return (wide @ hidden).transpose(1, 2)
    return torch.baddbmm(out_bias.view(1, -1, 1), wide, hidden).transpose(1, 2)


def anchor_shift(c: Tensor, weight: Tensor, masked: Tensor | None = None) -> Tensor:
    r"""What an anchor adds to the output: :math:`c (W_c - W_h)^\top`.

    Where ``masked`` is true the anchor half of the pair is zero, :math:`[h - c \,\|\, 0]`
    (reference masking), so the row gets :math:`-c W_h^\top`.

    ``c`` is ``[..., d]``, ``weight`` ``[m, 2d]``, ``masked`` ``[...]``, the output ``[..., m]``.
    """
    w_h, w_c = weight.chunk(2, dim=1)
    shift = F.linear(c, w_c - w_h)
    if masked is None:
        return shift
    return torch.where(masked.unsqueeze(-1), -F.linear(c, w_h), shift)


def gaussian_shift(
    mean: Tensor,
    std: Tensor,
    weight: Tensor,
    rows: int,
    masked: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    r"""Draw ``anchor_shift`` of fresh Gaussian anchors, one per row, in m instead of d dimensions.

    With :math:`c \sim N(\mu, \mathrm{diag}\,\sigma^2)` and :math:`\Delta = W_c - W_h`, the shift
    :math:`c \Delta^\top` is Gaussian with mean :math:`\mu\Delta^\top` and covariance
    :math:`\Sigma = \Delta\,\mathrm{diag}(\sigma^2)\,\Delta^\top`. Drawing it from a Cholesky factor
    costs ``m²(d + rows)`` instead of ``m·d·rows``: use it where d is larger than m.

    The gradient is not that of the factor, which explodes where :math:`\Sigma` is nearly singular,
    but the mean over all anchors that could have led to the shift at hand: unbiased as explicit
    draws are, and with less noise.

    ``mean`` and ``std`` are ``[d]``, ``weight`` ``[m, 2d]`` (gradients flow into it), ``masked``
    ``[rows]``, and the output ``[rows, m]``.
    """
    w_h, w_c = weight.chunk(2, dim=1)
    precise = torch.promote_types(weight.dtype, torch.float32)  # no factor of half floats exists
    noise = normal((rows, weight.size(0)), precise, weight.device, generator)
    shift = _correlated(noise, mean, std, w_c - w_h)
    if masked is None:
        return shift
    return torch.where(masked.unsqueeze(-1), _correlated(noise, mean, std, -w_h), shift)


def _correlated(noise: Tensor, mean: Tensor, std: Tensor, delta: Tensor) -> Tensor:
    with torch.autocast(delta.device.type, enabled=False):
        wide, std = delta.to(noise.dtype), std.to(noise.dtype)
        z = _GaussianProduct.apply(noise, wide * std)  # type: ignore[no-untyped-call]
        shift: Tensor = wide @ mean.to(noise.dtype) + z
        return shift.to(delta.dtype)


class _GaussianProduct(torch.autograd.Function):
    r"""Rows distributed as :math:`e A^\top` with e standard normal, from shorter noise.

    With z drawn, e has the mean :math:`z \Sigma^{-1} A`, :math:`\Sigma = A A^\top`. The derivative
    of :math:`e A^\top` by A is e, so the backward pass puts this mean in its place.
    """

    @staticmethod
    def forward(ctx: Any, noise: Tensor, a: Tensor) -> Tensor:
        factor = _factor(a @ a.T)
        z = noise @ factor.T
        ctx.save_for_backward(z, factor, a)
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor]:
        z, factor, a = ctx.saved_tensors
        with torch.autocast(a.device.type, enabled=False):
            return None, torch.cholesky_solve(z.T @ grads[0], factor).T @ a


def _factor(covariance: Tensor) -> Tensor:
    """A Cholesky factor, of a singular matrix too: each variance grows by as little as it takes."""
    limits = torch.finfo(covariance.dtype)
    scale = covariance.diagonal().sqrt().clamp_min(limits.tiny**0.25)  # of a row of zeros, too
    correlation = covariance / torch.outer(scale, scale)
    growth = 8.0 * limits.eps * correlation.size(0)  # what rounding can take from an eigenvalue
    while True:
        correlation.diagonal().fill_(1.0 + growth)
        factor, failed = torch.linalg.cholesky_ex(correlation)
        if not failed or growth > 1.0:
            break
        growth *= 16.0
    rows: Tensor = scale.unsqueeze(1) * factor
    return rows
