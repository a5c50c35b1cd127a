"""Laplacian positional encodings of many small graphs at once."""

from __future__ import annotations

import numpy as np
import torch
from torch_geometric.utils import cumsum, remove_self_loops, to_dense_adj, to_undirected

from gduq.errors import InputError
from gduq.graphs.packed import Packed

__all__ = ["add_laplacian"]

_ENTRIES = 1 << 22  # of the Laplacians that are decomposed at a time
_TIE = 1e-8  # largest addition to the diagonal, by position: it decides between equal eigenvalues


def add_laplacian(packed: Packed, k: int = 4) -> Packed:
    r"""The same graphs with an attribute ``pe [n, k]``: the first ``k`` non-trivial eigenvectors of
    the normalised Laplacian.

    .. math:: L = I - D^{-1/2} A D^{-1/2}

    Missing columns are zero. Edges count as undirected, self-loops and repeated edges once.
    Eigenvectors have unit length, and their largest entry is positive; those of a repeated
    eigenvalue are one basis among many. Of a graph with thousands of nodes PyG's
    ``AddLaplacianEigenvectorPE`` makes them faster.

    Example:
        >>> from torch_geometric.data import Data
        >>> path = Data(x=torch.ones(3, 1), edge_index=torch.tensor([[0, 1], [1, 2]]))
        >>> add_laplacian(Packed.pack([path]), k=2)[0].pe.abs().round(decimals=4)
        tensor([[0.7071, 0.5000],
                [0.0000, 0.7071],
                [0.7071, 0.5000]])
    """
    if k < 1:
        raise InputError("k >= 1 eigenvectors", k)
    sizes = packed.num_nodes
    first = cumsum(sizes)[:-1]
    found = torch.zeros(int(sizes.sum()), k, dtype=torch.float64)
    for size in map(int, sizes[sizes > 1].unique()):  # single nodes have no encoding
        for graphs in torch.nonzero(sizes == size).flatten().split(-(-_ENTRIES // size**2)):
            part = packed.collate(graphs)
            ends = to_undirected(remove_self_loops(part.edge_index)[0], num_nodes=len(part.batch))
            joined = to_dense_adj(ends, part.batch, None, size, len(graphs)).double().numpy()
            scale = 1.0 / np.sqrt(np.maximum(joined.sum(2), 1.0))
            # Without the tie-break, rounding would choose the basis of a repeated eigenvalue.
            diagonal = np.diag(1.0 + np.linspace(0.0, _TIE, size))
            laplacian = diagonal - scale[:, :, None] * joined * scale[:, None]
            vectors = np.linalg.eigh(laplacian).eigenvectors[:, :, 1 : k + 1]
            biggest = np.abs(vectors).round(6).argmax(axis=1)[:, None]  # rounded: ties by position
            vectors = vectors * np.sign(np.take_along_axis(vectors, biggest, axis=1))
            rows = first[graphs][:, None] + torch.arange(size)
            found[rows, : vectors.shape[2]] = torch.from_numpy(vectors)
    return packed.with_columns({"pe": found.float()})
