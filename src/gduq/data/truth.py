"""Target columns of a table: what they hold, and the truth ``y`` that the fields of a row give."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from gduq.errors import InputError, warn_user

__all__ = ["Task", "Truth"]

Task = Literal["classes", "labels", "values"]

_MAX_WORDS = 1000  # different class names
_MAX_CLASSES = 20  # different whole numbers up to which they are classes
_GAPS = ("", "nan", "na")  # how a missing target is written, in any case
_COMMA = re.compile(r"[+-]?\d*,\d+([eE][+-]?\d+)?")  # a number with a decimal comma


class Truth:
    """What the target columns of a table mean, and the ``y`` of each row.

    * ``"classes"``, one column: ``y [1]`` of integers. Whole numbers from 0 on are class numbers.
      Words, whole numbers of which some are below 0, and those that leave out more than half of 0
      to the largest (3, 5, 100) are names of classes, numbered in ascending order or in the order
      of ``class_names``.
    * ``"labels"``: ``y [1, T]`` of 0, 1 and, where a field is empty, NaN.
    * ``"values"``: ``y [1]``, or ``[1, T]`` of several columns with NaN where a field is empty.

    "NA" and "NaN" are empty fields, unless ``class_names`` has them.

    Without ``task`` several columns of 0 and 1 are labels and other several columns are values; one
    column of words, or of up to 20 different whole numbers, holds classes, any other values.

    Args:
        where: The table, for errors.
        names: Names of the columns.
        rows: The fields of each row in these columns.
        task: What the columns hold; ``None``: as above.
        class_names: Classes in the order of their numbers; ``None``: as found; ``()``: as found,
            but whole numbers are class numbers whichever of them occur.

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
            columns = _survey(self.names, rows)
            if all(column.is_empty for column in columns):
                what = f"targets in {', '.join(map(repr, self.names[:5]))} of {where}"
                raise InputError(what, "empty fields in every row")
            for column in columns:
                column.check(where, task)
            numbered = class_names is not None and bool(columns[0].numbers)
            if task is None and class_names is None:
                self.task = _told(columns)
            if self.task == "classes" and not numbered:
                self.class_names = columns[0].class_names(where)

    def of(self, fields: Sequence[str]) -> Tensor:
        """The truth of a row; a ``ValueError`` says why there is none."""
        if self.task == "classes":
            return self._class(fields[0])
        pairs = zip(fields, self.names, strict=True)
        values = [_finite(text, name) for text, name in pairs]
        if self.task == "labels":
            for value, name in zip(values, self.names, strict=True):
                if value not in (0.0, 1.0) and not math.isnan(value):
                    raise ValueError(f"label {name!r} is {value:g}, neither 0 nor 1 nor empty")
            return torch.tensor([values])
        if len(values) > 1:
            return torch.tensor([values])
        if math.isnan(values[0]):
            raise ValueError(f"target {self.names[0]!r} is empty")
        return torch.tensor(values)

    def _class(self, text: str) -> Tensor:
        name = self.names[0]
        if text.lower() in _GAPS and text not in self.class_names:
            raise ValueError(f"target {name!r} is empty")
        value = _number(text)
        is_whole = value is not None and value.is_integer()
        if not self.class_names:
            if value is None:
                raise ValueError(f"target {name!r} is {text!r}, no finite number")
            if not is_whole or value < 0:
                raise ValueError(f"target {name!r} is {text!r}, no class number 0, 1, ...")
            return torch.tensor([int(value)])
        if text not in self.class_names and value is not None and is_whole:
            text = str(int(value))  # 1.0 and +1 are class 1
        if text in self.class_names:
            return torch.tensor([self.class_names.index(text)])
        by_number = not any(_number(known) is not None for known in self.class_names)
        if value is not None and is_whole and by_number and 0 <= value < len(self.class_names):
            return torch.tensor([int(value)])
        known = ", ".join(self.class_names[:10])
        raise ValueError(f"target {name!r} is {text!r}, none of the classes {known}")


