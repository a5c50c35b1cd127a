"""Target columns of a table: what their fields hold, and the truth ``y`` that a row gives.

Nothing heavy is imported to tell.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal, get_args

from gduq.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Column", "Task", "Truth", "as_number", "is_gap"]

Task = Literal["classes", "labels", "values"]

_MANY = 1000  # different fields of a column that are remembered
_COMMA = re.compile(r"[+-]?\d*,\d+([eE][+-]?\d+)?")  # a number with a decimal comma


def is_gap(text: str) -> bool:
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
    """What the fields of one column are, seen one by one."""

    def __init__(self, name: str, fields: Iterable[str] = ()) -> None:
        self.name = name
        self.numbers: set[float] = set()  # no more than _MANY, and as many words
        self.words: set[str] = set()
        self.whole, self.low, self.high = True, math.inf, -math.inf
        self.rows = self.filled = 0
        self._worded = self._commas = self._steps = 0
        self._last: float | None = None
        for text in fields:
            self.add(text)

    def add(self, text: str) -> float:
        """Look at one more field; the number it holds, or NaN."""
        self.rows += 1
        if is_gap(text):
            return math.nan
        value = as_number(text)
        self.filled += 1
        if value is not None:
            self.whole = self.whole and value.is_integer()
            self.low, self.high = min(self.low, value), max(self.high, value)
            self._steps += self._last is not None and value - self._last == 1
            self._last = value
            if len(self.numbers) <= _MANY:
                self.numbers.add(value)
            return value
        self._worded += 1
        self._commas += _COMMA.fullmatch(text) is not None
        if len(self.words) <= _MANY:
            self.words.add(text)
        return math.nan

    @property
    def is_numeric(self) -> bool:
        """Whether all fields but gaps are numbers."""
        return bool(self.numbers) and not self.words

    @property
    def names_rows(self) -> bool:
        """Whether every row has a word or whole number of its own."""
        return self.rows == self.filled == len(self.numbers) + len(self.words) and self.whole

    @property
    def counts_rows(self) -> bool:
        """Whether it holds 1, 2, 3, ... or the like."""
        return self.names_rows and self.filled > 2 and self._steps == self.filled - 1

    @property
    def has_decimal_commas(self) -> bool:
        """Whether fractions are written with commas; a few such fields are slips."""
        often = 2 * self._commas > self._worded and 10 * self._commas >= self.filled
        return often and self._commas > 0 and self.whole

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
                f"Write {such.replace(',', '.')!r}, or pass task='classes' (--task classes) if "
                "they are names.",
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


class Truth:
    """What the target columns of a table mean, and the ``y`` of each row.

    * ``"classes"``, one column: ``y [1]`` of integers. Whole numbers stay as they are; words are
      names of classes, numbered in ascending order. With ``class_names`` every field must be one
      of them, and is numbered in their order.
    * ``"labels"``: ``y [1, T]`` of 0, 1 and, where a field is empty, NaN.
    * ``"values"``: ``y [1]``, or ``[1, T]`` of several columns with NaN where a field is empty.

    "NA" and "NaN" are empty fields, unless ``class_names`` has them.

    Without ``task`` a column of words holds classes; what numbers are says
    `gduq.targets.infer_target`, as everywhere.

    Args:
        where: The table, for errors.
        names: Names of the columns.
        rows: The fields of each row in these columns.
        task: What the columns hold; ``None``: as above.
        class_names: Classes in the order of their numbers; ``None``: as found; ``()``: as
            found, and classes in any case.

    Example:
        >>> truth = Truth("t.csv", ["weak"], [["yes"], ["no"]])
        >>> truth.task, truth.class_names, truth.of(["yes"])
        ('classes', ('no', 'yes'), tensor([1]))
        >>> Truth("t.csv", ["a", "b"], [["0", ""], ["", "1"]]).of(["", "1"])
        tensor([[nan, 1.]])
    """

    def __init__(
        self,
        where: str,
        names: Sequence[str],
        rows: Iterable[Sequence[str]],
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
        if self.names and not class_names:
            columns, numbers = [Column(name) for name in self.names], array("d")
            for row in rows:
                numbers.extend(column.add(t) for column, t in zip(columns, row, strict=True))
            if not any(column.filled for column in columns):
                what = f"targets in {', '.join(map(repr, self.names[:5]))} of {where}"
                raise InputError(what, "empty fields in every row")
            for column in columns:
                column.check(where, task)
            if task is None and class_names is None:
                self.task = _told(columns, numbers)
            if self.task == "classes" and not columns[0].numbers:
                self.class_names = _class_names(columns[0], where)

    def of(self, fields: Sequence[str]) -> Tensor:
        """The truth of a row; a ``ValueError`` says why there is none."""
        import torch

        if self.task == "classes":
            return torch.tensor([self._class(fields[0])])
        pairs = zip(fields, self.names, strict=True)
        values = [math.nan if is_gap(text) else _number(text, name) for text, name in pairs]
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
        if is_gap(text) and text not in known:
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


def _told(columns: Sequence[Column], numbers: array[float]) -> Task:
    """What columns hold whose numbers, row by row, are these."""
    import torch

    from gduq.targets import infer_target

    for column in columns:
        if column.words and not column.numbers:
            if len(columns) == 1:
                return "classes"
            raise InputError(
                "numbers in every one of several target columns",
                f"words such as {min(column.words)!r} in {column.name!r}",
                "Read a column of words as the only target.",
            )
    y = torch.frombuffer(numbers, dtype=torch.float64).view(-1, len(columns))
    name = repr(columns[0].name) if len(columns) == 1 else "y"
    return infer_target(y, name=name).kind  # type: ignore[return-value]


def _class_names(column: Column, where: str) -> tuple[str, ...]:
    """The words of a column, which are names of classes."""
    if len(column.words) > _MANY:
        got = f"more than {_MANY} different words in {column.name!r}"
        raise InputError(f"numbers or at most {_MANY} classes in {where}", got)
    return tuple(sorted(column.words))


def _number(text: str, name: str) -> float:
    value = as_number(text)
    if value is None:
        raise ValueError(f"target {name!r} is {text!r}, no finite number")
    return value
