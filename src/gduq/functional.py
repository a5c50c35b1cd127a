r"""Equation (1) and the sparse products under it: pure functions on tensors.

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
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

__all__ = [
    "ForcedDropout",
    "anchor_shift",
    "anchored_linear",
    "csr",
    "gaussian_shift",
    "is_sparse",
    "keep_rows",
    "linear",
    "sparse_matmul",
    "take_rows",
]

_transposes: WeakIdKeyDictionary = WeakIdKeyDictionary()  # CSR matrix -> its transpose, CSR


# -- equation (1) ------------------------------------------------------------------------------


def anchored_linear(h: Tensor, c: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    r"""Apply a linear map to :math:`[h - c \,\|\, c]` without building the pair.

    Args:
        h: Representation ``[n, d]``, dense or sparse CSR.
        c: Anchors, broadcast against ``h``: one for all rows ``[d]``, one a row ``[n, d]``,
            K shared ones ``[K, 1, d]``, or K a row ``[K, n, d]``.
        weight: ``[m, 2d]``; the first d columns read :math:`h - c`, the last d read :math:`c`.
        bias: ``[m]`` or ``None``.

    Returns:
        ``[n, m]``, or ``[K, n, m]`` for K anchors.

    Example:
        >>> h, c, w = torch.randn(5, 3), torch.randn(4, 1, 3), torch.randn(2, 6)
        >>> pair = torch.cat([h - c, c.expand(4, 5, 3)], dim=-1)
        >>> torch.allclose(anchored_linear(h, c, w), pair @ w.T, atol=1e-5)
        True
    """
    z = linear(h, weight[:, : weight.size(1) // 2]) + anchor_shift(c, weight)
    return z if bias is None else z + bias


def anchor_shift(c: Tensor, weight: Tensor, masked: Tensor | None = None) -> Tensor:
    r"""What an anchor adds to the output: :math:`c (W_c - W_h)^\top`.

    Where ``masked`` is true the anchor half of the pair is zero, :math:`[h - c \,\|\, 0]`
    (reference masking), so the row gets :math:`-c W_h^\top`.

    Args:
        c: Anchors ``[..., d]``.
        weight: ``[m, 2d]``.
        masked: Boolean, shaped as ``c`` without its last axis; or ``None`` for no masking.

    Returns:
        ``[..., m]``.
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
    r"""Draw ``anchor_shift`` of fresh Gaussian anchors, one a row, in m instead of d dimensions.

    With :math:`c \sim N(\mu, \mathrm{diag}\,\sigma^2)` and :math:`\Delta = W_c - W_h`, the shift
    :math:`c \Delta^\top` is Gaussian with mean :math:`\mu\Delta^\top` and covariance
    :math:`\Delta\,\mathrm{diag}(\sigma^2)\,\Delta^\top`. Drawing it from a Cholesky factor costs
    ``m²(d + rows)`` instead of ``m·d·rows``: use it where d is larger than m.

    Args:
        mean: ``[d]``.
        std: ``[d]``, non-negative.
        weight: ``[m, 2d]``; gradients flow into it.
        rows: How many independent draws.
        masked: ``[rows]`` boolean, rows whose anchor half is zero; or ``None``.
        generator: Source of randomness; torch's global one if ``None``.

    Returns:
        ``[rows, m]``.
    """
    w_h, w_c = weight.chunk(2, dim=1)
    noise = torch.randn(
        rows, weight.size(0), dtype=weight.dtype, device=weight.device, generator=generator
    )
    shift = _correlated(noise, mean, std, w_c - w_h)
    if masked is None:
        return shift
    return torch.where(masked.unsqueeze(-1), _correlated(noise, mean, std, -w_h), shift)


def _correlated(noise: Tensor, mean: Tensor, std: Tensor, delta: Tensor) -> Tensor:
    scaled = delta * std
    covariance = scaled @ scaled.T
    # The factor of a rank-deficient covariance exists only with something on the diagonal.
    jitter = covariance.diagonal().detach().mean() * 1e-6 + torch.finfo(delta.dtype).tiny ** 0.5
    eye = torch.eye(delta.size(0), dtype=delta.dtype, device=delta.device)
    factor = torch.linalg.cholesky(covariance + jitter * eye)
    return delta @ mean + noise @ factor.T


# -- dense or sparse rows ----------------------------------------------------------------------


def is_sparse(h: Tensor) -> bool:
    """Whether ``h`` is a sparse CSR matrix."""
    return h.layout == torch.sparse_csr


