"""Tables of molecules: the one place where a ``.csv`` or ``.tsv`` file is read.

What a column means and holds is decided in `gduq.data.columns`. Molecules become graphs
in `gduq.data.smiles`.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from gduq.data.columns import Column, Targets, Task, parse_targets, resolve_column
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
    by semicolons. Blank lines are no rows. A quote that is not closed refuses the file: where it
    ends is not known.
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
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    try:
        names = [name.strip().encode(errors="replace").decode() for name in next(reader, [])]
    except csv.Error as error:
        raise InputError(f"a line of column names in {path}", error) from error
    if not names:
        raise InputError(f"a line of column names in {path}", "none")
    rows, begins, rejects = dict[int, list[str]](), list[int](), dict[int, Reject]()
    while (line := reader.line_num + 1) <= len(lines):
        row, flaw = list[str](), ""
        try:
            row = [field.strip() for field in next(reader)]
        except csv.Error as error:  # the reader goes on with the next line
            flaw = str(error)
        if not flaw and not any(row):
            continue
        if not flaw and len(row) != len(names):
            flaw = f"{len(row)} fields instead of {len(names)}"
        if flaw and reader.line_num > line:
            raise InputError(f"quotes that are closed in {path}", f"one in line {line} that is not")
        if any("\udc80" <= letter <= "\udcff" for field in row for letter in field):
            flaw = flaw or "bytes that are no UTF-8"
        if flaw:
            text = lines[line - 1].strip()[:200].encode(errors="replace").decode()
            rejects[len(begins)] = Reject(path.name, line, flaw, text)
        else:
            rows[len(begins)] = row
        begins.append(line)
    frame = pd.DataFrame(list(rows.values()), list(rows), names, dtype=object)
    return Table(path, frame, begins, rejects)


class MoleculeTable:
    """The molecules of a table, with numbers of rows: graphs as PyG's ``from_smiles`` makes them,
    with floats as features, so that any model takes them, and the string itself as ``smiles``.

    Args:
        path: The file, see `read_table`.
        smiles: Name of the column of SMILES strings, in any case where that is clear.
        targets: Names of the target columns; none of them means graphs without ``y``.
        class_names: Classes in the order of their numbers, for one target column; ``None``: as
            found. Pass those of the training set when a test set may not hold every class.
        task: What the target columns hold; ``None``: see `gduq.data.columns.parse_targets`.
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
        self._smiles = self.table.by_row(column)
        self._places = {row: place for place, row in enumerate(self._smiles)}
        self._targets: Targets | None = None
        self.task, self.class_names = task, tuple(class_names or ())
        if self.target_names:
            columns = [Column(name, self.table.fields(name)) for name in self.target_names]
            self._targets = parse_targets(path, columns, task, class_names)
            self.task, self.class_names = self._targets.task, self._targets.class_names

    def __iter__(self) -> Iterator[tuple[int, Data | Reject]]:
        """Rows with their numbers, some of them read ahead while the last ones are used."""
        rows = range(len(self.table.lines))
        ahead: Future[list[Data | Reject]] | None = None
        parts = [rows[start : start + _AT_A_TIME] for start in rows[::_AT_A_TIME]]
        with ThreadPoolExecutor(1) as thread:
            for part in [*parts, None]:
                done, ahead = ahead, None if part is None else thread.submit(self._read, part)
                if done is not None:
                    yield from zip(parts.pop(0), done.result(), strict=True)

    def _read(self, rows: range) -> list[Data | Reject]:
        table, targets = self.table, self._targets
        found: list[Data | Reject] = []
        graphs = iter(molecules([self._smiles[row] for row in rows if row in self._smiles]))
        for row in rows:
            if row not in self._smiles:
                found.append(table.rejects[row])
                continue
            place, graph = self._places[row], next(graphs)
            flaw = targets.flaws[place] if targets is not None else ""
            if flaw or isinstance(graph, str):
                reason = graph if isinstance(graph, str) else flaw
                text = ",".join(table.frame.iloc[place])[:200]
                found.append(Reject(table.path.name, table.lines[row], reason, text))
                continue
            if targets is not None:
                graph.y = targets.y[place : place + 1].clone()
            found.append(graph)
        return found
