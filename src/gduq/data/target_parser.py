"""Target columns of a table: what their fields hold, and the truth ``y`` that a row gives."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, get_args

from gduq.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Column", "TargetParser", "Task", "as_number", "is_missing"]

Task = Literal["classes", "labels", "values"]

_MANY = 1000  # classes
_COMMA = re.compile(r"[+-]?\d*,\d+([eE][+-]?\d+)?")  # a number with a decimal comma


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
        if task is not None and task not in get_args(Task):
            raise InputError(f"a task from {', '.join(get_args(Task))}", repr(task))
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
