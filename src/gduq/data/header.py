"""Which columns of a table are what, told from its first rows before anything heavy is imported."""

from __future__ import annotations

import csv
import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path

from gduq.errors import InputError

__all__ = ["TableColumns", "find_columns", "is_table", "read_header", "unit_of"]

_SEEN = 1000  # rows that are looked at
_READ_AS_SMILES = 20  # fields of a column that RDKit is asked about
_NAMES = ("smiles", "canonical_smiles", "isomeric_smiles", "smi")  # of columns, the first is best
_FEW_WORDS = 20  # different words up to which a column may hold classes
_MOST_IDS = 3
_ID = re.compile(r"^(unnamed: ?\d+|index|row|nr|no|number|.*[ _-]?id|)$", re.IGNORECASE)
_UNIT = re.compile(r"^(?P<name>.*\S)\s*[\[(](?P<unit>[^\[\]()]+)[\])]$")
_GAPS = ("", "nan", "na")


@dataclass(frozen=True)
class TableColumns:
    """What the columns of a table of molecules are.

    Attributes:
        smiles: The column of SMILES strings.
        targets: What is to be learned.
        ids: Columns that name a row: one different text or whole number per row.
    """

    smiles: str
    targets: tuple[str, ...]
    ids: tuple[str, ...]


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


def find_columns(
    path: str | Path,
    smiles: str | None = None,
    targets: Sequence[str] = (),
    others: Sequence[str] = (),
) -> TableColumns:
    """What the columns of a table are, as far as the user did not say so.

    Args:
        path: The table.
        smiles: The column of SMILES; ``None``: by its name, or by what its fields hold.
        targets: The target columns, with or without their unit in brackets; none: the only column
            of numbers, or else of few words.
        others: Columns that serve something else; they must be there.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "my.csv"
        >>> _ = path.write_text("compound id,SMILES,logS\\nA-1,CCO,0.1\\nA-2,CCC,-2.5\\n")
        >>> find_columns(path)
        TableColumns(smiles='SMILES', targets=('logS',), ids=('compound id',))
    """
    path = Path(path)
    names, delimiter = read_header(path)
    columns = _first_fields(path, names, delimiter)
    targets = [_with_unit(names, name) for name in targets]
    for name in (*targets, *others):
        _check_there(path, names, name)
    chosen = _smiles_column(path, columns, smiles)
    if chosen in targets:
        raise InputError("a target other than the SMILES", repr(chosen), _say(names))
    used = {chosen, *others}
    found = tuple(targets) or _only_target(path, columns, used)
    rest = [name for name in names if name not in used and name not in found]
    ids = [name for name in rest if _is_id(columns[name])][:_MOST_IDS]
    return TableColumns(chosen, found, tuple(ids))


def unit_of(column: str) -> tuple[str, str]:
    """Name and unit of a column that ends in a unit in brackets; else an empty unit.

    Example:
        >>> unit_of("solubility [log mol/L]"), unit_of("active")
        (('solubility', 'log mol/L'), ('active', ''))
    """
    match = _UNIT.match(column)
    return (match["name"], match["unit"].strip()) if match else (column, "")


def _first_fields(path: Path, names: Sequence[str], delimiter: str) -> dict[str, list[str]]:
    """The fields of each column in the first rows that are whole."""
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


def _with_unit(names: Sequence[str], name: str) -> str:
    """The column that has this name, or has it before its unit."""
    found = [column for column in names if unit_of(column)[0] == name]
    return found[0] if name not in names and len(found) == 1 else name


def _check_there(path: Path, names: Sequence[str], name: str) -> None:
    if names.count(name) != 1:
        short = {unit_of(column)[0]: column for column in names}
        near = [short[n] for n in difflib.get_close_matches(name, short, n=1, cutoff=0.5)]
        got = f"{names.count(name)} of that name" if name in names else "none of that name"
        do = f"Did you mean {near[0]!r}?" if near and name not in names else _say(names)
        raise InputError(f"one column {name!r} in {path}", got, do)


def _say(names: Iterable[str]) -> str:
    shown = list(names)
    return f"Columns: {', '.join(shown[:20])}{', ...' if len(shown) > 20 else ''}."


def _smiles_column(path: Path, columns: Mapping[str, list[str]], given: str | None) -> str:
    if given is not None:
        same = [name for name in columns if name == given or name.lower() == given.lower()]
        _check_there(path, list(columns), same[0] if len(same) == 1 else given)
        return same[0] if len(same) == 1 else given
    plain = {name.lower().replace(" ", "_").replace("-", "_"): name for name in columns}
    for known in _NAMES:
        if known in plain:
            return plain[known]
    called = [name for name in columns if "smiles" in name.lower()]
    found = called if len(called) == 1 else [n for n in columns if _holds_smiles(columns[n])]
    if len(found) == 1:
        return found[0]
    got = (
        f"several: {', '.join(found)}" if found else f"the columns {', '.join(list(columns)[:20])}"
    )
    raise InputError(f"one column of SMILES in {path}", got, "Name it with --smiles.")


def _holds_smiles(fields: Sequence[str]) -> bool:
    """Whether RDKit can read most of the fields; short words that it reads by chance count not."""
    some = [field for field in fields if field and _number(field) is None][:_READ_AS_SMILES]
    if len(some) < 2 or sum(map(len, some)) < 3 * len(some) or len(set(some)) == 1:
        return False
    try:
        from rdkit import Chem, rdBase
    except ImportError:
        return False
    with rdBase.BlockLogs():
        read = [Chem.MolFromSmiles(field) is not None for field in some]
    return sum(read) >= 0.8 * len(some)


def _only_target(
    path: Path, columns: Mapping[str, list[str]], used: Iterable[str]
) -> tuple[str, ...]:
    """The one column that can only be the target."""
    left = {name: fields for name, fields in columns.items() if name not in set(used)}
    numbers = [n for n, f in left.items() if _is_numeric(f) and not _counts(n, f)]
    words = [n for n, f in left.items() if 2 <= len(set(filter(None, f))) <= _FEW_WORDS]
    found = numbers or [n for n in words if not _is_numeric(left[n]) and not _is_id(left[n])]
    if len(found) != 1:
        got = f"{len(found)} columns that could be one" if found else "no column that could be one"
        raise InputError(f"--target, the column of {path} to learn", got, _say(left))
    return (found[0],)


def _is_numeric(fields: Sequence[str]) -> bool:
    known = [field for field in fields if field.lower() not in _GAPS]
    return bool(known) and all(_number(field) is not None for field in known)


def _counts(name: str, fields: Sequence[str]) -> bool:
    """Whether a column of numbers only numbers the rows."""
    values = [_number(field) for field in fields]
    steps = {b - a for a, b in pairwise(values) if a is not None and b is not None}
    is_counted = steps == {1.0} and len(fields) > 2
    return _is_id(fields) and (is_counted or _ID.match(name) is not None)


def _is_id(fields: Sequence[str]) -> bool:
    if "" in fields or len(set(fields)) < len(fields):
        return False
    values = [_number(field) for field in fields]
    return all(value is None or value.is_integer() for value in values)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if value - value == 0 else None  # neither infinite nor NaN
