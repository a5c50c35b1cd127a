"""Whole numbers that a user hands over: Python's, NumPy's or a tensor's, no fraction or text."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

from gduq.errors import InputError

__all__ = ["one_of", "whole"]


def whole(name: str, value: Any, least: int | None = None, most: int | None = None) -> int:
    """``value`` as an ``int`` from ``least`` to ``most``, or an error that names it.

    Example:
        >>> import numpy as np
        >>> whole("seed", np.int64(3))
        3
        >>> whole("limit", "10", least=1)
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
