"""A bundle on disk: one sealed safetensors file, replaced in a single step.

Its header holds a document, as JSON; tensors are named ``part/name``, where the part is
``weights``, ``calibrator`` or ``reference``. A crash, a kill or a full disk at any moment leaves
the old bundle or the new one. Nothing in it is ever executed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor

from gduq import tensorfile
from gduq.disk import safetensors_metadata
from gduq.errors import BundleError, InputError, first_flaw

__all__ = ["FORMAT", "VERSION", "Parts", "check_target", "read", "write"]

FORMAT, VERSION = "gduq bundle", 6  # no other version is read
Parts = dict[str, dict[str, Tensor]]


class _Calibrator(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    name: str
    config: dict[str, Any]


class _Document(BaseModel):
    """What the header holds; the settings of the model are checked where it is made."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: dict[str, Any]
    aliases: dict[str, str]
    preprocessing: dict[str, Any] | None
    calibrator: _Calibrator | None
    libraries: dict[str, str]


def check_target(path: Path, overwrite: bool) -> None:
    """Raise unless ``path`` is new or (with ``overwrite``) a bundle to replace."""
    if path.is_dir():
        raise InputError("a file to save in", f"the folder {path}", "Choose another name.")
    if not path.exists():
        return
    if safetensors_metadata(path).get("format") != FORMAT:
        raise InputError(
            "a new file, or a bundle to replace", f"{path}, another file", "Choose another name."
        )
    if not overwrite:
        raise InputError(f"no bundle in {path} yet", "one", "Pass overwrite=True to replace it.")


def write(path: Path, document: Mapping[str, Any], parts: Parts) -> None:
    """Write a document and its parts; on failure a bundle that was there stays as it was."""
    text = json.dumps(document, allow_nan=False)
    words = {"format": FORMAT, "version": str(VERSION), "document": text}
    tensors = {f"{part}/{name}": value for part in parts for name, value in parts[part].items()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        tensorfile.write(path, tensors, words)
    except OSError as error:
        raise BundleError(
            f"to write the bundle {path}",
            error.strerror or error,
            "A bundle that was there is still intact. Check free space and permissions.",
        ) from error


def read(path: Path) -> tuple[dict[str, Any], Parts]:
    """The document and the parts of a bundle that is, to the byte, as it was saved."""
    if not path.exists():
        raise BundleError(f"a bundle in {path}", "no such file")
    try:
        if not path.is_file():  # a device or a pipe could be read for ever
            got = "a folder, as older bundles were, a device or a pipe"
            raise BundleError(f"a bundle, a regular file, in {path}", got)
        tensors, words = tensorfile.loads(path.read_bytes())
    except OSError as error:
        raise BundleError(f"a bundle {path}", error.strerror or error) from error
    except tensorfile.DamagedFile as error:
        do = "Copy the file again, or save the model again."
        raise BundleError(f"{path} as gduq.save wrote it", error, do) from error
    found = f"{words.get('format', 'another file')}, format {words.get('version')}"
    if found != f"{FORMAT}, format {VERSION}":
        do = "Save the model again with this gduq."
        raise BundleError(f"a {FORMAT} of format {VERSION} in {path}", found, do)
    try:
        document = json.loads(words["document"])
    except (KeyError, ValueError, RecursionError) as error:
        raise BundleError(f"a document in {path}", "none that JSON can read") from error
    try:
        _Document.model_validate(document)
    except ValidationError as error:
        raise BundleError(f"a document in {path} as gduq writes it", first_flaw(error)) from None
    parts: Parts = {}
    for name, value in tensors.items():
        part, _, rest = name.partition("/")
        parts.setdefault(part, {})[rest] = value
    return document, parts