def linear(h: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``h @ weight.T + bias`` for dense or sparse CSR ``h``, differentiable in ``weight``."""
    if not is_sparse(h):
        return F.linear(h, weight, bias)
    z = sparse_matmul(h, weight.T)
    return z if bias is None else z + bias


def sparse_matmul(a: Tensor, b: Tensor) -> Tensor:
    """``a @ b`` for a constant sparse CSR ``a``, differentiable in the dense ``b``.

    The backward pass multiplies with the transpose of ``a``, which is made once and kept as long
    as ``a`` lives.
    """
    if a.requires_grad:
        raise ValueError("sparse_matmul is differentiable in its dense argument only")
    return _SparseMatmul.apply(a, b)  # type: ignore[no-any-return, no-untyped-call]


class _SparseMatmul(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.matrix = a
        return a @ b.to(a.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor]:
        return None, _transpose(ctx.matrix) @ grads[0]


def csr(rows: Tensor, cols: Tensor, values: Tensor, size: tuple[int, int]) -> Tensor:
    """A sparse CSR matrix from its entries, in any order; repeated entries add up.

    Indices are stored as int32: the CPU kernels convert anything else on every product.
    """
    if rows.numel() and not bool((rows[1:] >= rows[:-1]).all()):
        order = torch.argsort(rows, stable=True)
        rows, cols, values = rows[order], cols[order], values[order]
    pointers = torch.zeros(size[0] + 1, dtype=torch.int32, device=rows.device)
    pointers[1:] = torch.bincount(rows, minlength=size[0]).cumsum(0)
    return torch.sparse_csr_tensor(
        pointers, cols.to(torch.int32), values, size, check_invariants=False
    )


def _row_numbers(a: Tensor) -> Tensor:
    lengths = a.crow_indices().diff()
    return torch.repeat_interleave(torch.arange(a.size(0), device=a.device), lengths)


def _transpose(a: Tensor) -> Tensor:
    transposed = _transposes.get(a)
    if transposed is None:
        cols, rows = a.col_indices().long(), _row_numbers(a)
        transposed = csr(cols, rows, a.values(), (a.size(1), a.size(0)))
        _transposes[a] = transposed
    return transposed  # type: ignore[no-any-return]


def take_rows(h: Tensor, index: Tensor) -> Tensor:
    """Some rows of a dense or sparse CSR matrix, dense ``[len(index), d]``."""
    if not is_sparse(h):
        return h[index]
    pointers, columns, values = h.crow_indices().long(), h.col_indices().long(), h.values()
    out = values.new_zeros(index.numel(), h.size(1))
    starts, lengths = pointers[index], pointers[index + 1] - pointers[index]
    rows = torch.repeat_interleave(torch.arange(index.numel(), device=h.device), lengths)
    offset = torch.arange(rows.numel(), device=h.device) - torch.repeat_interleave(
        lengths.cumsum(0) - lengths, lengths
    )
    entries = starts[rows] + offset
    return out.index_put_((rows, columns[entries]), values[entries], accumulate=True)


def keep_rows(h: Tensor, mask: Tensor) -> Tensor:
    """The rows of a dense or sparse CSR matrix where ``mask`` is true, in the same layout."""
    if not is_sparse(h):
        return h[mask]
    rows = _row_numbers(h)
    entries = mask[rows]
    numbers = mask.cumsum(0) - 1
    return csr(
        numbers[rows[entries]],
        h.col_indices()[entries],
        h.values()[entries],
        (int(mask.sum()), h.size(1)),
    )


# -- dropout at prediction time ----------------------------------------------------------------


class ForcedDropout(TorchFunctionMode):
    """Within this context every dropout call draws, whatever mode its module is in.

    It works on the calls and not on the modules, so functional dropout (as in ``GATConv``) is
    caught too and normalisation layers stay in evaluation mode. ``calls`` counts what was drawn.
    """

    _depth = 0
    _plain = (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout)
    _plain += (F.feature_alpha_dropout,)

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    @classmethod
    def active(cls) -> bool:
        """Whether such a context is open: shortcuts that skip dropout must not be taken."""
        return cls._depth > 0

    def __enter__(self) -> ForcedDropout:
        ForcedDropout._depth += 1
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        ForcedDropout._depth -= 1

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in self._plain:
            p = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
            self.calls += p > 0
            return func(args[0], p=p, training=True)
        if func is F.multi_head_attention_forward:
            self.calls += args[9] > 0  # its dropout probability
            kwargs["training"] = True
        return func(*args, **kwargs)
