"""How ``results/summary.json`` is written: one line per row of figures, names of columns once."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from gduq.disk import to_json

TABLES = ("seeds", "means", "claims", "pairs", "cells", "paper_means", "paper", "published",
          "printed", "published_claims")  # fmt: skip


def packed(found: dict[str, Any]) -> str:
    """The text of the file; rows of a table of `TABLES` have the same columns."""
    parts = json.loads(to_json(found, indent=None))
    parts |= {name: _narrow(parts[name]) for name in TABLES if parts[name]}
    return _lines(parts) + "\n"


def unpacked(text: str) -> dict[str, Any]:
    """The summary that was `packed`."""
    parts: dict[str, Any] = json.loads(text)
    return parts | {name: _wide(parts[name]) for name in TABLES if parts[name]}


def _narrow(table: dict[str, Any]) -> dict[str, Any]:
    first = table
    while not _is_row(first):
        first = next(iter(first.values()))
    columns = list(first)
    return {"columns": columns, "rows": _mapped(table, lambda row: [row[c] for c in columns])}


def _wide(table: dict[str, Any]) -> Any:
    return _mapped(table["rows"], lambda row: dict(zip(table["columns"], row, strict=True)))


def _is_row(part: Any) -> bool:
    return isinstance(part, list) or not any(isinstance(v, (dict, list)) for v in part.values())


def _mapped(part: Any, change: Callable[[Any], Any]) -> Any:
    return change(part) if _is_row(part) else {k: _mapped(v, change) for k, v in part.items()}


def _lines(part: Any, depth: int = 0) -> str:
    """JSON with one line for what holds no dictionary or list of them."""
    inner, end = "\n" + " " * (depth + 1), "\n" + " " * depth
    if isinstance(part, dict) and not _is_row(part):
        entries = [f"{inner}{_text(k)}: {_lines(v, depth + 1)}" for k, v in part.items()]
        return "{" + ",".join(entries) + end + "}"
    if isinstance(part, list) and any(isinstance(v, (dict, list)) for v in part):
        return "[" + ",".join(inner + _text(v) for v in part) + end + "]"
    return _text(part)


def _text(part: Any) -> str:
    return json.dumps(part, ensure_ascii=False)
