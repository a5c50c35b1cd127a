"""Files on disk: whole or not at all, JSON without NaN, and one process at a time."""

from __future__ import annotations

import contextlib
import glob
import json
import math
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

__all__ = [
    "atomic_path",
    "drop_stale",
    "locked",
    "safetensors_metadata",
    "to_json",
    "write_json",
    "write_text",
]

_MINUTE, _DAY = 60.0, 86400.0
_OWN = re.compile(r"\d+-[0-9a-f]+")  # a process, and something random
_HEADER = 10**8  # bytes, the most that safetensors allows


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary name beside ``path`` that takes its place, on disk, if the block ends well.

    A kill leaves at most the temporary file behind, never a half ``path``; the next write of the
    same path deletes it.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "note.txt"
        >>> with atomic_path(path) as temporary:
        ...     _ = temporary.write_text("done")
        >>> path.read_text()
        'done'
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    drop_stale(path)
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def drop_stale(path: Path) -> None:
    """Delete what killed processes left of ``path``: a day old, or of a dead process and a minute
    old, since another computer's processes look dead from here."""
    for temporary in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        own = temporary.name.split(".")[-2]
        with contextlib.suppress(OSError):  # gone
            age = time.time() - temporary.stat().st_mtime
            old = age > _DAY or (age > _MINUTE and not _alive(own))
            if old and _OWN.fullmatch(own):  # a user's file may be called so
                temporary.unlink()


def _alive(name: str) -> bool:
    pid = name.split("-")[0]
    if os.name != "posix" or not pid.isdigit():  # elsewhere signal 0 would end the process
        return True
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # somebody else's
        pass
    return True


def write_text(path: Path, text: str) -> None:
    """Write a text file, whole or not at all; line ends stay as they are."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="")


def write_json(path: Path, content: Any) -> None:
    """Write `to_json` of the content, whole or not at all."""
    write_text(path, to_json(content) + "\n")


def to_json(
    content: Any,
    indent: int | None = 1,
    default: Callable[[Any], Any] | None = None,
    infinite: Callable[[float], Any] = lambda value: None,
) -> str:
    """JSON that any program reads: NaN is null, and so are infinite numbers.

    Args:
        content: Dictionaries, lists, tuples, texts and numbers, NumPy's among them.
        indent: Spaces per level; ``None`` writes one line.
        default: What to make of anything else; without it, it raises ``TypeError``.
        infinite: What to make of an infinite number.

    Example:
        >>> to_json({"x": (1, float("nan"), float("inf"))}, indent=None)
        '{"x": [1, null, null]}'
    """

    def plain(value: Any) -> Any:
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


def safetensors_metadata(path: Path) -> dict[str, str]:
    """The texts in the header of a safetensors file, unverified; none of any other file."""
    if not path.is_file():  # a device or a pipe could be read for ever
        return {}
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size)) if size <= _HEADER else {}
        return {key: str(text) for key, text in header["__metadata__"].items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Only one process at a time for ``path``; the system frees the lock of one that is killed.

    The lock file lies in ``.locks`` beside the path, so that the path can be deleted. Where the
    file system has no locks the block still runs: files appear by rename, so nothing breaks.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    locks = path.parent / ".locks"
    locks.mkdir(parents=True, exist_ok=True)
    with (locks / path.name).open("w") as file:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
