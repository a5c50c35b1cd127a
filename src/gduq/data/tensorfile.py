"""Tensors in one safetensors file: written in a stream and atomically, read by memory map.

The layout is the safetensors format, so any reader of it opens the files. The writer is our own
because a set of graphs may be larger than memory: it copies pieces and never holds a whole tensor.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from gduq.errors import InputError

__all__ = [
    "DamagedFile",
    "Stream",
    "atomic_path",
    "byte_range",
    "checksum",
    "is_stale",
    "read",
    "write",
]

PIECE = 1 << 22  # bytes copied at a time
_MINUTE, _DAY = 60.0, 86400.0
_CRC = "00000000"  # patched once the bytes are written
_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


class DamagedFile(Exception):
    """A file does not hold what its header promises."""


@dataclass(frozen=True)
class Stream:
    """A tensor given as pieces of its bytes, in order."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    pieces: Iterable[bytes | memoryview]

    @property
    def nbytes(self) -> int:
        count = self.dtype.itemsize
        for size in self.shape:
            count *= size
        return count


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary name beside ``path`` that takes its place if the block ends well.

    A kill leaves at most the temporary file behind, never a half ``path``.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def is_stale(temporary: Path) -> bool:
    """Whether a file of `atomic_path` has been left behind: a day old, or of a dead process.

    Another computer's processes look dead from here, so a file must also be quiet for a minute.
    """
    try:
        age = time.time() - temporary.stat().st_mtime
    except OSError:  # gone
        return False
    return age > _DAY or (age > _MINUTE and not _alive(temporary.name.split(".")[-2]))


def _alive(name: str) -> bool:
    pid = name.split("-")[0]
    if os.name != "posix" or not pid.isdigit():  # elsewhere signal 0 would end the process
        return True
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def write(path: Path, tensors: Mapping[str, Tensor | Stream], metadata: Mapping[str, str]) -> None:
    """Write tensors to ``path`` atomically, with a CRC-32 of their bytes in the header."""
    streams = {name: _as_stream(value) for name, value in tensors.items()}
    # widest dtype first: every tensor then starts at a multiple of its item size
    order = sorted(streams, key=lambda name: (-streams[name].dtype.itemsize, name))
    header = _header({name: streams[name] for name in order}, metadata)
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        file.write(header)
        crc = 0
        for name in order:
            crc = _copy(file, streams[name], name, crc)
        file.seek(header.index(b'"crc32":"') + len(b'"crc32":"'))
        file.write(f"{crc:08x}".encode())
        file.flush()
        os.fsync(file.fileno())


def _as_stream(value: Tensor | Stream) -> Stream:
    if isinstance(value, Stream):
        return value
    value = value.detach().cpu().contiguous()
    raw = value.reshape(-1).view(torch.uint8).numpy().data if value.numel() else memoryview(b"")
    pieces = (raw[start : start + PIECE] for start in range(0, len(raw), PIECE))
    return Stream(tuple(value.shape), value.dtype, pieces)


def _header(streams: Mapping[str, Stream], metadata: Mapping[str, str]) -> bytes:
    fields: dict[str, object] = {"__metadata__": {"crc32": _CRC, **metadata}}
    start = 0
    for name, stream in streams.items():
        if stream.dtype not in _NAMES:
            raise InputError(f"a dtype from {sorted(_NAMES.values())}", f"{name}: {stream.dtype}")
        end = start + stream.nbytes
        fields[name] = {
            "dtype": _NAMES[stream.dtype],
            "shape": list(stream.shape),
            "data_offsets": [start, end],
        }
        start = end
    text = json.dumps(fields, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _copy(file: BinaryIO, stream: Stream, name: str, crc: int) -> int:
    written = 0
    for piece in stream.pieces:
        crc = zlib.crc32(piece, crc)
        written += len(piece)
        file.write(piece)
    if written != stream.nbytes:
        raise DamagedFile(f"{name}: {written} bytes instead of {stream.nbytes}")
    return crc


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Memory-map the tensors of a file and return them with its metadata.

    The mapping is private: writing to a tensor never reaches the file.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            metadata = dict(file.metadata() or {})
            return {name: file.get_tensor(name) for name in file.keys()}, metadata  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise DamagedFile(str(error)) from error


def byte_range(path: Path, name: str) -> tuple[int, int]:
    """Where the bytes of a tensor start and end in the file."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        start, end = json.loads(file.read(length))[name]["data_offsets"]
    return 8 + length + start, 8 + length + end


def checksum(path: Path) -> str:
    """CRC-32 of the tensor bytes, to hold against ``metadata["crc32"]``."""
    crc = 0
    with path.open("rb") as file:
        file.seek(8 + int.from_bytes(file.read(8), "little"))
        while piece := file.read(PIECE):
            crc = zlib.crc32(piece, crc)
    return f"{crc:08x}"
