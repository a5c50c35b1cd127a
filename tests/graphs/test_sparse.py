"""Sparse CSR products and choices of rows against dense ones."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gduq.errors import InputError
from gduq.graphs.sparse import csr, is_sparse, keep_rows, linear, sparse_matmul, take_rows
from tests.tensors import randn, thin

few = settings(deadline=None, max_examples=40)
sizes = st.integers(1, 6)
seeds = st.integers(0, 2**20)


@st.composite
def entries(draw: st.DrawFn) -> tuple[list[int], list[int], list[float], tuple[int, int]]:
    """Entries of a matrix: any order, repeated ones, rows and columns without any."""
    size = draw(st.tuples(st.integers(1, 7), st.integers(1, 7)))
    triple = st.tuples(
        st.integers(0, size[0] - 1),
        st.integers(0, size[1] - 1),
        st.integers(-8, 8).map(lambda v: v / 4),
    )
    found = draw(st.lists(triple, max_size=20))
    return [t[0] for t in found], [t[1] for t in found], [t[2] for t in found], size


def both(given_entries: tuple) -> tuple[Tensor, Tensor]:
    rows, cols, values, size = given_entries
    index = torch.tensor([rows, cols], dtype=torch.int64).view(2, -1)
    numbers = torch.tensor(values, dtype=torch.float64)
    dense = torch.zeros(size, dtype=torch.float64)
    dense.index_put_((index[0], index[1]), numbers, accumulate=True)
    return csr(index[0], index[1], numbers, size), dense


@few
@given(entries(), st.integers(1, 4), seeds)
def test_sparse_matmul_is_the_dense_product(given_entries: tuple, m: int, seed: int) -> None:
    sparse, dense = both(given_entries)
    assert is_sparse(sparse)
    assert not is_sparse(dense)
    assert sparse.shape == dense.shape
    b = randn(dense.size(1), m, seed=seed).requires_grad_()
    direction = randn(dense.size(0), m, seed=seed + 1)
    torch.testing.assert_close(sparse_matmul(sparse, b), dense @ b)
    for _ in range(2):  # the second time with the kept transpose
        (grad,) = torch.autograd.grad(sparse_matmul(sparse, b), b, direction)
        torch.testing.assert_close(grad, dense.T @ direction)
    weight = randn(m, dense.size(1), seed=seed)
    bias = randn(m, seed=seed)
    torch.testing.assert_close(linear(sparse, weight, bias), linear(dense, weight, bias))


@few
@given(entries(), st.data())
def test_rows_of_sparse_matrices_are_those_of_dense_ones(
    given_entries: tuple, data: st.DataObject
) -> None:
    sparse, dense = both(given_entries)
    n = dense.size(0)
    index = torch.tensor(data.draw(st.lists(st.integers(0, n - 1), max_size=9)), dtype=torch.int64)
    found = take_rows(sparse, index)
    assert found.layout == torch.strided
    torch.testing.assert_close(found, dense[index])
    assert torch.equal(take_rows(dense, index), dense[index])

    mask = torch.tensor(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    kept = keep_rows(sparse, mask)
    assert is_sparse(kept)
    assert kept.shape == dense[mask].shape
    assert torch.equal(keep_rows(dense, mask), dense[mask])
    b = randn(dense.size(1), 3, seed=0).requires_grad_()
    torch.testing.assert_close(sparse_matmul(kept, b), dense[mask] @ b)
    direction = randn(int(mask.sum()), 3, seed=1)
    (grad,) = torch.autograd.grad(sparse_matmul(kept, b), b, direction)
    torch.testing.assert_close(grad, dense[mask].T @ direction)


def test_sparse_matrix_may_change_between_products() -> None:
    sparse = thin(5, 4, seed=3).to_sparse_csr()
    b = randn(4, 2, seed=4).requires_grad_()
    sparse_matmul(sparse, b).sum().backward()
    b.grad = None
    with torch.no_grad():
        sparse.values().mul_(3.0)
    sparse_matmul(sparse, b).sum().backward()
    torch.testing.assert_close(b.grad, sparse.to_dense().T @ torch.ones(5, 2).double())


def test_sparse_product_takes_the_wider_dtype() -> None:
    sparse = thin(5, 4, seed=3).float().to_sparse_csr()
    b = randn(4, 2, seed=4).requires_grad_()
    for _ in range(2):
        b.grad = None
        z = sparse_matmul(sparse, b)
        z.sum().backward()
        assert (z.dtype, b.grad.dtype) == (torch.float64, torch.float64)
        torch.testing.assert_close(z, sparse.to_dense().double() @ b, rtol=1e-13, atol=1e-13)
    with pytest.raises(InputError):
        sparse_matmul(sparse.requires_grad_(), b)
