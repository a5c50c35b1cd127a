"""The columns of a table: which one is meant, and what they are. The one place that decides."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from gduq.data.smiles import readable
from gduq.data.target_parser import Column, Task, as_number
from gduq.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from gduq.data.table import Table

__all__ = [
    "TableColumns",
    "find_columns",
    "find_smiles",
    "resolve_column",
    "resolve_columns",
    "unit_of",
]

_FIRST = 1000  # rows that are looked at
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


def resolve_column(path: object, names: Sequence[str], name: str, any_case: bool = False) -> str:
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
    do = _shown(names) if name in names else did_you_mean(name, short, _shown(names))
    raise InputError(f"one column {name!r} in {path}", got, do)


def resolve_columns(path: object, names: Sequence[str], wanted: Iterable[str]) -> tuple[str, ...]:
    """The columns that some names and patterns mean: ``"NR-*"`` is all that begin so.

    Example:
        >>> resolve_columns("t.csv", ["smiles", "NR-AR", "NR-ER [uM]", "dose"], ["NR-*", "dose"])
        ('NR-AR', 'NR-ER [uM]', 'dose')
    """
    found: list[str] = []
    for text in wanted:
        if text in names or not {"*", "?"} & set(text):
            found.append(resolve_column(path, names, text))
            continue
        pattern = text.replace("[", "[[]")  # a unit
        some = [n for n in names if any(fnmatchcase(t, pattern) for t in (n, unit_of(n)[0]))]
        if not some:
            raise InputError(f"columns like {text!r} in {path}", "none", _shown(names))
        found += some
    return tuple(dict.fromkeys(found))


@dataclass(frozen=True)
class TableColumns:
    """What the columns of a table of molecules are."""

    smiles: str
    targets: tuple[str, ...]
    ids: tuple[str, ...]  # one different text or whole number per row


def find_columns(
    table: Table,
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
        >>> from pathlib import Path
        >>> from gduq.data.table import read_table
        >>> path = Path(tempfile.mkdtemp()) / "my.csv"
        >>> _ = path.write_text("compound id,SMILES,logS\\nA-1,CCO,0.1\\nA-2,CCC,-2.5\\n")
        >>> find_columns(read_table(path))
        TableColumns(smiles='SMILES', targets=('logS',), ids=('compound id',))
    """
    path, names = table.path, table.names
    if table.frame.empty:
        raise InputError(f"rows of {len(names)} fields below the names in {path}", "none")
    chosen = find_smiles(table, smiles)
    if chosen in targets:
        raise InputError("a target other than the SMILES", repr(chosen), _shown(names))
    used = {chosen, *(resolve_column(path, names, name) for name in others)}
    unique = [name for name in names if names.count(name) == 1 and name != chosen]
    columns = {name: Column(name, table.fields(name, _FIRST)) for name in unique}
    free = [name for name in columns if name not in used]
    known = [name for name in names if name not in used or name in targets]
    found = resolve_columns(path, known, targets) or _only_target(path, [columns[n] for n in free])
    for column in (columns[name] for name in found):
        column.check(path, task)
        if not column.numbers and len(column.words) > max(_FEW_WORDS, column.filled / 2):
            raise InputError(
                f"numbers, or words that many rows share, in the target {column.name!r} of {path}",
                f"{len(column.words)} different texts in {column.filled} rows",
                "It names rows: pass another --target.",
            )
    ids = [name for name in free if name not in found and columns[name].names_rows][:_MOST_IDS]
    return TableColumns(chosen, found, tuple(ids))


def find_smiles(table: Table, given: str | None = None) -> str:
    """The column of SMILES: as the user calls it, or else by its name or by what it holds."""
    names = table.names
    if given is not None:
        return resolve_column(table.path, names, given, any_case=True)
    plain = {name.lower().replace(" ", "_").replace("-", "_"): name for name in names}
    for known in _SMILES:
        if known in plain:
            return resolve_column(table.path, names, plain[known])
    found = [name for name in names if "smiles" in name.lower()]
    if len(found) != 1:
        unique = [name for name in names if names.count(name) == 1]
        found = [name for name in unique if _holds_smiles(table.fields(name, _FIRST))]
    if len(found) == 1:
        return found[0]
    some = f"several: {', '.join(found)}" if found else f"the columns {', '.join(names[:20])}"
    raise InputError(f"one column of SMILES in {table.path}", some, "Name it with --smiles.")


def _holds_smiles(fields: Sequence[str]) -> bool:
    """Whether RDKit can read most of the fields; short words that it reads by chance count not."""
    some = [field for field in fields if field and as_number(field) is None][:_READ_AS_SMILES]
    if len(some) < 2 or sum(map(len, some)) < 3 * len(some) or len(set(some)) == 1:
        return False
    return sum(readable(some)) >= 0.8 * len(some)


def _only_target(path: object, columns: Sequence[Column]) -> tuple[str, ...]:
    """The one column that can only be the target."""
    found = [column.name for column in columns if _can_be_target(column)]
    if len(found) == 1:
        return (found[0],)
    what, names = f"--target, the column of {path} to learn", [column.name for column in columns]
    if not found:
        for column in columns:
            if column.has_decimal_commas:
                column.check(path, None)
        raise InputError(what, "no column that is clearly one", _shown(names))
    shown = f"{', '.join(found[:12])}{', ...' if len(found) > 12 else ''}"
    # what to type for one of them, and for several or all
    starts = dict.fromkeys(match[0] for name in found if (match := re.match(r".+?[-_ .:]", name)))
    inside = {name for name in names if name.startswith(tuple(starts))}
    wanted, which = found[:2], "several"
    if starts and inside == set(found) and 2 * len(starts) <= len(found) and len(starts) <= 4:
        wanted, which = [f"{start}*" for start in starts], "all"
    several = " ".join(f"--target {shlex.quote(text)}" for text in wanted)
    do = f"Type --target {shlex.quote(found[0])} for one of them, {several} for {which}."
    raise InputError(what, f"{len(found)} columns that could be one ({shown})", do)


def _can_be_target(column: Column) -> bool:
    spaced = re.sub(r"([a-z])([A-Z])", r"\1 \2", column.name).lower()
    words = re.findall(r"[a-z]+", spaced) or ["unnamed"]
    if _KEPT & set(words) or words[-1] in _KEPT_LAST:
        return False
    if column.numbers and not column.words:
        numbered = column.names_rows and words[-1] in _NUMBERED
        return not (numbered or column.counts_rows)
    few = 2 <= len(column.words) <= _FEW_WORDS and not column.numbers
    return few and not column.names_rows and bool(_TARGETS & set(words))


def _shown(names: Iterable[str]) -> str:
    """The columns in a sentence; of many the first."""
    shown = list(names)
    return f"Columns: {', '.join(shown[:20])}{', ...' if len(shown) > 20 else ''}."
