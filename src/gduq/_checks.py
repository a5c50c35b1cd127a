"""Whole numbers that a user hands over: Python's, NumPy's or a tensor's, no fraction or text."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from contextlib import suppress
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
    with suppress(TypeError):
        number = operator.index(value)
        inside = (least is None or number >= least) and (most is None or number <= most)
        if inside and not isinstance(value, bool):
            return number
    low = "" if least is None else f" of at least {least}"
    high = "" if most is None else f"{' and' if low else ' of'} at most {most}"
    raise InputError(f"{name} as a whole number{low}{high}", repr(value))


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
    with suppress(ValueError):
        return [float(text) for text in texts]
    try:
        return [datetime.fromisoformat(text).timestamp() for text in texts]
    except (ValueError, OverflowError, OSError) as error:
        raise InputError(f"dates such as 2024-05-31, or numbers, in {name!r}", error) from None
