"""MNIST digits as superpixel graphs: coloured, rotated, and with noisy features.

The graphs are **not** those that GOOD colours (the MoNet superpixels in PyG's
``MNISTSuperpixels``): see `gduq_reproduction.datasets.superpixels`, and say so beside every number.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import zlib
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gduq.data.catalog import SHIFTS
from gduq.data.packed import Packed
from gduq.data.splits import Splits
from gduq.data.subset import build_rows, shrink, views_of
from gduq.data.view import View
from gduq.shifts.cuts import Cut, leave_out, no_shift
from gduq.whole import one_of
from gduq_reproduction.datasets.raw import damaged, raw_file
from gduq_reproduction.datasets.superpixels import COMPACTNESS, NEIGHBOURS, NODES, superpixels

__all__ = ["ANGLES", "MNIST", "NOISE", "colour_cut", "load_cmnist", "load_rotmnist", "mnist_files",
           "read_idx", "read_labels", "read_mnist"]  # fmt: skip

_URL = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_BYTES = 8  # IDX's code for unsigned bytes

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
VERSION = 1  # of the superpixel graphs; raise it when they change
_TRAIN, _TEST, _ID_VAL = 60_000, 10_000, 5_000
_DIGITS = tuple(str(digit) for digit in range(10))
_RHO = (0.95, 0.9, 0.85, 0.8, 0.75)  # how often colour follows the digit, by training environment
_RHO_VAL, _RHO_TEST = 0.3, 0.0
_WHITE = ((1.0, 1.0, 1.0),)
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


def read_idx(
    path: Path, shape: tuple[int, ...], sha256: str | None = None
) -> npt.NDArray[np.uint8]:
    """Unsigned bytes of a gzipped IDX file, or `InputError` for a file of any other content.

    The format: two zero bytes, the code 8 for bytes, the number of axes, the length of each axis
    as a big-endian 32-bit number, then the values.
    """
    size = 4 + 4 * len(shape) + math.prod(shape)
    expected = f"{size} unpacked bytes" + (f" of SHA-256 {sha256}" if sha256 else "")
    try:
        with gzip.open(path) as file:
            content = file.read(size + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise damaged(path, expected, f"no sound gzip file ({error})") from error
    if len(content) != size:
        more = "more" if len(content) > size else f"{len(content)} bytes"
        raise damaged(path, expected, more)
    axes = np.frombuffer(content, dtype=">u4", count=1 + len(shape))
    if axes.tolist() != [_BYTES * 256 + len(shape), *shape]:
        raise damaged(path, f"an IDX header of bytes {list(shape)}", f"the numbers {axes.tolist()}")
    if sha256 is not None and hashlib.sha256(content).hexdigest() != sha256:
        raise damaged(path, expected, "another digest")
    return np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * len(shape)).reshape(shape)


def mnist_files(kind: str, root: str | Path | None = None) -> list[Path]:
    """The files of ``"images"`` or ``"labels"``, training set first, downloaded if need be."""
    names = [name for name in MNIST if kind in name]
    return [raw_file(f"MNIST/raw/{name}", root, url=_URL + name) for name in names]


def read_mnist(root: str | Path | None = None) -> tuple[npt.NDArray[np.uint8], Tensor]:
    """All 70 000 images ``[70000, 28, 28]`` and digits ``[70000]``, those for training first."""
    images = [read_idx(path, *MNIST[path.name]) for path in mnist_files("images", root)]
    return np.concatenate(images), read_labels(root)


def read_labels(root: str | Path | None = None) -> Tensor:
    """All 70 000 digits, those for training first."""
    labels = [read_idx(path, *MNIST[path.name]) for path in mnist_files("labels", root)]
    return torch.from_numpy(np.concatenate(labels)).long()


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
    cut = shrink(cut, limit, seed)
    graphs = _coloured(_superpixels(root, torch.cat(list(cut.values()))), colour, palette, cut)
    return Splits(
        **views_of(cut, graphs),
        name=f"cmnist/color/{shift}",
        description=f"Coloured digits under a {shift} shift of the colour. {_GRAPHS}",
        class_names=_DIGITS,
        domains={name: colour[rows] for name, rows in cut.items()},
        sources=_sources(root),
    )


def colour_cut(labels: Tensor, shift: str, seed: int = 0) -> tuple[Cut, Tensor, Tensor]:
    """The rows of each split of CMNIST, the colour number of every image ``[n]``, and the palette
    ``[colours, 3]``, given the digit of every image."""
    one_of("a shift", shift, SHIFTS)
    n = labels.numel()
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(n, generator=generator)
    colour = torch.zeros(n, dtype=torch.long)
    if shift == "no_shift":
        return no_shift(n, seed=seed), colour, torch.tensor(_WHITE)
    environments = len(_RHO)
    if shift == "covariate":
        pool, val, test = torch.tensor_split(order, [int(0.8 * n), int(0.9 * n)])
        colour[pool] = _environment(pool.numel(), environments)
        colour[val], colour[test] = environments, environments + 1
        return leave_out(pool, val, test, int(0.1 * n), seed), colour, torch.tensor(_BY_ENVIRONMENT)
    pool, val, test = torch.tensor_split(order, [int(0.6 * n), int(0.8 * n)])
    rho = torch.full((n,), _RHO_TEST)
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


def _coloured(packed: Packed, colour: Tensor, palette: Tensor, cut: Cut) -> Packed:
    """Grey value times colour as ``x``, position as ``pos``."""
    table = torch.zeros(packed.ptrs["node"].numel() - 1, 3)
    table[packed.numbers] = palette[colour[torch.cat(list(cut.values()))]]
    x = packed.tensors["x"]
    tint = torch.repeat_interleave(table, packed.ptrs["node"].diff(), dim=0, output_size=len(x))
    return _with_x(packed, x[:, :1] * tint)


def _with_x(packed: Packed, x: Tensor | None = None) -> Packed:
    """Positions as ``pos``, and other features if given."""
    old = packed.tensors["x"]
    tensors = {**packed.tensors, "x": old if x is None else x, "pos": old[:, 1:]}
    return replace(packed, tensors=tensors, layout={**packed.layout, "pos": "node"})


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
    cut = shrink({"train": train, "id_val": val, "id_test": test}, limit, seed)
    graphs = _superpixels(root, torch.cat(list(cut.values())))
    views = views_of(cut, _with_x(graphs))
    levels, worst = {}, (ANGLES if kind == "rotation" else NOISE)[-1]
    if kind == "rotation":
        for angle in ANGLES:
            turned = _superpixels(root, cut["id_test"] - _TRAIN, angle)
            levels[f"rotation={angle}"] = View(_with_x(turned))
    else:
        for std in NOISE:
            levels[f"noise={std}"] = View(_noisy(views["id_test"].graphs, std, seed))
    return Splits(
        **views,
        ood_test=levels[f"{kind}={worst}"],
        severities=levels,
        name=f"rotmnist/{kind}",
        description=f"Upright digits in training, {kind} in testing. {_GRAPHS}",
        class_names=_DIGITS,
        domains={
            **{name: torch.zeros(rows.numel()) for name, rows in cut.items()},
            "ood_test": torch.full((len(views["id_test"]),), float(worst)),
        },
        sources=_sources(root),
    )


def _noisy(packed: Packed, std: float, seed: int) -> Packed:
    """Gaussian noise on the grey values; the same draw, scaled, at every level."""
    packed = packed.materialise()
    x = packed.tensors["x"].clone()
    x[:, 0] += std * torch.randn(len(x), generator=torch.Generator().manual_seed(seed))
    return replace(packed, tensors={**packed.tensors, "x": x})


# -- the graphs, cached --------------------------------------------------------------------------


def _superpixels(root: str | Path | None, rows: Tensor, degrees: int = 0) -> Packed:
    """Graphs of some images: of all 70 000 when upright, else of the 10 000 for testing."""
    first, total = (_TRAIN, _TEST) if degrees else (0, _TRAIN + _TEST)
    key = {"name": "mnist/superpixels", "version": VERSION, "degrees": degrees}
    build = partial(_build, None if root is None else str(root), degrees, first)
    # about a millisecond an image: for a few, starting processes takes longer than the work
    return build_rows(root, key, rows, total, build, workers=None if len(rows) > 4000 else 1)


def _build(root: str | None, degrees: int, first: int, rows: Tensor) -> Packed:
    images, labels = _mnist(root)
    return superpixels(images[rows.numpy() + first], labels[rows + first], degrees)


@lru_cache(maxsize=1)  # a process builds many parts
def _mnist(root: str | None) -> tuple[npt.NDArray[np.uint8], Tensor]:
    return read_mnist(root)


def _sources(root: str | Path | None) -> tuple[str, ...]:
    return tuple(str(path) for kind in ("images", "labels") for path in mnist_files(kind, root))
