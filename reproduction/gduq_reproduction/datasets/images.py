"""MNIST digits as superpixel graphs: coloured, rotated, and with noisy features.

An image is cut into SLIC superpixels, joined to their nearest neighbours. The graphs are **not**
those that GOOD colours (the MoNet superpixels in PyG's ``MNISTSuperpixels``): say so beside every
number.
"""

from __future__ import annotations

import gzip
import zlib
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy import ndimage
from torch import Tensor
from torch_geometric.data import Data

from gduq import shifts
from gduq.data import Splits, View, add_laplacian
from gduq.errors import not_installed
from gduq.graphs import Packed
from gduq.shifts.cuts import Cut, leave_out, limit_rows, make_splits
from gduq_reproduction.datasets.raw import Root, damaged, graphs_of, raw_file

__all__ = ["ANGLES", "NOISE", "colour_cut", "load_cmnist", "load_rotmnist", "neighbours",
           "read_mnist", "segment", "superpixels"]  # fmt: skip

_Floats = npt.NDArray[np.float64]

ANGLES = (10, 15, 25, 35, 40)  # degrees, counter-clockwise
NOISE = (0.1, 0.2, 0.3, 0.4)  # standard deviation of the noise on grey values
NODES, NEIGHBOURS, COMPACTNESS = 75, 8, 0.25
_URL = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_TRAIN, _TEST, _ID_VAL = 60_000, 10_000, 5_000
_RHO = (0.95, 0.9, 0.85, 0.8, 0.75)  # how often colour follows the digit, by training environment
_RHO_VAL = 0.3  # and in ood_val; never in ood_test
_BY_DIGIT = torch.tensor([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [0, 1, 1], [1, 0, 1],
                          [1, 0.5, 0.5], [0.5, 1, 0.5], [0.5, 0.5, 1], [1, 1, 0.5]])  # fmt: skip
_BY_ENVIRONMENT = _BY_DIGIT[[0, 1, 2, 3, 4, 6, 5]]  # the last two: of the OOD splits
_GRAPHS = (
    f"MNIST images cut into about {NODES} SLIC superpixels (scikit-image, compactness "
    f"{COMPACTNESS}), each joined to its {NEIGHBOURS} nearest neighbours in both directions. "
    "These are not the released MoNet superpixels, so numbers are not those published with them."
)


@lru_cache(maxsize=2)  # a process builds many parts
def read_mnist(kind: str, root: Root = None) -> npt.NDArray[np.uint8]:
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


def _files(kind: str, root: Root) -> list[Path]:
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
        edges = torch.from_numpy(neighbours(centre))
        graphs.append(Data(x=x, edge_index=edges, y=label.long().reshape(1), pos=x[:, 1:]))
    return graphs


def _graphs(root: Root, cut: Cut, degrees: int = 0) -> tuple[Packed, Tensor, Cut]:
    key = ("mnist/superpixels", 3, degrees)
    return graphs_of(root, key, cut, partial(_build, root, degrees))


def _build(root: Root, degrees: int, rows: Tensor) -> list[Data]:
    labels = torch.from_numpy(read_mnist("labels", root))
    graphs = superpixels(read_mnist("images", root)[rows.numpy()], labels[rows], degrees)
    return list(add_laplacian(Packed.pack(graphs)))  # for networks with encodings


# -- datasets ------------------------------------------------------------------------------------


def load_cmnist(shift: str, root: Root = None, seed: int = 0, limit: int | None = None) -> Splits:
    """CMNIST: superpixels of MNIST digits in colours that shift.

    ``x [n, 3]`` is the grey value times the colour of the graph, ``pos [n, 2]`` where a superpixel
    lies. ``covariate``: five colours in training, a new one in each OOD split; ``concept``: colour
    follows the digit in training, not in the OOD splits; ``no_shift``: all white. With ``limit``
    only that many of the 70 000 images, in proportion from every split, are used.
    """
    labels = torch.from_numpy(read_mnist("labels", root)).long()
    cut, colour, palette = colour_cut(labels, shift, seed)
    graphs, rows, cut = _graphs(root, limit_rows(cut, limit, seed))
    tint = palette[colour[rows]].repeat_interleave(graphs.num_nodes, dim=0)
    coloured = View(graphs.with_columns({"x": graphs.column("x")[:, :1] * tint}))
    name, text = f"cmnist/color/{shift}", f"Coloured digits, {shift} shift of the colour. {_GRAPHS}"
    splits = make_splits(coloured, cut, colour[rows], name=name, description=text)
    return splits.with_(class_names=tuple("0123456789"))


def colour_cut(labels: Tensor, shift: str, seed: int = 0) -> tuple[Cut, Tensor, Tensor]:
    """The rows of each split of CMNIST, the colour number of every image ``[n]``, and the palette
    ``[colours, 3]``, given the digit of every image."""
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
        return leave_out(pool, val, test, int(0.1 * n), seed), colour, _BY_ENVIRONMENT
    rho = torch.zeros(n)
    rho[val], rho[pool] = _RHO_VAL, torch.tensor(_RHO)[environment]
    follows = torch.rand(n, generator=generator) < rho
    chance = torch.randint(len(_BY_DIGIT), (n,), generator=generator)
    colour, held = torch.where(follows, labels, chance), int(0.15 * len(pool))
    return leave_out(pool, val, test, held, seed), colour, _BY_DIGIT


def load_rotmnist(kind: str, root: Root = None, seed: int = 0, limit: int | None = None) -> Splits:
    """Superpixels of upright digits for training, of rotated or noisy ones for testing.

    ``x [n, 3]`` is the grey value and the position (across, down). ``severities`` holds the 10 000
    test digits at every level of ``kind``, `ANGLES` of ``rotation`` or `NOISE` on the grey values;
    ``ood_test`` is the most severe one, and ``id_test`` the digits as they are. ``limit`` counts
    the graphs of train, id_val, id_test and ood_test together.
    """
    order = torch.randperm(_TRAIN, generator=torch.Generator().manual_seed(seed))
    train, val = torch.tensor_split(order, [_TRAIN - _ID_VAL])
    test = torch.arange(_TRAIN, _TRAIN + _TEST)
    cut = {"train": train, "id_val": val, "id_test": test, "ood_test": test}
    cut = limit_rows(cut, limit, seed)
    del cut["ood_test"]  # the digits of id_test
    graphs, _, parts = _graphs(root, cut)
    views: dict[str, Any] = {name: View(graphs[numbers]) for name, numbers in parts.items()}
    levels: dict[float, View] = {}
    if kind == "rotation":
        for angle in ANGLES:
            turned, _, own = _graphs(root, {"id_test": cut["id_test"]}, angle)
            levels[angle] = View(turned[own["id_test"]])
    else:
        x = (upright := graphs[parts["id_test"]]).column("x")
        noise = torch.randn(len(x), 1, generator=torch.Generator().manual_seed(seed))
        for std in NOISE:
            noisy = torch.cat([x[:, :1] + std * noise, x[:, 1:]], dim=1)
            levels[std] = View(upright.with_columns({"x": noisy}))
    last, most_severe = list(levels.items())[-1]
    return Splits(
        **views,
        ood_test=most_severe,
        severities={f"{kind}={level}": view for level, view in levels.items()},
        name=f"rotmnist/{kind}",
        description=f"Upright digits in training, {kind} in testing. {_GRAPHS}",
        class_names=tuple("0123456789"),
        domains={name: torch.zeros(rows.numel()) for name, rows in cut.items()}
        | {"ood_test": torch.full((len(most_severe),), float(last))},
    )
