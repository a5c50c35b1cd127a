"""MNIST digits as superpixel graphs: coloured, rotated, and with noisy features.

An image is cut into SLIC superpixels, joined to their nearest neighbours. The graphs are **not**
those that GOOD colours (the MoNet superpixels in PyG's ``MNISTSuperpixels``): say so beside every
number.
"""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from importlib import import_module
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

__all__ = ["ANGLES", "MNIST", "NOISE", "colour_cut", "load_cmnist", "load_rotmnist", "neighbours",
           "read_idx", "read_labels", "rotate", "segment", "split_views",
           "superpixels"]  # fmt: skip

_Floats = npt.NDArray[np.float64]
Cut = dict[str, Tensor]

NODES, NEIGHBOURS, COMPACTNESS = 75, 8, 0.25
_URL = "https://ossci-datasets.s3.amazonaws.com/mnist/"
# Shape, and SHA-256 of the unpacked file: packed sizes differ from one mirror to the next.
MNIST: dict[str, tuple[tuple[int, ...], str]] = {
    "train-images-idx3-ubyte.gz": (
        (60_000, 28, 28),
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    ),
    "t10k-images-idx3-ubyte.gz": (
        (10_000, 28, 28),
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    ),
    "train-labels-idx1-ubyte.gz": (
        (60_000,),
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    ),
    "t10k-labels-idx1-ubyte.gz": (
        (10_000,),
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
}
ANGLES = (10, 15, 25, 35, 40)  # degrees, counter-clockwise
NOISE = (0.1, 0.2, 0.3, 0.4)  # standard deviation of the noise on grey values
_TRAIN, _TEST, _ID_VAL = 60_000, 10_000, 5_000
_DIGITS = tuple(str(digit) for digit in range(10))
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


# -- raw files -----------------------------------------------------------------------------------


def read_idx(path: Path, shape: tuple[int, ...], sha256: str) -> npt.NDArray[np.uint8]:
    """Unsigned bytes of a gzipped IDX file, after its header of a number and the axes' lengths."""
    expected = f"bytes of shape {list(shape)} and SHA-256 {sha256}"
    try:
        content = gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise damaged(path, expected, f"no sound gzip file ({error})") from error
    if hashlib.sha256(content).hexdigest() != sha256:
        raise damaged(path, expected, f"another digest of {len(content)} bytes")
    return np.frombuffer(content, np.uint8, offset=4 + 4 * len(shape)).reshape(shape)


def _files(kind: str, root: str | Path | None) -> list[Path]:
    names = [name for name in MNIST if kind in name]
    return [raw_file(f"MNIST/raw/{name}", root, url=_URL + name) for name in names]


@lru_cache(maxsize=2)  # a process builds many parts
def _read(kind: str, root: str | Path | None) -> npt.NDArray[np.uint8]:
    """All 70 000 images or digits, those for training first."""
    return np.concatenate([read_idx(path, *MNIST[path.name]) for path in _files(kind, root)])


def read_labels(root: str | Path | None = None) -> Tensor:
    """All 70 000 digits, those for training first."""
    return torch.from_numpy(_read("labels", root)).long()


# -- from images to graphs -----------------------------------------------------------------------


def rotate(image: _Floats, degrees: float) -> _Floats:
    """Turn an image ``[H, W]`` counter-clockwise about its middle; what comes in is black."""
    if degrees == 0:
        return image
    turned: _Floats = ndimage.rotate(image, degrees, reshape=False, order=1, cval=0.0)
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


def superpixels(images: npt.NDArray[np.uint8], labels: Tensor, degrees: float = 0.0) -> list[Data]:
    """Superpixel graphs of images ``[G, H, W]``, each rotated before it is cut.

    A graph has ``x [n, 3]`` (grey value, across, down), ``edge_index`` and its label ``y [1]``.
    """
    graphs = []
    for image, label in zip(images, labels, strict=True):
        grey, centre = segment(rotate(image / 255.0, degrees))
        x = torch.from_numpy(np.column_stack([grey, centre]).astype(np.float32))
        edges = torch.from_numpy(neighbours(centre).astype(np.int16))
        graphs.append(Data(x=x, edge_index=edges, y=label.long().reshape(1)))
    return graphs


def _graphs(root: str | Path | None, rows: Tensor, degrees: int = 0) -> list[Data]:
    """Graphs of some images: of all 70 000 when upright, else of the 10 000 for testing."""
    first, total = (_TRAIN, _TEST) if degrees else (0, _TRAIN + _TEST)
    build = partial(_build, None if root is None else str(root), degrees, first)
    return build_rows(root, ("mnist/superpixels", 1, degrees), rows, total, build)


def _build(root: str | None, degrees: int, first: int, rows: Tensor) -> list[Data]:
    rows = rows + first
    return superpixels(_read("images", root)[rows.numpy()], read_labels(root)[rows], degrees)


def _with_x(graph: Data, x: Tensor) -> Data:
    """The same graph with other features; where a superpixel lies is ``pos``."""
    return Data(x=x, edge_index=graph.edge_index, y=graph.y, pos=graph.x[:, 1:])


def split_views(cut: Cut, graphs: Sequence[Data]) -> dict[str, Any]:
    """A view of each part of a cut, given the graphs of all its rows one after the other."""
    ends = np.cumsum([len(rows) for rows in cut.values()]).tolist()
    return {
        name: View(graphs[end - len(rows) : end])
        for (name, rows), end in zip(cut.items(), ends, strict=True)
    }


def _sources(root: str | Path | None) -> tuple[str, ...]:
    return tuple(str(path) for kind in ("images", "labels") for path in _files(kind, root))


# -- datasets ------------------------------------------------------------------------------------


def load_cmnist(
    shift: str = "covariate",
    root: str | Path | None = None,
    seed: int = 0,
    limit: int | None = None,
) -> Splits:
    """CMNIST: superpixels of MNIST digits in colours that shift.

    ``x [n, 3]`` is the grey value times the colour of the graph, ``pos [n, 2]`` where a superpixel
    lies. ``shift`` is ``covariate`` (five colours in training, a new one in each OOD split),
    ``concept`` (colour follows the digit in training and no longer does in the OOD splits) or
    ``no_shift`` (all white). With ``limit`` only that many of the 70 000 images, in proportion from
    every split, are cut into superpixels.
    """
    cut, colour, palette = colour_cut(read_labels(root), shift, seed)
    cut = limit_rows(cut, limit, seed)
    rows = torch.cat(list(cut.values()))
    tints = palette[colour[rows]]
    graphs = [_with_x(g, g.x[:, :1] * t) for g, t in zip(_graphs(root, rows), tints, strict=True)]
    return Splits(
        **split_views(cut, graphs),
        name=f"cmnist/color/{shift}",
        description=f"Coloured digits under a {shift} shift of the colour. {_GRAPHS}",
        class_names=_DIGITS,
        domains={name: colour[rows] for name, rows in cut.items()},
        sources=_sources(root),
    )


def colour_cut(labels: Tensor, shift: str, seed: int = 0) -> tuple[Cut, Tensor, Tensor]:
    """The rows of each split of CMNIST, the colour number of every image ``[n]``, and the palette
    ``[colours, 3]``, given the digit of every image."""
    one_of("a shift", shift, ("covariate", "concept", "no_shift"))
    n = labels.numel()
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(n, generator=generator)
    colour = torch.zeros(n, dtype=torch.long)
    if shift == "no_shift":
        return shifts.no_shift(n, seed=seed), colour, torch.ones(1, 3)
    environments = len(_RHO)
    if shift == "covariate":
        pool, val, test = torch.tensor_split(order, [int(0.8 * n), int(0.9 * n)])
        colour[pool] = _environment(pool.numel(), environments)
        colour[val], colour[test] = environments, environments + 1
        return leave_out(pool, val, test, int(0.1 * n), seed), colour, torch.tensor(_BY_ENVIRONMENT)
    pool, val, test = torch.tensor_split(order, [int(0.6 * n), int(0.8 * n)])
    rho = torch.zeros(n)
    rho[val] = _RHO_VAL
    rho[pool] = torch.tensor(_RHO)[_environment(pool.numel(), environments)]
    follows = torch.rand(n, generator=generator) < rho
    chance = torch.randint(len(_BY_DIGIT), (n,), generator=generator)
    colour = torch.where(follows, labels, chance)
    held = int(0.15 * pool.numel())
    return leave_out(pool, val, test, held, seed), colour, torch.tensor(_BY_DIGIT)


def _environment(n: int, environments: int) -> Tensor:
    """The environment of each of n shuffled rows: equal parts, the last takes the rest."""
    size = max(1, n // environments)
    return torch.arange(n).div(size, rounding_mode="floor").clamp(max=environments - 1)


def load_rotmnist(
    kind: str = "rotation",
    root: str | Path | None = None,
    seed: int = 0,
    limit: int | None = None,
) -> Splits:
    """Superpixels of upright digits for training, of rotated or noisy ones for testing.

    ``x [n, 3]`` is the grey value and the position (across, down). ``severities`` holds the 10 000
    test digits at every level of ``kind``, `ANGLES` of ``rotation`` or `NOISE` on the grey values;
    ``ood_test`` is the most severe one, and ``id_test`` the digits as they are. ``limit`` counts
    the graphs of train, id_val and id_test together.
    """
    one_of("a kind", kind, ("rotation", "noise"))
    order = torch.randperm(_TRAIN, generator=torch.Generator().manual_seed(seed))
    train, val = torch.tensor_split(order, [_TRAIN - _ID_VAL])
    test = torch.arange(_TRAIN, _TRAIN + _TEST)
    cut = limit_rows({"train": train, "id_val": val, "id_test": test}, limit, seed)
    graphs = _graphs(root, torch.cat(list(cut.values())))
    views = split_views(cut, [_with_x(graph, graph.x) for graph in graphs])
    upright = graphs[-len(cut["id_test"]) :]
    levels = {}
    for level in ANGLES if kind == "rotation" else NOISE:
        if kind == "rotation":
            turned = _graphs(root, cut["id_test"] - _TRAIN, int(level))
            levels[f"rotation={level}"] = View([_with_x(graph, graph.x) for graph in turned])
        else:
            levels[f"noise={level}"] = View(_noisy(upright, level, seed))
    return Splits(
        **views,
        ood_test=levels[f"{kind}={level}"],
        severities=levels,
        name=f"rotmnist/{kind}",
        description=f"Upright digits in training, {kind} in testing. {_GRAPHS}",
        class_names=_DIGITS,
        domains={
            **{name: torch.zeros(rows.numel()) for name, rows in cut.items()},
            "ood_test": torch.full((len(upright),), float(level)),
        },
        sources=_sources(root),
    )


def _noisy(graphs: Sequence[Data], std: float, seed: int) -> list[Data]:
    """Gaussian noise on the grey values; the same draw, scaled, at every level."""
    sizes = [len(graph.x) for graph in graphs]
    noise = torch.randn(sum(sizes), generator=torch.Generator().manual_seed(seed)).split(sizes)
    zeros = [torch.zeros(size, 2) for size in sizes]
    return [
        _with_x(graph, graph.x + std * torch.cat([own[:, None], still], dim=1))
        for graph, own, still in zip(graphs, noise, zeros, strict=True)
    ]
