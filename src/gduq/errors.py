"""The library's one voice for a user's mistake: what was expected, what was got, what to do; and
checks of what is handed over in many places."""

from __future__ import annotations

import difflib
import operator
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

__all__ = ["BundleError", "InputError", "NotFittedError", "check_enough", "check_int",
           "did_you_mean", "first_flaw", "not_installed", "one_line", "one_of", "parse_dates",
           "warn_user"]  # fmt: skip

_LETTERS = 400  # of one part of a message


class InputError(ValueError):
    """Something handed to the library cannot be used.

    Args:
        expected: What the library needs here.
        got: What it was given.
        do: What to do about it; may be empty.

    Example:
        >>> raise InputError("num_anchors >= 1", "0", "Pass num_anchors=10.")
        Traceback (most recent call last):
        ...
        gduq.errors.InputError: expected num_anchors >= 1, got 0. Pass num_anchors=10.
    """

    def __init__(self, expected: str, got: object, do: str = "") -> None:
        wanted, found, advice = _short(expected), _short(got), _short(do)
        stop = "" if found.endswith(".") else "."  # what was got may be a sentence
        text = f"expected {wanted}, got {found}{stop}" + (f" {advice}" if do else "")
        super().__init__(" ".join(text.splitlines()))  # names in a file may hold line breaks
        self.expected, self.got, self.do = expected, got, do

    def __reduce__(self) -> tuple[type[InputError], tuple[str, object, str]]:
        return type(self), (self.expected, _short(self.got), self.do)


def _short(value: object) -> str:
    """As text of bounded length: what a file holds may have any."""
    try:
        text = str(value)
    except ValueError:  # Python does not write whole numbers of more than 4300 digits
        text = "a number of too many digits"
    return text if len(text) <= _LETTERS else f"{text[:_LETTERS]}..."


class NotFittedError(InputError):
    """Something is used before it was fitted: a bank, a calibrator, a conformal predictor."""


class BundleError(InputError):
    """A saved model cannot be written, or read: damaged, too new, not ours, of another kind."""


def not_installed(what: str, packages: str, otherwise: str = "") -> InputError:
    """The error for packages that are missing.

    They are named themselves, not as an extra of gduq: that installs them for a clone, too.
    """
    return InputError(what, "none installed", f"Install it: pip install {packages}{otherwise}")


def did_you_mean(
    name: object, known: Iterable[str] | Mapping[str, str], otherwise: str | None = None
) -> str:
    """What to do about an unknown name: the nearest known ones or, where none is near, all (or
    the sentence ``otherwise``). Of a mapping, the values are shown.

    Example:
        >>> did_you_mean("Splin", ["spline", "temperature"])
        "Did you mean 'spline'?"
        >>> did_you_mean("foo", ["spline", "temperature"])
        'There are spline, temperature.'
    """
    shown = known if isinstance(known, Mapping) else {one: one for one in known}
    found = {key.lower(): text for key, text in shown.items()}
    given = str(name).lower()
    near = difflib.get_close_matches(given, found, n=2, cutoff=0.5)
    near = near or [key for key in found if given and key.startswith(given)][:2]
    if near:
        return f"Did you mean {' or '.join(repr(found[one]) for one in near)}?"
    return f"There are {', '.join(found.values())}." if otherwise is None else otherwise


def first_flaw(error: Any) -> str:
    """What is wrong first in a document, as a pydantic ``ValidationError`` tells it."""
    found = error.errors(include_url=False, include_context=False)[0]
    place = f"{'.'.join(map(str, found['loc']))[:100]}: " if found["loc"] else ""
    return f"{place}{found['msg'][:200]} ({found['input']!r:.80})"


def one_line(error: BaseException) -> str:
    """An exception's text without line breaks, and not too long; its name where it has none."""
    return _short(" ".join(str(error).split()) or type(error).__name__)


def warn_user(text: str, kind: type[Warning] = UserWarning) -> None:
    """A warning that points at the line outside gduq which led to it."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("gduq."):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, kind, stacklevel=level)


# -- checks ----------------------------------------------------------------------------------------


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
