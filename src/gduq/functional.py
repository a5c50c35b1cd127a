r"""Equation (1) and the sparse products under it: pure functions on tensors.

An anchored layer reads the pair :math:`[h - c \,\|\, c]`. Its weight :math:`W = [W_h \,\|\, W_c]`
splits the map into a part that never sees the anchor and a part that is a bias:

.. math::
    z = [h - c \,\|\, c] W^\top + b = h W_h^\top + c (W_c - W_h)^\top + b \qquad (1)
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
import torch.nn.modules.module as torch_module
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakIdKeyDictionary

from gduq.errors import InputError

# torch says this once, of a layout whose products we need and test.
warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta", UserWarning)

__all__ = [
    "ForcedDropout",
    "anchor_shift",
    "anchored_linear",
    "anchored_relu_map",
    "as_dtype",
    "csr",
    "device_of",
    "exporting",
    "gaussian_shift",
    "is_sparse",
    "keep_rows",
    "linear",
    "normal",
    "sparse_matmul",
    "take_rows",
]

_derived: WeakIdKeyDictionary = WeakIdKeyDictionary()  # CSR matrix -> {key: CSR made from it}


# -- equation (1) ------------------------------------------------------------------------------


def anchored_linear(h: Tensor, c: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    r"""Apply a linear map to :math:`[h - c \,\|\, c]` without building the pair.

    Args:
        h: Representation ``[n, d]``, dense or sparse CSR.
        c: Anchors, broadcast against ``h``: one for all rows ``[d]``, one per row ``[n, d]``,
            K shared ones ``[K, 1, d]``, or K per row ``[K, n, d]``.
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


def anchored_relu_map(
    h: Tensor,
    shift: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out_weight: Tensor,
    out_bias: Tensor | None,
) -> Tensor:
    r"""Two layers for K anchors at once: :math:`\mathrm{relu}(h W_h^\top + b + s_k) V^\top + a`.

    The hidden layer is kept with one row per unit. An outer map of few outputs is then a product
    of a flat matrix with a wide one, for which processors take half the time.

    Args:
        h: Representation ``[n, d]``, dense.
        shift: What each anchor adds, ``[K, m]``; see `anchor_shift`.
        weight: :math:`W_h`, ``[m, d]``.
        bias: ``[m]`` or ``None``.
        out_weight: V, ``[o, m]``.
        out_bias: ``[o]`` or ``None``.

    Returns:
        ``[K, n, o]``.

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
    r"""Draw ``anchor_shift`` of fresh Gaussian anchors, one per row, in m instead of d dimensions.

    With :math:`c \sim N(\mu, \mathrm{diag}\,\sigma^2)` and :math:`\Delta = W_c - W_h`, the shift
    :math:`c \Delta^\top` is Gaussian with mean :math:`\mu\Delta^\top` and covariance
    :math:`\Sigma = \Delta\,\mathrm{diag}(\sigma^2)\,\Delta^\top`. Drawing it from a Cholesky factor
    costs ``m²(d + rows)`` instead of ``m·d·rows``: use it where d is larger than m.

    The gradient is not that of the factor, which explodes where :math:`\Sigma` is nearly singular,
    but the mean over all anchors that could have led to the shift at hand: unbiased as explicit
    draws are, and with less noise.

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


