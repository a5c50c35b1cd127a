"""One safetensors file of graphs: packed tensors, their offsets, and a few words of JSON.

Layout, version 2. ``data/<attribute>`` holds an attribute of all graphs, one after the other (on
the last axis for ``edge_index``); ``ptr/<name>`` holds the offsets ``[G + 1]`` at which each graph
starts; ``ptr/node`` is always there. The metadata says ``format`` (``gduq.graphs``), ``version``,
``layout`` (attribute to offsets), ``deliver`` (attribute to the dtype it is handed out in),
``class_names`` and ``target_names``, and ``seal``: a CRC-32 of all that and of the names, shapes
and dtypes of the tensors, which files of version 1 lack. Nothing in it is executed when it is read,
and all of it is checked.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from gduq.data import tensorfile
from gduq.data.packed import Packed, cat_dim, join_layouts
from gduq.data.tensorfile import DamagedFile, Stream
from gduq.errors import InputError

__all__ = ["FORMAT", "VERSION", "read_graphs", "write_graphs", "write_parts"]

FORMAT, VERSION = "gduq.graphs", 2
_DELIVER = {"text", "bool", "int8", "int16", "int32", "int64", "float16", "float32", "float64"}
_PICKLE_STARTS = (b"\x80", b"PK\x03\x04")  # a bare pickle, and torch.save's zip around one


def write_graphs(path: Path, graphs: Sequence[Data], class_names: Sequence[str] = ()) -> None:
    """Check the graphs and write them to ``path`` in one atomic step."""
    packed = graphs.materialise() if isinstance(graphs, Packed) else Packed.pack(list(graphs))
    _check_packed(packed)
    tensors: dict[str, Tensor | Stream] = {f"data/{k}": v for k, v in packed.tensors.items()}
    tensors |= {f"ptr/{k}": packed.ptrs[k] for k in {"node", *packed.layout.values()}}
    _write(path, tensors, packed, class_names or packed.class_names, packed.target_names)


def write_parts(
    path: Path,
    parts: Iterable[Sequence[Data]],
    class_names: Sequence[str] = (),
    target_names: Sequence[str] = (),
) -> int:
    """Write lists of graphs one after the other; only one of them is in memory at a time.

    Parts go to a temporary folder beside ``path`` first, since offsets and dtypes of all of them
    must be known before the first byte of the result is. Returns the number of graphs.
    """
    with TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
        files: list[Path] = []
        for part in parts:
            files.append(Path(folder) / f"{len(files):06d}")
            write_graphs(files[-1], part)
        if not files:
            raise InputError("at least one readable graph", "none")
        packed = [_unpack(*tensorfile.read(file)) for file in files]
        _check_alike(packed)
        ptrs, layout = join_layouts(packed)
        whole = replace(packed[0], ptrs=ptrs, layout=layout)
        tensors: dict[str, Tensor | Stream] = {f"ptr/{k}": v for k, v in ptrs.items()}
        tensors |= {f"data/{key}": _joined(key, packed) for key in layout}
        _write(path, tensors, whole, class_names, target_names)
    return ptrs["node"].numel() - 1


def read_graphs(path: Path) -> Packed:
    """Memory-map a file of graphs, or raise `InputError`."""
    do = "Write it with gduq.data.save or gduq data convert."
    with path.open("rb") as file:
        head = file.read(9)  # a safetensors file: the header's length in 8 bytes, then JSON
        if head[8:] != b"{" and head.startswith(_PICKLE_STARTS):
            raise InputError(
                f"a safetensors file of graphs in {path}",
                "a pickle or torch.save file, which could run any code when loaded",
                "Load it yourself if you trust it, then call gduq.data.save(graphs, path).",
            )
    try:
        tensors, metadata = tensorfile.read(path)
    except DamagedFile as error:
        raise InputError(f"a safetensors file of graphs in {path}", error, do) from error
    _check_header(path, metadata, do)
    if tensorfile.checksum(path) != metadata.get("crc32"):
        raise InputError(f"CRC-32 {metadata.get('crc32')} in {path}", "another: it is damaged", do)
    sealed = metadata["version"] != "1" or "seal" in metadata
    if sealed and metadata.get("seal") != _seal(tensors, metadata):
        raise InputError(f"a header with its seal in {path}", "another: it is damaged", do)
    try:
        packed = _unpack(tensors, metadata)
        _check_packed(packed)
        return replace(
            packed,
            class_names=_names(metadata["class_names"]),
            target_names=_names(metadata.get("target_names", "[]")),
        )
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise InputError(f"sound graphs in {path}", str(error).rstrip("."), do) from error


def _write(
    path: Path,
    tensors: Mapping[str, Tensor | Stream],
    packed: Packed,
    class_names: Sequence[str],
    target_names: Sequence[str],
) -> None:
    text = {
        "format": FORMAT,
        "version": str(VERSION),
        "layout": json.dumps(dict(packed.layout)),
        "deliver": json.dumps(dict(packed.deliver)),
        "class_names": json.dumps([str(name) for name in class_names]),
        "target_names": json.dumps([str(name) for name in target_names]),
    }
    tensorfile.write(path, tensors, {**text, "seal": _seal(tensors, text)})


def _seal(tensors: Mapping[str, Tensor | Stream], metadata: Mapping[str, str]) -> str:
    """CRC-32 of what the header says; that of the tensors' bytes is the file's own."""
    words = {key: text for key, text in metadata.items() if key not in ("seal", "crc32")}
    kinds = {name: [str(value.dtype), list(value.shape)] for name, value in tensors.items()}
    return f"{zlib.crc32(json.dumps([words, kinds], sort_keys=True).encode()):08x}"


def _names(text: str) -> tuple[str, ...]:
    return tuple(str(name) for name in json.loads(text))


def _joined(key: str, parts: Sequence[Packed]) -> Stream:
    tensors = [part.tensors[key] for part in parts]
    dim = cat_dim(key)
    shape = list(tensors[0].shape)
    shape[dim] = sum(t.size(dim) for t in tensors)
    return Stream(tuple(shape), tensors[0].dtype, _pieces(tensors, dim))


def _pieces(tensors: Sequence[Tensor], dim: int) -> Iterator[memoryview]:
    """Bytes of the tensors joined on an axis: row by row for the last one, else one by one."""
    rows = [t.flatten(0, -2) if dim == -1 else t.unsqueeze(0) for t in tensors]
    for row in range(rows[0].size(0)):
        for tensor in rows:
            piece = tensor[row].reshape(-1)
            if piece.numel():
                yield piece.view(torch.uint8).numpy().data


def _check_alike(parts: Sequence[Packed]) -> None:
    """Parts must agree in dtype and width, which the offsets alone do not say."""
    for key, first in parts[0].tensors.items():
        kinds = {(p.tensors[key].dtype, _width(key, p)) for p in parts if key in p.tensors}
        if len(kinds) > 1:
            raise InputError(
                f"{key!r} of dtype {first.dtype} and width {_width(key, parts[0])} in all graphs",
                sorted(map(str, kinds)),
            )


def _width(key: str, part: Packed) -> tuple[int, ...]:
    shape = part.tensors[key].shape
    return tuple(shape[:-1] if cat_dim(key) == -1 else shape[1:])


# -- checks --------------------------------------------------------------------------------------


def _check_header(path: Path, metadata: Mapping[str, str], do: str) -> None:
    if metadata.get("format") != FORMAT:
        got = f"one of format {metadata.get('format', 'unknown')!r}"
        raise InputError(f"a safetensors file of graphs ({FORMAT}) in {path}", got, do)
    version = metadata.get("version", "")
    if not version.isdecimal() or int(version) > VERSION:
        raise InputError(
            f"version {VERSION} of the graph file format in {path}",
            f"version {version}",
            "Install a newer gduq, or write the file with this one.",
        )


def _unpack(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> Packed:
    layout: dict[str, str] = json.loads(metadata["layout"])
    deliver: dict[str, str] = json.loads(metadata["deliver"])
    data = {key: tensors[f"data/{key}"] for key in layout}
    names = {"node", *layout.values()}
    ptrs = {name: tensors[f"ptr/{name}"] for name in sorted(names)}
    return Packed(data, ptrs, layout, deliver)


def _check_packed(packed: Packed) -> None:
    """Offsets rise from 0 to the end of their tensors, edges stay inside their graphs."""
    count = packed.ptrs["node"].numel() - 1
    if count < 1:
        raise InputError("at least one graph", "none")
    for name, ptr in packed.ptrs.items():
        sound = ptr.dtype == torch.int64 and ptr.dim() == 1 and ptr.numel() == count + 1
        if not sound or int(ptr[0]) != 0 or bool((ptr.diff() < 0).any()):
            raise InputError(f"offsets {name!r} of {count} graphs that rise from 0", "others")
    for key, value in packed.tensors.items():
        end = int(packed.ptrs[packed.layout[key]][-1])
        if value.dim() == 0 or value.size(cat_dim(key)) != end:
            raise InputError(f"{end} rows of {key!r}", f"shape {list(value.shape)}")
    _check_deliver(packed)
    empty = torch.nonzero(packed.num_nodes == 0).flatten()
    if empty.numel():
        raise InputError("graphs with at least one node", f"graph {int(empty[0])} with none")
    _check_edges(packed)
    _check_nodes(packed)


def _check_deliver(packed: Packed) -> None:
    for key, how in packed.deliver.items():
        value = packed.tensors.get(key)
        if value is None or how not in _DELIVER:
            raise InputError(f"attributes delivered as one of {sorted(_DELIVER)}", packed.deliver)
        if how == "text" and (value.dtype != torch.uint8 or value.dim() != 1):
            raise InputError(f"UTF-8 bytes as {key!r}", value.dtype)


def _check_edges(packed: Packed, piece: int = 1 << 22) -> None:
    edges = packed.tensors.get("edge_index")
    if edges is None:
        raise InputError("graphs with edge_index", f"only {sorted(packed.tensors)}")
    if edges.dim() != 2 or edges.size(0) != 2 or edges.dtype.is_floating_point:
        raise InputError("an integer edge_index [2, E]", f"{edges.dtype} {list(edges.shape)}")
    ptr, nodes = packed.ptrs[packed.layout["edge_index"]], packed.num_nodes
    for start in range(0, edges.size(1), piece):  # a piece at a time: the file may be large
        part = edges[:, start : start + piece].long()
        owner = torch.searchsorted(ptr, torch.arange(start, start + part.size(1)), right=True) - 1
        wrong = ((part < 0) | (part >= nodes[owner])).any(0)
        if bool(wrong.any()):
            graph = int(owner[wrong][0])
            raise InputError(
                f"node numbers from 0 to {int(nodes[graph]) - 1} in the edges of graph {graph}",
                part[:, wrong][:, 0].tolist(),
            )


def _check_nodes(packed: Packed) -> None:
    x: Any = packed.tensors.get("x")
    if x is None:
        return
    if x.dim() != 2 or not torch.equal(packed.ptrs[packed.layout["x"]], packed.ptrs["node"]):
        raise InputError("x of shape [N, d], one row a node", list(x.shape))
