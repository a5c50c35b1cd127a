"""Raw files, found under ``GDUQ_DATA`` or downloaded, and a cache of the graphs made from them."""

from __future__ import annotations

import hashlib
import os
import shutil
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import joblib  # type: ignore[import-untyped]
import torch
from filelock import FileLock
from torch import Tensor
from torch_geometric.data import Data, InMemoryDataset

from gduq.data.cache import cache_root
from gduq.errors import InputError

__all__ = ["build_rows", "cached", "cached_graphs", "damaged", "digest", "find_raw",
           "graph_set", "raw_file"]  # fmt: skip

_SMALL = 4000  # rows that are built faster in this process than in new ones
Key = tuple[object, ...]


def find_raw(relative: str, root: str | Path | None = None) -> Path | None:
    """A raw file or folder under ``GDUQ_DATA`` or under ``<root>/raw``, or ``None``."""
    given = os.environ.get("GDUQ_DATA")
    if given and not Path(given).expanduser().is_dir():
        raise InputError("a folder in GDUQ_DATA", given, "Correct it, or unset it to download.")
    folders = [Path(given).expanduser()] if given else []
    for folder in [*folders, cache_root(root) / "raw"]:
        if (folder / relative).exists():
            return (folder / relative).absolute()
    return None


def raw_file(
    relative: str,
    root: str | Path | None = None,
    url: str | Callable[[Path], None] = "",
) -> Path:
    """The raw file ``relative``, in the layout of PyG's own data folders. If it is nowhere it is
    downloaded from ``url`` to ``<root>/raw``, or written there by ``url`` if that is a function."""
    if (found := find_raw(relative, root)) is not None:
        return found
    path = cache_root(root) / "raw" / relative
    do = f"Put {path.name} under GDUQ_DATA, or check the network."
    if not url:
        raise InputError(f"the raw file {path.name}", "none, and no place to download it from", do)
    try:
        _write(path, url if callable(url) else partial(_download, url))
    except OSError as error:
        raise InputError(f"to download {path.name} from {url}", error, do) from error
    return path


def _download(url: str, path: Path) -> None:
    with urllib.request.urlopen(url) as source, path.open("wb") as file:
        shutil.copyfileobj(source, file)


def _write(path: Path, write: Callable[[Path], None]) -> None:
    """Let ``write`` make a file that appears when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def damaged(path: Path, expected: str, got: str) -> InputError:
    """The error for a raw file that is not what it should be."""
    return InputError(
        f"{expected} in the raw file {path}", got, "It is damaged: delete or replace it."
    )


# -- the cache -----------------------------------------------------------------------------------


def digest(paths: Iterable[Path]) -> str:
    """Short SHA-256 of files: part of the key of what is made from them."""
    total = hashlib.sha256()
    for path in paths:
        total.update(path.read_bytes())
    return total.hexdigest()[:16]


def _path(root: str | Path | None, key: Key) -> Path:
    name = hashlib.sha256(repr(key).encode()).hexdigest()[:16]
    return cache_root(root) / "reproduction" / f"{str(key[0]).replace('/', '-')}-{name}.pt"


def cached(
    root: str | Path | None, key: Key, build: Callable[[], Mapping[str, Any]]
) -> dict[str, Any]:
    """Tensors and texts by name from the cache, or from ``build()`` and then into it.

    The key begins with a name and holds all that matters: settings, version, `digest` of files.
    """
    path = _path(root, key)
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{path}.lock"):
        if not path.exists():
            made = dict(build())
            _write(path, lambda file: torch.save(made, file))
    found: dict[str, Any] = torch.load(path, weights_only=True, mmap=True)
    return found


def cached_graphs(
    root: str | Path | None, key: Key, build: Callable[[], Sequence[Data]]
) -> InMemoryDataset:
    """Graphs as a PyG dataset, from the cache or from ``build()``; numbers may be stored short."""

    def collate() -> dict[str, Any]:
        data, slices = InMemoryDataset.collate(list(build()))
        return {"data": data.to_dict(), "slices": dict(slices)}

    return graph_set(cached(root, key, collate))


def graph_set(found: Mapping[str, Any]) -> InMemoryDataset:
    """A PyG dataset of what its ``collate`` made: ``data`` and ``slices``."""
    data, made = Data.from_dict(found["data"]), InMemoryDataset()
    data.edge_index, data.x = data.edge_index.long(), data.x.float()
    made._data, made.slices = data, found["slices"]
    return made


def build_rows(
    root: str | Path | None,
    key: Key,
    rows: Tensor,
    total: int,
    build: Callable[[Tensor], Sequence[Data]],
) -> list[Data]:
    """The graphs of some rows of ``total``, from the cache or built on all cores; only these,
    unless all are wanted or there already. ``build`` must survive the way to another process."""
    if rows.numel() == total or _path(root, (*key, "all")).exists():
        every = torch.arange(total)
        return list(cached_graphs(root, (*key, "all"), partial(_built, build, every))[rows])
    some = hashlib.sha256(rows.numpy().tobytes()).hexdigest()
    return list(cached_graphs(root, (*key, some), partial(_built, build, rows)))


def _built(build: Callable[[Tensor], Sequence[Data]], rows: Tensor) -> list[Data]:
    jobs = 1 if rows.numel() < _SMALL else -1
    parts = joblib.Parallel(jobs)(joblib.delayed(build)(part) for part in rows.split(500))
    return [graph for part in parts for graph in part]
