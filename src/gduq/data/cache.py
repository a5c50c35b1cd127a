"""Processed data on disk: memory-mapped safetensors, keyed, written atomically, never pickled.

How to use it in a loader:

* a set that is built in one go: ``packed = cached(root, key, build)``, where ``build()`` returns a
  `Packed` or a list of ``Data``;
* tensors that are not many graphs (one sparse feature matrix): `cached_tensors`;
* a set that takes minutes: `cached_shards`. ``build_shard(i)`` makes the i-th part; parts are built
  in worker processes, written as they finish, and survive a kill: the next call builds only the
  missing ones. At the end they are streamed into one file, so memory holds one shard a worker.

The key is a mapping of JSON values with at least ``name`` and ``version`` (of the code that builds;
raise it when the output changes). Put in every parameter that matters, and the `digest` of the raw
files: a new key is a new file. A file that is damaged is built again, with a warning. Two processes
that need the same set build it once (file lock) or, where locks do not work, twice without harm.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor
from torch_geometric.data import Data

from gduq.data import parallel, tensorfile
from gduq.data.packed import Packed, cat_dim, join_layouts
from gduq.data.tensorfile import DamagedFile, Stream
from gduq.errors import InputError

__all__ = [
    "cache_path",
    "cache_root",
    "cached",
    "cached_shards",
    "cached_tensors",
    "digest",
]

FORMAT = 1  # of the files written here
_T = TypeVar("_T")


def cache_root(root: str | Path | None = None) -> Path:
    """The folder for processed data: ``root``, else ``GDUQ_CACHE``, else the user's cache folder.

    It is made if need be; a folder that cannot be written raises `InputError`.
    """
    if root is None:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        root = os.environ.get("GDUQ_CACHE") or Path(home) / "gduq"
    folder = Path(root).expanduser().absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        writable = os.access(folder, os.W_OK | os.X_OK)
    except OSError:
        writable = False
    if not writable:
        raise InputError(
            "a folder that can be written as root", folder, "Pass root= or set GDUQ_CACHE."
        )
    return folder


def digest(paths: Iterable[Path]) -> str:
    """Short SHA-256 of files, in order: part of the key of what is made from them."""
    total = hashlib.sha256()
    for path in paths:
        total.update(_file_digest(path, _state(path)))
    return total.hexdigest()[:16]


@lru_cache(maxsize=256)
def _file_digest(path: Path, state: str) -> bytes:
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


def cached_tensors(
    root: str | Path | None, key: Mapping[str, Any], build: Callable[[], Mapping[str, Tensor]]
) -> dict[str, Tensor]:
    """Named tensors from the cache, or from ``build()`` and then into it."""
    return _load_or_build(
        cache_path(root, key), key, lambda path: _write(path, key, build()), lambda t, _: t
    )


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
    return _load_or_build(
        cache_path(root, key), key, lambda path: _write_packed(path, key, build()), _as_packed
    )


def cached_shards(
    root: str | Path | None,
    key: Mapping[str, Any],
    n_shards: int,
    build_shard: Callable[[int], Packed | Sequence[Data]],
    workers: int | None = None,
    progress: bool | None = None,
) -> Packed:
    """Graphs from the cache, or from ``n_shards`` parts that are built in processes and kept.

    Args:
        root: Cache folder, see `cache_root`.
        key: See the module.
        n_shards: Number of parts; the set is their graphs in order, ``extras`` joined likewise.
        build_shard: Makes part i of ``range(n_shards)``. Runs in another process for more than one
            worker, so hand over small arguments (``functools.partial`` of a module-level function).
        workers: Processes; ``None`` means one a core, 1 stays in this process.
        progress: Show a progress bar; ``None`` means when a person is looking.
    """
    if n_shards < 1:
        raise InputError("n_shards >= 1", n_shards)

    def make(path: Path) -> None:
        folder = path.with_suffix(f".{n_shards}-parts")
        folder.mkdir(parents=True, exist_ok=True)
        files = [folder / f"{i:05d}.safetensors" for i in range(n_shards)]
        todo = [i for i in range(n_shards) if not _sound(files[i], key)]
        job = partial(_build_part, build_shard, key, folder)
        parallel.run(job, todo, workers, progress, f"{key['name']} ({n_shards} parts)")
        _merge(path, key, files)
        with contextlib.suppress(OSError):  # where locks fail another builder may be at it too
            for file in list(folder.iterdir()):
                file.unlink(missing_ok=True)
            folder.rmdir()

    return _load_or_build(cache_path(root, key), key, make, _as_packed)


# -- files ---------------------------------------------------------------------------------------


def _load_or_build(
    path: Path,
    key: Mapping[str, Any],
    make: Callable[[Path], None],
    convert: Callable[[dict[str, Tensor], Mapping[str, str]], _T],
) -> _T:
    found = _try_read(path, key)
    if found is None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _lock(path):
            # another process may have built it meanwhile
            found = _try_read(path, key, quiet=True)
            if found is None:
                found = _make_and_open(path, key, make)
    return convert(*found)


def _make_and_open(
    path: Path, key: Mapping[str, Any], make: Callable[[Path], None]
) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        make(path)
        _stamp(path)
        return _open(path, key)
    except (OSError, DamagedFile):
        # where locks fail another builder may have finished, and cleared its parts away under us
        found = _try_read(path, key, quiet=True)
        if found is None:
            raise
        return found


def _try_read(
    path: Path, key: Mapping[str, Any], quiet: bool = False
) -> tuple[dict[str, Tensor], dict[str, str]] | None:
    """What the file holds; ``None`` when there is none or, with a warning, when it is damaged."""
    if not path.exists():
        return None
    try:
        return _open(path, key)
    except DamagedFile as error:
        if not quiet:
            message = f"the cache file {path} is damaged ({error}); it is built again"
            warnings.warn(message, stacklevel=5)
        return None


def _open(path: Path, key: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, str]]:
    tensors, metadata = tensorfile.read(path)
    if metadata.get("key") != _key_text(key):
        raise DamagedFile("it was made for another key")
    if not _stamped(path):
        if tensorfile.checksum(path) != metadata.get("crc32"):
            raise DamagedFile("its checksum does not match")
        _stamp(path)
    return tensors, metadata


def _state(path: Path) -> str:
    stat = path.stat()
    return f"{stat.st_size} {stat.st_mtime_ns} {stat.st_ino}"


def _stamp(path: Path) -> None:
    """Remember that the file, as it is now, was found sound: reading all of it again is waste."""
    with contextlib.suppress(OSError), tensorfile.atomic_path(path.with_suffix(".ok")) as file:
        file.write_text(_state(path))


def _stamped(path: Path) -> bool:
    try:
        return path.with_suffix(".ok").read_text() == _state(path)
    except OSError:
        return False


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Only one process at a time; the system frees the lock of a process that is killed.

    Where there is no file lock the block still runs: files appear by rename only, so two builders
    waste work but break nothing.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    with path.with_suffix(".lock").open("w") as file:
        with contextlib.suppress(OSError):  # some network file systems have no locks
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _write(
    path: Path,
    key: Mapping[str, Any],
    tensors: Mapping[str, Tensor | Stream],
    metadata: Mapping[str, str] | None = None,
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    for temporary in path.parent.glob(f".{path.name}.*.tmp"):
        if tensorfile.is_stale(temporary):  # of a process that was killed
            temporary.unlink(missing_ok=True)
    tensorfile.write(path, tensors, {"key": _key_text(key), **(metadata or {})})


def _key_text(key: Mapping[str, Any]) -> str:
    return json.dumps({"format": FORMAT, **key}, sort_keys=True)


# -- graphs in files -----------------------------------------------------------------------------


def _write_packed(path: Path, key: Mapping[str, Any], graphs: Packed | Sequence[Data]) -> None:
    packed = graphs.materialise() if isinstance(graphs, Packed) else Packed.pack(graphs)
    tensors = {f"data/{k}": v for k, v in packed.tensors.items()}
    _write(path, key, {**tensors, **_side_tensors(packed)}, _side_text(packed))


def _side_tensors(packed: Packed) -> dict[str, Tensor]:
    ptrs = {f"ptr/{k}": v for k, v in packed.ptrs.items()}
    return {**ptrs, **{f"extra/{k}": v for k, v in packed.extras.items()}}


def _side_text(packed: Packed) -> dict[str, str]:
    return {"layout": json.dumps(dict(packed.layout)), "deliver": json.dumps(dict(packed.deliver))}


def _as_packed(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> Packed:
    groups: dict[str, dict[str, Tensor]] = {"data": {}, "ptr": {}, "extra": {}}
    for name, tensor in tensors.items():
        group, _, key = name.partition("/")
        groups[group][key] = tensor
    layout = json.loads(metadata["layout"])
    data = {key: groups["data"][key] for key in layout}  # in the order they were given
    return Packed(data, groups["ptr"], layout, json.loads(metadata["deliver"]), groups["extra"])


# -- shards --------------------------------------------------------------------------------------


def _build_part(
    build: Callable[[int], Packed | Sequence[Data]], key: Mapping[str, Any], folder: Path, i: int
) -> None:
    path = folder / f"{i:05d}.safetensors"
    _write_packed(path, key, build(i))
    _stamp(path)


def _sound(path: Path, key: Mapping[str, Any]) -> bool:
    return _try_read(path, key) is not None


def _merge(path: Path, key: Mapping[str, Any], files: Sequence[Path]) -> None:
    """Stream the parts into one file; no part is held in memory."""
    parts = [_as_packed(*_open(file, key)) for file in files]
    ptrs, layout = join_layouts(parts)
    names = [f"data/{k}" for k in layout] + [f"extra/{k}" for k in parts[0].extras]
    streams = {name: _joined(name, files, parts) for name in names}
    side = {f"ptr/{k}": v for k, v in ptrs.items()}
    text = {**_side_text(parts[0]), "layout": json.dumps(layout)}
    _write(path, key, {**streams, **side}, text)


def _joined(name: str, files: Sequence[Path], parts: Sequence[Packed]) -> Stream:
    group, _, key = name.partition("/")
    tensors = [(p.tensors if group == "data" else p.extras)[key] for p in parts]
    first = tensors[0]
    last_axis = group == "data" and cat_dim(key) == -1
    if last_axis:
        shape = (*first.shape[:-1], sum(t.size(-1) for t in tensors))
    else:
        shape = (sum(t.size(0) for t in tensors), *first.shape[1:])
    rows = math.prod(first.shape[:-1]) if last_axis else 1
    return Stream(shape, first.dtype, _pieces(name, files, rows))


def _pieces(name: str, files: Sequence[Path], rows: int) -> Iterator[bytes]:
    """Row r of every part, then row r + 1: tensors joined on the last axis (one row: the first)."""
    for row in range(rows):
        for path in files:
            start, end = tensorfile.byte_range(path, name)
            length = (end - start) // rows
            with path.open("rb") as file:
                file.seek(start + row * length)
                while length:
                    piece = file.read(min(length, tensorfile.PIECE))
                    if not piece:
                        raise DamagedFile(f"{path} ends early")
                    length -= len(piece)
                    yield piece
