"""Tensors in one safetensors file: written in a stream and atomically, read by memory map.

The layout is the safetensors format, so any reader of it opens the files. The writer is our own
because a set of graphs may be larger than memory: it copies pieces and never holds a whole tensor.
The metadata holds two checksums: ``crc32`` of the tensors' bytes, and ``seal`` of all that the
header says. `read` verifies both.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from gduq.disk import atomic_path
from gduq.errors import InputError

__all__ = ["DamagedFile", "Stream", "joined", "read", "write"]

PIECE = 1 << 22  # bytes copied at a time
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
    raw = flat.contiguous().view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")
    return (raw[start : start + PIECE] for start in range(0, len(raw), PIECE))


def write(path: Path, tensors: Mapping[str, Tensor | Stream], metadata: Mapping[str, str]) -> None:
    """Write tensors to ``path`` atomically, with the checksums of the file in its metadata."""
    streams = {
        name: value
        if isinstance(value, Stream)
        else Stream(tuple(value.shape), value.dtype, _pieces(value))
        for name, value in tensors.items()
    }
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


def _header(streams: Mapping[str, Stream], metadata: Mapping[str, str]) -> bytes:
    words = {key: text for key, text in metadata.items() if key not in ("crc32", "seal")}
    sums = {"crc32": _CRC, "seal": _seal(streams, words)}
    fields: dict[str, object] = {"__metadata__": {**sums, **words}}
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


def _seal(tensors: Mapping[str, Tensor | Stream], words: Mapping[str, str]) -> str:
    """CRC-32 of what the header says."""
    kinds = {name: [str(value.dtype), list(value.shape)] for name, value in tensors.items()}
    return f"{zlib.crc32(json.dumps([words, kinds], sort_keys=True).encode()):08x}"


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
    """Memory-map the tensors of a file and return them with its metadata, checksums left out.

    The mapping is private: writing to a tensor never reaches the file. Raises `DamagedFile` for
    anything that `write` did not write.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            words = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if not {"crc32", "seal"} <= words.keys():
            raise DamagedFile("gduq did not write it")
        crc, seal = words.pop("crc32"), words.pop("seal")
        if seal != _seal(tensors, words) or crc != _checksum(path):
            raise DamagedFile("its checksum does not match")
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise DamagedFile(str(error)) from error
    return tensors, words


def _checksum(path: Path) -> str:
    """CRC-32 of the tensors' bytes."""
    crc = 0
    with path.open("rb") as file:
        file.seek(8 + int.from_bytes(file.read(8), "little"))
        while piece := file.read(PIECE):
            crc = zlib.crc32(piece, crc)
    return f"{crc:08x}"
