"""Your own graphs: from a TU text folder, a table of molecules, or one safetensors file.

==================== ============================================================================
a folder             TU text format, see `gduq.data.tufolder`
``.csv``, ``.tsv``   a SMILES column and target columns, see `gduq.data.table`
``.safetensors``     graphs written by `save` or `convert`, see `gduq.data.graphfile`
==================== ============================================================================

Rows that cannot be read are listed and left out; more than a share of them is an error.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Protocol

from torch_geometric.data import Data

from gduq.data.graphfile import read_graphs, write_graphs, write_parts
from gduq.data.outputs import check_outputs, rejects_path
from gduq.data.packed import Packed
from gduq.data.rejected_rows import Reject, RejectLog
from gduq.data.table import MoleculeTable
from gduq.data.truth import Task
from gduq.data.tufolder import TUFolder
from gduq.errors import InputError

__all__ = ["Converted", "Reject", "Source", "convert", "open_source", "read", "save", "stream"]

_FORMATS = "a TU folder, a .csv or .tsv table, or a .safetensors file"


class Source(Protocol):
    """Graphs in a file or folder, one after the other, and the names of classes and targets."""

    class_names: tuple[str, ...]
    target_names: tuple[str, ...]

    def __iter__(self) -> Iterator[tuple[int, Data | Reject]]: ...


@dataclass(frozen=True)
class Converted:
    """What `convert` did: where the graphs went, how many, and what was left out."""

    path: Path
    graphs: int
    rejected: int
    rejects: Path | None
    class_names: tuple[str, ...] = ()


class _GraphFile:
    """A safetensors file of graphs, memory-mapped."""

    def __init__(self, path: Path, class_names: Sequence[str] | None = None) -> None:
        self.path, self.packed = path, read_graphs(path)
        found, self.target_names = self.packed.class_names, self.packed.target_names
        self.class_names = tuple(class_names or found)
        if found and self.class_names != found:
            raise InputError(f"the classes {self.class_names} in {path}", found)

    def __iter__(self) -> Iterator[tuple[int, Data | Reject]]:
        for index in range(len(self.packed)):
            try:
                yield index, self.packed[index]
            except UnicodeDecodeError as error:
                yield index, Reject(self.path.name, 0, f"text that is no UTF-8 ({error.reason})")


def open_source(
    path: str | Path,
    *,
    smiles: str = "smiles",
    targets: Sequence[str] = (),
    class_names: Sequence[str] | None = None,
    task: Task | None = None,
) -> Source:
    """Open any of the formats above; nothing but headers and offsets is kept for tables and files.

    Args:
        path: A folder or a file.
        smiles: Column of SMILES strings, for tables.
        targets: Target columns, for tables.
        class_names: Classes in the order of their numbers; ``None``: as found in the data. Pass
            those of the training set to read a test set, which may not hold every class.
        task: What the target columns of a table hold: ``"classes"``, ``"labels"`` or ``"values"``;
            ``None``: told from them, see `gduq.data.truth.Truth`.
    """
    path = Path(path).expanduser()
    if path.is_dir():
        return TUFolder(path, class_names)
    if not path.exists():
        raise InputError("a folder or file of graphs", f"{path}, which does not exist")
    if not path.is_file():
        raise InputError("a folder or a regular file of graphs", f"{path}, which is neither")
    if path.suffix in (".csv", ".tsv"):
        return MoleculeTable(path, smiles, targets, class_names, task)
    if path.suffix == ".safetensors":
        return _GraphFile(path, class_names)
    if path.suffix in (".pt", ".pth", ".pkl", ".pickle"):
        got = f"{path.name}, a pickle, which could run any code when loaded"
        do = "Load it yourself if you trust it, then call gduq.data.save(graphs, path)."
        raise InputError(_FORMATS, got, do)
    raise InputError(_FORMATS, path)


def stream(
    path: str | Path,
    *,
    smiles: str = "smiles",
    targets: Sequence[str] = (),
    class_names: Sequence[str] | None = None,
    task: Task | None = None,
) -> Iterator[tuple[int, Data | Reject]]:
    """Walk over the rows of a source as ``(index, graph or Reject)``, one in memory at a time.

    Indices count all rows from 0, readable or not. See `open_source` for the arguments.

    Example:
        >>> import tempfile, torch
        >>> path = Path(tempfile.mkdtemp()) / "graphs.safetensors"
        >>> edges = torch.tensor([[0, 1], [1, 0]])
        >>> _ = save([Data(x=torch.ones(2, 1), edge_index=edges, y=i) for i in (0, 1)], path)
        >>> [(index, graph.y.item()) for index, graph in stream(path)]
        [(0, 0), (1, 1)]
    """
    source = open_source(path, smiles=smiles, targets=targets, class_names=class_names, task=task)
    return iter(source)


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
        max_rejects: Share of rows, 0 to 1, that may be unreadable before reading stops.
        smiles, targets, class_names, task: See `open_source`.
    """
    source = open_source(path, smiles=smiles, targets=targets, class_names=class_names, task=task)
    if isinstance(source, _GraphFile):
        packed = source.packed
    else:
        listed = None if rejects is None else Path(rejects).expanduser()
        if listed is not None:
            check_outputs({"rejects": listed}, [Path(path).expanduser()])
        log = RejectLog(listed, max_rejects)
        packed = Packed.pack(list(log.good(source)))
        if log.rejected and rejects is None:
            warnings.warn(f"{log}. Pass rejects= to list them.", stacklevel=2)
    return replace(packed, class_names=source.class_names, target_names=source.target_names)


