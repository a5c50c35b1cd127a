"""A CSV (or TSV) table of molecules: one SMILES column, any number of target columns.

Molecules become graphs as PyG's ``from_smiles`` makes them: nine atom features, three bond features
(as floats, so that any model takes them), and the string itself as ``smiles``; `gduq.data.smiles`.

What the target columns hold, and the ``y`` of a row: `gduq.data.truth`.
"""

from __future__ import annotations

import csv
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

from torch import Tensor
from torch_geometric.data import Data

from gduq.data.header import meant, read_header
from gduq.data.rejected_rows import Reject
from gduq.data.smiles import molecules
from gduq.data.truth import Task, Truth
from gduq.errors import not_installed

__all__ = ["MoleculeTable"]

_Row = tuple[int, list[str] | str]  # line number, and the fields or why there are none
_Used = tuple[str, Tensor | None]  # SMILES and truth of a row
_AT_A_TIME = 64  # rows


class MoleculeTable:
    """The molecules of a table, read line by line.

    Args:
        path: The file, see `gduq.data.header.read_header`.
        smiles: Name of the column of SMILES strings, in any case where that is clear.
        targets: Names of the target columns; none of them means graphs without ``y``.
        class_names: Classes in the order of their numbers, for one target column; ``None``: as
            found. Pass those of the training set when a test set may not hold every class. Where
            classes have names, a field must hold one of them: a number says nothing about them.
        task: What the target columns hold; ``None``: told, see `gduq.data.truth.Truth`.
    """

    def __init__(
        self,
        path: Path,
        smiles: str = "smiles",
        targets: Sequence[str] = (),
        class_names: Sequence[str] | None = None,
        task: Task | None = None,
    ) -> None:
        if find_spec("rdkit") is None:
            raise not_installed("RDKit to read SMILES", "rdkit")
        self.path = path
        self.target_names = (targets,) if isinstance(targets, str) else tuple(targets)
        self._header, self._delimiter = read_header(path)
        self._smiles = self._header.index(meant(path, self._header, smiles, any_case=True))
        self._columns = [self._position(name) for name in self.target_names]
        self._used = [self._smiles, *self._columns]
        rows = ([row[c].strip() for c in self._columns] for row in self._whole_rows() if row)
        self._truth = Truth(str(path), self.target_names, rows, task, class_names)
        self.class_names = self._truth.class_names
        self.task = self._truth.task if self.target_names else None

    def __iter__(self) -> Iterator[tuple[int, Data | Reject]]:
        """Rows with their numbers, some of them read ahead while the last ones are used."""
        parts = self._parts()
        with ThreadPoolExecutor(1) as thread:
            coming = thread.submit(next, parts, None)
            while (part := coming.result()) is not None:
                coming = thread.submit(next, parts, None)
                yield from part

    def _parts(self) -> Iterator[list[tuple[int, Data | Reject]]]:
        rows = enumerate(self._rows())
        while part := list(islice(rows, _AT_A_TIME)):
            used = [self._used_of(row) for _, (_, row) in part]
            graphs = iter(molecules([found[0] for found in used if not isinstance(found, str)]))
            done: list[tuple[int, Data | Reject]] = []
            for (index, (line, row)), found in zip(part, used, strict=True):
                graph = found if isinstance(found, str) else next(graphs)
                if isinstance(graph, str):
                    text = row if isinstance(row, str) else ",".join(row)
                    done.append((index, Reject(self.path.name, line, graph, text[:200])))
                    continue
                if found[1] is not None:
                    graph.y = found[1]
                done.append((index, graph))
            yield done

    def _used_of(self, row: list[str] | str) -> _Used | str:
        """What is needed of a row, or what is wrong with it."""
        if isinstance(row, str):
            return row
        if len(row) != len(self._header):
            return f"{len(row)} fields instead of {len(self._header)}"
        if any("\udc80" <= letter <= "\udcff" for field in row for letter in field):
            return "bytes that are no UTF-8"
        fields = [row[column].strip() for column in self._columns]
        try:
            return row[self._smiles].strip(), self._truth.of(fields) if fields else None
        except ValueError as error:
            return str(error)

    def column(self, name: str) -> Iterator[str]:
        """The fields of any column, in the order of the rows; empty where a row has none."""
        place = self._position(name)
        return (row[place].strip() if row else "" for row in self._whole_rows())

    # -- the file ------------------------------------------------------------------------------

    def _position(self, name: str) -> int:
        return self._header.index(meant(self.path, self._header, name))

    def _rows(self) -> Iterator[_Row]:
        """Every row below the header; blank lines are no rows."""
        # bytes that are no UTF-8 survive as surrogates, so that only their row is lost
        with self.path.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
            lines = _Lines(file)
            next(csv.reader(lines, delimiter=self._delimiter))
            while True:
                lines.taken.clear()
                line = lines.number + 1
                try:
                    row: list[str] | str = next(csv.reader(lines, delimiter=self._delimiter))
                except StopIteration:
                    return
                except csv.Error as error:
                    row = str(error)
                if len(lines.taken) > 1 and not self._spans_lines(row, lines.taken):
                    row = f"a quote that is not closed: {lines.taken[0].strip()[:150]}"
                    lines.give_back()
                if isinstance(row, str) or any(field.strip() for field in row):
                    yield line, row

    def _spans_lines(self, row: list[str] | str, lines: Sequence[str]) -> bool:
        """Whether several lines are one row; else a stray quote has swallowed the next ones."""
        if isinstance(row, str) or len(row) != len(self._header):
            return False
        if any("\n" in row[c].strip() or "\r" in row[c].strip() for c in self._used):
            return False  # no SMILES and no target has a line break
        try:
            next(csv.reader(lines, delimiter=self._delimiter, strict=True))
        except csv.Error:
            return False
        return True

    def _whole_rows(self) -> Iterator[list[str] | None]:
        """The rows; ``None`` for one that has not all its fields."""
        for _, row in self._rows():
            whole = not isinstance(row, str) and len(row) == len(self._header)
            yield row if whole else None  # type: ignore[misc]


class _Lines:
    """The lines of a file, of which those read last can be given back."""

    def __init__(self, file: Iterable[str]) -> None:
        self._file, self._again = iter(file), deque[str]()
        self.taken: list[str] = []
        self.number = 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        self.taken.append(self._again.popleft() if self._again else next(self._file))
        self.number += 1
        return self.taken[-1]

    def give_back(self) -> None:
        """Read all lines taken but the first once more."""
        self.number -= len(self.taken) - 1
        self._again.extendleft(reversed(self.taken[1:]))
