"""Sparse features in one place: CSR without torch's notice that it is young."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["csr"]


def csr(crow: Tensor, col: Tensor, values: Tensor, shape: Sequence[int]) -> Tensor:
    """A sparse CSR matrix of ``shape``; the indices are trusted, not checked.

    Example:
        >>> csr(torch.tensor([0, 1, 1]), torch.tensor([2]), torch.ones(1), (2, 3)).to_dense()
        tensor([[0., 0., 1.],
                [0., 0., 0.]])
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta", UserWarning)
        return torch.sparse_csr_tensor(crow, col, values, tuple(shape), check_invariants=False)
