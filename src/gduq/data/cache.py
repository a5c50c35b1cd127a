"""The folder for processed data, and what took long to make in it: safetensors, never pickled."""

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

__all__ = ["cache_root", "cached_tensors"]


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


def cached_tensors(
    build: Callable[[], Mapping[str, Tensor]], root: str | Path | None, name: str, **key: object
) -> dict[str, Tensor]:
    """Named tensors from the cache, memory-mapped, or from ``build()`` and then into it.

    A damaged file is built again, with a warning. Two processes that need the same build it once.

    Args:
        build: Makes the tensors.
        root: See `cache_root`.
        name: What they are called.
        key: Every setting that matters, as JSON values, and the version of the code that builds.
    """
    text = json.dumps({"name": name, **key}, sort_keys=True)
    slug = re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-")
    file = f"{slug}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.safetensors"
    path = cache_root(root) / "processed" / file
    path.parent.mkdir(exist_ok=True)
    with locked(path):
        if path.exists():
            try:
                return read_tensors(path)[0]
            except DamagedFile as error:
                warn_user(f"the cache file {path} is damaged ({error}); it is built again")
        write_tensors(path, build(), {})
        return read_tensors(path)[0]
