"""Laplacian positional encodings of many small graphs (or of one large one) at once."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch_geometric.utils import remove_self_loops, to_undirected

from gduq.errors import InputError
from gduq.graphs.checks import check_ends
from gduq.graphs.packed import Packed

__all__ = ["add_laplacian", "laplacian_encoding"]

_DENSE = 512  # nodes of a component up to which all eigenvectors are computed
_ITERATIONS = 300  # of Lanczos before the matrix is factorised instead
_BELOW_ZERO = -1e-4  # shift at which L is never singular
_TIE = 1e-8  # largest addition to the diagonal, by position: it decides between equal eigenvalues


def laplacian_encoding(edge_index: Tensor, num_nodes: int, k: int = 4) -> Tensor:
    r"""The first ``k`` non-trivial eigenvectors of the normalised Laplacian, ``[num_nodes, k]``.

    .. math:: L = I - D^{-1/2} A D^{-1/2}

    * **Every connected component is encoded on its own**: a graph may be many side by side.
    * A component of n nodes has n - 1 non-trivial eigenvectors; missing columns are **zero**.
    * Edges count as undirected, self-loops and repeated edges once.
    * An eigenvector has unit length and **no sign**: here its largest entry is positive.
    * Eigenvectors of a **repeated eigenvalue** are one basis of their space among many, fixed for a
      given numbering of the nodes.

    Args:
        edge_index: ``[2, E]``.
        num_nodes: N.
        k: Eigenvectors per node.

    Example:
        >>> path = torch.tensor([[0, 1], [1, 2]])
        >>> laplacian_encoding(path, num_nodes=3, k=2).abs().round(decimals=4)
        tensor([[0.7071, 0.5000],
                [0.0000, 0.7071],
                [0.7071, 0.5000]])
    """
    if k < 1:
        raise InputError("k >= 1 eigenvectors", k)
    check_ends("edge_index", edge_index.long(), (num_nodes, num_nodes))
    ends = to_undirected(remove_self_loops(edge_index)[0], num_nodes=num_nodes).numpy()
    shape = (num_nodes, num_nodes)
    adjacency = sp.csr_matrix((np.ones(ends.shape[1]), tuple(ends)), shape=shape)
    scale = sp.diags(1.0 / np.sqrt(np.maximum(np.asarray(adjacency.sum(axis=1)).ravel(), 1.0)))
    _, component = sp.csgraph.connected_components(adjacency, directed=False)
    order = np.argsort(component, kind="stable")  # nodes, component by component
    normalised = (scale @ adjacency @ scale).tocsr()[order][:, order].tocsr()
    starts = np.concatenate([[0], np.cumsum(np.bincount(component))]) if num_nodes else [0]
    out = np.zeros((num_nodes, k), dtype=np.float64)
    for start, stop in pairwise(starts):
        if stop - start > 1:  # single nodes have no encoding
            columns = min(k, stop - start - 1)
            out[order[start:stop], :columns] = _encode(normalised, start, stop, columns)
    return torch.from_numpy(out).float()


def add_laplacian(packed: Packed, k: int = 4) -> Packed:
    """The same graphs with an attribute ``pe [n, k]``."""
    batch = packed.collate()
    pe = laplacian_encoding(batch.edge_index, int(batch.ptr[-1]), k)
    return packed.with_columns({"pe": pe})


def _encode(normalised: sp.csr_matrix, start: int, stop: int, columns: int) -> np.ndarray:
    """The first non-trivial eigenvectors ``[n, columns]`` of the component of rows start to stop of
    the normalised adjacency."""
    from scipy.sparse.linalg import ArpackNoConvergence, eigsh

    size = stop - start
    if size <= _DENSE:
        # Without the tie-break, rounding would choose the basis of a repeated eigenvalue.
        laplacian = np.diag(1.0 + np.linspace(0.0, _TIE, size))
        part = slice(*normalised.indptr[[start, stop]])
        rows = np.repeat(np.arange(size), np.diff(normalised.indptr[start : stop + 1]))
        laplacian[rows, normalised.indices[part] - start] = -normalised.data[part]
        vectors = np.linalg.eigh(laplacian).eigenvectors[:, 1 : columns + 1]
    else:
        block, begin = normalised[start:stop, start:stop], np.linspace(1.0, 2.0, size)
        try:
            _, vectors = eigsh(block, k=columns + 1, which="LA", v0=begin, maxiter=_ITERATIONS)
            vectors = vectors[:, ::-1][:, 1:]
        except ArpackNoConvergence:
            # long, thin graphs: eigenvalues crowd at 0, but a factorisation has little fill-in
            laplacian = (sp.identity(size) - block).tocsc()
            values, vectors = eigsh(laplacian, k=columns + 1, sigma=_BELOW_ZERO, v0=begin)
            vectors = vectors[:, np.argsort(values)[1:]]
    biggest = np.abs(vectors).round(6).argmax(axis=0)[None]  # rounded: ties by position
    return vectors * np.sign(np.take_along_axis(vectors, biggest, axis=0))  # type: ignore[no-any-return]