class _Column:
    """What the fields of one column are, seen one by one."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.numbers: set[float] = set()  # not all, where there are many
        self.words: set[str] = set()
        self.whole, self.low, self.high = True, math.inf, -math.inf
        self.filled = self.worded = self.commas = 0  # fields; with words; with decimal commas

    def add(self, text: str) -> None:
        if text.lower() in _GAPS:
            return
        value = _number(text)
        self.filled += 1
        if value is not None:
            self.whole = self.whole and value.is_integer()
            self.low, self.high = min(self.low, value), max(self.high, value)
            if len(self.numbers) <= _MAX_WORDS:
                self.numbers.add(value)
            return
        self.worded += 1
        self.commas += _COMMA.fullmatch(text) is not None
        if len(self.words) <= _MAX_WORDS:
            self.words.add(text)

    @property
    def is_empty(self) -> bool:
        return not self.numbers and not self.words

    @property
    def is_binary(self) -> bool:
        return self.numbers <= {0.0, 1.0}

    @property
    def has_decimal_commas(self) -> bool:
        """Whether fractions are written with commas; a few such fields are slips."""
        often = 2 * self.commas > self.worded and 10 * self.commas >= self.filled
        return often and self.whole

    @property
    def is_sparse(self) -> bool:
        """Whether whole numbers leave out more than half of 0 to the largest."""
        return len(self.numbers) <= _MAX_WORDS and 2 * len(self.numbers) < self.high + 1

    def check(self, where: str, task: Task | None) -> None:
        """Raise for a column that cannot hold what it should in any row."""
        if self.is_empty:
            return
        if task != "classes" and self.has_decimal_commas:
            such = min(word for word in self.words if _COMMA.fullmatch(word))
            raise InputError(
                f"numbers with a decimal point in column {self.name!r} of {where}",
                f"decimal commas such as {such!r}",
                f"Write {such.replace(',', '.')!r}, or pass task='classes' if they are names.",
            )
        if task == "values" and not self.numbers:
            got = f"words such as {min(self.words)!r}"
            raise InputError(f"numbers in column {self.name!r} of {where}", got)
        if task == "labels" and not self.numbers & {0.0, 1.0}:
            got = f"{min(self.numbers):g} and others" if self.numbers else repr(min(self.words))
            raise InputError(f"0 and 1 in column {self.name!r} of {where}", got)
        if task == "classes" and self.numbers and not self.whole:
            raise InputError(
                f"whole numbers or words in column {self.name!r} of {where} for task='classes'",
                "numbers with fractions",
                "Pass task='values'.",
            )

    def class_names(self, where: str) -> tuple[str, ...]:
        """Names of the classes, where their numbers are not numbers of classes."""
        if self.numbers and self.low >= 0:
            if not self.is_sparse:
                return ()
            warn_user(
                f"{self.name!r} holds {len(self.numbers)} different whole numbers from "
                f"{self.low:g} to {self.high:g}, taken as names of {len(self.numbers)} classes: "
                "pass task='values' if they are amounts, class_names=() if they are class numbers"
            )
        if len(self.words) > _MAX_WORDS or len(self.numbers) > _MAX_WORDS:
            kind = "numbers below and above 0" if self.numbers else "words"
            got = f"more than {_MAX_WORDS} different {kind} in {self.name!r}"
            raise InputError(f"numbers or at most {_MAX_WORDS} classes in {where}", got)
        if self.numbers:
            return tuple(str(int(v)) for v in sorted(self.numbers))
        return tuple(sorted(self.words))


def _survey(names: Sequence[str], rows: Iterable[Sequence[str]]) -> list[_Column]:
    columns = [_Column(name) for name in names]
    for row in rows:
        for column, text in zip(columns, row, strict=True):
            column.add(text)
    return columns


def _told(columns: Sequence[_Column]) -> Task:
    if len(columns) > 1:
        for column in columns:
            if column.words and not column.numbers:
                raise InputError(
                    "numbers in every one of several target columns",
                    f"words such as {min(column.words)!r} in {column.name!r}",
                    "Read a column of words as the only target.",
                )
        return "labels" if all(column.is_binary for column in columns) else "values"
    (column,) = columns
    if not column.numbers:
        return "classes"
    if not column.whole or len(column.numbers) <= _MAX_CLASSES:
        return "classes" if column.whole else "values"
    if column.low >= 0:
        warn_user(
            f"{column.name!r} holds more than {_MAX_CLASSES} different whole numbers, taken as "
            "values: pass task='classes' if they are class numbers, task='values' if they are not"
        )
    return "values"


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _finite(text: str, name: str) -> float:
    if text.lower() in _GAPS:
        return math.nan
    value = _number(text)
    if value is None:
        raise ValueError(f"target {name!r} is {text!r}, no finite number")
    return value
