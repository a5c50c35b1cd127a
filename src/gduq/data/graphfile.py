"""One safetensors file of graphs: users' own files, and what the cache keeps.

``data/<attribute>`` holds an attribute of all graphs, one after the other (on the last axis for
``edge_index``); ``ptr/<name>`` the offsets ``[G + 1]`` at which each graph starts, ``ptr/node``
always; ``extra/<name>`` what lies beside the graphs. The metadata says ``format``, ``version``,
``layout`` (attribute to offsets), ``deliver`` (attribute to the dtype it is handed out in),
``class_names``, ``target_names`` and, in the cache, ``key``. Nothing in it is executed when it is
read, and all of it is checked.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from gduq import tensorfile
from gduq.data.packed import TEXT, Packed, cat_dim, other_axes, share_ptr, to_ptr
from gduq.errors import InputError
from gduq.tensorfile import DamagedFile, Stream

__all__ = ["FORMAT", "VERSION", "join_files", "open_graphs", "read_graphs", "write_graphs",
           "write_parts"]  # fmt: skip

FORMAT, VERSION = "gduq.graphs", 3
_DELIVER = {TEXT, "bool", "int8", "int16", "int32", "int64", "float16", "float32", "float64"}
_WORDS = ("layout", "deliver", "class_names", "target_names")


# -- out -----------------------------------------------------------------------------------------


def write_graphs(
    path: Path, graphs: Sequence[Data], class_names: Sequence[str] = (), key: str = ""
) -> None:
    """Check the graphs and write them to ``path`` in one atomic step; ``key`` is the cache's."""
    packed = graphs.materialise() if isinstance(graphs, Packed) else Packed.pack(list(graphs))
    _check_packed(packed)
    tensors: dict[str, Tensor | Stream] = {f"data/{k}": v for k, v in packed.tensors.items()}
    tensors |= {f"ptr/{k}": packed.ptrs[k] for k in {"node", *packed.layout.values()}}
    tensors |= {f"extra/{k}": v for k, v in packed.extras.items()}
    names = tuple(str(name) for name in class_names or packed.class_names)
    _write(path, tensors, replace(packed, class_names=names), key)


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
        return join_files(path, files, "", class_names, target_names)


def join_files(
    path: Path,
    files: Sequence[Path],
    key: str = "",
    class_names: Sequence[str] = (),
    target_names: Sequence[str] = (),
) -> int:
    """Stream files of graphs, all with the same ``key``, into one, in order; returns how many."""
    parts = [open_graphs(file, key) for file in files]
    first = parts[0]
    wanted = _kinds(first)
    for found in map(_kinds, parts[1:]):
        for name in {**wanted, **found}:
            if wanted.get(name) != found.get(name):
                what = f"{name!r} of {wanted.get(name, 'one kind')} in all graphs"
                raise InputError(what, found.get(name, "none"))
    ptrs = {"node": _join([p.ptrs["node"] for p in parts])}
    layout = {
        name: share_ptr(ptrs, name, _join([p.ptrs[p.layout[name]] for p in parts]))
        for name in first.layout
    }
    tensors: dict[str, Tensor | Stream] = {f"ptr/{k}": v for k, v in ptrs.items()}
    for k in layout:
        tensors[f"data/{k}"] = tensorfile.joined([p.tensors[k] for p in parts], cat_dim(k))
    for k in first.extras:
        tensors[f"extra/{k}"] = tensorfile.joined([p.extras[k] for p in parts], 0)
    names = {"class_names": class_names, "target_names": target_names}
    given: dict[str, Any] = {name: tuple(map(str, texts)) for name, texts in names.items() if texts}
    _write(path, tensors, replace(first, layout=layout, **given), key)
    return ptrs["node"].numel() - 1


def _join(ptrs: Sequence[Tensor]) -> Tensor:
    return to_ptr(torch.cat([ptr.diff() for ptr in ptrs]))


