"""A folder in TU text format, read with an eye on every line.

``NAME_A.txt`` (one edge a line, nodes numbered from 1 over all graphs) and
``NAME_graph_indicator.txt`` (the graph of each node) must be there. ``node_labels``,
``node_attributes``, ``edge_labels``, ``edge_attributes``, ``graph_labels`` and
``graph_attributes`` may be. Sound folders give what PyG's ``TUDataset`` gives: features are
attributes then one-hot labels, classes are numbered in order, loops and double edges are removed.

The numbers of a folder are held in memory (its files need not be grouped by graph), the graphs made
of them are not. A line that cannot be read takes its graph with it; a line that leaves open *which*
graph is hurt stops the reading.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import coalesce, remove_self_loops

from gduq.data.rejected_rows import Reject
from gduq.errors import InputError

__all__ = ["TUFolder"]

_Floats = npt.NDArray[np.float64]
_Ints = npt.NDArray[np.int64]


class TUFolder:
    """The graphs of a folder in TU text format.

    Args:
        folder: The folder, or its parent when the files are in ``raw``.
        class_names: Labels in the order of their numbers; ``None``: as found, in order. Pass those
            of the training set when a test set may not hold every class.
        attributes: ``False`` leaves attributes of edges out, and those of nodes that have labels.
    """

    def __init__(
        self, folder: Path, class_names: Sequence[str] | None = None, attributes: bool = True
    ) -> None:
        self.folder, self.name = _find(folder)
        self._bad: dict[int, Reject] = {}  # graph -> its first complaint
        owner = self._whole_numbers("graph_indicator", 1)[:, 0] - 1
        if owner.size == 0 or owner.min() < 0:
            raise InputError(f"graph numbers from 1 in {self._path('graph_indicator')}", "others")
        self._count = self._graphs(owner)
        self._order: _Ints = np.argsort(owner, kind="stable")
        self._node_ptr = _offsets(owner, self._count)
        self._read_edges(owner)
        self._node_parts = [self._column("node_labels", owner, one_hot=True)]
        if attributes or not self._path("node_labels").exists():
            self._node_parts.insert(0, self._column("node_attributes", owner, one_hot=False))
        self._edge_parts = [self._column("edge_labels", self._edge_owner, one_hot=True)]
        if attributes:
            numbers = self._column("edge_attributes", self._edge_owner, one_hot=False)
            self._edge_parts.insert(0, numbers)
        self.class_names: tuple[str, ...] = tuple(class_names or ())
        self.target_names: tuple[str, ...] = ()
        self._y = self._read_targets(class_names)
        empty = np.flatnonzero(np.diff(self._node_ptr) == 0)
        for graph in empty.tolist():
            self._blame(graph, self._target_part, graph, "it has no nodes")

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[tuple[int, Data | Reject]]:
        for graph in range(self._count):
            yield graph, self._bad.get(graph) or self._graph(graph)

    # -- one graph -----------------------------------------------------------------------------

    def _graph(self, graph: int) -> Data:
        start, stop = self._node_ptr[graph : graph + 2]
        which = self._edge_order[self._edge_ptr[graph] : self._edge_ptr[graph + 1]]
        edges = torch.from_numpy(self._edges[which].T - start)
        attr = _features(self._edge_parts, which)
        edges, attr = remove_self_loops(edges, attr)
        edges, attr = coalesce(edges, attr, int(stop - start))
        values: dict[str, Any] = {
            "x": _features(self._node_parts, self._order[start:stop]),
            "edge_index": edges,
            "edge_attr": attr,
            "y": None if self._y is None else self._y[graph : graph + 1].clone(),
        }
        data = Data(**{key: value for key, value in values.items() if value is not None})
        if "x" not in data:
            data.num_nodes = int(stop - start)
        return data

    # -- files ---------------------------------------------------------------------------------

    def _path(self, part: str) -> Path:
        return self.folder / f"{self.name}_{part}.txt"

    def _read(self, part: str, rows: int | None, per: str) -> tuple[_Floats, dict[int, str]] | None:
        path = self._path(part)
        if not path.exists():
            return None
        values, bad = _numbers(path)
        if rows is not None and len(values) != rows:
            raise InputError(
                f"{rows} lines in {path}, one {per}",
                f"{len(values)}",
                "The file is cut off or belongs to another folder: fetch or write it again.",
            )
        return values, bad

    def _whole_numbers(self, part: str, width: int) -> _Ints:
        """A file the graphs hang on: any bad line of it stops the reading."""
        found = self._read(part, None, "")
        if found is None:
            raise InputError(f"the file {self._path(part)}", "none", "Complete the TU folder.")
        values, bad = found
        if len(values) and values.shape[1] != width:
            raise InputError(f"{width} numbers a line in {self._path(part)}", values.shape[1])
        broken = sorted(bad) or np.flatnonzero((values % 1 != 0).any(1)).tolist()
        if broken:
            line = broken[0] + 1
            got = bad.get(broken[0], "another number")
            raise InputError(f"whole numbers in line {line} of {self._path(part)}", got)
        return values.reshape(-1, width).astype(np.int64)

    def _graphs(self, owner: _Ints) -> int:
        """Graphs in the folder: as many as have nodes, or labels if those are more."""
        count = int(owner.max()) + 1
        found = self._read(self._target_part, None, "")
        lines = count if found is None else len(found[0])
        if lines < count:
            self._read(self._target_part, count, "a graph")  # raises: it says what is missing
        return lines

    def _read_edges(self, owner: _Ints) -> None:
        nodes = len(owner)
        ends = self._whole_numbers("A", 2) - 1
        inside = (ends >= 0) & (ends < nodes)
        lost = np.flatnonzero(~inside.any(1))
        if lost.size:
            raise InputError(
                f"node numbers from 1 to {nodes} in line {lost[0] + 1} of {self._path('A')}",
                (ends[lost[0]] + 1).tolist(),
            )
        graphs = owner[np.where(inside, ends, ends[:, ::-1])]
        for row in np.flatnonzero(~inside.all(1)).tolist():
            self._blame(int(graphs[row, 0]), "A", row, f"a node above {nodes} or below 1")
        for row in np.flatnonzero(graphs[:, 0] != graphs[:, 1]).tolist():
            for graph in graphs[row].tolist():
                self._blame(graph, "A", row, "an edge between two graphs")
        rank = np.empty(nodes, dtype=np.int64)  # where a node stands once sorted by graph
        rank[self._order] = np.arange(nodes)
        self._edges: _Ints = rank[np.where(inside, ends, 0)]
        self._edge_owner: _Ints = graphs[:, 0]
        self._edge_order: _Ints = np.argsort(self._edge_owner, kind="stable")
        self._edge_ptr = _offsets(self._edge_owner, self._count)

    def _column(self, part: str, owner: _Ints, one_hot: bool) -> tuple[_Floats, list[int]]:
        """Values a node or edge, and the number of classes of each column (none: plain numbers)."""
        found = self._read(part, len(owner), "a node" if part.startswith("node") else "an edge")
        if found is None:
            return np.empty((len(owner), 0)), []
        values, bad = found
        if one_hot:
            odd = np.flatnonzero((np.nan_to_num(values) % 1 != 0).any(1))
            bad = {**{int(row): "a label that is no whole number" for row in odd}, **bad}
        for row, reason in sorted(bad.items()):
            self._blame(int(owner[row]), part, row, reason)
        good = np.setdiff1d(np.arange(len(values)), list(bad))
        if not one_hot or good.size == 0:
            return values, []
        values = values - values[good].min(0)
        return values, (values[good].max(0).astype(np.int64) + 1).tolist()

    @property
    def _target_part(self) -> str:
        return "graph_attributes" if self._path("graph_attributes").exists() else "graph_labels"

    def _read_targets(self, class_names: Sequence[str] | None) -> Tensor | None:
        part = self._target_part
        found = self._read(part, self._count, "a graph")
        if found is None:
            return None
        values, bad = found
        for row, reason in sorted(bad.items()):
            self._blame(row, part, row, reason)
        if part == "graph_attributes":
            return torch.from_numpy(values.astype(np.float32)).squeeze(-1)
        if values.shape[1] != 1:
            raise InputError(f"one label a line in {self._path(part)}", values.shape[1])
        labels = values[:, 0].tolist()
        if class_names is None:
            known = sorted({label for row, label in enumerate(labels) if row not in bad})
            self.class_names = tuple(_label_text(label) for label in known)
        texts = [_label_text(label) for label in labels]
        index = {name: i for i, name in enumerate(self.class_names)}
        for row, text in enumerate(texts):
            if text not in index:
                self._blame(row, part, row, f"{text} is none of the classes {self.class_names}")
        return torch.tensor([index.get(text, 0) for text in texts])

    def _blame(self, graph: int, part: str, row: int, reason: str) -> None:
        name = self._path(part).name
        self._bad.setdefault(graph, Reject(name, row + 1, f"graph {graph + 1}: {reason}"))


def _find(folder: Path) -> tuple[Path, str]:
    """Where the files are, and the NAME they begin with."""
    for place in (folder, folder / "raw"):
        found = sorted(place.glob("*_A.txt"))
        if len(found) == 1:
            return place, found[0].name.removesuffix("_A.txt")
        if found:
            names = [path.name for path in found]
            raise InputError(f"one data set in the folder {place}", names, "Give each its folder.")
    held = sorted(path.name for path in folder.iterdir())[:5]
    raise InputError(f"a file NAME_A.txt in the folder {folder}", held or "nothing")


def _numbers(path: Path) -> tuple[_Floats, dict[int, str]]:
    """A table of numbers ``[lines, width]``, and the rows that are none with the reason."""
    if not path.is_file():
        raise InputError(f"a regular file {path}", "a folder, a device or a pipe")
    text = path.read_text(encoding="utf-8", errors="replace")
    lines = text.rstrip().split("\n") if text.strip() else []
    if all(line.strip() for line in lines):  # numpy skips blank lines: rows would slip
        try:
            values = np.loadtxt(lines, delimiter=",", ndmin=2, comments=None) if lines else None
            if values is not None and np.isfinite(values).all():
                return values, {}
        except ValueError:
            pass
    rows = [_floats(line) for line in lines]
    width = next((len(row) for row in rows if isinstance(row, list)), 1)
    table, bad = np.zeros((len(lines), width)), {}
    for i, row in enumerate(rows):
        if isinstance(row, str):
            bad[i] = row
        elif len(row) != width:
            bad[i] = f"{len(row)} numbers instead of {width}"
        else:
            table[i] = row
    return table, bad


def _label_text(label: float) -> str:
    return str(int(label)) if label.is_integer() else str(label)


def _floats(line: str) -> list[float] | str:
    try:
        values = [float(piece) for piece in line.split(",")]
    except ValueError:
        return f"{line.strip()[:40]!r} is no list of numbers"
    return values if np.isfinite(values).all() else f"{line.strip()[:40]!r} is not finite"


def _offsets(owner: _Ints, count: int) -> _Ints:
    return np.concatenate([[0], np.bincount(owner, minlength=count).cumsum()])


def _features(parts: Sequence[tuple[_Floats, list[int]]], rows: _Ints) -> Tensor | None:
    """Rows of plain columns and of one-hot ones, side by side; ``None`` when there is no column."""
    columns: list[Tensor] = []
    for values, classes in parts:
        taken = torch.from_numpy(values[rows])
        if classes:
            hot = [
                torch.nn.functional.one_hot(taken[:, i].long(), size)
                for i, size in enumerate(classes)
            ]
            columns += [column.float() for column in hot]
        elif taken.size(1):
            columns.append(taken.float())
    return torch.cat(columns, dim=1) if columns else None
