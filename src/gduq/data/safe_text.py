"""Texts of others in files and on terminals: never a formula, never an escape sequence."""

from __future__ import annotations

import re

__all__ = ["printable", "safe_cell"]

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def safe_cell(text: str) -> str:
    """A field of a CSV file: what a spreadsheet would compute gets an apostrophe in front.

    Example:
        >>> safe_cell("=1+2"), safe_cell("CC=O"), safe_cell("-5.3")
        ("'=1+2", 'CC=O', '-5.3')
    """
    risky = text.startswith(_FORMULA) and not _NUMBER.fullmatch(text)
    return f"'{text}" if risky else text


def printable(text: str) -> str:
    """The same with control characters spelled out, so that a terminal shows and obeys nothing.

    Example:
        >>> printable("a\\x1b[31mb")
        'a\\\\x1b[31mb'
    """
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
