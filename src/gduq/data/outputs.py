"""Files that are written: nothing of the user's is lost, and a cell is never a formula."""

from __future__ import annotations

import csv
import json
import os
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, product
from pathlib import Path
from typing import Any

from gduq._io import atomic_path, to_json
from gduq.errors import InputError

__all__ = ["TABLES", "Reject", "check_new", "check_output", "check_outputs", "check_rejects",
           "printable", "rejects_path", "safe_cell", "write_rejects", "write_rows"]  # fmt: skip

TABLES = (".parquet", ".csv", ".jsonl")
_TEXT: Any = {"newline": "", "encoding": "utf-8", "errors": "backslashreplace"}
_COLUMNS = ("file", "row", "line", "reason", "text")  # of a list of rejects
_OTHER = "Choose another name."
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def safe_cell(text: str) -> str:
    """A field of a CSV file: what a spreadsheet would compute gets an apostrophe in front.

    Example:
        >>> safe_cell("=1+2"), safe_cell("CC=O"), safe_cell("-5.3")
        ("'=1+2", 'CC=O', '-5.3')
    """
    risky = text.startswith(_FORMULA) and text != "-" and not _NUMBER.fullmatch(text)
    return f"'{text}" if risky else text


def printable(text: str) -> str:
    """The same with control characters spelled out, so that a terminal shows and obeys nothing."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def check_output(path: Path, endings: tuple[str, ...] = TABLES) -> Path:
    """The path, if a file of one of these endings (none: any) can be written there."""
    if endings and path.suffix not in endings:
        raise InputError(f"a file name that ends in {', '.join(endings)}", path.name)
    if path.is_dir():
        raise InputError("the name of a file to write", f"the folder {path}")
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise InputError("a folder that exists and can be written", path.parent)
    return path


def check_new(
    path: Path | None,
    force: bool = False,
    endings: tuple[str, ...] = (),
    reads: Iterable[Path | None] = (),
) -> None:
    """Raise `InputError` unless a file (if any) can be written here and nothing is lost by it. One
    that is there may be replaced with ``force``, one among ``reads`` never."""
    if path is None:
        return
    check_outputs({"the output": path}, reads)
    check_output(path, endings)
    if os.path.lexists(path):  # a link that leads nowhere is there too
        if not force:
            do = "Choose another name, or pass --force to replace it."
            raise InputError("a new file", f"{path}, which exists", do)
        if not stat.S_ISREG(path.lstat().st_mode):  # a device, or a link to somewhere else
            raise InputError("a regular file to replace", path)


def check_outputs(outputs: Mapping[str, Path], inputs: Iterable[Path | None]) -> None:
    """Raise `InputError` where files to write, by what the user calls them, are one another or
    something that is read: a file among the inputs, or one inside a folder among them."""
    read = [path.resolve() for path in inputs if path is not None]
    for (name, path), source in product(outputs.items(), read):
        if _same(path, source) or source in path.resolve().parents:
            raise InputError(f"a new file as {name}", f"{path}, which is read", _OTHER)
    for (name, path), (other, twin) in combinations(outputs.items(), 2):
        if _same(path, twin):
            raise InputError(f"different files as {name} and {other}", f"{path} twice", _OTHER)


def _same(one: Path, two: Path) -> bool:
    same = one.resolve() == two.resolve()
    return same or (one.exists() and two.exists() and one.samefile(two))


@dataclass(frozen=True)
class Reject:
    """A row that could not be made into a graph."""

    file: str
    line: int  # from 1; 0 where there are no lines
    reason: str
    text: str = ""  # of the row, shortened

    def __str__(self) -> str:
        return f"{self.file}{f', line {self.line}' if self.line else ''}: {self.reason}"


def rejects_path(output: Path, rejects: str | Path | None = None) -> Path:
    """Where the rows that were left out are listed."""
    return Path(f"{output}.rejects.csv" if rejects is None else rejects).expanduser()


def check_rejects(path: Path) -> None:
    """Raise unless rejects can be listed here: a file that is no such list is somebody's own."""
    check_output(path, ())
    header = ",".join(_COLUMNS).encode()
    if path.exists() and not (path.is_file() and path.read_bytes().startswith(header)):
        got = f"{path}, which exists and is no list of rejects"
        raise InputError("a new file for the rejects", got, _OTHER)


def write_rejects(path: Path, rejects: Iterable[tuple[object, int, Reject]]) -> None:
    """A CSV file of the rows that were left out, each with its file and number. Without any there
    is no file; a list of an earlier call is then emptied."""
    lines = [(str(file), row, one.line or "", one.reason, one.text) for file, row, one in rejects]
    if lines or path.exists():
        with atomic_path(path) as temporary, temporary.open("w", **_TEXT) as file:
            csv.writer(file).writerows([*map(_cell, line)] for line in (_COLUMNS, *lines))


def write_rows(path: Path, parts: Iterable[Sequence[Mapping[str, Any]]]) -> None:
    """Write rows of equal columns, some at a time, to a file that is there when it is complete:
    parquet, CSV (a list is a JSON list in one field, no text is a formula) or JSON lines."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    ending, parts = check_output(path).suffix, iter(parts)
    with atomic_path(path) as temporary:
        if ending == ".parquet":
            first = next(parts)
            kinds = pa.Table.from_pylist(first).schema  # a column of nothing may hold texts later
            kinds = [k.with_type(pa.string()) if pa.types.is_null(k.type) else k for k in kinds]
            with pq.ParquetWriter(temporary, schema := pa.schema(kinds)) as writer:
                for rows in chain([first], parts):
                    writer.write_table(pa.Table.from_pylist(rows, schema))
            return
        with temporary.open("w", **_TEXT) as file:
            for rows in parts:
                if ending == ".jsonl":
                    file.writelines(f"{to_json(row, indent=None)}\n" for row in rows)
                    continue
                head = [] if file.tell() else [list(rows[0])]
                lines = [*head, *(list(row.values()) for row in rows)]
                csv.writer(file).writerows([*map(_cell, line)] for line in lines)


def _cell(value: object) -> object:
    if isinstance(value, list):
        return json.dumps(value, ensure_ascii=False)
    return safe_cell(value) if isinstance(value, str) else value
