"""Your own graphs: from a table of molecules, one safetensors file, or a TU text folder.

==================== ============================================================================
``.csv``, ``.tsv``   a SMILES column and target columns, see `gduq.data.table`
``.safetensors``     graphs written by `save`
a folder             TU text format, read by PyG
==================== ============================================================================

Rows that cannot be read are listed and left out; more than a share of them is an error.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.data.separate import separate
from torch_geometric.io import read_tu_data

from gduq._io import DamagedFile, read_tensors, write_tensors
from gduq.data.columns import Task
from gduq.data.outputs import Reject, RejectList, check_output, check_outputs
from gduq.data.table import MoleculeTable, check_source, is_table, tu_name
from gduq.errors import InputError, one_line
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
    """The rows of a source, one after the other, as ``(index, graph or Reject)``.

    Indices count all rows from 0, readable or not. Molecules are read as one walks over them. The
    result has ``class_names`` and ``target_names``.

    Args:
        path: A folder or a file.
        smiles: Column of SMILES strings, for tables.
        targets: Target columns, for tables.
        class_names: Classes in the order of their numbers; ``None``: as found in the data. Pass
            those of the training set to read a test set, which may not hold every class.
        task: What the target columns of a table hold: ``"classes"``, ``"labels"`` or ``"values"``;
            ``None``: inferred, see `gduq.data.columns.parse_targets`.

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
    if path.is_dir():
        return _read_tu(path, class_names)
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
    rejects: str | Path | None = None,
    max_rejects: float = 0.1,
) -> Packed:
    """All graphs of a source, as a sequence of ``Data``; a safetensors file is memory-mapped.

    It holds the names of classes and targets too, which `gduq.shifts` hands on to `Splits`.

    Args:
        path: A folder or a file.
        rejects: CSV file to list unreadable rows in; without one they raise a warning.
        max_rejects: Share of rows, 0 to 1, that may be unreadable.
        smiles, targets, class_names, task: See `stream`.
    """
    if not 0 <= max_rejects <= 1:
        raise InputError("max_rejects from 0 to 1, a share of the rows", max_rejects)
    source = stream(path, smiles=smiles, targets=targets, class_names=class_names, task=task)
    if isinstance(source, GraphSource) and isinstance(source.graphs, Packed):
        return replace(source.graphs, class_names=source.class_names)
    items = list(source)
    bad = [(row, item) for row, item in items if isinstance(item, Reject)]
    if rejects is not None:
        listed = Path(rejects).expanduser()
        check_outputs({"rejects": listed}, [Path(path).expanduser()])
        with RejectList(listed) as file:
            for row, reject in bad:
                file.write(reject.file, row, reject)
    if len(bad) > max_rejects * len(items):
        raise InputError(
            f"at most {max_rejects:.0%} of the rows to be unreadable",
            f"{len(bad)} of {len(items)}; the first: {bad[0][1]}",
            "Correct the rows or raise max_rejects; rejects= lists them all.",
        )
    if bad and rejects is None:
        text = f"{len(bad)} of {len(items)} rows are left out, first {bad[0][1]}"
        warnings.warn(f"{text}. Pass rejects= to list them.", stacklevel=2)
    packed = Packed.pack([item for _, item in items if not isinstance(item, Reject)])
    return replace(packed, class_names=source.class_names, target_names=source.target_names)


# -- one safetensors file of graphs ----------------------------------------------------------------


def save(graphs: Iterable[Data], path: str | Path, class_names: Sequence[str] = ()) -> Path:
    """Write graphs to one safetensors file, atomically.

    Args:
        graphs: A list of ``Data``, a PyG dataset, or what `read` and `gduq.data.load` hold. All
            must have the same attributes: tensors (joined on the first axis, ``*index*`` on the
            last), numbers or strings.
        path: A name that ends in ``.safetensors``.
        class_names: Names of the classes in the order of their numbers; else those `read` found.

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
        for graph in found:
            if not isinstance(graph, Data):
                raise InputError("torch_geometric Data objects", type(graph).__name__)
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
    if empty := torch.nonzero(packed.num_nodes == 0).flatten().tolist():
        raise InputError("graphs with at least one node", f"graph {empty[0]} with none")
    for part in torch.arange(count).split(_PART):
        batch = packed.collate(part)
        check_graph(batch, finite=False)
        owner = torch.repeat_interleave(packed.ptrs["edge_index"].diff()[part])
        if bool((wrong := (batch.batch[batch.edge_index] != owner).any(0)).any()):
            graph = int(part[owner[wrong][0]])
            limit = int(packed.num_nodes[graph]) - 1
            what = f"node numbers from 0 to {limit} in the edges of graph {graph}"
            raise InputError(what, "others")


# -- TU folders ------------------------------------------------------------------------------------


def _read_tu(folder: Path, class_names: Sequence[str] | None) -> GraphSource:
    """The graphs of a folder (or of ``raw`` in it) in TU text format, as PyG's ``TUDataset`` has
    them, with the labels in the order of ``class_names``, or else as found, in order."""
    folder, name = tu_name(folder)
    try:
        for file in folder.glob(f"{name}_*.txt"):
            if not file.is_file():  # a pipe would never end
                raise ValueError(f"{file.name} is no file")
            if not file.read_bytes().endswith(b"\n"):  # PyG would lose the line
                raise ValueError(f"no line break at the end of {file.name}")
        data, slices, _ = read_tu_data(str(folder), name)
        found: tuple[str, ...] = ()
        labels = folder / f"{name}_graph_labels.txt"
        if labels.exists() and data.y is not None and not data.y.is_floating_point():
            numbers = sorted({int(float(line)) for line in labels.read_text().split()})
            found = tuple(str(number) for number in numbers)
            if class_names:
                codes = [list(class_names).index(one) for one in found]
                data.y, found = torch.tensor(codes)[data.y], tuple(class_names)
        count = len(slices["x"]) - 1 if "x" in slices else len(data._num_nodes)
        for key in {"edge_index", "edge_attr"} & set(slices):  # PyG stops at the last edge
            missing = count + 1 - len(slices[key])
            slices[key] = torch.cat([slices[key], slices[key][-1:].repeat(missing)])
        for key in ("x", "y"):
            if data.get(key) is not None and len(data[key]) != int(slices[key][-1]):
                raise ValueError(f"{len(data[key])} rows of {key} instead of {slices[key][-1]}")
        graphs = [separate(Data, data, i, slices, decrement=False) for i in range(count)]
        for graph in graphs:
            check_graph(graph)  # no edge leads to another graph
    except (OSError, ValueError, IndexError, RuntimeError) as error:
        raise InputError(f"a sound TU folder in {folder}", one_line(error)) from error
    return GraphSource(graphs, found)
