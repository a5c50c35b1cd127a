"""A folder in TU text format, read with an eye on every line.

``NAME_A.txt`` (one edge per line, nodes numbered from 1 over all graphs) and
``NAME_graph_indicator.txt`` (the graph of each node) must be there. ``node_labels``,
``node_attributes``, ``edge_labels``, ``edge_attributes``, ``graph_labels`` and
``graph_attributes`` may be. Sound folders give what PyG's ``TUDataset`` gives: features are
attributes then one-hot labels, classes are numbered in order, loops and double edges are removed.

All numbers of a folder are held in memory, since its files need not be grouped by graph. A line
that cannot be read takes its graph with it; a line that leaves open *which* graph is hurt stops the
reading.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import coalesce

from gduq.data.packed import Packed, to_ptr
from gduq.data.rejected_rows import Reject
from gduq.errors import InputError

__all__ = ["TUFolder"]

_WHOLE = 2.0**53  # the largest number up to which floats hold every whole number
_LABELS = 1000  # different node or edge labels that any folder may have
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

    target_names: tuple[str, ...] = ()

    def __init__(
        self, folder: Path, class_names: Sequence[str] | None = None, attributes: bool = True
    ) -> None:
        self.folder, self.name = _find(folder)
        self.class_names: tuple[str, ...] = tuple(class_names or ())
        self._bad: dict[int, Reject] = {}  # graph -> its first complaint
        owner = self._whole_numbers("graph_indicator", 1)[:, 0] - 1
        if owner.size == 0 or owner.min() < 0:
            raise InputError(f"graph numbers from 1 in {self._path('graph_indicator')}", "others")
        has_values = self._path("graph_attributes").exists()
        self._target_part = "graph_attributes" if has_values else "graph_labels"
        targets = self._read(self._target_part)
        listed = 0 if targets is None else len(targets[0])
        self._count = max(int(owner.max()) + 1, listed)
        if self._count > (most := max(len(owner), listed)):  # more graphs than lines
            what = f"graph numbers from 1 to {most} in {self._path('graph_indicator')}"
            raise InputError(what, self._count)
        edges, edge_owner, sound = self._read_edges(owner)
        both = attributes or not self._path("node_labels").exists()
        x = self._features("node", owner, both)
        edge_attr = self._features("edge", edge_owner, attributes)
        y = self._read_targets(found=class_names is None)
        for graph in np.flatnonzero(np.bincount(owner, minlength=self._count) == 0).tolist():
            self._blame(graph, self._target_part, graph, "it has no nodes")
        # sorted by graph, and all graphs at once
        order = np.argsort(owner, kind="stable")
        rank = np.empty_like(order)
        rank[order] = np.arange(len(owner))
        attr = None if edge_attr is None else edge_attr[sound].float()
        ends, attr = coalesce(torch.from_numpy(rank[edges[sound]].T), attr, len(owner))
        node_ptr, graphs = self._offsets(owner), torch.from_numpy(owner[order])[ends[0]]
        packed = Packed.build(
            node_ptr,
            self._offsets(graphs.numpy()),
            ends - node_ptr[graphs],
            nodes={} if x is None else {"x": x[order]},
            edges={} if attr is None else {"edge_attr": attr},
            graphs={} if y is None else {"y": y},
        )
        self._packed = packed if x is None else replace(packed, deliver={"x": "float32"})

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[tuple[int, Data | Reject]]:
        for graph in range(self._count):
            yield graph, self._bad.get(graph) or self._packed[graph]

    def _offsets(self, owner: _Ints) -> Tensor:
        return to_ptr(torch.from_numpy(np.bincount(owner, minlength=self._count)))

    # -- files ---------------------------------------------------------------------------------

    def _path(self, part: str) -> Path:
        return self.folder / f"{self.name}_{part}.txt"

    def _blame(self, graph: int, part: str, row: int, reason: str) -> None:
        name = self._path(part).name
        self._bad.setdefault(graph, Reject(name, row + 1, f"graph {graph + 1}: {reason}"))

    def _read(self, part: str) -> tuple[_Floats, dict[int, str]] | None:
        """The numbers of a file, and which rows are none with the reason."""
        path = self._path(part)
        return _numbers(path) if path.exists() else None

    def _whole_numbers(self, part: str, width: int) -> _Ints:
        """A file the graphs hang on: any bad line of it stops the reading."""
        path, found = self._path(part), self._read(part)
        if found is None:
            raise InputError(f"the file {path}", "none", "Complete the TU folder.")
        values, bad = found
        if len(values) and values.shape[1] != width:
            raise InputError(f"{width} numbers a line in {path}", values.shape[1])
        broken = sorted(bad) or np.flatnonzero(_odd(values)).tolist()
        if broken:
            got = bad.get(broken[0], "another number")
            raise InputError(f"whole numbers in line {broken[0] + 1} of {path}", got)
        return values.reshape(-1, width).astype(np.int64)

    def _read_edges(self, owner: _Ints) -> tuple[_Ints, _Ints, npt.NDArray[np.bool_]]:
        """Both ends of each edge, its graph, and whether it is one of that graph and no loop."""
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
        same = graphs[:, 0] == graphs[:, 1]
        for row in np.flatnonzero(~same).tolist():
            for graph in graphs[row].tolist():
                self._blame(graph, "A", row, "an edge between two graphs")
        return ends, graphs[:, 0], inside.all(1) & same & (ends[:, 0] != ends[:, 1])

    def _rows(self, part: str, owner: _Ints, whole: bool) -> tuple[_Floats, _Ints] | None:
        """The numbers of a file and which rows are good; the graphs of all others are blamed."""
        found = self._read(part)
        if found is None:
            return None
        values, bad = found
        if len(values) != len(owner):
            per = {"node": "a node", "edge": "an edge"}.get(part[:4], "a graph")
            raise InputError(
                f"{len(owner)} lines in {self._path(part)}, one {per}",
                f"{len(values)}",
                "The file is cut off or belongs to another folder: fetch or write it again.",
            )
        if whole:
            odd = np.flatnonzero(_odd(values)).tolist()
            bad = {**dict.fromkeys(odd, "a label that is no whole number"), **bad}
        for row, reason in sorted(bad.items()):
            self._blame(int(owner[row]), part, row, reason)
        return values, np.setdiff1d(np.arange(len(values)), list(bad))

    def _features(self, of: str, owner: _Ints, attributes: bool) -> Tensor | None:
        """Attributes, then labels as one-hot bytes, of each node or edge ``[n, d]``."""
        parts: list[Tensor] = []
        labels = self._rows(f"{of}_labels", owner, whole=True)
        if attributes and (found := self._rows(f"{of}_attributes", owner, whole=False)):
            parts.append(torch.from_numpy(found[0]).float())
        if labels is not None and labels[1].size:
            values, good = labels
            codes = torch.zeros(values.shape, dtype=torch.long)
            codes[good] = torch.from_numpy(values[good] - values[good].min(0)).long()
            for column in codes.t():
                if int(column.max()) >= (most := max(_LABELS, len(column))):
                    what = f"labels within {most} of each other in {self._path(f'{of}_labels')}"
                    raise InputError(what, f"{int(column.max())} apart")
                hot = torch.zeros(len(column), int(column.max()) + 1, dtype=torch.uint8)
                parts.append(hot.scatter_(1, column[:, None], 1))
        return torch.cat(parts, dim=1) if parts else None

    def _read_targets(self, found: bool) -> Tensor | None:
        """Values, or class numbers; the classes are those found unless they were given."""
        part = self._target_part
        rows = self._rows(part, np.arange(self._count), whole=False)
        if rows is None:
            return None
        values, good = rows
        if part == "graph_attributes":
            return torch.from_numpy(values.astype(np.float32)).squeeze(-1)
        if values.shape[1] != 1:
            raise InputError(f"one label a line in {self._path(part)}", values.shape[1])
        if found:
            self.class_names = tuple(map(_label, np.unique(values[good, 0]).tolist()))
        texts = [_label(value) for value in values[:, 0].tolist()]
        index = {name: i for i, name in enumerate(self.class_names)}
        for row, text in enumerate(texts):
            if text not in index:
                self._blame(row, part, row, f"{text} is none of the classes {self.class_names}")
        return torch.tensor([index.get(text, 0) for text in texts])


def _find(folder: Path) -> tuple[Path, str]:
    """Where the files are, and the NAME they begin with."""
    for place in (folder, folder / "raw"):
        found = [path.name for path in sorted(place.glob("*_A.txt"))]
        if len(found) == 1:
            return place, found[0].removesuffix("_A.txt")
        if found:
            raise InputError(f"one data set in the folder {place}", found, "Give each its folder.")
    held = sorted(path.name for path in folder.iterdir())[:5]
    raise InputError(f"a file NAME_A.txt in the folder {folder}", held or "nothing")


def _numbers(path: Path) -> tuple[_Floats, dict[int, str]]:
    """A table of numbers ``[lines, width]``, and the rows that are none with the reason."""
    if not path.is_file():
        raise InputError(f"a regular file {path}", "a folder, a device or a pipe")
    text = path.read_text(encoding="utf-8", errors="replace")
    lines = text.rstrip().split("\n") if text.strip() else []
    if lines and all(line.strip() for line in lines):  # numpy skips blank lines: rows would slip
        try:
            values = np.loadtxt(lines, delimiter=",", ndmin=2, comments=None)
            if np.isfinite(values).all():
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


def _odd(values: _Floats) -> npt.NDArray[np.bool_]:
    """The rows with a number that is not whole, or too large to tell."""
    odd: npt.NDArray[np.bool_] = ((values % 1 != 0) | (np.abs(values) > _WHOLE)).any(1)
    return odd


def _floats(line: str) -> list[float] | str:
    try:
        values = [float(piece) for piece in line.split(",")]
    except ValueError:
        return f"{line.strip()[:40]!r} is no list of numbers"
    return values if np.isfinite(values).all() else f"{line.strip()[:40]!r} is not finite"


def _label(value: float) -> str:
    return str(int(value)) if value.is_integer() else str(value)
