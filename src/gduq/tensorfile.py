"""Tensors and texts in one sealed safetensors file: graphs, the cache, checkpoints, bundles.

The writer is our own because a set of graphs may be larger than memory: it copies pieces. ``seal``
in the metadata is the SHA-256 of the file with zeros in its place: no byte can change unnoticed.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import torch
from torch import Tensor

from gduq.disk import atomic_path
from gduq.errors import InputError

__all__ = ["DamagedFile", "Stream", "joined", "loads", "read", "write"]

PIECE = 1 << 22  # bytes copied at a time
_START = b'{"__metadata__":{"seal":"'  # of the header, after its length in 8 bytes
_BLANK = b"0" * 64  # in the seal's place while the seal is computed
_SEALED = 8 + len(_START)  # where the seal begins
_PICKLES = (b"\x80", b"PK\x03\x04")  # a bare pickle, and torch.save's zip around one
_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


class DamagedFile(Exception):
    """A file is not, to the byte, what `write` wrote."""


@dataclass(frozen=True)
class Stream:
    """A tensor given as pieces of its bytes, in order."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    pieces: Iterable[bytes | memoryview]

    @property
    def nbytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape)


def joined(tensors: Sequence[Tensor], dim: int) -> Stream:
    """Tensors joined on the first (0) or last (-1) axis, without ever holding the result."""
    shape = list(tensors[0].shape)
    shape[dim] = sum(t.size(dim) for t in tensors)
    # row r of every tensor, then row r + 1: joined on the first axis there is one row
    rows = [t.flatten(0, -2) if dim == -1 else t.unsqueeze(0) for t in tensors]
    pieces = (piece for r in range(rows[0].size(0)) for t in rows for piece in _pieces(t[r]))
    return Stream(tuple(shape), tensors[0].dtype, pieces)


def _pieces(tensor: Tensor) -> Iterator[memoryview]:
    flat = tensor.detach().cpu().reshape(-1)
    if flat.stride(0) != 1:  # a single number may have any, and counts as contiguous
        flat = flat.clone(memory_format=torch.contiguous_format)
    raw = flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")
    return (raw[start : start + PIECE] for start in range(0, len(raw), PIECE))


def write(path: Path, tensors: Mapping[str, Tensor | Stream], words: Mapping[str, str]) -> None:
    """Write tensors and texts to ``path``, whole or not at all."""
    streams = {
        name: value
        if isinstance(value, Stream)
        else Stream(tuple(value.shape), value.dtype, _pieces(value))
        for name, value in tensors.items()
    }
    # widest dtype first: every tensor then starts at a multiple of its item size
    order = sorted(streams, key=lambda name: (-streams[name].dtype.itemsize, name))
    header = _header({name: streams[name] for name in order}, words)
    seal = hashlib.sha256(header)
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        file.write(header)
        for name in order:
            written = 0
            for piece in streams[name].pieces:
                seal.update(piece)
                written += file.write(piece)
            if written != streams[name].nbytes:
                raise DamagedFile(f"{name}: {written} bytes instead of {streams[name].nbytes}")
        file.seek(_SEALED)
        file.write(seal.hexdigest().encode())


def _header(streams: Mapping[str, Stream], words: Mapping[str, str]) -> bytes:
    fields: dict[str, object] = {"__metadata__": {"seal": _BLANK.decode(), **words}}
    start = 0
    for name, stream in streams.items():
        if stream.dtype not in _NAMES:
            raise InputError(f"a dtype from {sorted(_NAMES.values())}", f"{name}: {stream.dtype}")
        fields[name] = {
            "dtype": _NAMES[stream.dtype],
            "shape": list(stream.shape),
            "data_offsets": [start, start + stream.nbytes],
        }
        start += stream.nbytes
    text = json.dumps(fields, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Memory-map the tensors of a file, and its texts; raises `DamagedFile` unless it is sound.

    The mapping is private: writing to a tensor never reaches the file.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with path.open("rb") as raw:
            _check_seal(raw)
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return tensors, _words(file.metadata())
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise DamagedFile(str(error)) from error


def loads(raw: bytes) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The same of a file's bytes, for files that may be replaced while they are read."""
    import safetensors.torch

    _check_seal(io.BytesIO(raw))
    try:
        tensors = safetensors.torch.load(raw)
        size = int.from_bytes(raw[:8], "little")
        return tensors, _words(json.loads(raw[8 : 8 + size])["__metadata__"])
    except (safetensors.SafetensorError, ValueError, RuntimeError) as error:
        raise DamagedFile(str(error)) from error


def _words(metadata: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in metadata.items() if name != "seal"}


def _check_seal(file: IO[bytes]) -> None:
    start = file.read(_SEALED)
    if start.startswith(_PICKLES) and start[8:9] != b"{":
        raise DamagedFile("a pickle or torch.save file, which could run any code when loaded")
    if start[8:] != _START:
        raise DamagedFile("a file that gduq did not write")
    seal, total = file.read(len(_BLANK)), hashlib.sha256(start + _BLANK)
    while piece := file.read(PIECE):
        total.update(piece)
    if seal != total.hexdigest().encode():
        raise DamagedFile("a file whose checksum does not match")
