"""A bundle on disk: ``bundle.json`` and the tensor files it names, all of one save or none.

Tensor files get a fresh name in every save and count only once ``bundle.json`` names them. That
one file is replaced in a single step, so a crash, a kill or a full disk at any moment leaves the
old bundle or the new one, and a reader never sees parts of both. Nothing here is ever executed:
JSON and safetensors hold no code.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from gduq.errors import BundleError, InputError

__all__ = ["FORMAT", "VERSION", "check_target", "read_document", "read_tensors", "write"]

FORMAT = "gduq bundle"
VERSION = 4  # no other one is read

_INDEX = "bundle.json"
_OURS = re.compile(r"(bundle|weights|calibrator|reference)-[0-9a-f]{8}\.(safetensors|tmp)")
_AGE = 3600.0  # seconds after which an unnamed file is a killed save's and no running one's


# -- writing -----------------------------------------------------------------------------------


def check_target(folder: Path, overwrite: bool) -> None:
    """Raise unless ``folder`` is new, empty, or (with ``overwrite``) a bundle to replace."""
    with _disk(folder):
        if not folder.exists():
            return
        if not folder.is_dir():
            raise InputError("a folder to save in", f"the file {folder}", "Choose another name.")
        found = {entry.name for entry in folder.iterdir()}
    if _INDEX in found:
        if not overwrite:
            raise InputError(
                f"no bundle in {folder} yet", "one", "Pass overwrite=True to replace it."
            )
    elif any(not _OURS.fullmatch(name) for name in found):
        raise InputError(
            "a new folder, an empty one, or a bundle to replace",
            f"{folder}, which holds other files",
            "Choose another name.",
        )


def write(
    folder: Path, document: Mapping[str, Any], parts: Mapping[str, Mapping[str, Tensor]]
) -> None:
    """Write a document and its named sets of tensors; on failure nothing has changed.

    Args:
        folder: Where; replaces a bundle that is there.
        document: What JSON holds.
        parts: Sets of tensors by name, ``"weights"`` among them.
    """
    token = secrets.token_hex(4)
    raw = {f"{part}-{token}.safetensors": _pack(tensors) for part, tensors in parts.items()}
    files = {
        part: {"name": name, "size": len(raw[name]), "sha256": _digest(raw[name])}
        for part, name in zip(parts, raw, strict=True)
    }
    index = _encode(_sealed({"format": FORMAT, "version": VERSION, **document, "files": files}))
    with _disk(folder), _tidy(folder, {*raw, f"bundle-{token}.tmp"}):
        for name, content in raw.items():
            _write_file(folder / name, content)
        _write_file(folder / f"bundle-{token}.tmp", index)
        _sync(folder)  # the tensors must be there before anything names them
        os.replace(folder / f"bundle-{token}.tmp", folder / _INDEX)


def _pack(tensors: Mapping[str, Tensor]) -> bytes:
    try:
        # copies, because views of one storage are refused
        plain = {name: t.detach().to("cpu", copy=True).contiguous() for name, t in tensors.items()}
        raw: bytes = safetensors.torch.save(plain)
    except (KeyError, ValueError, SafetensorError) as error:
        raise InputError("dense tensors of a dtype safetensors holds", error) from error
    return raw


def _write_file(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    """Make new names in a folder last; Windows has no such call and needs none."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def _tidy(folder: Path, new: set[str]) -> Iterator[None]:
    """Afterwards, however it ends, the folder holds the files of one bundle, or is gone."""
    made = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    before = _named(folder)
    try:
        yield
    finally:
        now = _named(folder)
        with suppress(OSError):
            if now is not None:
                _drop(folder, new - now)  # of a save that failed
                if made and not any(folder.iterdir()):
                    folder.rmdir()
        with suppress(OSError):
            if now:
                _sync(folder)  # the old files go only when the new index is safe
                _drop(folder, ((before or set()) | _leftovers(folder)) - now)


def _drop(folder: Path, names: set[str]) -> None:
    for name in names:
        (folder / name).unlink(missing_ok=True)


