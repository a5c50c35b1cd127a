"""What the fields of a column hold: numbers, words, gaps. Nothing heavy is imported to tell."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Literal

from gduq.errors import InputError

__all__ = ["MANY", "Column", "Task", "as_number", "is_gap"]

Task = Literal["classes", "labels", "values"]

MANY = 1000  # different fields of a column that are remembered
_COMMA = re.compile(r"[+-]?\d*,\d+([eE][+-]?\d+)?")  # a number with a decimal comma


def is_gap(text: str) -> bool:
    """Whether a field says that nothing is known.

    Example:
        >>> is_gap(""), is_gap("NaN"), is_gap("0")
        (True, True, False)
    """
    return text.lower() in ("", "nan", "na")


def as_number(text: str) -> float | None:
    """The finite number that a field holds, if it holds one.

    Example:
        >>> as_number("1e-3"), as_number("inf"), as_number("1,5")
        (0.001, None, None)
    """
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


class Column:
    """What the fields of one column are, seen one by one.

    Args:
        name: Of the column.
        fields: Its fields.

    Example:
        >>> column = Column("grade", ["high", "low", "", "high"])
        >>> sorted(column.words), column.is_numeric, column.names_rows
        (['high', 'low'], False, False)
    """

    def __init__(self, name: str, fields: Iterable[str] = ()) -> None:
        self.name = name
        self.numbers: set[float] = set()  # no more than MANY, and as many words
        self.words: set[str] = set()
        self.whole, self.low, self.high = True, math.inf, -math.inf
        self.rows = self.filled = 0
        self._worded = self._commas = self._steps = 0
        self._last: float | None = None
        for text in fields:
            self.add(text)

    def add(self, text: str) -> None:
        """Look at one more field."""
        self.rows += 1
        if is_gap(text):
            return
        value = as_number(text)
        self.filled += 1
        if value is not None:
            self.whole = self.whole and value.is_integer()
            self.low, self.high = min(self.low, value), max(self.high, value)
            self._steps += self._last is not None and value - self._last == 1
            self._last = value
            if len(self.numbers) <= MANY:
                self.numbers.add(value)
            return
        self._worded += 1
        self._commas += _COMMA.fullmatch(text) is not None
        if len(self.words) <= MANY:
            self.words.add(text)

    @property
    def is_empty(self) -> bool:
        """Whether there are gaps only."""
        return not self.filled

    @property
    def is_numeric(self) -> bool:
        """Whether all fields but gaps are numbers."""
        return bool(self.numbers) and not self.words

    @property
    def is_binary(self) -> bool:
        """Whether there is no number but 0 and 1."""
        return self.numbers <= {0.0, 1.0}

    @property
    def counts_rows(self) -> bool:
        """Whether it holds 1, 2, 3, ... or the like."""
        return self.names_rows and self.filled > 2 and self._steps == self.filled - 1

    @property
    def names_rows(self) -> bool:
        """Whether every row has a word or whole number of its own."""
        return self.rows == self.filled == len(self.numbers) + len(self.words) and self.whole

    @property
    def has_decimal_commas(self) -> bool:
        """Whether fractions are written with commas; a few such fields are slips."""
        often = 2 * self._commas > self._worded and 10 * self._commas >= self.filled
        return often and self._commas > 0 and self.whole

    @property
    def is_sparse(self) -> bool:
        """Whether whole numbers leave out more than half of 0 to the largest."""
        return len(self.numbers) <= MANY and 2 * len(self.numbers) < self.high + 1

    def check(self, where: object, task: Task | None) -> None:
        """Raise for a target column that cannot hold what it should in any row."""
        if self.is_empty:
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
            raise InputError(
                f"whole numbers or words in {column} as classes",
                "numbers with fractions",
                "Pass --task values, in Python task='values'.",
            )
