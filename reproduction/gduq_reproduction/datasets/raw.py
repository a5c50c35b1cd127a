"""Raw files, found under ``GDUQ_DATA`` or downloaded, and a cache of the graphs made from them."""

from __future__ import annotations

import hashlib
import os
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

import joblib  # type: ignore[import-untyped]
import torch
from torch import Tensor
from torch_geometric.data import Data

import gduq.data
from gduq._io import atomic_path, locked
from gduq.data.catalog import cache_root
from gduq.errors import InputError
from gduq.graphs import Packed
from gduq.shifts.cuts import Cut

__all__ = ["Root", "cached_graphs", "damaged", "digest", "find_raw", "graphs_of",
           "raw_file"]  # fmt: skip

_SMALL = 4000  # rows that are built faster in this process than in new ones
Root = str | Path | None
Key = tuple[object, ...]


def find_raw(relative: str, root: Root = None) -> Path | None:
    """A raw file or folder under ``GDUQ_DATA`` or under ``<root>/raw``, or ``None``."""
    given = os.environ.get("GDUQ_DATA")
    if given and not Path(given).expanduser().is_dir():
        raise InputError("a folder in GDUQ_DATA", given, "Correct it, or unset it to download.")
    folders = [Path(given).expanduser()] if given else []
    found = ((folder / relative).absolute() for folder in [*folders, cache_root(root) / "raw"])
    return next((path for path in found if path.exists()), None)


def raw_file(relative: str, root: Root = None, url: str = "") -> Path:
    """The raw file ``relative``, in the layout of PyG's own data folders. If it is nowhere it is
    downloaded from ``url`` to ``<root>/raw``."""
    if (found := find_raw(relative, root)) is not None:
        return found
    path = cache_root(root) / "raw" / relative
    do = f"Put {path.name} under GDUQ_DATA as {relative}, or check the network."
    if not url:
        raise InputError(f"the raw file {path.name}", "none, and no place to download it from", do)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with urllib.request.urlopen(url) as source, atomic_path(path) as part:
            part.write_bytes(source.read())
    except OSError as error:
        raise InputError(f"to download {path.name} from {url}", error, do) from error
    return path


def damaged(path: Path, expected: str, got: object) -> InputError:
    """The error for a raw file that is not what it should be."""
    do = "It is damaged: delete or replace it."
    return InputError(f"{expected} in the raw file {path}", got, do)


# -- the cache -----------------------------------------------------------------------------------


def digest(paths: Iterable[Path]) -> str:
    """Short SHA-256 of files: part of the key of what is made from them."""
    total = hashlib.sha256()
    for path in paths:
        total.update(path.read_bytes())
    return total.hexdigest()[:16]


def cached_graphs(root: Root, key: Key, build: Callable[[], Sequence[Data]]) -> Packed:
    """Graphs from the cache, or from ``build()`` and then into it: a file of `gduq.data.save`.

    The key begins with a name and holds all that matters: settings, version, `digest` of files.
    """
    name = f"{str(key[0]).replace('/', '-')}-{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}"
    path = cache_root(root) / "reproduction" / f"{name}.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path):
        if not path.exists():
            gduq.data.save(build(), path)
    return gduq.data.read(path)


def graphs_of(
    root: Root, key: Key, cut: Cut, build: Callable[[Tensor], Sequence[Data]]
) -> tuple[Packed, Tensor, Cut]:
    """The graphs of a cut from the cache, or built on all cores; the number of the row that each is
    of, and the cut in numbers of these graphs. ``build`` makes the graphs of some rows, and must
    survive the way to another process."""
    rows = torch.cat(list(cut.values())).unique()
    some = hashlib.sha256(rows.numpy().tobytes()).hexdigest()
    graphs = cached_graphs(root, (*key, some), partial(_built, build, rows))
    return graphs, rows, {name: torch.searchsorted(rows, part) for name, part in cut.items()}


def _built(build: Callable[[Tensor], Sequence[Data]], rows: Tensor) -> list[Data]:
    jobs = 1 if rows.numel() < _SMALL else -1
    parts = joblib.Parallel(jobs)(joblib.delayed(build)(part) for part in rows.split(500))
    return [graph for part in parts for graph in part]