def _kinds(part: Packed) -> dict[str, str]:
    """What parts must agree in: attributes, their dtypes and widths, how they are handed out."""
    return {
        key: f"{value.dtype} {[*other_axes(key, value)]} {part.deliver.get(key, '')}".strip()
        for key, value in part.tensors.items()
    }


def _write(path: Path, tensors: Mapping[str, Tensor | Stream], packed: Packed, key: str) -> None:
    words = {"format": FORMAT, "version": str(VERSION)}
    words |= {name: json.dumps(getattr(packed, name)) for name in _WORDS}
    tensorfile.write(path, tensors, {**words, **({"key": key} if key else {})})


# -- in ------------------------------------------------------------------------------------------


def read_graphs(path: Path) -> Packed:
    """Memory-map a user's file of graphs, with all its numbers checked, or raise `InputError`."""
    try:
        packed = open_graphs(path)
        _check_packed(packed)
    except (DamagedFile, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        do = "Write it with gduq.data.save or gduq data convert."
        raise InputError(f"a sound file of graphs in {path}", str(error).rstrip("."), do) from error
    return packed


def open_graphs(path: Path, key: str | None = None) -> Packed:
    """Memory-map a file that this process trusts; raises `DamagedFile` where it is not sound, or
    was not made for the cache's ``key``."""
    tensors, words = tensorfile.read(path)
    found = f"{words.get('format', 'another format')} {words.get('version', '')}".strip()
    if found != f"{FORMAT} {VERSION}":
        raise DamagedFile(f"{found} instead of {FORMAT} {VERSION}")
    if key is not None and words.get("key", "") != key:
        raise DamagedFile("it was made for another key")
    layout, deliver, *names = (json.loads(words[name]) for name in _WORDS)
    class_names, target_names = (tuple(str(name) for name in texts) for texts in names)
    return Packed(
        {name: tensors[f"data/{name}"] for name in layout},  # in the order they were given
        {name: tensors[f"ptr/{name}"] for name in sorted({"node", *layout.values()})},
        layout,
        deliver,
        {k.removeprefix("extra/"): v for k, v in tensors.items() if k.startswith("extra/")},
        class_names=class_names,
        target_names=target_names,
    )


def _check_packed(packed: Packed) -> None:
    """Offsets rise from 0 to the end of their tensors, edges stay inside their graphs."""
    count = packed.ptrs["node"].numel() - 1
    if count < 1:
        raise InputError("at least one graph", "none")
    for name, ptr in packed.ptrs.items():
        sound = ptr.dtype == torch.int64 and ptr.shape == (count + 1,)
        if not sound or int(ptr[0]) != 0 or bool((ptr.diff() < 0).any()):
            raise InputError(f"offsets {name!r} of {count} graphs that rise from 0", "others")
    for key, value in packed.tensors.items():
        end = int(packed.ptrs[packed.layout[key]][-1])
        if value.dim() == 0 or value.size(cat_dim(key)) != end:
            raise InputError(f"{end} rows of {key!r}", f"shape {list(value.shape)}")
    for key, how in packed.deliver.items():
        if key not in packed.tensors or how not in _DELIVER:
            raise InputError(f"attributes delivered as one of {sorted(_DELIVER)}", packed.deliver)
        value = packed.tensors[key]
        if how == TEXT and (value.dtype != torch.uint8 or value.dim() != 1):
            raise InputError(f"UTF-8 bytes as {key!r}", value.dtype)
    empty = torch.nonzero(packed.num_nodes == 0).flatten()
    if empty.numel():
        raise InputError("graphs with at least one node", f"graph {int(empty[0])} with none")
    _check_edges(packed)
    x = packed.tensors.get("x")
    per_node = x is None or torch.equal(packed.ptrs[packed.layout["x"]], packed.ptrs["node"])
    if x is not None and (x.dim() != 2 or not per_node):
        raise InputError("x of shape [N, d], one row per node", list(x.shape))


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
