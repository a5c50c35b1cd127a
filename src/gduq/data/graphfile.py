"""One safetensors file of graphs: users' own files, and what the cache keeps.

It holds a `gduq.graphs.Packed`: ``data/<attribute>`` for all graphs one after the other,
``ptr/<name>`` the offsets ``[G + 1]`` at which each graph starts, ``extra/<name>`` what lies beside
the graphs; and as texts ``format``, ``layout`` (attribute to offsets), ``deliver`` (attribute to
the dtype it is handed out in), ``class_names``, ``target_names`` and, in the cache, ``key``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch_geometric.data import Data

from gduq._io import DamagedFile, read_tensors, write_tensors
from gduq.errors import InputError
from gduq.graphs import Packed, check_graph
from gduq.graphs.packed import TEXT, cat_dim

__all__ = ["open_graphs", "read_graphs", "write_graphs"]

_FORMAT = "gduq.graphs 4"
_DELIVER = {TEXT, "bool", "int8", "int16", "int32", "int64", "float16", "float32", "float64"}
_PART = 4096  # graphs that are checked at a time


def write_graphs(
    path: Path,
    graphs: Sequence[Data],
    class_names: Sequence[str] = (),
    target_names: Sequence[str] = (),
    key: str = "",
) -> None:
    """Check the graphs and write them to ``path`` in one atomic step; ``key`` is the cache's."""
    packed = graphs.materialise() if isinstance(graphs, Packed) else Packed.pack(list(graphs))
    _check(packed)
    tensors = {f"data/{name}": value for name, value in packed.tensors.items()}
    tensors |= {f"ptr/{name}": packed.ptrs[name] for name in {"node", *packed.layout.values()}}
    tensors |= {f"extra/{name}": value for name, value in packed.extras.items()}
    words = {
        "layout": dict(packed.layout),
        "deliver": dict(packed.deliver),
        "class_names": list(map(str, class_names or packed.class_names)),
        "target_names": list(map(str, target_names or packed.target_names)),
    }
    texts = {name: json.dumps(value) for name, value in words.items()}
    write_tensors(path, tensors, {"format": _FORMAT, "key": key, **texts})


def read_graphs(path: Path) -> Packed:
    """Memory-map a user's file of graphs, with all its numbers checked, or raise `InputError`."""
    try:
        packed = open_graphs(path)
        _check(packed)
    except InputError:
        raise
    except Exception as error:  # whatever a file that was changed by hand leads to
        do = "Write it with gduq.data.save."
        raise InputError(f"a sound file of graphs in {path}", str(error).rstrip("."), do) from error
    return packed


def open_graphs(path: Path, key: str = "") -> Packed:
    """Memory-map a file that this process trusts; raises `DamagedFile` for half a file, one of
    another format, or one that was not made for the cache's ``key``."""
    tensors, texts = read_tensors(path)
    if texts.get("format") != _FORMAT:
        got = texts.get("format", "a file that gduq.data.save did not write")
        raise DamagedFile(f"{got} instead of {_FORMAT}")
    if texts["key"] != key:
        raise DamagedFile("it was made for another key")
    layout, deliver = json.loads(texts["layout"]), json.loads(texts["deliver"])
    return Packed(
        {name: tensors[f"data/{name}"] for name in layout},  # in the order they were given
        {name: tensors[f"ptr/{name}"] for name in sorted({"node", *layout.values()})},
        layout,
        deliver,
        {k.removeprefix("extra/"): v for k, v in tensors.items() if k.startswith("extra/")},
        class_names=tuple(map(str, json.loads(texts["class_names"]))),
        target_names=tuple(map(str, json.loads(texts["target_names"]))),
    )


def _check(packed: Packed) -> None:
    """Offsets rise from 0 to the end of their tensors, graphs are sound, edges stay inside them."""
    count = packed.ptrs["node"].numel() - 1
    if count < 1:
        raise InputError("at least one graph", "none")
    for name, ptr in packed.ptrs.items():
        sound = ptr.dtype == torch.int64 and ptr.shape == (count + 1,)
        if not sound or int(ptr[0]) != 0 or bool((ptr.diff() < 0).any()):
            raise InputError(f"offsets {name!r} of {count} graphs that rise from 0", "others")
    for key, value in packed.tensors.items():
        end, how = int(packed.ptrs[packed.layout[key]][-1]), packed.deliver.get(key)
        if value.dim() == 0 or value.size(cat_dim(key)) != end:
            raise InputError(f"{end} rows of {key!r}", f"shape {list(value.shape)}")
        text = value.dtype == torch.uint8 and value.dim() == 1
        if (how is not None and how not in _DELIVER) or (how == TEXT and not text):
            raise InputError(f"{key!r} of a dtype, or UTF-8 bytes", f"{value.dtype} as {how}")
    if empty := torch.nonzero(packed.num_nodes == 0).flatten().tolist():
        raise InputError("graphs with at least one node", f"graph {empty[0]} with none")
    bare = {k: v for k, v in packed.tensors.items() if packed.deliver.get(k) != TEXT}
    for part in torch.arange(count).split(_PART):
        batch = replace(packed, tensors=bare).collate(part)
        check_graph(batch, finite=False)
        owner = torch.repeat_interleave(packed.sizes("edge_index")[part])
        if bool((wrong := (batch.batch[batch.edge_index] != owner).any(0)).any()):
            graph = int(part[owner[wrong][0]])
            limit = int(packed.num_nodes[graph]) - 1
            what = f"node numbers from 0 to {limit} in the edges of graph {graph}"
            raise InputError(what, "others")
