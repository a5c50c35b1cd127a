"""Your own graphs: from a table of molecules (see `gduq.data.table`), or a file of graphs that
`save` wrote. Rows that cannot be read are left out; more than a share of them is an error."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from torch_geometric.data import Data

from gduq._io import DamagedFile, read_tensors, write_tensors
from gduq.data.columns import Task
from gduq.data.outputs import Reject, check_output
from gduq.data.table import MoleculeTable, check_source, is_table
from gduq.errors import InputError
from gduq.graphs import Packed, check_graph
from gduq.graphs.packed import cat_dim

__all__ = ["GraphSource", "Source", "read", "save", "stream"]

_FORMAT = "gduq.graphs 5"
_PART = 4096  # graphs that are checked at a time


@dataclass(frozen=True, eq=False)
class GraphSource:
    """Graphs that are there, with what is known of their ``y``."""

    graphs: Sequence[Data]
    class_names: tuple[str, ...] = ()
    target_names: tuple[str, ...] = ()
    task: Task | None = None

    def __iter__(self) -> Iterator[tuple[int, Data | Reject]]:
        return ((number, self.graphs[number]) for number in range(len(self.graphs)))


Source = GraphSource | MoleculeTable


def stream(
    path: str | Path,
    *,
    smiles: str = "smiles",
    targets: Sequence[str] = (),
    class_names: Sequence[str] | None = None,
    task: Task | None = None,
) -> Source:
    """The rows of a file, one after the other, as ``(index, graph or Reject)``.

    Indices count all rows from 0, readable or not. Molecules are read as one walks over them. The
    result has ``class_names`` and ``target_names``.

    Args:
        path: A table or a file of graphs.
        smiles: Column of SMILES strings, for tables.
        targets: Target columns, for tables.
        class_names: Classes in the order of their numbers, those of the training set for a test
            set, which may not hold every class; ``None``: as found in the data.
        task: What the target columns hold, see `gduq.data.columns.parse_targets`.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "graphs.safetensors"
        >>> edges = torch.tensor([[0, 1], [1, 0]])
        >>> _ = save([Data(x=torch.ones(2, 1), edge_index=edges, y=i) for i in (0, 1)], path)
        >>> [(index, graph.y.item()) for index, graph in stream(path)]
        [(0, 0), (1, 1)]
    """
    path = Path(path).expanduser()
    check_source(path)
    if is_table(path):
        return MoleculeTable(path, smiles, targets, class_names, task)
    packed = _read_graphs(path)
    known = packed.class_names
    if known and class_names and tuple(class_names) != known:
        raise InputError(f"the classes {', '.join(class_names)} in {path}", ", ".join(known))
    return GraphSource(packed, known or tuple(class_names or ()), packed.target_names)


def read(
    path: str | Path,
    *,
    smiles: str = "smiles",
    targets: Sequence[str] = (),
    class_names: Sequence[str] | None = None,
    task: Task | None = None,
    max_rejects: float = 0.1,
) -> Packed:
    """All graphs of a file, as a sequence of ``Data``; a file of graphs is memory-mapped.

    It holds the names of classes and targets too, which `gduq.shifts` hands on to `Splits`.
    ``max_rejects`` is the share of rows that may be unreadable; they are left out with a warning,
    and `stream` tells all of them. The other arguments are those of `stream`.
    """
    if not 0 <= max_rejects <= 1:
        raise InputError("max_rejects from 0 to 1, a share of the rows", max_rejects)
    source = stream(path, smiles=smiles, targets=targets, class_names=class_names, task=task)
    if isinstance(source, GraphSource) and isinstance(source.graphs, Packed):
        return replace(source.graphs, class_names=source.class_names)
    items = [item for _, item in source]
    good = [item for item in items if not isinstance(item, Reject)]
    if bad := [item for item in items if isinstance(item, Reject)]:
        share = f"{len(bad)} of {len(items)}"
        if len(bad) > max_rejects * len(items):
            do = "Correct the rows or raise max_rejects."
            what = f"at most {max_rejects:.0%} of the rows to be unreadable"
            raise InputError(what, f"{share}; the first: {bad[0]}", do)
        warnings.warn(f"{share} rows are left out, first {bad[0]}.", stacklevel=2)
    packed = Packed.pack(good)
    return replace(packed, class_names=source.class_names, target_names=source.target_names)


# -- one safetensors file of graphs ----------------------------------------------------------------


def save(graphs: Iterable[Data], path: str | Path, class_names: Sequence[str] = ()) -> Path:
    """Write graphs to one safetensors file, atomically.

    ``graphs`` is a list of ``Data``, a PyG dataset, or what `read` and `gduq.data.load` hold; all
    have the same attributes: tensors, numbers or strings. ``class_names`` are those `read` found
    unless there are others.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "graphs.safetensors"
        >>> graph = Data(x=torch.ones(2, 1), edge_index=torch.tensor([[0], [1]]), y=1)
        >>> save([graph], path, class_names=["no", "yes"]).name, len(read(path))
        ('graphs.safetensors', 1)
    """
    path = check_output(Path(path).expanduser(), (".safetensors",))
    if isinstance(graphs, Data):
        raise InputError("a list of graphs", "one graph", "Write save([graph], path).")
    if not isinstance(graphs, Packed):
        found = list(graphs)
        if strange := [type(graph).__name__ for graph in found if not isinstance(graph, Data)]:
            raise InputError("torch_geometric Data objects", strange[0])
        plain = [g if type(g) is Data else Data.from_dict(g.to_dict()) for g in found]
        graphs = Packed.pack(plain)
    packed = graphs.materialise()
    _check(packed)
    tensors = {f"data/{name}": value for name, value in packed.tensors.items()}
    tensors |= {f"ptr/{name}": value for name, value in packed.ptrs.items()}
    for name, strings in packed.texts.items():
        text = bytearray(json.dumps(list(strings)).encode())
        tensors[f"text/{name}"] = torch.frombuffer(text, dtype=torch.uint8)
    names = {"class_names": class_names or packed.class_names, "target_names": packed.target_names}
    words = {key: json.dumps([str(name) for name in value]) for key, value in names.items()}
    write_tensors(path, {**tensors, "nodes": packed.node_ptr}, {"format": _FORMAT, **words})
    return path


def _read_graphs(path: Path) -> Packed:
    """Memory-map a file that `save` wrote, with all its numbers checked, or raise `InputError`."""
    try:
        tensors, words = read_tensors(path)
        if words.get("format") != _FORMAT:
            got = words.get("format", "a file that gduq.data.save did not write")
            raise DamagedFile(f"{got} instead of {_FORMAT}")
        groups: dict[str, dict[str, Tensor]] = {"data": {}, "ptr": {}, "text": {}}
        nodes = tensors.pop("nodes")
        for name, value in tensors.items():
            group, _, key = name.partition("/")
            groups[group][key] = value
        texts = {k: list(map(str, json.loads(bytes(v.numpy())))) for k, v in groups["text"].items()}
        named = (tuple(map(str, json.loads(words[k]))) for k in ("class_names", "target_names"))
        packed = Packed(groups["data"], groups["ptr"], nodes, texts, None, *named)
        _check(packed)
    except InputError:
        raise
    except Exception as error:  # whatever a file that was changed by hand leads to
        do = "Write it with gduq.data.save."
        raise InputError(f"a sound file of graphs in {path}", str(error).rstrip("."), do) from error
    return packed


def _check(packed: Packed) -> None:
    """Offsets rise from 0 to the end of their tensors, graphs are sound, edges stay inside them."""
    count = packed.node_ptr.numel() - 1
    if count < 1:
        raise InputError("at least one graph", "none")
    for name, ptr in {**packed.ptrs, "nodes": packed.node_ptr}.items():
        sound = ptr.dtype == torch.int64 and ptr.shape == (count + 1,)
        if not sound or int(ptr[0]) != 0 or bool((ptr.diff() < 0).any()):
            raise InputError(f"offsets {name!r} of {count} graphs that rise from 0", "others")
    if any(len(strings) != count for strings in packed.texts.values()):
        raise InputError(f"{count} strings, one per graph", "another number")
    for key, value in packed.tensors.items():
        end = int(packed.ptrs[key][-1])
        if value.dim() == 0 or value.size(cat_dim(key)) != end:
            raise InputError(f"{end} rows of {key!r}", f"shape {list(value.shape)}")
    if bool((packed.num_nodes == 0).any()):
        raise InputError("graphs with at least one node", "one with none")
    for part in torch.arange(count).split(_PART):
        batch = packed.collate(part)
        check_graph(batch, finite=False)
        owner = torch.repeat_interleave(packed.ptrs["edge_index"].diff()[part])
        if bool((wrong := (batch.batch[batch.edge_index] != owner).any(0)).any()):
            what = "node numbers of its own nodes in the edges of each graph"
            raise InputError(what, f"others in graph {int(part[owner[wrong][0]])}")
