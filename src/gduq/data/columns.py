"""The columns of a table: which one is meant, what they are, and the truth ``y`` of each row.

The one place that decides.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, get_args

from gduq._checks import one_of
from gduq.data.smiles import readable
from gduq.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from torch import Tensor

    from gduq.data.table import Table

__all__ = ["Column", "TableColumns", "Targets", "Task", "find_columns", "find_smiles",
           "parse_targets", "resolve_column", "resolve_columns", "unit_of"]  # fmt: skip

Task = Literal["classes", "labels", "values"]

_MANY = 1000  # classes
_COMMA = re.compile(r"[+-]?\d*,\d+([eE][+-]?\d+)?")  # a number with a decimal comma
_UNIT = re.compile(r"(.*\S)\s*(?:\[\s*([^][]*[^][\s])\s*\]|\(\s*([^()]*[^()\s])\s*\))")
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
    found = _UNIT.fullmatch(column)
    return (found[1], found[2] or found[3]) if found else (column, "")


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


def _shown(names: Sequence[str]) -> str:
    """The columns in a sentence; of many the first."""
    return f"Columns: {', '.join(names[:20])}{', ...' if len(names) > 20 else ''}."


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
    plain = {re.sub("[ -]", "_", name.lower()): name for name in names}
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
    some = [field for field in fields if field and math.isnan(_number(field))][:_READ_AS_SMILES]
    if len(some) < 2 or sum(map(len, some)) < 3 * len(some) or len(set(some)) == 1:
        return False
    return sum(readable(some)) >= 0.8 * len(some)


def _only_target(path: object, columns: Sequence[Column]) -> tuple[str, ...]:
    """The one column that can only be the target."""
    found = [column.name for column in columns if _can_be_target(column)]
    if len(found) == 1:
        return (found[0],)
    what = f"--target, the column of {path} to learn"
    if not found:
        for column in columns:
            if column.has_decimal_commas:
                column.check(path, None)
        names = [column.name for column in columns]
        raise InputError(what, "no column that is clearly one", _shown(names))
    shown = f"{', '.join(found[:12])}{', ...' if len(found) > 12 else ''}"
    one, two = (f"--target {shlex.quote(name)}" for name in found[:2])
    do = f"Type {one} for one of them, {one} {two} for several; --target 'A*' is all that begin so."
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


# -- what the fields of a column hold -------------------------------------------------------------


def _number(text: str) -> float:
    """The finite number that a field holds, or NaN."""
    try:
        value = float(text)
    except ValueError:
        return math.nan
    return value if math.isfinite(value) else math.nan


class Column:
    """What the fields of one column are; ``values`` are their numbers, NaN where there is none."""

    def __init__(self, name: str, fields: Sequence[str]) -> None:
        self.name, self.fields = name, fields
        self.values = [_number(text) for text in fields]
        self.missing = [text.lower() in ("", "nan", "na") for text in fields]
        self.filled = self.missing.count(False)
        ordered = [value for value in self.values if not math.isnan(value)]
        every = zip(fields, self.values, self.missing, strict=True)
        words = [text for text, value, missing in every if math.isnan(value) and not missing]
        self.numbers, self.words = set(ordered), set(words)
        self.integral = all(value.is_integer() for value in self.numbers)
        # every row has a word or whole number of its own; 1, 2, 3, ... or the like
        distinct = len(self.numbers) + len(self.words)
        self.names_rows = len(fields) == self.filled == distinct and self.integral
        in_steps = not words and len(fields) > 2 and all(b - a == 1 for a, b in pairwise(ordered))
        self.counts_rows = self.names_rows and in_steps
        # fractions are written with commas; a few such fields are slips
        commas = sum(_COMMA.fullmatch(text) is not None for text in words)
        often = 2 * commas > len(words) and 10 * commas >= self.filled
        self.has_decimal_commas = commas > 0 and often and self.integral

    def check(self, where: object, task: Task | None) -> None:
        """Raise for a target column that cannot hold what it should in any row."""
        if not self.filled:
            return
        column = f"column {self.name!r} of {where}"
        if task != "classes" and self.has_decimal_commas:
            such = min(word for word in self.words if _COMMA.fullmatch(word))
            raise InputError(
                f"numbers with a decimal point in {column}",
                f"decimal commas such as {such!r}",
                f"Write {such.replace(',', '.')!r}, or pass --task classes if they are names.",
            )
        if task == "values" and not self.numbers:
            raise InputError(f"numbers in {column}", f"words such as {min(self.words)!r}")
        if task == "labels" and not self.numbers & {0.0, 1.0}:
            got = f"{min(self.numbers):g} and others" if self.numbers else repr(min(self.words))
            raise InputError(f"0 and 1 in {column}", got)
        if task == "classes" and self.numbers and not self.integral:
            do = "Pass --task values, in Python task='values'."
            what = f"whole numbers or words in {column} as classes"
            raise InputError(what, "numbers with fractions", do)

    def class_number(self, row: int, names: Sequence[str]) -> int | str:
        """The class of a row, in the order of the names if there are some, or why it has none."""
        text, value = self.fields[row], self.values[row]
        if self.missing[row] and text not in names:
            return f"target {self.name!r} is empty"
        integral = value.is_integer() and abs(value) <= 2**53
        if text not in names and integral:
            text = str(int(value))  # 1.0 and +1 are class 1
        if names:
            unknown = f"target {self.name!r} is {text!r}, none of the classes {', '.join(names)}"
            return names.index(text) if text in names else unknown
        return int(text) if integral else f"target {self.name!r} is {text!r}, no whole number"

    def flaw(self, row: int, task: Task) -> str:
        """Why a row has no number in this column, as values and labels need one; or nothing."""
        text, value = self.fields[row], self.values[row]
        if math.isnan(value) and not self.missing[row]:
            return f"target {self.name!r} is {text!r}, no finite number"
        if task == "labels" and value not in (0.0, 1.0) and not self.missing[row]:
            return f"label {self.name!r} is {text!r}, neither 0 nor 1 nor empty"
        return ""


@dataclass(frozen=True)
class Targets:
    """The truth of all rows of a table.

    Attributes:
        task: What the columns hold.
        class_names: Classes in the order of their numbers, where they have names.
        y: Class numbers or values ``[n]``; labels, or values of several columns ``[n, T]`` with NaN
            where a field is empty.
        flaws: Per row why it has no truth; empty where it has.
    """

    task: Task
    class_names: tuple[str, ...]
    y: Tensor
    flaws: list[str]


def parse_targets(
    where: object,
    columns: Sequence[Column],
    task: Task | None = None,
    class_names: Sequence[str] | None = None,
) -> Targets:
    """What some target columns mean, and the truth of each row.

    * ``"classes"``, one column: whole numbers stay as they are; words are names of classes,
      numbered in ascending order. With ``class_names`` every field must be one of them.
    * ``"labels"``: 0, 1 and, where a field is empty, NaN.
    * ``"values"``: numbers; of one column an empty field is a flaw.

    "NA" and "NaN" are empty fields, unless ``class_names`` has them. Without ``task`` a column of
    words holds classes; what numbers are says `gduq.prediction.infer_target`, as everywhere.

    Args:
        where: The table, for errors.
        columns: The columns.
        task: What they hold; ``None``: as above.
        class_names: Classes in the order of their numbers; ``None``: as found; ``()``: as
            found, and classes in any case.

    Example:
        >>> found = parse_targets("t.csv", [Column("weak", ["yes", "no"])])
        >>> found.task, found.class_names, found.y
        ('classes', ('no', 'yes'), tensor([1, 0]))
        >>> parse_targets("t.csv", [Column("a", ["0", ""]), Column("b", ["", "1"])]).y
        tensor([[0., nan],
                [nan, 1.]])
    """
    import torch

    if task is not None:
        one_of("a task", task, get_args(Task))
    if (task == "classes" or class_names is not None) and len(columns) != 1:
        what = "class_names" if class_names is not None else "task='classes'"
        raise InputError(f"{what} with one target column", f"{len(columns)} columns")
    if class_names is not None and task not in (None, "classes"):
        raise InputError("class_names with task='classes'", repr(task))
    names = tuple(class_names or ())
    if not names:
        if not any(column.filled for column in columns):
            what = f"targets in {', '.join(repr(column.name) for column in columns[:5])} of {where}"
            raise InputError(what, "empty fields in every row")
        for column in columns:
            column.check(where, task)
    found: Task = task or (_infer_task(columns) if class_names is None else "classes")
    first = columns[0]
    if found == "classes":
        if not names and not first.numbers:
            if len(first.words) > _MANY:
                got = f"more than {_MANY} different words in {first.name!r}"
                raise InputError(f"numbers or at most {_MANY} classes in {where}", got)
            names = tuple(sorted(first.words))
        classes = [first.class_number(row, names) for row in range(len(first.fields))]
        y = torch.tensor([-1 if isinstance(one, str) else one for one in classes])
        return Targets(found, names, y, [one if isinstance(one, str) else "" for one in classes])
    rows = range(len(first.fields))
    flaws = [next(filter(None, (c.flaw(row, found) for c in columns)), "") for row in rows]
    y = torch.tensor([column.values for column in columns]).t()
    if found == "values" and len(columns) == 1:
        y = y[:, 0]
        empty = f"target {first.name!r} is empty"
        flaws = [empty if first.missing[row] else flaws[row] for row in rows]
    return Targets(found, (), y, flaws)


def _infer_task(columns: Sequence[Column]) -> Task:
    """What columns hold that have these fields."""
    import torch

    from gduq.prediction import infer_target

    for column in columns:
        if column.words and not column.numbers:
            if len(columns) == 1:
                return "classes"
            raise InputError(
                "numbers in every one of several target columns",
                f"words such as {min(column.words)!r} in {column.name!r}",
                "Read a column of words as the only target.",
            )
    y = torch.tensor([column.values for column in columns], dtype=torch.float64).t()
    name = repr(columns[0].name) if len(columns) == 1 else "y"
    return infer_target(y, name=name).kind  # type: ignore[return-value]
