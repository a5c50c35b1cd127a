"""Target columns of a table: what they hold, and the truth ``y`` that the fields of a row give."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import get_args

import torch
from torch import Tensor

from gduq.data.fields import MANY, Column, Task, as_number, is_gap
from gduq.errors import InputError, warn_user

__all__ = ["Task", "Truth"]

_MAX_CLASSES = 20  # different whole numbers up to which they are classes


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
                self.class_names = _class_names(columns[0], where)

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
        if is_gap(text) and text not in self.class_names:
            raise ValueError(f"target {name!r} is empty")
        value = as_number(text)
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
        known = ", ".join(self.class_names[:10])
        raise ValueError(f"target {name!r} is {text!r}, none of the classes {known}")


def _survey(names: Sequence[str], rows: Iterable[Sequence[str]]) -> list[Column]:
    columns = [Column(name) for name in names]
    for row in rows:
        for column, text in zip(columns, row, strict=True):
            column.add(text)
    return columns


def _told(columns: Sequence[Column]) -> Task:
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


def _class_names(column: Column, where: str) -> tuple[str, ...]:
    """Names of the classes, where their numbers are not numbers of classes."""
    numbers, words = column.numbers, column.words
    if numbers and column.low >= 0:
        if not column.is_sparse:
            return ()
        warn_user(
            f"{column.name!r} holds {len(numbers)} different whole numbers from {column.low:g} to "
            f"{column.high:g}, taken as names of {len(numbers)} classes: pass task='values' if "
            "they are amounts, class_names=() if they are class numbers"
        )
    if len(words) > MANY or len(numbers) > MANY:
        kind = "numbers below and above 0" if numbers else "words"
        got = f"more than {MANY} different {kind} in {column.name!r}"
        raise InputError(f"numbers or at most {MANY} classes in {where}", got)
    return tuple(str(int(v)) for v in sorted(numbers)) if numbers else tuple(sorted(words))


def _finite(text: str, name: str) -> float:
    if is_gap(text):
        return math.nan
    value = as_number(text)
    if value is None:
        raise ValueError(f"target {name!r} is {text!r}, no finite number")
    return value
