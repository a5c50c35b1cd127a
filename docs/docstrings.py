"""Docstrings speak reStructuredText in a few places; the site speaks Markdown."""

from __future__ import annotations

import re
from typing import Any

import griffe

__all__ = ["MarkdownDocstrings"]

_EXAMPLE = re.compile(r"^( *)Example:$", re.MULTILINE)
_ROLE = re.compile(r":math:`([^`]*)`")
_MATH = re.compile(r"^( *)\.\. math::(.*(?:\n(?:\1 +.*|[ ]*(?=\n)))*)", re.MULTILINE)
_TABLE = re.compile(r"^( *)=+(?: =+)+\n(?:.*\n)+?\1=+(?: =+)+$", re.MULTILINE)


def to_markdown(text: str) -> str:
    """Formulas and tables as code: they stay readable, and no script from elsewhere is needed."""
    text = _EXAMPLE.sub(r"\1Examples:", text)  # the one word that griffe reads as code
    text = _ROLE.sub(r"`\1`", text)
    text = _MATH.sub(lambda m: _fenced(m[1], m[2]), text)
    return _TABLE.sub(lambda m: _fenced(m[1], m[0]), text)


def _fenced(indent: str, body: str) -> str:
    lines = [f"{indent}{line.strip()}" for line in body.split("\n") if line.strip()]
    return "\n".join([f"{indent}```text", *lines, f"{indent}```", ""])


class MarkdownDocstrings(griffe.Extension):
    """Rewrites every docstring before it is rendered."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = to_markdown(obj.docstring.value)
