"""MNIST digits as superpixel graphs: coloured, rotated, and with noisy features.

An image is cut into SLIC superpixels, joined to their nearest neighbours. The graphs are **not**
those that GOOD colours (the MoNet superpixels in PyG's ``MNISTSuperpixels``): say so beside every
number.
"""

from __future__ import annotations

import copy
import gzip
import zlib
from collections.abc import Sequence
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy import ndimage
from torch import Tensor
from torch_geometric.data import Data

from gduq import shifts
from gduq._checks import one_of
from gduq.data import Splits, View
from gduq.errors import not_installed
from gduq.shifts.cuts import leave_out, limit_rows
from gduq_reproduction.datasets.raw import build_rows, damaged, raw_file

__all__ = ["ANGLES", "NOISE", "colour_cut", "load_cmnist", "load_rotmnist", "neighbours",
           "read_mnist", "segment", "superpixels", "views_of"]  # fmt: skip

_Floats = npt.NDArray[np.float64]
Cut = dict[str, Tensor]

ANGLES = (10, 15, 25, 35, 40)  # degrees, counter-clockwise
NOISE = (0.1, 0.2, 0.3, 0.4)  # standard deviation of the noise on grey values
NODES, NEIGHBOURS, COMPACTNESS = 75, 8, 0.25
_URL = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_TRAIN, _TEST, _ID_VAL = 60_000, 10_000, 5_000
_RHO = (0.95, 0.9, 0.85, 0.8, 0.75)  # how often colour follows the digit, by training environment
_RHO_VAL = 0.3  # and in ood_val; never in ood_test
_RED, _GREEN, _BLUE = (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)
_YELLOW, _CYAN, _MAGENTA = (1.0, 1.0, 0.0), (0.0, 1.0, 1.0), (1.0, 0.0, 1.0)
_ROSE, _LIME, _SKY, _CREAM = (1.0, 0.5, 0.5), (0.5, 1.0, 0.5), (0.5, 0.5, 1.0), (1.0, 1.0, 0.5)
_BY_ENVIRONMENT = (_RED, _GREEN, _BLUE, _YELLOW, _CYAN, _ROSE, _MAGENTA)  # last two: the OOD splits
_BY_DIGIT = (_RED, _GREEN, _BLUE, _YELLOW, _CYAN, _MAGENTA, _ROSE, _LIME, _SKY, _CREAM)
_GRAPHS = (
    f"MNIST images cut into about {NODES} SLIC superpixels (scikit-image, compactness "
    f"{COMPACTNESS}), each joined to its {NEIGHBOURS} nearest neighbours in both directions. "
    "These are not the released MoNet superpixels, so numbers are not those published with them."
)


@lru_cache(maxsize=2)  # a process builds many parts
def read_mnist(kind: str, root: str | Path | None = None) -> npt.NDArray[np.uint8]:
    """All 70 000 ``"images"`` or ``"labels"``, those for training first, from gzipped IDX files."""
    found = []
    for path, count in zip(_files(kind, root), (_TRAIN, _TEST), strict=True):
        shape = (count, 28, 28) if kind == "images" else (count,)
        try:  # after a header of a number and the lengths of the axes
            content = np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8)
            found.append(content[4 + 4 * len(shape) :].reshape(shape))
        except (OSError, EOFError, ValueError, zlib.error) as error:
            raise damaged(path, f"a gzip file of {kind}, shape {list(shape)}", error) from error
    return np.concatenate(found)


def _files(kind: str, root: str | Path | None) -> list[Path]:
    axes = 3 if kind == "images" else 1
    names = [f"{part}-{kind}-idx{axes}-ubyte.gz" for part in ("train", "t10k")]
    return [raw_file(f"MNIST/raw/{name}", root, url=_URL + name) for name in names]


# -- from images to graphs -----------------------------------------------------------------------


