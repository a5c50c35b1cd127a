"""Your own graphs: from a table of molecules, or a file of graphs that `save` wrote; and cut for
training. Rows that cannot be read are left out; more than a share of them is an error."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import torch
from torch_geometric.data import Data

from gduq._io import DamagedFile, read_tensors, write_tensors
from gduq.data.catalog import limit_splits
from gduq.data.columns import Task, parse_targets, resolve_column, unit_of
from gduq.data.outputs import Reject, check_output
from gduq.data.smiles import molecules
from gduq.data.table import Table, check_source, is_table, read_table
from gduq.errors import InputError, not_installed, one_line
from gduq.graphs import Packed, Splits, View, check_graph
from gduq.graphs.packed import cat_dim, try_pack
from gduq.prediction import Target, infer_target
from gduq.shifts.cuts import cut, domain_of, make_splits

__all__ = ["OwnData", "Source", "read", "read_own", "save", "stream"]

_FORMAT = "gduq.graphs 5"
_PART = 4096  # graphs that are checked at a time
_AT_A_TIME = 64  # rows of a table
_MOST_REJECTED = 0.5  # of the rows to train on: of more, and the wrong column was read
Row = tuple[int, Data | Reject]


class Source:
    """The rows of a file, a table of molecules or graphs that `save` wrote, one after the other as
    ``(index, graph or Reject)``; indices count all rows from 0, readable or not. Molecules are read
    as one walks over them, into graphs of PyG's ``from_smiles`` with floats as features.

    Args:
        path: The file, or ``"-"`` for a table on standard input.
        smiles: Column of SMILES strings, for tables; found in any case where that is clear.
        targets: Target columns, for tables.
        class_names: Classes in the order of their numbers, for a test set those of the training
            set; ``None``: as found in the data.
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
        rows = range(len(self.content.lines))
        with ThreadPoolExecutor(1) as thread:  # reads ahead while the last rows are used
            done = thread.submit(list[Row])
            for start in range(0, len(rows) + _AT_A_TIME, _AT_A_TIME):
                ahead = thread.submit(self._read, self.content, rows[start : start + _AT_A_TIME])
                yield from done.result()
                done = ahead

    def _read(self, table: Table, rows: range) -> list[Row]:
        found = list[Row]()
        for row in rows:
            item = self._rejects.get(row) or molecules([self._smiles[row]])[0]
            if isinstance(item, str):
                item = table.reject(row, item)
            elif isinstance(item, Data) and self._y:
                item.y = self._y[row]
            found.append((row, item))
        return found

    def load(self) -> tuple[dict[int, Data], dict[int, Reject]]:
        """All graphs by row number, and why the other rows are none."""
        rows = dict(self)
        rejects = {row: item for row, item in rows.items() if isinstance(item, Reject)}
        return {row: item for row, item in rows.items() if isinstance(item, Data)}, rejects


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
    """All graphs of a file, as a sequence of ``Data`` with the names of classes and targets; a file
    of graphs is memory-mapped. ``max_rejects`` is the share of rows that may be unreadable; they
    are left out with a warning, and `stream`, which has the other arguments, tells all of them."""
    source = stream(path, smiles=smiles, targets=targets, class_names=class_names, task=task)
    packed = source.content
    if not isinstance(packed, Packed):
        graphs, rejects = source.load()
        left = _check_rejects(path, len(graphs), rejects, max_rejects)
        if rejects:
            warnings.warn(f"{left}.", stacklevel=2)
        packed = Packed.pack(list(graphs.values()))
    return replace(packed, class_names=source.class_names, target_names=source.target_names)


def _check_rejects(source: object, good: int, rejects: Mapping[int, Reject], most: float) -> str:
    """How many rows are left out; raises where these are all, or more than a share."""
    total, first = good + len(rejects), str(rejects[min(rejects)]) if rejects else "none"
    left = f"{len(rejects)} of {total} rows of {source} are left out, the first {first}"
    if not good or len(rejects) > most * total:
        do = "Learn one target at a time." if "target" in first else "Name the column of SMILES."
        raise InputError(f"at most {most:.0%} of the rows to be unreadable", left, do)
    return left


