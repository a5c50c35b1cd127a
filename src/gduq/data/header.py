"""The first lines of a table: what its columns are called, and the one that somebody means."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

from gduq.errors import InputError, did_you_mean

__all__ = ["SHEETS", "first_fields", "is_table", "listed", "meant", "meant_all", "read_header",
           "unit_of"]  # fmt: skip

SHEETS = (".xlsx", ".xls", ".ods")  # tables that are not read
_SEEN = 1000  # rows that are looked at


def is_table(path: str | Path) -> bool:
    """Whether a file is read as a table, by its ending."""
    return Path(path).suffix in (".csv", ".tsv")


def read_header(path: Path) -> tuple[list[str], str]:
    """The column names of a table, and what parts its fields.

    Fields are parted by tabs in a ``.tsv`` file, else by commas or, where the first line has none,
    by semicolons.
    """
    if not path.is_file():
        got = "something else" if path.exists() else "no such file"
        raise InputError(f"a table in {path}", got)
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        start = file.readline(csv.field_size_limit())
        delimiter = "\t" if path.suffix == ".tsv" else ","
        if delimiter not in start and ";" in start:
            delimiter = ";"
        file.seek(0)
        try:
            header = next(csv.reader(file, delimiter=delimiter), None)
        except csv.Error as error:
            raise InputError(f"a line of column names in {path}", error) from error
    if not header:
        raise InputError(f"a line of column names in {path}", "an empty file")
    return [name.strip() for name in header], delimiter


def first_fields(path: Path) -> dict[str, list[str]]:
    """The fields of each column in the first thousand rows, as far as these are whole."""
    names, delimiter = read_header(path)
    columns: dict[str, list[str]] = {name: [] for name in names}
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        rows = csv.reader(file, delimiter=delimiter)
        next(rows, None)
        try:
            for row in islice(rows, _SEEN):
                if len(row) == len(names):
                    for name, field in zip(names, row, strict=True):
                        columns[name].append(field.strip())
        except csv.Error:  # the row is told when all of them are read
            pass
    if not any(columns.values()):
        raise InputError(f"rows of {len(names)} fields below the names in {path}", "none")
    return columns


def unit_of(column: str) -> tuple[str, str]:
    """Name and unit of a column that ends in a unit in brackets; else an empty unit.

    Example:
        >>> unit_of("logS [log(mol/L)]"), unit_of("IC50 (nM)"), unit_of("active")
        (('logS', 'log(mol/L)'), ('IC50', 'nM'), ('active', ''))
    """
    depth = 0
    for place in range(len(column) - 1, 0, -1):
        depth += (column[place] in ")]") - (column[place] in "([")
        if depth == 0:
            break
    else:
        return column, ""
    name, unit = column[:place].strip(), column[place + 1 : -1].strip()
    paired = column[place] + column[-1] in ("[]", "()")
    return (name, unit) if paired and name and unit else (column, "")


def meant(path: object, names: Sequence[str], name: str, any_case: bool = False) -> str:
    """The one column that has this name, or has it before its unit; with ``any_case`` also the one
    that has it in other letters."""
    same = [column for column in names if column.lower() == name.lower()]
    if any_case and len(same) == 1:
        return same[0]
    if names.count(name) == 1:
        return name
    found = [column for column in names if unit_of(column)[0] == name]
    if name not in names and len(found) == 1:
        return found[0]
    got = f"{names.count(name)} of that name" if name in names else "none of that name"
    short = {unit_of(column)[0]: column for column in names}
    do = listed(names) if name in names else did_you_mean(name, short, listed(names))
    raise InputError(f"one column {name!r} in {path}", got, do)


def meant_all(path: object, names: Sequence[str], wanted: Iterable[str]) -> tuple[str, ...]:
    """The columns that some names and patterns mean: ``"NR-*"`` is all that begin so.

    Example:
        >>> meant_all("t.csv", ["smiles", "NR-AR", "NR-ER [uM]", "dose"], ["NR-*", "dose"])
        ('NR-AR', 'NR-ER [uM]', 'dose')
    """
    found: list[str] = []
    for text in wanted:
        if text in names or not {"*", "?"} & set(text):
            found.append(meant(path, names, text))
            continue
        pattern = re.compile(re.escape(text).replace(r"\*", ".*").replace(r"\?", "."))
        some = [n for n in names if pattern.fullmatch(n) or pattern.fullmatch(unit_of(n)[0])]
        if not some:
            raise InputError(f"columns like {text!r} in {path}", "none", listed(names))
        found += some
    return tuple(dict.fromkeys(found))


def listed(names: Iterable[str]) -> str:
    """The columns in a sentence; of many the first.

    Example:
        >>> listed(["smiles", "y"])
        'Columns: smiles, y.'
    """
    shown = list(names)
    return f"Columns: {', '.join(shown[:20])}{', ...' if len(shown) > 20 else ''}."
