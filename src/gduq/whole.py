"""Whole numbers that a user hands over: Python's, NumPy's or a tensor's, no fraction or text."""

from __future__ import annotations

import operator
from typing import Any

from gduq.errors import InputError

__all__ = ["whole"]


def whole(name: str, value: Any, least: int | None = None) -> int:
    """``value`` as an ``int``, or an error that names it.

    Example:
        >>> import numpy as np
        >>> whole("seed", np.int64(3))
        3
        >>> whole("limit", "10")
        Traceback (most recent call last):
        ...
        gduq.errors.InputError: expected a whole number as limit, got '10'.
    """
    wanted = f"a whole number as {name}" + ("" if least is None else f", a {name} >= {least}")
    try:
        number = operator.index(value)
    except TypeError:
        raise InputError(wanted, repr(value)) from None
    if isinstance(value, bool) or (least is not None and number < least):
        raise InputError(wanted, repr(value))
    return number
