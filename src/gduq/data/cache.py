"""Generated data on disk: memory-mapped safetensors, keyed, written atomically, never pickled."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from torch import Tensor

from gduq._io import DamagedFile, locked, read_tensors, write_tensors
from gduq.errors import InputError, warn_user

__all__ = ["cache_path", "cache_root", "cached_tensors"]

_FORMAT = 5  # of the files written here


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


def cache_path(root: str | Path | None, name: str, **key: object) -> Path:
    """The file of what is called ``name`` and was made with the settings ``key``.

    Example:
        >>> import tempfile
        >>> cache_path(tempfile.mkdtemp(), "motif/size", version=1).name
        'motif-size-....safetensors'
    """
    short = hashlib.sha256(_text(name, key).encode()).hexdigest()[:16]
    slug = re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-")
    return cache_root(root) / "processed" / f"{slug}-{short}.safetensors"


def _text(name: str, key: Mapping[str, object]) -> str:
    return json.dumps({"format": _FORMAT, "name": name, **key}, sort_keys=True)


def cached_tensors(
    build: Callable[[], Mapping[str, Tensor]],
    root: str | Path | None,
    name: str,
    *,
    version: int,
    **key: object,
) -> dict[str, Tensor]:
    """Named tensors from the cache, or from ``build()`` and then into it.

    A damaged file is built again, with a warning. Two processes that need the same build it once.

    Args:
        build: Makes the tensors.
        root: See `cache_root`.
        name: What they are called.
        version: Of the code that builds; raise it when the output changes.
        key: Every setting that matters, as JSON values.
    """
    key = {"version": version, **key}
    path, text = cache_path(root, name, **key), _text(name, key)

    def load(quiet: bool = False) -> dict[str, Tensor] | None:
        if not path.exists():
            return None
        try:
            tensors, texts = read_tensors(path)
            if texts.get("key") != text:
                raise DamagedFile("it was made for another key")
            return tensors
        except DamagedFile as error:
            if not quiet:
                warn_user(f"the cache file {path} is damaged ({error}); it is built again")
            return None

    found = load()
    if found is None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path):
            found = load(quiet=True)  # another process may have built it meanwhile
            if found is None:
                write_tensors(path, build(), {"key": text})
                found = load()
    assert found is not None
    return found
