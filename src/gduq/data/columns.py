"""The columns of a table: which one is meant, what they are, and the truth ``y`` of each row.

Unasked, the SMILES are the column called so, the only one with "smiles" in its name, or the only
one that RDKit reads; the target is the only other column of numbers (a few odd fields apart), or of
words under a name such as "class". Columns that count rows, or are called "id", "date" and so on,
are passed over; where two are left, the user is asked.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Literal, get_args

from gduq.errors import InputError, did_you_mean, one_of, warn_user

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

    from gduq.data.table import Table

__all__ = ["Targets", "Task", "find_columns", "find_smiles", "parse_targets", "resolve_column",
           "resolve_columns", "unit_of"]  # fmt: skip

Task = Literal["classes", "labels", "values"]
# task, names of classes in the order of their numbers, y, and why rows have none by row number
Targets = tuple[Task, tuple[str, ...], "Tensor", dict[int, str]]

_GAPS = ("", "nan", "na")
_COMMA = r"[+-]?\d*,\d+([eE][+-]?\d+)?"  # a number with a decimal comma
_THOUSANDS = r"[+-]?[1-9]\d{0,2},\d{3}"  # or one with thousands apart
_NUMBER = r"[+-]?(\d+[.,]?\d*|[.,]\d+)([eE][+-]?\d+)?"
_CENSORED = re.compile(rf"([<>]=?|[≤≥~])\s*{_NUMBER}\s*\D*")
_WITH_UNIT = re.compile(rf"(?!{_NUMBER}$){_NUMBER}\s*[a-zA-Zµμ%°].*")
_UNIT = re.compile(r"(.*\S)\s*(?:\[\s*([^][]*[^][\s])\s*\]|\(\s*([^()]*[^()\s])\s*\))")
_FIRST = 1000  # rows that are looked at
_SAMPLE = 50  # texts of a column that RDKit is asked about
_FEW_WORDS = 20  # different words up to which a column may hold classes
_SHORT = 3  # letters that molecules have on average, unlike codes such as N and P
_MOST_IDS = 3
# what a column of words must be called to be taken as the target unasked
_TARGETS = {"y", "label", "target", "class", "activity", "active", "outcome", "response"}
# what is kept about rows and not measured, as the last word of a name
_KEPT = {"id", "cid", "sid", "row", "unnamed", "batch", "lot", "plate", "well", "barcode", "split",
         "fold", "set", "group", "cluster", "series", "lab", "laboratory", "site", "year",
         "date"}  # fmt: skip


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
    found = [column for column in names if column == name]
    found = found or [column for column in names if unit_of(column)[0] == name]
    if any_case and not found:
        found = [column for column in names if column.lower() == name.lower()]
    if len(found) == 1:
        return found[0]
    got = f"{len(found) or 'none'} of that name"
    do = did_you_mean(name, () if found else [unit_of(one)[0] for one in names], _shown(names))
    raise InputError(f"one column {name!r} in {path}", got, do)


def resolve_columns(path: object, names: Sequence[str], wanted: Iterable[str]) -> tuple[str, ...]:
    """The columns that some names and patterns mean: ``"NR-*"`` is all that begin so."""
    found: list[str] = []
    for text in wanted:
        pattern = text.replace("[", "[[]")  # a unit
        some = [name for name in names if fnmatchcase(name, pattern)] if "*" in text else []
        found += some or [resolve_column(path, names, text)]
    return tuple(dict.fromkeys(found))


def _shown(names: Sequence[str]) -> str:
    return f"Columns: {', '.join(names[:20])}{', ...' if len(names) > 20 else ''}."


def find_columns(
    table: Table,
    smiles: str | None = None,
    targets: Sequence[str] = (),
    others: Sequence[str] = (),
    task: Task | None = None,
) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """The column of SMILES, the targets and those that name rows, as far as the user did not say
    so; ``others`` serve something else."""
    path, names = table.path, table.names
    if table.frame.empty:
        raise InputError(f"rows of {len(names)} fields below the names in {path}", "none")
    chosen = find_smiles(table, smiles)
    used = {chosen, *(resolve_column(path, names, name) for name in others)}
    first = table.frame.iloc[:_FIRST]
    free = [Column(first[n], table.commas) for n in names if names.count(n) == 1 and n not in used]
    known = [n for n in names if n not in used or (n in targets and n != chosen)]
    found = resolve_columns(path, known, targets)
    found = found or tuple(column.name for column in free if column.can_be_target)
    if not targets and len(found) != 1:
        got, do = "no column that is clearly one", _shown([column.name for column in free])
        if found:
            got = f"{len(found)} columns that could be one: {', '.join(found[:20])}"
            do = f"Type --target {shlex.quote(found[0])}; repeat it, or --target 'A*', for several."
        raise InputError(f"--target, the column of {path} to learn", got, do)
    for name in found:
        column = Column(table.frame[name], table.commas)
        column.check(path, task)
        different = set(column.values.dropna() if column.has_numbers else column.words)
        if len(found) == 1 and len(different) == 1:
            got = f"{different.pop()} in every row"
            raise InputError(f"different values in column {name!r} of {path}", got)
    ids = [column.name for column in free if column.name not in found and column.names_rows]
    return chosen, found, tuple(ids[:_MOST_IDS])


def find_smiles(table: Table, given: str | None = None) -> str:
    """The column of SMILES: as the user calls it, or else by its name, or else by its content."""
    names, do = table.names, f"Name it with --smiles. {_shown(table.names)}"
    if given is not None:
        return resolve_column(table.path, names, given, any_case=True)
    found = [name for name in names if name.lower() == "smiles"]
    found = found or [name for name in names if "smiles" in name.lower()]
    if not found:
        from gduq.data.smiles import failures

        for name in [name for name in names if names.count(name) == 1]:
            words = Column(table.frame[name].iloc[:_FIRST]).words.drop_duplicates().iloc[:_SAMPLE]
            if words.str.len().sum() < _SHORT * max(len(words), 1):
                continue
            flaws = failures(list(words))
            if 10 * len(flaws) <= len(words):
                found.append(name)
            elif "InChI" in flaws[0]:
                do = f"In {name!r} {flaws[0]}. {do}"
        if header := [name for name in found if not failures([name])]:
            got = f"{header[0]!r}, which is a molecule"
            raise InputError(f"column names in the first line of {table.path}", got)
    if len(found) == 1:
        return found[0]
    raise InputError(f"one column of SMILES in {table.path}", ", ".join(found) or "none", do)


class Column:
    """What the fields of one column are: ``values`` are finite numbers (with decimal ``commas``) or
    NaN, ``words`` neither numbers nor ``missing``, ``unclear`` numbers that cannot be read."""

    def __init__(self, fields: pd.Series[str], commas: bool = False) -> None:
        import pandas as pd

        self.name, self.fields, self.unclear = str(fields.name), fields, ""
        self.missing = fields.str.lower().isin(_GAPS)
        values = pd.to_numeric(fields, errors="coerce").astype(float)
        found = fields[fields.str.fullmatch(_COMMA).astype(bool)]
        if len(found) and 10 * len(found) >= (~self.missing).sum():  # a few of them are slips
            points = fields[(values.abs() < math.inf) & fields.str.contains(".", regex=False)]
            if not commas:
                self.unclear = f"decimal commas such as {found.min()!r}"
            elif len(points):
                self.unclear = f"{found.min()!r} and {points.min()!r}"
            elif found.str.fullmatch(_THOUSANDS).all():
                self.unclear = f"{found.min()!r}, a fraction or a thousand"
            else:
                values = pd.to_numeric(fields.str.replace(",", "."), errors="coerce").astype(float)
        self.values = values.where(values.abs() < math.inf)
        self.words = fields[self.values.isna() & ~self.missing]
        self.has_numbers = bool(self.values.notna().any())
        units = [word for word in self.words if _WITH_UNIT.fullmatch(word)]
        if not self.has_numbers and 2 * len(units) > len(self.words):
            self.unclear = f"{units[0]!r}, a number with a unit"

    @property
    def names_rows(self) -> bool:
        """Whether every row has a word or whole number of its own."""
        whole = bool((self.values.dropna() % 1 == 0).all())
        return whole and self.fields.is_unique and not bool(self.missing.any())

    @property
    def can_be_target(self) -> bool:
        """Whether it may be what was measured, as far as its name and fields say."""
        spaced = re.sub(r"([a-z])([A-Z])", r"\1 \2", self.name).lower()
        named = re.findall(r"[a-z]+", spaced) or ["unnamed"]
        if named[-1] in _KEPT:
            return False
        odd, count = len(self.words), int((~self.missing).sum())
        censored = sum(bool(_CENSORED.fullmatch(word)) for word in self.words)
        if self.unclear or (
            self.has_numbers and 2 * odd <= count and 10 * (odd - censored) <= count
        ):
            return len(self.values) < 3 or bool((self.values.diff()[1:] != 1).any())  # no count
        few = 2 <= self.words.nunique() <= _FEW_WORDS and not self.has_numbers
        return few and not self.names_rows and bool(_TARGETS & set(named))

    def check(self, where: object, task: Task | None) -> None:
        """Raise for a target column in which numbers or classes would be misread."""
        what, different = f"numbers in column {self.name!r} of {where}", self.words.nunique()
        if task != "classes" and self.unclear:
            do = "Write such as 1234.5, or pass --task classes if they are names."
            raise InputError(f"plain {what}", self.unclear, do)
        if not self.has_numbers and different > max(_FEW_WORDS, len(self.words) / 2):
            got = f"{different} different texts in {len(self.words)} rows, which names them"
            raise InputError(f"{what}, or words that many rows share", got)


def parse_targets(
    where: object,
    fields: Sequence[pd.Series[str]],
    task: Task | None = None,
    class_names: Sequence[str] | None = None,
    commas: bool = False,
) -> Targets:
    """What some target columns mean: `Targets`.

    ``"classes"`` are one column of whole numbers, or of words, numbered in ascending order; words
    that differ in case and blanks are one class, with a warning. With ``class_names`` every field
    must be one of them; ``()`` means names as found. ``"labels"`` are 0, 1 and, where a field is
    empty, NaN. ``"values"`` are numbers, which may have decimal ``commas``; an empty field of one
    column is a flaw. "NA" and "NaN" are empty, unless ``class_names`` has them. Without ``task``
    words are classes; `gduq.prediction.infer_target` says what numbers are.

    Example:
        >>> import pandas as pd
        >>> parse_targets("t.csv", [pd.Series(["yes", "no"], name="weak")])
        ('classes', ('no', 'yes'), tensor([1, 0]), {})
    """
    import torch

    from gduq.prediction import infer_target

    columns = [Column(one, commas and task != "classes") for one in fields]
    first, single = columns[0], len(columns) == 1
    if not class_names and all(bool(column.missing.all()) for column in columns):
        names = ", ".join(repr(column.name) for column in columns[:5])
        raise InputError(f"targets in {names} of {where}", "empty fields in every row")
    for column in () if class_names else columns:
        column.check(where, task)
    y = torch.tensor([list(column.values) for column in columns], dtype=torch.float64).t()
    if task is not None:
        one_of("a task", task, get_args(Task))
    elif class_names is not None or (single and len(first.words) and not first.has_numbers):
        task = "classes"
    else:
        task = infer_target(y, name=repr(first.name) if single else "y").kind  # type: ignore[assignment]
    if (class_names is not None and task != "classes") or (task == "classes" and not single):
        what = "one target column for classes, and names with task='classes' only"
        raise InputError(what, f"{len(columns)} columns, task={task!r}")
    if task == "classes":
        return _parse_classes(first, tuple(class_names or ()))
    flaws = dict[int, str]()
    only = "neither 0 nor 1 nor empty" if task == "labels" else "no finite number"
    odd = {"a censored value": _CENSORED, "a number with a unit": _WITH_UNIT}
    for column in columns:
        sound = column.values.isin([0, 1]) if task == "labels" else column.values.notna()
        for row, text in column.fields[~sound & ~column.missing].items():
            reason = next((what for what, form in odd.items() if form.fullmatch(text)), only)
            flaws.setdefault(row, f"target {column.name!r} is {text!r}, {reason}")
    if task == "values" and single:
        y = y[:, 0]
        flaws |= dict.fromkeys(first.fields[first.missing].index, f"target {first.name!r} is empty")
    assert task is not None
    return task, (), y.float(), flaws


def _parse_classes(column: Column, names: tuple[str, ...]) -> Targets:
    import torch

    fields, values = column.fields, column.values
    whole = values[(values % 1 == 0) & (values.abs() <= 2**53)].astype(int).to_dict()
    found, only = whole, "no whole number"
    if names or not column.has_numbers:
        count = column.words.value_counts()  # of several spellings the commonest is the name
        words = sorted(count.index, key=lambda word: (-count[word], word))
        first = {"".join(word.lower().split()): word for word in reversed(names or words)}
        spelled = {w: w if w in names else first.get("".join(w.lower().split()), w) for w in words}
        if joined := [f"{word!r} as {name!r}" for word, name in spelled.items() if word != name]:
            warn_user(f"In column {column.name!r} {', '.join(joined[:5])}: one class.")
        names = names or tuple(sorted(set(spelled.values())))
        spelled |= {name: name for name in names}  # also one that looks like a gap
        number, only = {name: i for i, name in enumerate(names)}, f"none of {', '.join(names)}"
        texts = {row: str(value) for row, value in whole.items()}  # 1.0 and +1 are class 1
        texts |= {row: spelled.get(text, text) for row, text in fields.items() if text in spelled}
        found = {row: number[text] for row, text in texts.items() if text in number}
    y = torch.tensor([found.get(row, -1) for row in fields.index])
    flaws = {
        row: f"target {column.name!r} is {'empty' if column.missing[row] else f'{text!r}, {only}'}"
        for row, text in fields.items()
        if row not in found
    }
    return "classes", names, y, flaws
