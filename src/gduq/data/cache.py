"""Processed data on disk: memory-mapped safetensors, keyed, written atomically, never pickled.

`cached` keeps a set that is built in one go, `cached_tensors` what is not many graphs, and
`cached_shards` a set that takes minutes: its parts are written as they finish and survive a kill.

The key is a mapping of JSON values with at least ``name`` and ``version`` (of the code that builds;
raise it when the output changes). Put in every parameter that matters, and the `digest` of the raw
files: a new key is a new file. A file that is damaged is built again, with a warning. Two processes
that need the same set build it once (file lock) or, where locks do not work, twice without harm.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor
from torch_geometric.data import Data

from gduq import tensorfile
from gduq.data import parallel
from gduq.data.graphfile import join_files, open_graphs, write_graphs
from gduq.data.packed import Packed
from gduq.disk import drop_stale, locked
from gduq.errors import InputError, warn_user
from gduq.tensorfile import DamagedFile

__all__ = ["cache_path", "cache_root", "cached", "cached_shards", "cached_tensors", "digest"]

FORMAT = 3  # of the files written here
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
        while piece := file.read(tensorfile.PIECE):
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
    return json.dumps({"format": FORMAT, **key}, sort_keys=True)


def cached_tensors(
    root: str | Path | None, key: Mapping[str, Any], build: Callable[[], Mapping[str, Tensor]]
) -> dict[str, Tensor]:
    """Named tensors from the cache, or from ``build()`` and then into it."""
    path, text = cache_path(root, key), _key_text(key)

    def load() -> dict[str, Tensor]:
        tensors, words = tensorfile.read(path)
        if words.get("key") != text:
            raise DamagedFile("it was made for another key")
        return tensors

    return _load_or_build(path, lambda: tensorfile.write(path, build(), {"key": text}), load)


def cached(
    root: str | Path | None,
    key: Mapping[str, Any],
    build: Callable[[], Packed | Sequence[Data]],
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
        path, lambda: write_graphs(path, build(), key=text), partial(open_graphs, path, text)
    )


def cached_shards(
    root: str | Path | None,
    key: Mapping[str, Any],
    n_shards: int,
    build_shard: Callable[[int], Packed | Sequence[Data]],
    workers: int | None = None,
) -> Packed:
    """Graphs from the cache, or from ``n_shards`` parts that are built in processes and kept.

    The set is the graphs of all parts in order, ``extras`` joined likewise. ``build_shard(i)`` runs
    in another process for more than one worker (``None``: one per core), so hand over small
    arguments: ``functools.partial`` of a module-level function.
    """
    if n_shards < 1:
        raise InputError("n_shards >= 1", n_shards)
    path, text = cache_path(root, key), _key_text(key)
    folder = path.with_suffix(f".{n_shards}-parts")

    def make() -> None:
        folder.mkdir(parents=True, exist_ok=True)
        files = [folder / f"{i:05d}.safetensors" for i in range(n_shards)]
        todo = [
            i for i, f in enumerate(files) if _try_load(f, partial(open_graphs, f, text)) is None
        ]
        job = partial(_build_part, build_shard, files, text)
        parallel.run(job, todo, workers, f"{key['name']} ({n_shards} parts)")
        join_files(path, files, text)
        with contextlib.suppress(OSError):  # where locks fail another builder may be at it too
            for file in list(folder.iterdir()):
                file.unlink(missing_ok=True)
            folder.rmdir()

    return _load_or_build(path, make, partial(open_graphs, path, text))


def _build_part(
    build: Callable[[int], Packed | Sequence[Data]], files: Sequence[Path], text: str, i: int
) -> None:
    write_graphs(files[i], build(i), key=text)


def _load_or_build(path: Path, make: Callable[[], None], load: Callable[[], _T]) -> _T:
    if (found := _try_load(path, load)) is not None:
        return found
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path):
        # another process may have built it meanwhile
        if (found := _try_load(path, load, quiet=True)) is not None:
            return found
        drop_stale(path)
        try:
            make()
            return load()
        except (OSError, DamagedFile):
            # where locks fail another builder may have finished, and cleared its parts away
            if (found := _try_load(path, load, quiet=True)) is not None:
                return found
            raise


def _try_load(path: Path, load: Callable[[], _T], quiet: bool = False) -> _T | None:
    """What the file holds; ``None`` when there is none or, with a warning, when it is damaged."""
    try:
        return load() if path.exists() else None
    except DamagedFile as error:
        if not quiet:
            warn_user(f"the cache file {path} is damaged ({error}); it is built again")
        return None
