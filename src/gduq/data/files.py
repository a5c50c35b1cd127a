"""Your own graphs: from a table of molecules, one safetensors file, or a TU text folder.

==================== ============================================================================
``.csv``, ``.tsv``   a SMILES column and target columns, see `gduq.data.table`
``.safetensors``     graphs written by `save`, see `gduq.data.graphfile`
a folder             TU text format, read by PyG
==================== ============================================================================

Rows that cannot be read are listed and left out; more than a share of them is an error.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch_geometric.data import Data
from torch_geometric.data.separate import separate
from torch_geometric.io import read_tu_data

from gduq.data.graphfile import read_graphs, write_graphs
from gduq.data.outputs import Reject, RejectList, check_output, check_outputs
from gduq.data.source_path import check_source, tu_name
from gduq.data.table import MoleculeTable, is_table
from gduq.data.target_parser import Task
from gduq.errors import InputError, one_line
from gduq.graphs import Packed, check_graph

__all__ = ["GraphSource", "Source", "open_source", "read", "read_tu",
           "save", "stream"]  # fmt: skip


class Source(Protocol):
    """Graphs in a file or folder, one after the other, and the names of classes and targets."""

    class_names: tuple[str, ...]
    target_names: tuple[str, ...]

    def __iter__(self) -> Iterator[tuple[int, Data | Reject]]: ...


class GraphSource:
    """Graphs that are there, with the names of classes that came with them (``found``)."""

    def __init__(
        self,
        graphs: Sequence[Data],
        found: tuple[str, ...] = (),
        target_names: tuple[str, ...] = (),
        class_names: Sequence[str] | None = None,
    ) -> None:
        self.graphs, self.found, self.target_names = graphs, found, target_names
        self.class_names = tuple(class_names or found)
        if found and self.class_names != found:
            raise InputError(f"the classes {self.class_names}", found)

    def __iter__(self) -> Iterator[tuple[int, Data | Reject]]:
        for index in range(len(self.graphs)):
            try:
                yield index, self.graphs[index]
            except UnicodeDecodeError as error:
                yield index, Reject("graphs", 0, f"text that is no UTF-8 ({error.reason})")


def open_source(
    path: str | Path,
    *,
    smiles: str = "smiles",
    targets: Sequence[str] = (),
    class_names: Sequence[str] | None = None,
    task: Task | None = None,
) -> Source:
    """Open any of the formats above; molecules are read as one walks over them.

    Args:
        path: A folder or a file.
        smiles: Column of SMILES strings, for tables.
        targets: Target columns, for tables.
        class_names: Classes in the order of their numbers; ``None``: as found in the data. Pass
            those of the training set to read a test set, which may not hold every class.
        task: What the target columns of a table hold: ``"classes"``, ``"labels"`` or ``"values"``;
            ``None``: inferred, see `gduq.data.target_parser.TargetParser`.
    """
    path = Path(path).expanduser()
    check_source(path)
    if path.is_dir():
        return read_tu(path, class_names)
    if is_table(path):
        return MoleculeTable(path, smiles, targets, class_names, task)
    packed = read_graphs(path)
    return GraphSource(packed, packed.class_names, packed.target_names, class_names)


def stream(
    path: str | Path,
    *,
    smiles: str = "smiles",
    targets: Sequence[str] = (),
    class_names: Sequence[str] | None = None,
    task: Task | None = None,
) -> Iterator[tuple[int, Data | Reject]]:
    """Walk over the rows of a source as ``(index, graph or Reject)``.

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
        max_rejects: Share of rows, 0 to 1, that may be unreadable.
        smiles, targets, class_names, task: See `open_source`.
    """
    if not 0 <= max_rejects <= 1:
        raise InputError("max_rejects from 0 to 1, a share of the rows", max_rejects)
    source = open_source(path, smiles=smiles, targets=targets, class_names=class_names, task=task)
    names: dict[str, Any] = {"class_names": source.class_names, "target_names": source.target_names}
    if isinstance(source, GraphSource) and isinstance(source.graphs, Packed):
        return replace(source.graphs, **names)
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
    return replace(Packed.pack([g for _, g in items if not isinstance(g, Reject)]), **names)


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
    path = check_output(Path(path).expanduser(), (".safetensors",))
    if isinstance(graphs, Data):
        raise InputError("a list of graphs", "one graph", "Write save([graph], path).")
    if isinstance(graphs, Packed):
        write_graphs(path, replace(graphs, extras={}), class_names)
        return path
    found = list(graphs)
    for graph in found:
        if not isinstance(graph, Data):
            raise InputError("torch_geometric Data objects", type(graph).__name__)
    plain = [g if type(g) is Data else Data.from_dict(g.to_dict()) for g in found]
    write_graphs(path, plain, class_names)
    return path


# -- TU folders ------------------------------------------------------------------------------------


def read_tu(
    folder: Path, class_names: Sequence[str] | None = None, attributes: bool = True
) -> GraphSource:
    """The graphs of a folder in TU text format, as PyG's ``TUDataset`` has them.

    Args:
        folder: The folder, or its parent when the files are in ``raw``.
        class_names: Labels in the order of their numbers; ``None``: as found, in order.
        attributes: ``False`` keeps the labels of nodes and edges only.
    """
    folder, name = tu_name(folder)
    try:
        for file in folder.glob(f"{name}_*.txt"):
            if not file.is_file():  # a pipe would never end
                raise ValueError(f"{file.name} is no file")
            if not file.read_bytes().endswith(b"\n"):  # PyG would lose the line
                raise ValueError(f"no line break at the end of {file.name}")
        data, slices, widths = read_tu_data(str(folder), name)
        found: tuple[str, ...] = ()
        labels = folder / f"{name}_graph_labels.txt"
        if labels.exists() and data.y is not None and not data.y.is_floating_point():
            numbers = sorted({int(float(line)) for line in labels.read_text().split()})
            found = tuple(str(number) for number in numbers)
            if class_names:
                codes = [list(class_names).index(one) for one in found]
                data.y, found = torch.tensor(codes)[data.y], tuple(class_names)
        if not attributes:
            for key, kind in (("x", "node"), ("edge_attr", "edge")):
                if data.get(key) is not None:
                    data[key] = data[key][:, widths[f"num_{kind}_attributes"] :]
                    if not data[key].size(1):
                        data[key] = None
                        if key == "x":
                            data._num_nodes = slices["x"].diff().tolist()
                        slices.pop(key)
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
