"""Processed data on disk: memory-mapped safetensors, keyed, written atomically, never pickled.

`cached` keeps a set of graphs, `cached_tensors` what is not many graphs. The key is a mapping of
JSON values with at least ``name`` and ``version`` (of the code that builds; raise it when the
output changes). Put in every parameter that matters, and the `digest` of the raw files: a new key
is a new file. A file that is damaged is built again, with a warning. Two processes that need the
same set build it once (file lock).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor
from torch_geometric.data import Data

from gduq._io import DamagedFile, locked, read_tensors, write_tensors
from gduq.data.graphfile import open_graphs, write_graphs
from gduq.errors import InputError, warn_user
from gduq.graphs import Packed

__all__ = ["cache_path", "cache_root", "cached", "cached_tensors", "digest"]

_FORMAT = 4  # of the files written here
_T = TypeVar("_T")


def cache_root(root: str | Path | None = None) -> Path:
    """The folder for processed data: ``root``, else ``GDUQ_CACHE``, else the user's cache folder.

    It is made if need be; a folder that cannot be written raises `InputError`.
    """
    if root is None:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        root = os.environ.get("GDUQ_CACHE") or Path(home) / "gduq"
    folder = Path(root).expanduser().absolute()
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    if not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
        do = "Pass root= or set GDUQ_CACHE."
        raise InputError("a folder that can be written as root", folder, do)
    return folder


def digest(paths: Iterable[Path]) -> str:
    """Short SHA-256 of files, in order: part of the key of what is made from them."""
    total = hashlib.sha256()
    for path in paths:
        stat = path.stat()
        total.update(_file_digest(path, stat.st_size, stat.st_mtime_ns, stat.st_ino))
    return total.hexdigest()[:16]


@lru_cache(maxsize=256)
def _file_digest(path: Path, *state: int) -> bytes:
    """Digest of a file; read once as long as its ``state`` is the same."""
    total = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 22):
            total.update(piece)
    return total.digest()


def cache_path(root: str | Path | None, key: Mapping[str, Any]) -> Path:
    """The file that a key names.

    Example:
        >>> import tempfile
        >>> cache_path(tempfile.mkdtemp(), {"name": "motif/size", "version": 1}).name
        'motif-size-....safetensors'
    """
    missing = {"name", "version"} - key.keys()
    if missing:
        raise InputError("a cache key with name and version", f"none of {sorted(missing)}")
    short = hashlib.sha256(_key_text(key).encode()).hexdigest()[:16]
    slug = re.sub(r"[^A-Za-z0-9.]+", "-", str(key["name"])).strip("-")
    return cache_root(root) / "processed" / f"{slug}-{short}.safetensors"


def _key_text(key: Mapping[str, Any]) -> str:
    return json.dumps({"format": _FORMAT, **key}, sort_keys=True)


def cached_tensors(
    root: str | Path | None, key: Mapping[str, Any], build: Callable[[], Mapping[str, Tensor]]
) -> dict[str, Tensor]:
    """Named tensors from the cache, or from ``build()`` and then into it."""
    path, text = cache_path(root, key), _key_text(key)

    def load() -> dict[str, Tensor]:
        tensors, texts = read_tensors(path)
        if texts.get("key") != text:
            raise DamagedFile("it was made for another key")
        return tensors

    return _load_or_build(path, lambda: write_tensors(path, build(), {"key": text}), load)


def cached(
    root: str | Path | None, key: Mapping[str, Any], build: Callable[[], Sequence[Data]]
) -> Packed:
    """Graphs from the cache, or from ``build()`` and then into it.

    Example:
        >>> import tempfile, torch
        >>> graph = Data(x=torch.ones(2, 1), edge_index=torch.tensor([[0], [1]]), y=0)
        >>> key = {"name": "example", "version": 1, "seed": 0}
        >>> root = tempfile.mkdtemp()
        >>> len(cached(root, key, lambda: [graph] * 3)), len(cached(root, key, lambda: []))
        (3, 3)
    """
    path, text = cache_path(root, key), _key_text(key)
    return _load_or_build(
        path, lambda: write_graphs(path, build(), key=text), lambda: open_graphs(path, text)
    )


def _load_or_build(path: Path, make: Callable[[], None], load: Callable[[], _T]) -> _T:
    def found(quiet: bool) -> _T | None:
        try:
            return load() if path.exists() else None
        except DamagedFile as error:
            if not quiet:
                warn_user(f"the cache file {path} is damaged ({error}); it is built again")
            return None

    there = found(quiet=False)
    if there is None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path):
            there = found(quiet=True)  # another process may have built it meanwhile
            if there is None:
                make()
                there = load()
    return there
