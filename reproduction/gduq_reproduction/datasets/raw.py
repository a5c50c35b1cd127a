"""Raw files: taken from ``GDUQ_DATA`` (read-only), else from the cache folder, else downloaded."""

from __future__ import annotations

import os
import shutil
import urllib.request
from collections.abc import Callable
from pathlib import Path

from gduq.data.cache import cache_root
from gduq.disk import atomic_path
from gduq.errors import InputError

__all__ = ["damaged", "find_raw", "raw_file"]


def find_raw(relative: str, root: str | Path | None = None) -> Path | None:
    """A raw file or folder under ``GDUQ_DATA`` or under ``<root>/raw``, or ``None``."""
    given = os.environ.get("GDUQ_DATA")
    if given and not Path(given).expanduser().is_dir():
        raise InputError("a folder in GDUQ_DATA", given, "Correct it, or unset it to download.")
    places = [Path(given).expanduser()] if given else []
    for place in [*places, cache_root(root) / "raw"]:
        if (place / relative).exists():
            return (place / relative).absolute()
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
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with atomic_path(path) as temporary:
            if callable(url):
                url(temporary)
            else:
                with urllib.request.urlopen(url) as source, temporary.open("wb") as file:
                    shutil.copyfileobj(source, file)
    except OSError as error:
        raise InputError(f"to download {path.name} from {url}", error, do) from error
    return path


def damaged(path: Path, expected: str, got: str) -> InputError:
    """The error for a raw file that is not what it should be."""
    return InputError(
        f"{expected} in the raw file {path}", got, "It is damaged: delete or replace it."
    )
