"""The MNIST files: gzip around IDX, checked down to the last byte."""

from __future__ import annotations

import gzip
import hashlib
import math
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gduq.paper.datasets.raw import damaged, raw_file

__all__ = ["MNIST", "mnist_files", "read_idx", "read_labels", "read_mnist"]

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
