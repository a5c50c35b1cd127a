"""Tables of molecules: the one place where a ``.csv`` or ``.tsv`` file is read.

What a column means and holds is decided in `gduq.data.columns`. Molecules become graphs
in `gduq.data.smiles`.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gduq.data.columns import TargetParser, Task, resolve_column
from gduq.data.outputs import Reject
from gduq.data.smiles import molecules
from gduq.errors import InputError, not_installed

if TYPE_CHECKING:
    import pandas as pd
    from torch_geometric.data import Data

__all__ = ["FORMATS", "SHEETS", "MoleculeTable", "Table", "check_columns", "check_source",
           "is_table", "read_table", "tu_name"]  # fmt: skip

FORMATS = "a .csv or .tsv table, a .safetensors file of graphs, or a TU folder"
SHEETS = (".xlsx", ".xls", ".ods")  # tables that are not read
_AT_A_TIME = 64  # rows
_MOST_LINES = 100  # of one row


def is_table(path: str | Path) -> bool:
    """Whether a file is read as a table, by its ending."""
    return Path(path).suffix in (".csv", ".tsv")


def check_source(path: Path) -> None:
    """Raise unless there is a file or folder that can be read."""
    if not path.exists():
        raise InputError(FORMATS, f"{path}, which does not exist")
    if path.is_dir():
        tu_name(path)
    elif not path.is_file() or not (is_table(path) or path.suffix == ".safetensors"):
        do = "Save it as CSV." if path.suffix in SHEETS else ""
        if path.suffix in (".pt", ".pth", ".pkl", ".pickle"):
            do = "A pickle could run any code: load it yourself, then gduq.data.save(graphs, path)."
        raise InputError(FORMATS, path.name, do)


def tu_name(folder: Path) -> tuple[Path, str]:
    """The folder that holds ``NAME_A.txt``, which may be ``raw`` inside, and the name."""
    found = [*folder.glob("*_A.txt"), *folder.glob("raw/*_A.txt")]
    if len(found) != 1:
        got = f"{len(found)} of them" if found else "none"
        raise InputError(f"a TU folder with one NAME_A.txt in {folder}", got, f"Pass {FORMATS}.")
    return found[0].parent, found[0].name.removesuffix("_A.txt")


@dataclass(frozen=True, eq=False)
class Table:
    """The rows of a file as texts.

    Attributes:
        path: The file.
        frame: The rows that have all their fields, by row number, blanks around fields removed.
        lines: The line in which each row begins, readable or not.
        rejects: The rows that have not, by row number.
    """

    path: Path
    frame: pd.DataFrame
    lines: list[int]
    rejects: dict[int, Reject]

    @property
    def names(self) -> list[str]:
        """The column names; one may be there twice."""
        return list(self.frame.columns)

    def fields(self, name: str, most: int | None = None) -> list[str]:
        """What the first rows hold in a column, or in the one that `resolve_column` finds."""
        place = self.names.index(resolve_column(self.path, self.names, name))
        return list(self.frame.iloc[:most, place])

    def by_row(self, name: str) -> dict[int, str]:
        """What each row that can be read holds in a column, by row number."""
        return dict(zip(self.frame.index, self.fields(name), strict=True))


def read_table(path: str | Path) -> Table:
    """All rows of a table; those that are damaged are listed. A file is read once.

    Fields are parted by tabs in a ``.tsv`` file, else by commas or, where the first line has none,
    by semicolons. Blank lines are no rows.
    """
    path = Path(path)
    if not path.is_file():
        got = "something else" if path.exists() else "no such file"
        raise InputError(f"a table in {path}", got)
    state = path.stat()
    return _read(path, state.st_mtime_ns, state.st_size)


def check_columns(paths: Iterable[Path], names: Sequence[str]) -> None:
    """Raise where some file has not all of the columns that answers are to keep."""
    for path in paths if names else ():
        if not is_table(path):
            got = f"{path}, which has no columns"
            raise InputError("tables, .csv or .tsv, with --keep", got, "Leave --keep out.")
        for name in names:
            resolve_column(f"{path} to keep", read_table(path).names, name)


@lru_cache(maxsize=4)
def _read(path: Path, *state: int) -> Table:
    import pandas as pd

    # bytes that are no UTF-8 survive as surrogates, so that only their row is lost
    with path.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
        lines = file.readlines()
    first = lines[0] if lines else ""
    delimiter = "\t" if path.suffix == ".tsv" else ","
    if delimiter not in first and ";" in first:
        delimiter = ";"
    names, line = _row(lines, 0, delimiter) if lines else ([], 0)
    if isinstance(names, str) or not names:
        raise InputError(f"a line of column names in {path}", names or "an empty file")
    rows, begins, rejects = dict[int, list[str]](), list[int](), dict[int, Reject]()
    while line < len(lines):
        found, end = _row(lines, line, delimiter, len(names))
        if isinstance(found, str) or any(found):
            number = len(begins)
            begins.append(line + 1)
            if isinstance(found, str):
                text = lines[line].strip()[:200].encode(errors="replace").decode()
                rejects[number] = Reject(path.name, line + 1, found, text)
            else:
                rows[number] = found
        line = end
    names = [name.strip().encode(errors="replace").decode() for name in names]
    frame = pd.DataFrame(list(rows.values()), list(rows), names, dtype=object)
    return Table(path, frame, begins, rejects)


def _row(
    lines: Sequence[str], start: int, delimiter: str, width: int | None = None
) -> tuple[list[str] | str, int]:
    """The fields of the row that begins in a line, or what is wrong with it; and where the next
    row begins. A quoted field may hold line breaks; a quote that is never closed costs its own
    line."""
    most = start + (_MOST_LINES if '"' in lines[start] else 1)
    flaw = f"a quote that is not closed: {lines[start].strip()[:150]}"
    for end in range(start + 1, min(most, len(lines)) + 1):
        try:
            (row,) = csv.reader(lines[start:end], delimiter=delimiter, strict=True) or [[]]
        except (csv.Error, ValueError) as error:
            flaw = str(error) if '"' not in lines[start] else flaw
            continue
        row = [field.strip() for field in row]
        if width not in (None, len(row)) and any(row):
            if end > start + 1:
                continue  # it swallowed other rows
            return f"{len(row)} fields instead of {width}", end
        if any("\udc80" <= letter <= "\udcff" for field in row for letter in field):
            return ("bytes that are no UTF-8" if width else row), end
        return row, end
    return flaw, start + 1


class MoleculeTable:
    """The molecules of a table, with numbers of rows: graphs as PyG's ``from_smiles`` makes them,
    with floats as features, so that any model takes them, and the string itself as ``smiles``.

    Args:
        path: The file, see `read_table`.
        smiles: Name of the column of SMILES strings, in any case where that is clear.
        targets: Names of the target columns; none of them means graphs without ``y``.
        class_names: Classes in the order of their numbers, for one target column; ``None``: as
            found. Pass those of the training set when a test set may not hold every class.
        task: What the target columns hold; ``None``: see `gduq.data.columns.TargetParser`.
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
        self.table = read_table(path)
        self.target_names = (targets,) if isinstance(targets, str) else tuple(targets)
        column = resolve_column(path, self.table.names, smiles, any_case=True)
        self._smiles = self.table.fields(column)
        self._places = {row: place for place, row in enumerate(self.table.frame.index)}
        self._fields = [self.table.fields(name) for name in self.target_names]
        self._parser = TargetParser(path, self.target_names, self._fields, task, class_names)
        self.class_names = self._parser.class_names
        self.task = self._parser.task if self.target_names else None

    def __iter__(self) -> Iterator[tuple[int, Data | Reject]]:
        """Rows with their numbers, some of them read ahead while the last ones are used."""
        rows = range(len(self.table.lines))
        parts = [rows[start : start + _AT_A_TIME] for start in rows[::_AT_A_TIME]]
        with ThreadPoolExecutor(1) as thread:
            coming = thread.submit(self._read, parts[0]) if parts else None
            for after in [*parts[1:], None] if parts else ():
                assert coming is not None
                part = coming.result()
                coming = None if after is None else thread.submit(self._read, after)
                yield from part

    def _read(self, rows: range) -> list[tuple[int, Data | Reject]]:
        places = [self._places.get(row) for row in rows]
        graphs = iter(molecules([self._smiles[place] for place in places if place is not None]))
        found: list[tuple[int, Data | Reject]] = []
        for row, place in zip(rows, places, strict=True):
            if place is None:
                found.append((row, self.table.rejects[row]))
                continue
            item: Any = next(graphs)
            try:
                if self._fields and not isinstance(item, str):
                    item.y = self._parser.parse([column[place] for column in self._fields])
            except ValueError as error:
                item = str(error)
            if isinstance(item, str):
                text = ",".join(self.table.frame.iloc[place])[:200]
                item = Reject(self.table.path.name, self.table.lines[row], item, text)
            found.append((row, item))
        return found
