"""Laplacian positional encodings of many small graphs (or of one large one) at once."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from gduq.data.parallel import default_workers
from gduq.errors import InputError
from gduq.graphs.checks import check_ends
from gduq.graphs.packed import Packed

__all__ = ["add_laplacian", "laplacian_encoding"]

_DENSE = 512  # nodes of a component up to which all eigenvectors are computed
_ITERATIONS = 300  # of Lanczos before the matrix is factorised instead
_BELOW_ZERO = -1e-4  # shift at which L is never singular
_ENTRIES = 1 << 22  # matrix entries of a batch
_TIE = 1e-8  # largest addition to the diagonal, by position: it decides between equal eigenvalues


def laplacian_encoding(
    edge_index: Tensor, num_nodes: int, k: int = 4, workers: int | None = None
) -> Tensor:
    r"""The first ``k`` non-trivial eigenvectors of the normalised Laplacian, ``[num_nodes, k]``.

    .. math:: L = I - D^{-1/2} A D^{-1/2}

    * **Every connected component is encoded on its own**, since the eigenvectors of eigenvalue 0
      only tell components apart: a graph may be many graphs side by side.
    * A component of n nodes has n - 1 non-trivial eigenvectors; missing columns are **zero**.
    * Edges count as undirected, self-loops and repeated edges once.
    * An eigenvector has unit length and **no sign**; here its largest entry is positive (the first
      of the largest), and a model should draw the sign at random in training.
    * Eigenvectors of a **repeated eigenvalue** are one basis of their space among many, fixed for a
      given numbering of the nodes. Renumbering changes the basis, not the space.

    Args:
        edge_index: ``[2, E]``.
        num_nodes: N.
        k: Eigenvectors per node.
        workers: Threads; ``None`` means one per core.

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
    adjacency = _adjacency(edge_index, num_nodes)
    _, component = sp.csgraph.connected_components(adjacency, directed=False)
    order = np.argsort(component, kind="stable")  # nodes, component by component
    sizes = np.bincount(component) if num_nodes else np.zeros(0, dtype=np.int64)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    adjacency = adjacency[order][:, order].tocsr()
    out = np.zeros((num_nodes, k), dtype=np.float64)

    def work(chunk: np.ndarray) -> None:
        rows, vectors = _encode(adjacency, starts, chunk, k)
        out[order[rows]] = vectors

    with ThreadPoolExecutor(workers or default_workers()) as pool:
        list(pool.map(work, _chunks(sizes)))  # raises what a thread raised
    return torch.from_numpy(out).float()


def add_laplacian(packed: Packed, k: int = 4, keep_x: bool = True) -> Packed:
    """The same graphs with an attribute ``pe [n, k]``; without ``x`` if it is not to be kept."""
    packed = packed.materialise()
    batch = packed.collate()
    pe = laplacian_encoding(batch.edge_index, int(batch.ptr[-1]), k)
    tensors = {key: v for key, v in packed.tensors.items() if keep_x or key != "x"}
    layout = {key: packed.layout[key] for key in tensors}
    return replace(packed, tensors={**tensors, "pe": pe}, layout={**layout, "pe": "node"})


def _adjacency(edge_index: Tensor, num_nodes: int) -> sp.csr_matrix:
    """Undirected, without self-loops, entries 0 or 1."""
    edges = edge_index[:, edge_index[0] != edge_index[1]].numpy()
    both = np.concatenate([edges, edges[::-1]], axis=1)
    matrix = sp.csr_matrix((np.ones(both.shape[1]), tuple(both)), shape=(num_nodes, num_nodes))
    matrix.data[:] = 1.0  # repeated edges were summed
    return matrix


def _chunks(sizes: np.ndarray) -> Iterator[np.ndarray]:
    """Components of equal size, few enough for one batch; single nodes have no encoding."""
    for size in np.unique(sizes[sizes > 1]):
        same = np.flatnonzero(sizes == size)
        step = max(1, _ENTRIES // int(size) ** 2)
        for start in range(0, same.size, step):
            yield same[start : start + step]


def _encode(
    adjacency: sp.csr_matrix, starts: np.ndarray, chunk: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers and encodings of some components of equal size."""
    size = int(starts[chunk[0] + 1] - starts[chunk[0]])
    rows = (starts[chunk, None] + np.arange(size)).reshape(-1)
    block = adjacency[rows]
    scale = 1.0 / np.sqrt(np.maximum(np.asarray(block.sum(axis=1)).reshape(-1), 1.0))
    columns = min(k, size - 1)
    vectors = (
        _dense(block, rows, scale, size, columns)
        if size <= _DENSE
        else _sparse(block[:, rows], scale, columns)
    )
    biggest = np.abs(vectors).round(6).argmax(axis=1)[:, None]  # rounded: ties by position
    vectors = vectors * np.sign(np.take_along_axis(vectors, biggest, axis=1))
    out = np.zeros((rows.size, k))
    out[:, :columns] = vectors.reshape(-1, columns)
    return rows, out


def _dense(
    block: sp.csr_matrix, rows: np.ndarray, scale: np.ndarray, size: int, columns: int
) -> np.ndarray:
    """``[components, size, columns]``, all matrices in one call."""
    entries = block.tocoo()
    position = np.searchsorted(rows, entries.col)  # rows ascend
    laplacian = np.zeros((rows.size // size, size, size))
    values = -scale[entries.row] * scale[position]
    laplacian[entries.row // size, entries.row % size, position % size] = values
    # Without the tie-break, rounding would choose the basis of a repeated eigenvalue, and rounding
    # differs with the place of a matrix in its batch.
    laplacian[:, np.arange(size), np.arange(size)] = 1.0 + np.linspace(0.0, _TIE, size)
    vectors = torch.linalg.eigh(torch.from_numpy(laplacian)).eigenvectors
    return vectors[:, :, 1 : columns + 1].numpy()  # type: ignore[no-any-return]


def _sparse(block: sp.csr_matrix, scale: np.ndarray, columns: int) -> np.ndarray:
    """``[1, size, columns]`` of one large component, by Lanczos from a fixed start."""
    from scipy.sparse.linalg import ArpackNoConvergence, eigsh

    weights = sp.diags(scale)
    start = np.linspace(1.0, 2.0, scale.size)
    normalised = weights @ block @ weights
    try:
        _, vectors = eigsh(normalised, k=columns + 1, which="LA", v0=start, maxiter=_ITERATIONS)
        return vectors[None, :, ::-1][:, :, 1:]  # type: ignore[no-any-return]
    except ArpackNoConvergence:
        # long, thin graphs: eigenvalues crowd at 0, but a factorisation has little fill-in
        laplacian = (sp.identity(scale.size) - normalised).tocsc()
        values, vectors = eigsh(laplacian, k=columns + 1, sigma=_BELOW_ZERO, v0=start)
        return vectors[None, :, np.argsort(values)[1:]]  # type: ignore[no-any-return]
