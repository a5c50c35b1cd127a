"""Dense or sparse CSR rows: products, choices of rows, and the one way to make a CSR matrix."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary
from torch_geometric.index import index2ptr, ptr2index

from gduq.errors import InputError

# torch says this once, of a layout whose products we need and test.
warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta", UserWarning)

__all__ = ["as_dtype", "csr", "csr_of_pointers", "is_sparse", "keep_rows", "kept", "linear",
           "ragged", "sparse_matmul", "take_rows"]  # fmt: skip

T = TypeVar("T")

_derived: WeakIdKeyDictionary = WeakIdKeyDictionary()  # tensor -> {key: what was made of it}


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
        do = "Detach it: sparse_matmul is differentiable in its dense argument only."
        raise InputError("a constant sparse matrix", "one that requires a gradient", do)
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
        return None, sparse_matmul(kept(matrix, "T", lambda: _transpose(matrix)), grads[0])


def kept(a: Tensor, key: object, make: Callable[[], T]) -> T:
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
    return a if a.dtype == dtype else kept(a, dtype, lambda: a.to(dtype))


def csr(rows: Tensor, cols: Tensor, values: Tensor, size: tuple[int, int]) -> Tensor:
    """A sparse CSR matrix from its entries, in any order; repeated entries add up.

    Indices are stored as int32: the CPU kernels convert anything else on every product.
    """
    if rows.numel() and not bool((rows[1:] >= rows[:-1]).all()):
        order = torch.argsort(rows, stable=True)
        rows, cols, values = rows[order], cols[order], values[order]
    pointers = index2ptr(rows, size[0]).to(torch.int32)
    return csr_of_pointers(pointers, cols.to(torch.int32), values, size)


def csr_of_pointers(pointers: Tensor, cols: Tensor, values: Tensor, size: Sequence[int]) -> Tensor:
    """A sparse CSR matrix from where each row begins; the indices are trusted, not checked."""
    return torch.sparse_csr_tensor(pointers, cols, values, tuple(size), check_invariants=False)


def _transpose(a: Tensor) -> Tensor:
    rows = ptr2index(a.crow_indices().long())
    values = a.values().clone()  # what is kept must not hold on to the matrix it is kept for
    return csr(a.col_indices().long(), rows, values, (a.size(1), a.size(0)))


def take_rows(h: Tensor, index: Tensor) -> Tensor:
    """Some rows of a dense or sparse CSR matrix, dense ``[len(index), d]``."""
    if not is_sparse(h):
        return h[index]
    rows, columns, values = _entries(h, index)
    out = values.new_zeros(index.numel(), h.size(1))
    return out.index_put_((rows, columns.long()), values, accumulate=True)


def keep_rows(h: Tensor, mask: Tensor) -> Tensor:
    """The rows of a dense or sparse CSR matrix where ``mask`` is true, in the same layout."""
    if not is_sparse(h):
        return h[mask]
    index = mask.nonzero().flatten()
    return csr(*_entries(h, index), (index.numel(), h.size(1)))


def _entries(a: Tensor, index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What the rows with these numbers hold: places in ``index``, columns, values."""
    entries, pointers = ragged(a.crow_indices().long(), index)
    return ptr2index(pointers), a.col_indices()[entries], a.values()[entries]


def ragged(ptr: Tensor, index: Tensor) -> tuple[Tensor | slice, Tensor]:
    """Entries of the parts ``index``, of which ``ptr`` has the offsets ``[G + 1]``, and their new
    offsets; those of neighbours come as one slice."""
    starts = ptr[index]
    sizes = ptr[index + 1] - starts
    out = F.pad(sizes.cumsum(0), (1, 0))
    total = int(out[-1])
    if index.numel() and bool((index.diff() == 1).all()):
        return slice(int(starts[0]), int(starts[0]) + total), out
    shift = torch.repeat_interleave(starts - out[:-1], sizes, output_size=total)
    return shift + torch.arange(total, device=ptr.device), out