def _named(folder: Path) -> set[str] | None:
    """The tensor files that ``bundle.json`` names; ``None`` if it cannot be told."""
    if not (folder / _INDEX).exists():
        return set()
    try:
        names = {entry["name"] for entry in _parse(folder)[0]["files"].values()}
    except (BundleError, AttributeError, KeyError, TypeError):
        return None
    return {name for name in names if _OURS.fullmatch(name)}  # nothing else is ours to delete


def _leftovers(folder: Path) -> set[str]:
    """Files of saves that were killed long ago; younger ones may belong to a save under way."""
    oldest = time.time() - _AGE
    ours = (entry for entry in folder.iterdir() if _OURS.fullmatch(entry.name))
    return {entry.name for entry in ours if entry.stat().st_mtime < oldest}


@contextmanager
def _disk(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BundleError(
            f"to write the bundle {folder}",
            error.strerror or error,
            "A bundle that was there is still intact. Check free space and permissions.",
        ) from error


# -- reading -----------------------------------------------------------------------------------


def read_document(folder: Path) -> dict[str, Any]:
    """What ``bundle.json`` says, once it is known to be whole and of our format."""
    document, raw = _parse(folder)
    version = document.get("version")
    if type(version) is not int or version != VERSION:
        got = f"format {version}" if type(version) is int else "no format number"
        raise BundleError(
            f"a bundle of format {VERSION}", got, "Save the model again with this gduq."
        )
    if not _is_sealed(document, raw):
        raise BundleError(
            f"{folder / _INDEX} as it was saved",
            "one that was damaged or edited",
            "Copy the bundle again, or save the model again.",
        )
    return document


def _parse(folder: Path) -> tuple[dict[str, Any], bytes]:
    """``bundle.json`` and its bytes, of any format."""
    raw = _read_index(folder)
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise _foreign(folder, "a file that is not JSON") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise _foreign(folder, "some other JSON")
    return document, raw


def read_tensors(folder: Path, entry: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of one file that a document names.

    Raises:
        BundleError: The file is not byte for byte what was saved.
        FileNotFoundError: It is not there; a save under way may have replaced it.
    """
    path = folder / Path(entry["name"]).name
    again = "Copy the bundle again, or save the model again."
    try:
        size = _regular(path).stat().st_size
        if size != entry["size"]:
            raise BundleError(f"{path} of {entry['size']} bytes", f"{size} bytes", again)
        raw = path.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise BundleError(f"a readable file {path}", error.strerror or error) from error
    if _digest(raw) != entry["sha256"]:
        raise BundleError(f"{path} as it was saved", "other content of the same size", again)
    try:
        tensors: dict[str, Tensor] = safetensors.torch.load(raw)
    except (SafetensorError, ValueError, RuntimeError, KeyError) as error:
        raise BundleError(f"tensors in {path}", error) from error
    return tensors


def _read_index(folder: Path) -> bytes:
    try:
        return _regular(folder / _INDEX).read_bytes()
    except FileNotFoundError as error:
        got = "a folder without it" if folder.is_dir() else "no such folder"
        raise BundleError(f"a bundle folder {folder} with {_INDEX}", got) from error
    except NotADirectoryError as error:
        raise BundleError(
            "a bundle folder, written by gduq.save",
            f"the file {folder}",
            "Files of torch.save and pickle are never opened: they can run code.",
        ) from error
    except OSError as error:
        raise BundleError(f"a readable bundle {folder}", error.strerror or error) from error


def _regular(path: Path) -> Path:
    """The path, unless it is something that could be read for ever: a device or a pipe."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise BundleError(f"a regular file {path}", "a folder, a device or a pipe")
    return path


def _foreign(folder: Path, got: str) -> BundleError:
    return BundleError(
        f"{folder / _INDEX} written by gduq.save", got, "Is it damaged, or another program's?"
    )


def _encode(document: Mapping[str, Any]) -> bytes:
    return (json.dumps(document, indent=1, allow_nan=False) + "\n").encode()


def _digest(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


def _sealed(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document with a checksum of all the rest."""
    return {**document, "sha256": _digest(_encode(document))}


def _is_sealed(document: Mapping[str, Any], raw: bytes) -> bool:
    """Whether the file is, to the byte, what `_sealed` and `_encode` make of its content."""
    rest = {key: value for key, value in document.items() if key != "sha256"}
    try:
        return _encode(_sealed(rest)) == raw
    except (ValueError, RecursionError):
        return False
