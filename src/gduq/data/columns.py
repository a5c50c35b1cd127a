"""The columns of a table: which one is meant, what they are, and the truth ``y`` of each row.

The one place that decides.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from gduq._checks import one_of
from gduq.data.smiles import readable
from gduq.errors import InputError, did_you_mean

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

    from gduq.data.table import Table

__all__ = ["TableColumns", "Targets", "Task", "find_columns", "find_smiles", "parse_targets",
           "resolve_column", "resolve_columns", "unit_of"]  # fmt: skip

Task = Literal["classes", "labels", "values"]

_GAPS = ("", "nan", "na")
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


# -- which column is meant -------------------------------------------------------------------------


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
    short = {unit_of(column)[0]: column for column in names}
    found = [column for column in names if column == name]
    found = found or [column for column in names if unit_of(column)[0] == name]
    if any_case and not found:
        found = [column for column in names if column.lower() == name.lower()]
    if len(found) == 1:
        return found[0]
    got = f"{len(found) or 'none'} of that name"
    do = _shown(names) if found else did_you_mean(name, short, _shown(names))
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


# -- what the columns are --------------------------------------------------------------------------


class TableColumns(NamedTuple):
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

    Without ``targets`` it is the only column of measured numbers, or of few words if it is called a
    label, class, activity or the like. ``others`` serve something else.

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
    used = {chosen, *(resolve_column(path, names, name) for name in others)}
    first = table.frame.iloc[:_FIRST]
    columns = {n: Column(first[n]) for n in names if names.count(n) == 1 and n != chosen}
    free = {name: column for name, column in columns.items() if name not in used}
    known = [n for n in names if n not in used or (n in targets and n != chosen)]
    found = resolve_columns(path, known, targets) or _only_target(path, list(free.values()))
    for name in found:
        columns[name].check(path, task or ("values" if len(found) > 1 else None))
    ids = [name for name, column in free.items() if name not in found and column.names_rows]
    return TableColumns(chosen, found, tuple(ids[:_MOST_IDS]))


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
        found = [name for name in unique if _holds_smiles(table.frame[name].iloc[:_FIRST])]
    if len(found) == 1:
        return found[0]
    some = f"several: {', '.join(found)}" if found else f"the columns {', '.join(names[:20])}"
    raise InputError(f"one column of SMILES in {table.path}", some, "Name it with --smiles.")


def _holds_smiles(fields: Iterable[str]) -> bool:
    """Whether RDKit can read most of the fields; short words that it reads by chance count not."""
    some = [field for field in fields if field and math.isnan(_number(field))][:_READ_AS_SMILES]
    if len(some) < 2 or sum(map(len, some)) < 3 * len(some) or len(set(some)) == 1:
        return False
    return sum(readable(some)) >= 0.8 * len(some)


def _only_target(path: object, columns: Sequence[Column]) -> tuple[str, ...]:
    """The one column that can only be the target."""
    found = [column.name for column in columns if column.can_be_target]
    if len(found) == 1:
        return (found[0],)
    what = f"--target, the column of {path} to learn"
    if not found:
        for column in columns:
            if column.decimal_comma:
                column.check(path, None)
        names = [column.name for column in columns]
        raise InputError(what, "no column that is clearly one", _shown(names))
    shown = f"{', '.join(found[:12])}{', ...' if len(found) > 12 else ''}"
    one, two = (f"--target {shlex.quote(name)}" for name in found[:2])
    do = f"Type {one} for one of them, {one} {two} for several; --target 'A*' is all that begin so."
    raise InputError(what, f"{len(found)} columns that could be one ({shown})", do)


def _number(text: str) -> float:
    """The finite number that a field holds, or NaN."""
    try:
        value = float(text)
    except ValueError:
        return math.nan
    return value if math.isfinite(value) else math.nan


class Column:
    """What the fields of one column are; ``values`` are their numbers, NaN where there is none."""

    def __init__(self, fields: pd.Series[str]) -> None:
        self.name, self.fields = str(fields.name), fields
        self.values = fields.map(_number).astype(float)
        self.missing = fields.map(lambda text: text.lower() in _GAPS).astype(bool)
        words = fields[self.values.isna() & ~self.missing]
        self.numbers, self.words = set(self.values.dropna()), set(words)
        self.filled = int((~self.missing).sum())
        self.integral = all(value.is_integer() for value in self.numbers)
        # every row has a word or whole number of its own
        distinct = len(self.numbers) + len(self.words)
        self.names_rows = len(fields) == self.filled == distinct and self.integral
        # fractions are written with commas; a few such fields are slips
        commas = [word for word in words if _COMMA.fullmatch(word)]
        often = 2 * len(commas) > len(words) and 10 * len(commas) >= self.filled
        self.decimal_comma = min(commas) if commas and often and self.integral else ""

    @property
    def can_be_target(self) -> bool:
        """Whether it may be what was measured, as far as its name and fields say."""
        spaced = re.sub(r"([a-z])([A-Z])", r"\1 \2", self.name).lower()
        words = re.findall(r"[a-z]+", spaced) or ["unnamed"]
        if _KEPT & set(words) or words[-1] in _KEPT_LAST:
            return False
        if self.numbers and not self.words:
            in_steps = len(self.values) > 2 and bool((self.values.diff()[1:] == 1).all())
            return not (self.names_rows and (in_steps or words[-1] in _NUMBERED))
        few = 2 <= len(self.words) <= _FEW_WORDS and not self.numbers
        return few and not self.names_rows and bool(_TARGETS & set(words))

    def check(self, where: object, task: Task | None) -> None:
        """Raise for a target column that cannot hold what it should in any row."""
        column, such, do = f"column {self.name!r} of {where}", self.decimal_comma, ""
        numbers, words = self.numbers, f"words such as {min(self.words, default='')!r}"
        if not self.filled:
            return
        if task != "classes" and such:
            do = f"Write {such.replace(',', '.')!r}, or pass --task classes if they are names."
            what, got = "numbers with a decimal point", f"decimal commas such as {such!r}"
        elif task == "values" and not numbers:
            what, got = "numbers", words
        elif task == "labels" and not numbers & {0.0, 1.0}:
            what, got = "0 and 1", f"{min(numbers):g} and others" if numbers else words
        elif task == "classes" and not self.integral:
            do = "Pass --task values, in Python task='values'."
            what, got = "whole numbers or words", "numbers with fractions"
        elif not numbers and len(self.words) > max(_FEW_WORDS, self.filled / 2):
            do = "It names rows: pass another --target."
            what = "numbers, or words that many rows share,"
            got = f"{len(self.words)} different texts in {self.filled} rows"
        else:
            return
        raise InputError(f"{what} in {column}", got, do)


# -- what the target columns hold ------------------------------------------------------------------


class Targets(NamedTuple):
    """The truth of all rows of a table."""

    task: Task
    class_names: tuple[str, ...]  # in the order of their numbers, where they have names
    y: Tensor  # classes or values [n]; labels or several values [n, T], NaN where a field is empty
    flaws: dict[int, str]  # why a row has no truth, by row number


def parse_targets(
    where: object,
    fields: Sequence[pd.Series[str]],
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
    ``class_names=()`` means classes, and names as found.

    Example:
        >>> import pandas as pd
        >>> found = parse_targets("t.csv", [pd.Series(["yes", "no"], name="weak")])
        >>> found.task, found.class_names, found.y
        ('classes', ('no', 'yes'), tensor([1, 0]))
    """
    import torch

    from gduq.prediction import infer_target

    columns = [Column(one) for one in fields]
    first, names, single = columns[0], tuple(class_names or ()), len(columns) == 1
    if task is not None:
        one_of("a task", task, get_args(Task))
    if task is None and class_names is not None:
        task = "classes"
    if task == "classes" and not single:
        raise InputError("classes in one target column", f"{len(columns)} columns")
    if class_names is not None and task != "classes":
        raise InputError("class_names with task='classes'", repr(task))
    if not names:
        if not any(column.filled for column in columns):
            what = f"targets in {', '.join(repr(column.name) for column in columns[:5])} of {where}"
            raise InputError(what, "empty fields in every row")
        for column in columns:
            column.check(where, task if single else task or "values")
    y = torch.tensor([list(column.values) for column in columns], dtype=torch.float64).t()
    if task is None and first.words and not first.numbers and single:
        task = "classes"
    if task is None:
        task = infer_target(y, name=repr(first.name) if single else "y").kind  # type: ignore[assignment]
    flaws: dict[int, str] = {}
    if task == "classes":
        names = names or (() if first.numbers else tuple(sorted(first.words)))
        classes = [_class(*row, names) for row in zip(first.fields, first.values, strict=True)]
        for row, one in zip(first.fields.index, classes, strict=True):
            if isinstance(one, str):
                flaws[row] = f"target {first.name!r} is {one}"
        y = torch.tensor([-1 if isinstance(one, str) else one for one in classes])
        return Targets("classes", names, y, flaws)
    only = "neither 0 nor 1 nor empty" if task == "labels" else "no finite number"
    for column in columns:
        sound = column.values.isin([0, 1]) if task == "labels" else column.values.notna()
        for row, text in column.fields[~sound & ~column.missing].to_dict().items():
            flaws.setdefault(row, f"target {column.name!r} is {text!r}, {only}")
    if task == "values" and single:
        y = y[:, 0]
        flaws |= dict.fromkeys(first.fields[first.missing].index, f"target {first.name!r} is empty")
    assert task is not None
    return Targets(task, (), y.float(), flaws)


def _class(text: str, value: float, names: Sequence[str]) -> int | str:
    """The class of a field, in the order of the names if there are some, or why it has none."""
    if text not in names:
        if text.lower() in _GAPS:
            return "empty"
        integral = value.is_integer() and abs(value) <= 2**53
        text = str(int(value)) if integral else text  # 1.0 and +1 are class 1
        if not names:
            return int(text) if integral else f"{text!r}, no whole number"
    known = ", ".join(names)
    return names.index(text) if text in names else f"{text!r}, none of the classes {known}"
