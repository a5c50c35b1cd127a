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

__all__ = ["Column", "TableColumns", "TargetParser", "Task", "find_columns", "find_smiles",
           "resolve_column", "resolve_columns", "unit_of"]  # fmt: skip

Task = Literal["classes", "labels", "values"]

_MANY = 1000  # classes
_COMMA = re.compile(r"[+-]?\d*,\d+([eE][+-]?\d+)?")  # a number with a decimal comma
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


# -- what the fields of a column hold -------------------------------------------------------------


def is_missing(text: str) -> bool:
    """Whether a field says that nothing is known."""
    return text.lower() in ("", "nan", "na")


def as_number(text: str) -> float | None:
    """The finite number that a field holds, if it holds one."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


class Column:
    """What the fields of one column are."""

    def __init__(self, name: str, fields: Sequence[str]) -> None:
        known = [text for text in fields if not is_missing(text)]
        found = [as_number(text) for text in known]
        ordered = [value for value in found if value is not None]
        words = [text for text, value in zip(known, found, strict=True) if value is None]
        self.name, self.filled = name, len(known)
        self.numbers, self.words = set(ordered), set(words)
        self.whole = all(value.is_integer() for value in self.numbers)
        # every row has a word or whole number of its own; 1, 2, 3, ... or the like
        distinct = len(self.numbers) + len(self.words)
        self.names_rows = len(fields) == len(known) == distinct and self.whole
        in_steps = not words and len(known) > 2 and all(b - a == 1 for a, b in pairwise(ordered))
        self.counts_rows = self.names_rows and in_steps
        # fractions are written with commas; a few such fields are slips
        commas = sum(_COMMA.fullmatch(text) is not None for text in words)
        often = 2 * commas > len(words) and 10 * commas >= len(known)
        self.has_decimal_commas = commas > 0 and often and self.whole

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
        if task == "classes" and self.numbers and not self.whole:
            do = "Pass --task values, in Python task='values'."
            what = f"whole numbers or words in {column} as classes"
            raise InputError(what, "numbers with fractions", do)


class TargetParser:
    """What the target columns of a table mean, and the ``y`` of each row.

    * ``"classes"``, one column: ``y [1]`` of integers. Whole numbers stay as they are; words are
      names of classes, numbered in ascending order. With ``class_names`` every field must be one
      of them, and is numbered in their order.
    * ``"labels"``: ``y [1, T]`` of 0, 1 and, where a field is empty, NaN.
    * ``"values"``: ``y [1]``, or ``[1, T]`` of several columns with NaN where a field is empty.

    "NA" and "NaN" are empty fields, unless ``class_names`` has them.

    Without ``task`` a column of words holds classes; what numbers are says
    `gduq.prediction.infer_target`, as everywhere.

    Args:
        where: The table, for errors.
        names: Names of the columns.
        columns: The fields of each column.
        task: What the columns hold; ``None``: as above.
        class_names: Classes in the order of their numbers; ``None``: as found; ``()``: as
            found, and classes in any case.

    Example:
        >>> parser = TargetParser("t.csv", ["weak"], [["yes", "no"]])
        >>> parser.task, parser.class_names, parser.parse(["yes"])
        ('classes', ('no', 'yes'), tensor([1]))
        >>> TargetParser("t.csv", ["a", "b"], [["0", ""], ["", "1"]]).parse(["", "1"])
        tensor([[nan, 1.]])
    """

    def __init__(
        self,
        where: object,
        names: Sequence[str],
        columns: Sequence[Sequence[str]],
        task: Task | None = None,
        class_names: Sequence[str] | None = None,
    ) -> None:
        self.names, self.class_names = tuple(names), tuple(class_names or ())
        if task is not None:
            one_of("a task", task, get_args(Task))
        if (task == "classes" or class_names is not None) and len(self.names) > 1:
            what = "class_names" if class_names is not None else "task='classes'"
            raise InputError(f"{what} with one target column", f"{len(self.names)} columns")
        if class_names is not None and task not in (None, "classes"):
            raise InputError("class_names with task='classes'", repr(task))
        self.task: Task = task or "classes"
        if not self.names or class_names:
            return
        found = [Column(name, fields) for name, fields in zip(names, columns, strict=True)]
        if not any(column.filled for column in found):
            what = f"targets in {', '.join(map(repr, self.names[:5]))} of {where}"
            raise InputError(what, "empty fields in every row")
        for column in found:
            column.check(where, task)
        if task is None and class_names is None:
            self.task = _infer_task(found, columns)
        if self.task == "classes" and not found[0].numbers:
            if len(found[0].words) > _MANY:
                got = f"more than {_MANY} different words in {found[0].name!r}"
                raise InputError(f"numbers or at most {_MANY} classes in {where}", got)
            self.class_names = tuple(sorted(found[0].words))

    def parse(self, fields: Sequence[str]) -> Tensor:
        """The truth of a row; a ``ValueError`` says why there is none."""
        import torch

        if self.task == "classes":
            return torch.tensor([self._class(fields[0])])
        values = [
            math.nan if is_missing(text) else _number(text, name)
            for text, name in zip(fields, self.names, strict=True)
        ]
        if self.task == "labels":
            for value, name in zip(values, self.names, strict=True):
                if value not in (0.0, 1.0) and not math.isnan(value):
                    raise ValueError(f"label {name!r} is {value:g}, neither 0 nor 1 nor empty")
        elif len(values) == 1:
            if math.isnan(values[0]):
                raise ValueError(f"target {self.names[0]!r} is empty")
            return torch.tensor(values)
        return torch.tensor([values])

    def _class(self, text: str) -> int:
        name, known = self.names[0], self.class_names
        if is_missing(text) and text not in known:
            raise ValueError(f"target {name!r} is empty")
        if not known:
            value = _number(text, name)
            if not value.is_integer() or abs(value) > 2**53:
                raise ValueError(f"target {name!r} is {text!r}, no whole number")
            return int(value)
        number = as_number(text)
        if text not in known and number is not None and number.is_integer():
            text = str(int(number))  # 1.0 and +1 are class 1
        if text not in known:
            some = ", ".join(known[:10])
            raise ValueError(f"target {name!r} is {text!r}, none of the classes {some}")
        return known.index(text)


def _infer_task(columns: Sequence[Column], fields: Sequence[Sequence[str]]) -> Task:
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
    numbers = [[as_number(text) for text in column] for column in fields]
    known = [[math.nan if value is None else value for value in column] for column in numbers]
    y = torch.tensor(known, dtype=torch.float64).t()
    name = repr(columns[0].name) if len(columns) == 1 else "y"
    return infer_target(y, name=name).kind  # type: ignore[return-value]


def _number(text: str, name: str) -> float:
    value = as_number(text)
    if value is None:
        raise ValueError(f"target {name!r} is {text!r}, no finite number")
    return value
