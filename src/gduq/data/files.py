"""Your own graphs: from a table of molecules, or a file of graphs that `save` wrote. Rows that
cannot be read are left out; more than a share of them is an error."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import torch
from torch_geometric.data import Data

from gduq._io import DamagedFile, read_tensors, write_tensors
from gduq.data.columns import Task, parse_targets, resolve_column
from gduq.data.outputs import Reject, check_output
from gduq.data.smiles import molecules
from gduq.data.table import Table, check_source, is_table, read_table
from gduq.errors import InputError, not_installed
from gduq.graphs import Packed, check_graph
from gduq.graphs.packed import cat_dim

__all__ = ["Source", "read", "save", "stream"]

_FORMAT = "gduq.graphs 5"
_PART = 4096  # graphs that are checked at a time
_AT_A_TIME = 64  # rows of a table
Row = tuple[int, Data | Reject]


class Source:
    """The rows of a file, a table of molecules or graphs that `save` wrote, one after the other as
    ``(index, graph or Reject)``.

    Indices count all rows from 0, readable or not. Molecules are read as one walks over them; they
    become graphs as PyG's ``from_smiles`` makes them, with floats as features.

    Args:
        path: The file, or ``"-"`` for a table on standard input.
        smiles: Column of SMILES strings, for tables; found in any case where that is clear.
        targets: Target columns, for tables.
        class_names: Classes in the order of their numbers, those of the training set for a test
            set, which may not hold every class; ``None``: as found in the data.
        task: What the target columns hold, see `gduq.data.columns.parse_targets`.
    """

    content: Packed | Table

    def __init__(
        self,
        path: str | Path,
        *,
        smiles: str = "smiles",
        targets: Sequence[str] = (),
        class_names: Sequence[str] | None = None,
        task: Task | None = None,
    ) -> None:
        path, self.class_names, self.task = check_source(path), tuple(class_names or ()), task
        if not is_table(path):
            self.content = packed = _read_graphs(path)
            if packed.class_names and self.class_names not in ((), packed.class_names):
                what = f"the classes {', '.join(self.class_names)} in {path}"
                raise InputError(what, ", ".join(packed.class_names))
            self.class_names = packed.class_names or self.class_names
            self.target_names = packed.target_names
            return
        if find_spec("rdkit") is None:
            raise not_installed("RDKit to read SMILES", "rdkit")
        self.content = table = read_table(path)
        self.target_names = (targets,) if isinstance(targets, str) else tuple(targets)
        self._smiles = table.frame[resolve_column(path, table.names, smiles, any_case=True)]
        self._y, self._rejects = dict[int, torch.Tensor](), dict(table.rejects)
        if self.target_names:
            columns = [table.column(name) for name in self.target_names]
            found = parse_targets(path, columns, task, class_names, table.commas)
            self.task, self.class_names, y, flaws = found
            self._y = dict(zip(table.frame.index, y.split(1), strict=True))
            self._rejects |= {row: table.reject(row, reason) for row, reason in flaws.items()}

    def __iter__(self) -> Iterator[Row]:
        if isinstance(self.content, Packed):
            yield from enumerate(self.content)
            return
        rows, done = range(len(self.content.lines)), None
        with ThreadPoolExecutor(1) as thread:  # reads ahead while the last rows are used
            for start in range(0, len(rows) + _AT_A_TIME, _AT_A_TIME):
                ahead = thread.submit(self._read, self.content, rows[start : start + _AT_A_TIME])
                if done is not None:
                    yield from done.result()
                done = ahead

    def _read(self, table: Table, rows: range) -> list[Row]:
        found = list[Row]()
        for row in rows:
            item: Data | Reject | str | None = self._rejects.get(row)
            if item is None:
                [item] = molecules([self._smiles[row]])
            if isinstance(item, str):
                item = table.reject(row, item)
            elif isinstance(item, Data) and self._y:
                item.y = self._y[row]
            found.append((row, item))
        return found


stream = Source


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
    source = stream(path, smiles=smiles, targets=targets, class_names=class_names, task=task)
    packed = source.content
    if not isinstance(packed, Packed):
        items = [item for _, item in source]
        bad = [item for item in items if isinstance(item, Reject)]
        if len(bad) > max_rejects * len(items):
            what = f"at most {max_rejects:.0%} of the rows to be unreadable (max_rejects)"
            raise InputError(what, f"{len(bad)} of {len(items)}; the first: {bad[0]}")
        if bad:
            left = f"{len(bad)} of {len(items)} rows are left out, first {bad[0]}."
            warnings.warn(left, stacklevel=2)
        packed = Packed.pack([item for item in items if isinstance(item, Data)])
    return replace(packed, class_names=source.class_names, target_names=source.target_names)


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
        >>> [(index, graph.y.item()) for index, graph in stream(path)]
        [(0, 1)]
    """
    path = check_output(Path(path).expanduser(), (".safetensors",))
    if not isinstance(graphs, Packed):
        found = [] if isinstance(graphs, Data) else list(graphs)
        if not found or not all(isinstance(graph, Data) for graph in found):
            kinds = ", ".join({type(graph).__name__ for graph in found})
            raise InputError("a list of torch_geometric Data objects", kinds or "none")
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
        groups: dict[str, dict[str, torch.Tensor]] = {"data": {}, "ptr": {}, "text": {}}
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
    for name, ptr in {**packed.ptrs, "nodes": packed.node_ptr}.items():
        sound = ptr.dtype == torch.int64 and ptr.shape == (count + 1,) and count > 0
        if not sound or int(ptr[0]) != 0 or bool((ptr.diff() < 0).any()):
            raise InputError(f"offsets {name!r} of {count} graphs that rise from 0", "others")
    ends = {key: int(ptr[-1]) for key, ptr in packed.ptrs.items()}
    rows = {key: value.size(cat_dim(key)) for key, value in packed.tensors.items()}
    if rows != ends or any(len(strings) != count for strings in packed.texts.values()):
        raise InputError(f"rows that end with the offsets {ends}, and {count} texts", f"{rows}")
    if bool((packed.num_nodes == 0).any()):
        raise InputError("graphs with at least one node", "one with none")
    for part in torch.arange(count).split(_PART):
        batch = packed.collate(part)
        check_graph(batch, finite=False)
        owner = torch.repeat_interleave(packed.ptrs["edge_index"].diff()[part])
        if bool((wrong := (batch.batch[batch.edge_index] != owner).any(0)).any()):
            what = "node numbers of its own nodes in the edges of each graph"
            raise InputError(what, f"others in graph {int(part[owner[wrong][0]])}")