def save(graphs: Iterable[Data], path: str | Path, class_names: Sequence[str] = ()) -> Path:
    """Write graphs to one safetensors file, atomically.

    ``graphs`` is a list of ``Data``, a PyG dataset, or what `read` and `gduq.data.load` hold, of
    the same attributes: tensors, numbers or strings. ``class_names``: by default those of `read`.

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


@dataclass(frozen=True, eq=False)
class OwnData:
    """What became of a user's data."""

    splits: Splits
    target: Target
    by: str  # what they were cut by
    rejects: tuple[tuple[int, Reject], ...]  # row number and reason of all that was left out


@lru_cache(maxsize=2)
def read_own(
    source: str,
    *,
    name: str,
    smiles: str | None = None,
    targets: tuple[str, ...] = (),
    units: tuple[str, ...] = (),
    ids: tuple[str, ...] = (),
    task: Task | None = None,
    by: str | None = None,
    seed: int = 0,
    limit: int | None = None,
) -> OwnData:
    """Read, check and cut a file, with the settings of `gduq.runs.config.DataConfig`."""
    opened = stream(source, smiles=smiles or "smiles", targets=targets, task=task)
    table, column = opened.content, (by or "").partition("=")[2]
    rows, rejects = opened.load()
    fields = table.column(column) if isinstance(table, Table) and column else None
    named = table.column(ids[0]) if isinstance(table, Table) and ids else None
    for row, graph in list(rows.items()):
        flaw = "no target y" if graph.get("y") is None else ""
        if fields is not None and not fields[row]:
            flaw = f"no {column!r}"
        try:
            check_graph(graph)
        except InputError as error:
            flaw = one_line(error)
        if flaw:
            rejects[row] = Reject(name, 0, flaw, rows.pop(row).get("smiles") or "")
        elif named is not None:
            graph.id = named[row]
    _check_rejects(source, len(rows), rejects, _MOST_REJECTED)
    y = View(list(rows.values())).target
    target = infer_target(y, len(opened.class_names) or None, opened.task or task)
    for row, usable in zip(list(rows), target.usable(y).tolist(), strict=True):
        if not usable:
            text = rows.pop(row).get("smiles") or ""
            rejects[row] = Reject(name, 0, "a target is empty", text)
    _check_rejects(source, len(rows), rejects, _MOST_REJECTED)
    graphs, given = list(rows.values()), None if fields is None else list(fields[list(rows)])
    splits, way = _cut(graphs, target, given, by, seed)
    noun = "molecules" if "smiles" in graphs[0] else "graphs"
    how = "at random" if way == "random" else f"by {way}"
    left = f"; {len(rejects)} left out" if rejects else ""
    text = f"{len(graphs)} {noun} of {name}, cut {how}{left}."
    names = opened.class_names or getattr(target, "names", None) or ()
    columns = tuple(unit_of(one)[0] for one in opened.target_names)
    splits = splits.with_(
        name=name, description=text, units=units, class_names=names, target_names=columns
    )
    splits = limit_splits(splits, limit, seed, target)
    return OwnData(splits, target, way, tuple(sorted(rejects.items())))


def _cut(
    graphs: Sequence[Data], target: Target, fields: Sequence[str] | None, by: str | None, seed: int
) -> tuple[Splits, str]:
    view = View(try_pack(graphs) or graphs)
    strata = target.strata(view.target)
    way = by or ("scaffold" if "smiles" in graphs[0] else "size")
    domain = None if way == "random" else domain_of(way, graphs, fields)
    try:
        parts = cut(domain, strata, seed=seed, name=way)
    except InputError:
        if by is not None or way != "scaffold" or len(graphs) < 40:
            raise
        return _cut(graphs, target, fields, "size", seed)  # most molecules have one scaffold
    return make_splits(view, parts, torch.zeros(len(graphs)) if domain is None else domain), way
