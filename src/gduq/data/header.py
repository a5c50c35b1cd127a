"""The columns of a table: what they are called, which one is meant, and what they hold, told from
its first rows before anything heavy is imported."""

from __future__ import annotations

import csv
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from gduq.data.smiles import readable
from gduq.data.truth import Column, Task, as_number
from gduq.errors import InputError, did_you_mean

__all__ = ["SHEETS", "TableColumns", "check_kept", "find_columns", "find_smiles", "first_fields",
           "is_table", "listed", "meant", "meant_all", "read_header", "unit_of"]  # fmt: skip

SHEETS = (".xlsx", ".xls", ".ods")  # tables that are not read
_SEEN = 1000  # rows that are looked at
_READ_AS_SMILES = 20  # fields of a column that RDKit is asked about
_SMILES = ("smiles", "canonical_smiles", "isomeric_smiles", "smi")  # the first is best
_FEW_WORDS = 20  # different words up to which a column may hold classes
_MOST_IDS = 3
# what a column of words must be called to be taken as the target unasked
_TARGETS = {"y", "label", "target", "class", "activity", "active", "outcome", "response"}
# what is kept about rows and not measured: with such a word, or such a last word
_KEPT = {"batch", "lot", "plate", "well", "barcode", "unnamed"}
_KEPT_LAST = {"id", "cid", "sid", "split", "fold", "set", "group", "cluster", "series", "lab",
              "laboratory", "site", "year", "date"}  # fmt: skip
_NUMBERED = {"id", "cid", "sid", "index", "row", "nr", "no", "number"}


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


def check_kept(sources: Iterable[Path], names: Sequence[str]) -> None:
    """Raise where some source has not all of the columns that answers are to keep."""
    for path in sources if names else ():
        if not is_table(path):
            got = f"{path}, which has no columns"
            raise InputError("tables, .csv or .tsv, with --keep", got, "Leave --keep out.")
        for name in names:
            meant(f"{path} to keep", read_header(path)[0], name)


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
    """The columns in a sentence; of many the first."""
    shown = list(names)
    return f"Columns: {', '.join(shown[:20])}{', ...' if len(shown) > 20 else ''}."


@dataclass(frozen=True)
class TableColumns:
    """What the columns of a table of molecules are."""

    smiles: str
    targets: tuple[str, ...]
    ids: tuple[str, ...]  # one different text or whole number per row
    rows: int  # that were looked at


def find_columns(
    path: str | Path,
    smiles: str | None = None,
    targets: Sequence[str] = (),
    others: Sequence[str] = (),
    task: Task | None = None,
) -> TableColumns:
    """What the columns of a table are, as far as the user did not say so.

    SMILES are found by the name of their column or by what it holds. ``targets`` are names, with or
    without their unit in brackets, or patterns (``"NR-*"``); without any it is the only column of
    measured numbers, or of few words if it is called a label, class, activity or the like.
    ``others`` serve something else; they must be there.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "my.csv"
        >>> _ = path.write_text("compound id,SMILES,logS\\nA-1,CCO,0.1\\nA-2,CCC,-2.5\\n")
        >>> find_columns(path)
        TableColumns(smiles='SMILES', targets=('logS',), ids=('compound id',), rows=2)
    """
    path = Path(path)
    names, fields = read_header(path)[0], first_fields(path)
    chosen = find_smiles(path, fields, smiles)
    if chosen in targets:
        raise InputError("a target other than the SMILES", repr(chosen), listed(names))
    used = {chosen, *(meant(path, names, name) for name in others)}
    columns = {name: Column(name, texts) for name, texts in fields.items() if name != chosen}
    free = [name for name in columns if name not in used]
    known = [name for name in names if name not in used or name in targets]
    found = meant_all(path, known, targets) or _only_target(path, [columns[n] for n in free])
    for column in (columns[name] for name in found):
        column.check(path, task)
        if not column.numbers and len(column.words) > max(_FEW_WORDS, column.filled / 2):
            raise InputError(
                f"numbers, or words that many rows share, in the target {column.name!r} of {path}",
                f"{len(column.words)} different texts in {column.filled} rows",
                "It names rows: pass another --target.",
            )
    ids = [name for name in free if name not in found and columns[name].names_rows][:_MOST_IDS]
    return TableColumns(chosen, found, tuple(ids), len(fields[chosen]))


# -- SMILES ----------------------------------------------------------------------------------------


def find_smiles(path: Path, fields: Mapping[str, Sequence[str]], given: str | None = None) -> str:
    """The column of SMILES, given the first fields of all columns and what the user calls it."""
    if given is not None:
        return meant(path, list(fields), given, any_case=True)
    plain = {name.lower().replace(" ", "_").replace("-", "_"): name for name in fields}
    for known in _SMILES:
        if known in plain:
            return plain[known]
    called = [name for name in fields if "smiles" in name.lower()]
    found = called if len(called) == 1 else [n for n in fields if _holds_smiles(fields[n])]
    if len(found) == 1:
        return found[0]
    some = f"several: {', '.join(found)}" if found else f"the columns {', '.join([*fields][:20])}"
    raise InputError(f"one column of SMILES in {path}", some, "Name it with --smiles.")


def _holds_smiles(fields: Sequence[str]) -> bool:
    """Whether RDKit can read most of the fields; short words that it reads by chance count not."""
    some = [field for field in fields if field and as_number(field) is None][:_READ_AS_SMILES]
    if len(some) < 2 or sum(map(len, some)) < 3 * len(some) or len(set(some)) == 1:
        return False
    return sum(readable(some)) >= 0.8 * len(some)


# -- targets ---------------------------------------------------------------------------------------


def _only_target(path: Path, columns: Sequence[Column]) -> tuple[str, ...]:
    """The one column that can only be the target."""
    found = [column.name for column in columns if _can_be_target(column)]
    if len(found) == 1:
        return (found[0],)
    what = f"--target, the column of {path} to learn"
    if found:
        shown = f"{', '.join(found[:12])}{', ...' if len(found) > 12 else ''}"
        got = f"{len(found)} columns that could be one ({shown})"
        raise InputError(what, got, _typed(found, [column.name for column in columns]))
    for column in columns:
        if column.has_decimal_commas:
            column.check(path, None)
    raise InputError(what, "no column that is clearly one", listed(c.name for c in columns))


def _can_be_target(column: Column) -> bool:
    spaced = re.sub(r"([a-z])([A-Z])", r"\1 \2", column.name).lower()
    words = re.findall(r"[a-z]+", spaced) or ["unnamed"]
    if _KEPT & set(words) or words[-1] in _KEPT_LAST:
        return False
    if column.is_numeric:
        numbered = column.names_rows and words[-1] in _NUMBERED
        return not (numbered or column.counts_rows)
    few = 2 <= len(column.words) <= _FEW_WORDS and not column.numbers
    return few and not column.names_rows and bool(_TARGETS & set(words))


def _typed(found: Sequence[str], names: Iterable[str]) -> str:
    """What to type for one of several columns, and for all."""
    starts = dict.fromkeys(match[0] for name in found if (match := re.match(r".+?[-_ .:]", name)))
    inside = {name for name in names if name.startswith(tuple(starts))}
    if starts and inside == set(found) and 2 * len(starts) <= len(found) and len(starts) <= 4:
        wanted, which = [f"{start}*" for start in starts], "all"
    else:
        wanted, which = list(found[:2]), "several"
    several = " ".join(f"--target {shlex.quote(text)}" for text in wanted)
    return f"Type --target {shlex.quote(found[0])} for one of them, {several} for {which}."
