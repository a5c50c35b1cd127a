"""From grey images to graphs: SLIC superpixels joined to their nearest neighbours."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gduq.data.packed import Packed, to_ptr
from gduq.errors import not_installed

__all__ = ["COMPACTNESS", "NEIGHBOURS", "NODES", "neighbours", "rotate", "segment", "superpixels"]

NODES, NEIGHBOURS, COMPACTNESS = 75, 8, 0.25
_Floats = npt.NDArray[np.float64]


def rotate(image: _Floats, degrees: float) -> _Floats:
    """Turn an image ``[H, W]`` counter-clockwise about its middle; what comes in is black."""
    if degrees == 0:
        return image
    from scipy.ndimage import rotate as turn

    turned: _Floats = turn(image, degrees, reshape=False, order=1, mode="constant", cval=0.0)
    return turned


def segment(image: _Floats, nodes: int = NODES) -> tuple[_Floats, _Floats]:
    """Superpixels of a grey image ``[H, W]``, by SLIC: their mean grey values ``[n]`` and centres
    ``[n, 2]`` (across, down), all in [0, 1].

    SLIC starts from a regular grid of ``nodes`` regions and drops or splits some to keep them
    connected: on MNIST, 75 gives 73 on average, mostly 66 to 81.
    """
    try:
        slic: Callable[..., Any] = import_module("skimage.segmentation").slic
    except ImportError as error:
        raise not_installed("scikit-image to make superpixels", "scikit-image") from error
    regions = slic(
        image, n_segments=nodes, compactness=COMPACTNESS, channel_axis=None, start_label=0
    )
    label = np.unique(regions, return_inverse=True)[1].reshape(-1)
    size = np.bincount(label)
    down, across = np.indices(image.shape).reshape(2, -1)
    grey = np.bincount(label, image.reshape(-1)) / size
    centre = [
        (np.bincount(label, where) / size + 0.5) / length
        for where, length in ((across, image.shape[1]), (down, image.shape[0]))
    ]
    return grey, np.stack(centre, axis=1)


def neighbours(position: _Floats, k: int = NEIGHBOURS) -> npt.NDArray[np.int64]:
    """Edges ``[2, E]`` from each point ``[n, 2]`` to its k nearest ones, and back.

    Example:
        >>> neighbours(np.array([[0.0, 0.0], [1.0, 0.0], [3.0, 0.0]]), k=1).tolist()
        [[0, 1, 1, 2], [1, 0, 2, 1]]
    """
    n = len(position)
    distance = ((position[:, None] - position[None]) ** 2).sum(-1)
    np.fill_diagonal(distance, np.inf)
    # centres on a grid are equally far apart: rounding makes the ties, and their order, exact
    nearest = np.argsort(distance.round(9), axis=1, kind="stable")[:, : min(k, n - 1)]
    joined = np.zeros((n, n), dtype=bool)
    np.put_along_axis(joined, nearest, True, axis=1)
    return np.stack(np.nonzero(joined | joined.T))


def superpixels(images: npt.NDArray[np.uint8], labels: Tensor, degrees: float = 0.0) -> Packed:
    """Superpixel graphs of images ``[G, H, W]``, each rotated before it is cut.

    A graph has ``x [n, 3]`` (grey value, across, down), ``edge_index`` and its label ``y [1]``.
    """
    x, edges = [], []
    for image in images:
        grey, centre = segment(rotate(image / 255.0, degrees))
        x.append(np.column_stack([grey, centre]).astype(np.float32))
        edges.append(neighbours(centre).astype(np.int16))
    return Packed.build(
        to_ptr(torch.tensor([len(part) for part in x])),
        to_ptr(torch.tensor([part.shape[1] for part in edges])),
        torch.from_numpy(np.concatenate(edges, axis=1)),
        nodes={"x": torch.from_numpy(np.concatenate(x))},
        graphs={"y": labels.long()},
    )
