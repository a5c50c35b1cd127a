"""Whole numbers that a user hands over: Python's, NumPy's or a tensor's, no fraction or text."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from gduq.errors import InputError

__all__ = ["check_enough", "check_int", "one_of", "parse_dates"]


def check_int(name: str, value: Any, least: int | None = None, most: int | None = None) -> int:
    """``value`` as an ``int`` from ``least`` to ``most``, or an error that names it.

    Example:
        >>> import numpy as np
        >>> check_int("seed", np.int64(3))
        3
        >>> check_int("limit", "10", least=1)
        Traceback (most recent call last):
        ...
        gduq.errors.InputError: expected limit as a whole number of at least 1, got '10'.
    """
    low = "" if least is None else f" of at least {least}"
    high = "" if most is None else f"{' and' if low else ' of'} at most {most}"
    error = InputError(f"{name} as a whole number{low}{high}", repr(value))
    try:
        number = operator.index(value)
    except TypeError:
        raise error from None
    too_small = least is not None and number < least
    if isinstance(value, bool) or too_small or (most is not None and number > most):
        raise error
    return number


def one_of(what: str, given: str, known: Iterable[str]) -> None:
    """Raise `InputError` for a name that is not known."""
    if given not in known:
        raise InputError(f"{what} from {', '.join(known)}", repr(given))


def check_enough(rows: int, least: int = 20) -> None:
    """Raise where there are too few rows to train and judge a model."""
    if rows < least:
        raise InputError(f"at least {least} rows to train and judge a model", rows)


def parse_dates(name: str, fields: Sequence[object]) -> list[float]:
    """When each row is from: numbers (years, say), or dates in seconds.

    Example:
        >>> parse_dates("year", ["1999", "2001.5"])
        [1999.0, 2001.5]
    """
    texts = [str(field) for field in fields]
    try:
        return [float(text) for text in texts]
    except ValueError:
        pass
    try:
        return [datetime.fromisoformat(text).timestamp() for text in texts]
    except (ValueError, OverflowError, OSError) as error:
        do = "Write dates with the year first."
        raise InputError(f"dates such as 2024-05-31, or numbers, in {name!r}", error, do) from None
