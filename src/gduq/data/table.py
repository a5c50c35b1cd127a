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

from gduq.data.columns import Targets, Task, parse_targets, resolve_column
from gduq.data.outputs import Reject
from gduq.data.smiles import molecules
from gduq.errors import InputError, not_installed

if TYPE_CHECKING:
    import pandas as pd
    from torch_geometric.data import Data

__all__ = ["MoleculeTable", "Table", "check_columns", "check_source", "is_table", "read_table"]

_HINTS = dict.fromkeys((".xlsx", ".xls", ".ods"), "Save it as CSV.") | dict.fromkeys(
    (".pt", ".pth", ".pkl", ".pickle"),
    "A pickle could run any code: load it yourself, then gduq.data.save(graphs, path).",
)
_AT_A_TIME = 64  # rows


def is_table(path: str | Path) -> bool:
    """Whether a file is read as a table, by its ending."""
    return Path(path).suffix in (".csv", ".tsv")


def check_source(path: Path) -> None:
    """Raise unless there is a file that can be read."""
    if path.is_file() and (is_table(path) or path.suffix == ".safetensors"):
        return
    do = "Of a PyG dataset write one: gduq.data.save(dataset, path)." if path.is_dir() else ""
    got = path.name if path.exists() else f"{path}, which does not exist"
    formats = "a .csv or .tsv table, or a .safetensors file of graphs"
    raise InputError(formats, got, do or _HINTS.get(path.suffix, ""))


@dataclass(frozen=True, eq=False)
class Table:
    """The rows of a file as texts, by row number."""

    path: Path
    frame: pd.DataFrame  # the rows that have all their fields, without blanks around them
    lines: list[int]  # in which each row begins, readable or not
    rejects: dict[int, Reject]  # the rows that have not all their fields

    @property
    def names(self) -> list[str]:
        """The column names; one may be there twice."""
        return list(self.frame.columns)

    def column(self, name: str) -> pd.Series[str]:
        """What each row holds in the column that `resolve_column` finds, by row number."""
        return self.frame[resolve_column(self.path, self.names, name)]


def read_table(path: str | Path) -> Table:
    """All rows of a table; those that are damaged are listed. A file is read once.

    Fields are parted by tabs in a ``.tsv`` file, else by commas or, where the first line has none,
    by semicolons. Blank lines are no rows. A quote that is not closed refuses the file: where it
    ends is not known.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"a table in {path}", "something else" if path.exists() else "no file")
    state = path.stat()
    return _read(path, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=4)
def _read(path: Path, *state: int) -> Table:
    import pandas as pd

    # bytes that are no UTF-8 survive as surrogates, so that only their row is lost
    with path.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
        lines = file.readlines()
    delimiter, first = "\t" if path.suffix == ".tsv" else ",", lines[0] if lines else ""
    delimiter = ";" if delimiter not in first and ";" in first else delimiter
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


def check_columns(paths: Iterable[Path], names: Sequence[str]) -> None:
    """Raise where some file has not all of the columns that answers are to keep."""
    for path in paths if names else ():
        if not is_table(path):
            got = f"{path}, which has no columns"
            raise InputError("tables, .csv or .tsv, with --keep", got, "Leave --keep out.")
        for name in names:
            resolve_column(f"{path} to keep", read_table(path).names, name)


class MoleculeTable:
    """The molecules of a table, with numbers of rows: graphs as PyG's ``from_smiles`` makes them,
    with floats as features, and the string itself as ``smiles``.

    Arguments as `gduq.data.stream` has them; SMILES are found in any case where that is clear.
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
        self._smiles = resolve_column(path, self.table.names, smiles, any_case=True)
        self._truth: Targets | None = None
        self.task, self.class_names = task, tuple(class_names or ())
        if self.target_names:
            columns = [self.table.column(name) for name in self.target_names]
            self._truth = parse_targets(path, columns, task, class_names)
            self.task, self.class_names = self._truth.task, self._truth.class_names

    def __iter__(self) -> Iterator[tuple[int, Data | Reject]]:
        """Rows with their numbers, some of them read ahead while the last ones are used."""
        rows = range(len(self.table.lines))
        parts = [rows[start : start + _AT_A_TIME] for start in rows[::_AT_A_TIME]]
        done: Future[list[tuple[int, Data | Reject]]] | None = None
        with ThreadPoolExecutor(1) as thread:
            for part in [*parts, range(0)]:
                ahead = thread.submit(self._read, part)
                if done is not None:
                    yield from done.result()
                done = ahead

    def _read(self, rows: range) -> list[tuple[int, Data | Reject]]:
        table, truth = self.table, self._truth
        sound = [row for row in rows if row not in table.rejects]
        graphs = dict(zip(sound, molecules(list(table.frame[self._smiles][sound])), strict=True))
        found: list[tuple[int, Data | Reject]] = []
        for row in rows:
            graph = graphs.get(row)
            if graph is None:
                found.append((row, table.rejects[row]))
                continue
            flaw = "" if truth is None else truth.flaws.get(row, "")
            if flaw or isinstance(graph, str):
                reason = graph if isinstance(graph, str) else flaw
                text = ",".join(table.frame.loc[row])[:200]
                found.append((row, Reject(table.path.name, table.lines[row], reason, text)))
                continue
            if truth is not None:
                graph.y = truth.y[[table.frame.index.get_loc(row)]]
            found.append((row, graph))
        return found