def segment(image: _Floats, nodes: int = NODES) -> tuple[_Floats, _Floats]:
    """Superpixels of a grey image ``[H, W]``, by SLIC: their mean grey values ``[n]`` and centres
    ``[n, 2]`` (across, down), all in [0, 1]. On MNIST, 75 give 73 on average, mostly 66 to 81."""
    try:
        from skimage.segmentation import slic
    except ImportError as error:
        raise not_installed("scikit-image to make superpixels", "scikit-image") from error
    regions = slic(image, nodes, COMPACTNESS, channel_axis=None, start_label=0)
    label = np.unique(regions, return_inverse=True)[1].reshape(-1)
    size = np.bincount(label)
    grey = np.bincount(label, image.reshape(-1)) / size
    down, across = np.indices(image.shape).reshape(2, -1)
    centre = [np.bincount(label, where) / size + 0.5 for where in (across, down)]
    return grey, np.stack(centre, axis=1) / image.shape[::-1]


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


def superpixels(images: npt.NDArray[np.uint8], labels: Tensor, degrees: float = 0.0) -> list[Data]:
    """Superpixel graphs of images ``[G, H, W]``, each turned counter-clockwise before it is cut.

    A graph has ``x [n, 3]`` (grey value, across, down), ``pos [n, 2]`` (across, down),
    ``edge_index`` and its label ``y [1]``.
    """
    graphs = []
    for image, label in zip(images / 255.0, labels, strict=True):
        if degrees:
            image = ndimage.rotate(image, degrees, reshape=False, order=1, cval=0.0)
        grey, centre = segment(image)
        x = torch.from_numpy(np.column_stack([grey, centre]).astype(np.float32))
        edges = torch.from_numpy(neighbours(centre).astype(np.int16))
        graphs.append(Data(x=x, edge_index=edges, y=label.long().reshape(1), pos=x[:, 1:]))
    return graphs


def _graphs(root: str | Path | None, rows: Tensor, degrees: int = 0) -> list[Data]:
    build = partial(_build, None if root is None else str(root), degrees)
    return build_rows(root, ("mnist/superpixels", 2, degrees), rows, build)


def _build(root: str | None, degrees: int, rows: Tensor) -> list[Data]:
    labels = torch.from_numpy(read_mnist("labels", root))
    return superpixels(read_mnist("images", root)[rows.numpy()], labels[rows], degrees)


def views_of(cut: Cut, graphs: Sequence[Data]) -> dict[str, Any]:
    """A view of each part of a cut, given the graphs of all its rows one after the other."""
    rest = iter(graphs)
    return {name: View(list(islice(rest, len(rows)))) for name, rows in cut.items()}


# -- datasets ------------------------------------------------------------------------------------


def load_cmnist(
    shift: str, root: str | Path | None = None, seed: int = 0, limit: int | None = None
) -> Splits:
    """CMNIST: superpixels of MNIST digits in colours that shift.

    ``x [n, 3]`` is the grey value times the colour of the graph, ``pos [n, 2]`` where a superpixel
    lies. ``shift`` is ``covariate`` (five colours in training, a new one in each OOD split),
    ``concept`` (colour follows the digit in training and no longer does in the OOD splits) or
    ``no_shift`` (all white). With ``limit`` only that many of the 70 000 images, in proportion from
    every split, are cut into superpixels.
    """
    labels = torch.from_numpy(read_mnist("labels", root)).long()
    cut, colour, palette = colour_cut(labels, shift, seed)
    cut = limit_rows(cut, limit, seed)
    rows = torch.cat(list(cut.values()))
    graphs = _graphs(root, rows)
    for graph, tint in zip(graphs, palette[colour[rows]], strict=True):
        graph.x = graph.x[:, :1] * tint
    return Splits(
        **views_of(cut, graphs),
        name=f"cmnist/color/{shift}",
        description=f"Coloured digits under a {shift} shift of the colour. {_GRAPHS}",
        class_names=tuple("0123456789"),
        domains={name: colour[rows] for name, rows in cut.items()},
        sources=tuple(str(path) for kind in ("images", "labels") for path in _files(kind, root)),
    )