def save(graphs: Iterable[Data], path: str | Path, class_names: Sequence[str] = ()) -> Path:
    """Write graphs to one safetensors file, atomically.

    Args:
        graphs: A list of ``Data``, a PyG dataset, or what `read` and `gduq.data.load` hold. All
            must have the same attributes: tensors (joined on the first axis, ``*index*`` on the
            last), numbers or strings.
        path: A name that ends in ``.safetensors``.
        class_names: Names of the classes in the order of their numbers; else those `read` found.

    Example:
        >>> import tempfile, torch
        >>> path = Path(tempfile.mkdtemp()) / "graphs.safetensors"
        >>> graph = Data(x=torch.ones(2, 1), edge_index=torch.tensor([[0], [1]]), y=1)
        >>> save([graph], path, class_names=["no", "yes"]).name, len(read(path))
        ('graphs.safetensors', 1)
    """
    path = _target(path)
    if isinstance(graphs, Data):
        raise InputError("a list of graphs", "one graph", "Write save([graph], path).")
    if isinstance(graphs, Packed):
        write_graphs(path, replace(graphs, extras={}), class_names)
    else:
        write_graphs(path, [_plain(graph) for graph in graphs], class_names)
    return path


def convert(
    source: str | Path,
    target: str | Path,
    *,
    smiles: str = "smiles",
    targets: Sequence[str] = (),
    class_names: Sequence[str] | None = None,
    task: Task | None = None,
    rejects: str | Path | None = None,
    max_rejects: float = 0.1,
    chunk: int = 1024,
    overwrite: bool = False,
) -> Converted:
    """Write any source as one safetensors file of graphs, ``chunk`` graphs in memory at a time.

    Args:
        source: A folder or a file.
        target: The file to write, ``.safetensors``.
        rejects: CSV file for unreadable rows; by default ``<target>.rejects.csv``. It is there only
            when there are any, also when they were too many.
        max_rejects: Share of rows, 0 to 1, that may be unreadable; more stop the conversion and
            nothing is written but the rejects.
        chunk: Graphs held in memory.
        overwrite: Replace an existing target.
        smiles, targets, class_names, task: See `open_source`.
    """
    path = _target(target)
    if path.exists() and not overwrite:
        raise InputError("a new file as target", f"{path}, which exists", "Pass overwrite=True.")
    if chunk < 1:
        raise InputError("chunk >= 1", chunk)
    opened = open_source(source, smiles=smiles, targets=targets, class_names=class_names, task=task)
    listed = rejects_path(path, rejects)
    check_outputs({"target": path, "rejects": listed}, [Path(source).expanduser()])
    log = RejectLog(listed, max_rejects)
    good = log.good(opened)
    parts = iter(lambda: list(islice(good, chunk)), [])
    count = write_parts(path, parts, opened.class_names, opened.target_names)
    left_out = listed if log.rejected else None
    return Converted(path, count, log.rejected, left_out, opened.class_names)


def _target(path: str | Path) -> Path:
    path = Path(path).expanduser()
    if path.suffix != ".safetensors":
        raise InputError("a file name that ends in .safetensors", path.name)
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise InputError("a folder that can be written", path.parent)
    return path


def _plain(graph: object) -> Data:
    """The graph, of a subclass the same attributes in a plain ``Data``."""
    if not isinstance(graph, Data):
        raise InputError("torch_geometric Data objects", type(graph).__name__)
    return graph if type(graph) is Data else Data.from_dict(graph.to_dict())