def normal(
    size: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Standard normal numbers, drawn where the generator lives and moved to ``device``."""
    source = device if generator is None else generator.device
    return torch.randn(size, dtype=dtype, device=source, generator=generator).to(device)


def device_of(generator: torch.Generator | None) -> torch.device:
    """Where a generator can draw: a CUDA generator draws on its GPU only; without one, the CPU."""
    return torch.device("cpu") if generator is None else generator.device


def exporting() -> bool:
    """Whether torch.export is at work: sizes are symbols then, and values unknown."""
    return bool(getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)())


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

    The result has the wider of the two dtypes. The transpose that the backward pass needs, and a
    copy of ``a`` in another dtype, are made once and kept as long as ``a`` lives unchanged.
    """
    if a.requires_grad:
        raise InputError(
            "a constant sparse matrix",
            "one that requires a gradient",
            "Detach it: sparse_matmul is differentiable in its dense argument only.",
        )
    dtype = torch.promote_types(a.dtype, b.dtype)
    a = as_dtype(a, dtype)
    return _SparseMatmul.apply(a, b.to(dtype))  # type: ignore[no-any-return, no-untyped-call]


class _SparseMatmul(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.matrix = a
        with torch.autocast(b.device.type, enabled=False):  # no sparse kernels for half floats
            return a @ b

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor]:
        matrix: Tensor = ctx.matrix
        return None, sparse_matmul(_kept(matrix, "T", lambda: _transpose(matrix)), grads[0])


def _kept(a: Tensor, key: object, make: Callable[[], Tensor]) -> Tensor:
    """``make()``, remembered for as long as ``a`` lives and its values are not changed."""
    if a.is_inference():  # such tensors do not tell when they are changed
        return make()
    version, found = _derived.get(a, (None, {}))
    if version != a._version:
        found = {}
        _derived[a] = a._version, found
    if key not in found:
        found[key] = make()
    return found[key]  # type: ignore[no-any-return]


def as_dtype(a: Tensor, dtype: torch.dtype) -> Tensor:
    """A sparse CSR matrix in another dtype, made once for as long as it lives."""
    return a if a.dtype == dtype else _kept(a, dtype, lambda: a.to(dtype))


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
    cols, rows = a.col_indices().long(), _row_numbers(a)
    values = a.values().clone()  # what is kept must not hold on to the matrix it is kept for
    return csr(cols, rows, values, (a.size(1), a.size(0)))


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

    It works on the calls and not on the modules, so functional dropout (as in ``GATConv``), that
    of attention and that between recurrent layers are caught too, and normalisation layers stay in
    evaluation mode. ``calls`` counts what was drawn.

    One call does not tell: ``scaled_dot_product_attention(..., dropout_p=self.p if self.training
    else 0.0)`` arrives without its probability. The module that makes such a call (it alone, not
    its children) is run once more in training mode, and from then on in training mode at once.
    """

    _open = threading.local()  # how many contexts each thread has open, and the modules they run
    _functional = frozenset[Any](
        (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout)
    )
    _native = frozenset[Any](
        (torch.dropout, torch.alpha_dropout, torch.feature_dropout, torch.feature_alpha_dropout)
    )
    _recurrent = frozenset[Any]((torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu))

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self._hooks: list[RemovableHandle] = []
        self._callers: dict[nn.Module, bool] = {}  # of attention without dropout: more in training?

    @classmethod
    def active(cls) -> bool:
        """Whether such a context is open: shortcuts that skip dropout must not be taken."""
        return getattr(cls._open, "depth", 0) > 0

    def __enter__(self) -> ForcedDropout:
        if not self.active():  # nested contexts leave the modules to the outermost one
            self._open.running = []
            self._hooks = [
                register_module_forward_pre_hook(self._before),
                register_module_forward_hook(self._after, with_kwargs=True),
            ]
        self._open.depth = getattr(self._open, "depth", 0) + 1
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._open.depth -= 1
        if self._hooks:
            self._finish(None)
        while self._hooks:
            hook = self._hooks.pop()
            hook.remove()
            # torch 2.13 forgets to take this note away, and then warns of hooks that are gone
            getattr(torch_module, "_global_forward_hooks_with_kwargs", {}).pop(hook.id, None)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in self._functional:
            p = kwargs.pop("p", args[1] if len(args) > 1 else 0.5)
            self.calls += p > 0
            return func(args[0], p=p, training=True, inplace=kwargs.get("inplace", False))
        if func in self._native:
            _, p, _ = (*args, *(kwargs[k] for k in ("input", "p", "train") if k in kwargs))
            self.calls += p > 0
            return func(args[0] if args else kwargs["input"], p, True)
        if func is F.multi_head_attention_forward:
            self.calls += args[10] > 0  # its dropout probability
            kwargs["training"] = True
        if func is F.scaled_dot_product_attention:
            self._note_attention(kwargs.get("dropout_p", args[4] if len(args) > 4 else 0.0))
        if func in self._recurrent:
            args = self._recurrent_arguments(args)
        return func(*args, **kwargs)

    def _recurrent_arguments(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments of a recurrent kernel, with the flag for training set."""
        packed = isinstance(args[1], Tensor) and not args[1].is_floating_point()
        layers, p, flag = (5, 6, 7) if packed else (4, 5, 6)
        self.calls += args[p] > 0 and args[layers] > 1
        return *args[:flag], True, *args[flag + 1 :]

    # -- attention that is told its dropout by self.training ----------------------------------

    def _note_attention(self, p: float) -> None:
        self.calls += p > 0
        if self._open.running:
            self._open.running[-1].drops.append(p > 0)

    def _before(self, module: nn.Module, args: Any) -> None:
        if not self.active():  # hooks are of all threads, contexts of one
            return
        self._open.running.append(_Run(module, was_training=module.training))
        if self._callers.get(module, False):
            module.training = True

    def _after(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        if not self.active():
            return None
        run = self._finish(module)
        if run is None or run.was_training or module in self._callers or all(run.drops):
            return None
        return self._again(run, args, kwargs)

    def _finish(self, module: nn.Module | None) -> _Run | None:
        """End the run of a module, or all; and those inside it that a failed pass left behind."""
        while self._open.running:
            run: _Run = self._open.running.pop()
            run.module.training = run.was_training
            if run.module is module:
                return run
        return None

    def _again(self, run: _Run, args: Any, kwargs: Any) -> Any:
        """The output of a module in training mode, if attention then drops; else ``None``."""
        again = _Run(run.module, run.was_training)
        self._open.running.append(again)
        run.module.training = True
        try:
            output = run.module.forward(*args, **kwargs)
        finally:
            run.module.training = run.was_training
            self._open.running.remove(again)
        self._callers[run.module] = any(again.drops)
        return output if self._callers[run.module] else None


@dataclass(eq=False)
class _Run:
    """A module at work, and whether each attention it calls itself drops."""

    module: nn.Module
    was_training: bool
    drops: list[bool] = field(default_factory=list)