def colour_cut(labels: Tensor, shift: str, seed: int = 0) -> tuple[Cut, Tensor, Tensor]:
    """The rows of each split of CMNIST, the colour number of every image ``[n]``, and the palette
    ``[colours, 3]``, given the digit of every image."""
    one_of("a shift", shift, ("covariate", "concept", "no_shift"))
    n, colour = labels.numel(), torch.zeros_like(labels)
    if shift == "no_shift":
        return shifts.no_shift(n, seed=seed), colour, torch.ones(1, 3)
    covariate = shift == "covariate"
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(n, generator=generator)
    ends = (0.8, 0.9) if covariate else (0.6, 0.8)
    pool, val, test = torch.tensor_split(order, [int(end * n) for end in ends])
    # environments are equal parts of the pool, the last takes the rest
    number = torch.arange(len(pool)) // max(1, len(pool) // len(_RHO))
    environment = number.clamp(max=len(_RHO) - 1)
    if covariate:
        colour[pool], colour[val], colour[test] = environment, len(_RHO), len(_RHO) + 1
        return leave_out(pool, val, test, int(0.1 * n), seed), colour, torch.tensor(_BY_ENVIRONMENT)
    rho = torch.zeros(n)
    rho[val], rho[pool] = _RHO_VAL, torch.tensor(_RHO)[environment]
    follows = torch.rand(n, generator=generator) < rho
    chance = torch.randint(len(_BY_DIGIT), (n,), generator=generator)
    colour, held = torch.where(follows, labels, chance), int(0.15 * len(pool))
    return leave_out(pool, val, test, held, seed), colour, torch.tensor(_BY_DIGIT)


def load_rotmnist(
    kind: str, root: str | Path | None = None, seed: int = 0, limit: int | None = None
) -> Splits:
    """Superpixels of upright digits for training, of rotated or noisy ones for testing.

    ``x [n, 3]`` is the grey value and the position (across, down). ``severities`` holds the 10 000
    test digits at every level of ``kind``, `ANGLES` of ``rotation`` or `NOISE` on the grey values;
    ``ood_test`` is the most severe one, and ``id_test`` the digits as they are. ``limit`` counts
    the graphs of train, id_val, id_test and ood_test together.
    """
    one_of("a kind", kind, ("rotation", "noise"))
    order = torch.randperm(_TRAIN, generator=torch.Generator().manual_seed(seed))
    train, val = torch.tensor_split(order, [_TRAIN - _ID_VAL])
    test = torch.arange(_TRAIN, _TRAIN + _TEST)
    cut = {"train": train, "id_val": val, "id_test": test, "ood_test": test}
    cut = limit_rows(cut, limit, seed)
    del cut["ood_test"]  # the digits of id_test
    graphs = _graphs(root, torch.cat(list(cut.values())))
    upright = graphs[-len(cut["id_test"]) :]
    if kind == "rotation":
        levels = {f"{kind}={a}": View(_graphs(root, cut["id_test"], a)) for a in ANGLES}
    else:
        levels = {f"{kind}={std}": View(_noisy(upright, std, seed)) for std in NOISE}
    last = (ANGLES if kind == "rotation" else NOISE)[-1]
    return Splits(
        **views_of(cut, graphs),
        ood_test=levels[f"{kind}={last}"],
        severities=levels,
        name=f"rotmnist/{kind}",
        description=f"Upright digits in training, {kind} in testing. {_GRAPHS}",
        class_names=tuple("0123456789"),
        domains={
            **{name: torch.zeros(rows.numel()) for name, rows in cut.items()},
            "ood_test": torch.full((len(upright),), float(last)),
        },
        sources=tuple(str(path) for what in ("images", "labels") for path in _files(what, root)),
    )


def _noisy(graphs: Sequence[Data], std: float, seed: int) -> list[Data]:
    """Gaussian noise on the grey values; the same draw, scaled, at every level."""
    generator, found = torch.Generator().manual_seed(seed), []
    for graph in graphs:
        found.append(copy.copy(graph))
        noise = std * torch.randn(len(graph.x), 1, generator=generator)
        found[-1].x = torch.cat([graph.x[:, :1] + noise, graph.x[:, 1:]], dim=1)
    return found
