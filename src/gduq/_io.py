"""Files: written completely or not at all, JSON without NaN, safetensors, one process at a time."""

from __future__ import annotations

import contextlib
import glob
import json
import math
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gduq.errors import InputError

if TYPE_CHECKING:  # the command line reads and writes JSON without torch
    from torch import Tensor

__all__ = ["DamagedFile", "atomic_path", "locked", "read_metadata", "read_tensors", "to_json",
           "write_json", "write_tensors", "write_text"]  # fmt: skip

_DAY = 86400.0


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary name beside ``path`` that takes its place, on disk, if the block ends well. A
    kill leaves at most the temporary file, which a write of the path a day later deletes."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    for other in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        ours = re.fullmatch(r"\d+-[0-9a-f]{8}", other.name.split(".")[-2])
        with contextlib.suppress(OSError):  # gone
            if ours and time.time() - other.stat().st_mtime > _DAY:
                other.unlink()
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically; line ends stay as they are."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="")


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Only one process at a time for ``path``, by a file in ``.locks`` beside it; the system frees
    the lock of one that is killed. Where the file system has no locks the block still runs: files
    appear by rename, so nothing breaks."""
    from filelock import FileLock

    locks = path.parent / ".locks"
    locks.mkdir(parents=True, exist_ok=True)
    lock = FileLock(locks / path.name)
    with contextlib.suppress(OSError, NotImplementedError):
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def write_json(path: Path, content: object) -> None:
    """Write `to_json` of the content atomically."""
    write_text(path, to_json(content) + "\n")


def to_json(
    content: object,
    indent: int | None = 1,
    default: Callable[[object], object] | None = None,
    infinite: Callable[[float], str | None] = lambda value: None,
) -> str:
    """JSON that any program reads of dictionaries, lists, tuples, texts and numbers, NumPy's among
    them: NaN is null, an infinite number what ``infinite`` makes of it, anything else what
    ``default`` makes of it, or a ``TypeError``. Without ``indent`` it is one line.

    Example:
        >>> to_json({"x": (1, float("nan"), float("inf"))}, indent=None)
        '{"x": [1, null, null]}'
    """

    def plain(value: object) -> object:
        if isinstance(value, dict):
            return {str(k): plain(v) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [plain(v) for v in value]
        value = value.item() if hasattr(value, "item") else value
        if isinstance(value, float) and not math.isfinite(value):
            return None if math.isnan(value) else infinite(value)
        return value

    return json.dumps(
        plain(content), indent=indent, ensure_ascii=False, allow_nan=False, default=default
    )


class DamagedFile(Exception):
    """A file is no safetensors file, or only half of one."""


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write tensors and texts to ``path`` atomically."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    plain = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    owned = set()
    for name, value in plain.items():
        storage = value.untyped_storage()
        if storage.nbytes() != value.nbytes or storage.data_ptr() in owned:
            plain[name] = value.clone()  # safetensors refuses tensors that share memory
        owned.add(storage.data_ptr())
    try:
        with atomic_path(path) as temporary:
            save_file(plain, temporary, dict(metadata))
    except SafetensorError as error:
        # the library wraps a full disk in an error of its own
        raise OSError(str(error)) from error
    except (KeyError, ValueError) as error:
        raise InputError("tensors that a safetensors file can hold", error) from error


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Memory-map the tensors of a file, and its texts, or raise `DamagedFile`.

    The mapping is private: writing to a tensor never reaches the file. Nothing is unpickled.
    """
    from safetensors import SafetensorError, safe_open

    try:
        if not path.is_file():  # a device or a pipe could be read for ever
            raise DamagedFile("no regular file")
        with safe_open(path, framework="pt") as file:
            names = file.keys()
            return {name: file.get_tensor(name) for name in names}, file.metadata() or {}
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise DamagedFile(str(error)) from error


def read_metadata(path: Path) -> dict[str, str]:
    """The texts in the header of a safetensors file; none of any other file, or a damaged one."""
    try:
        return read_tensors(path)[1]
    except DamagedFile:
        return {}
