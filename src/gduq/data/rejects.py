"""Rows that cannot be read: what is wrong with which line, and how many of them are too many."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from torch_geometric.data import Data

from gduq.data.tensorfile import atomic_path
from gduq.errors import InputError

__all__ = ["Reject", "RejectLog"]


@dataclass(frozen=True)
class Reject:
    """A row that could not be made into a graph.

    Attributes:
        file: Name of the file the row stands in.
        line: Its line number there, from 1.
        reason: What is wrong with it.
        text: The row as it was found, shortened.
    """

    file: str
    line: int
    reason: str
    text: str = ""

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}: {self.reason}"


class RejectLog:
    """Lets good graphs through and keeps count of the others, with the first few at hand.

    Args:
        path: CSV file for all rejects (``file, line, reason, text``), or ``None`` for none.
        max_rejects: Share of rows, from 0 to 1, above which reading stops with an error.
    """

    def __init__(self, path: Path | None, max_rejects: float) -> None:
        if not 0 <= max_rejects <= 1:
            raise InputError("max_rejects from 0 to 1, a share of the rows", max_rejects)
        self.path, self.max_rejects = path, max_rejects
        self.rows = self.rejected = 0
        self.first: Reject | None = None

    def good(self, items: Iterable[tuple[int, Data | Reject]]) -> Iterator[Data]:
        """The graphs among the items. At the end the rejects file is in place, and too many
        rejects raise `InputError`; a rejects file of an earlier run is replaced or removed."""
        if self.path is None:
            yield from self._sift(items, None)
        else:
            with (
                atomic_path(self.path) as temporary,
                temporary.open("w", newline="", encoding="utf-8", errors="backslashreplace") as out,
            ):
                yield from self._sift(items, out)
            if not self.rejected:
                self.path.unlink()
        self._judge()

    def _sift(self, items: Iterable[tuple[int, Data | Reject]], out: object) -> Iterator[Data]:
        write = None if out is None else csv.writer(out).writerow  # type: ignore[arg-type]
        if write:
            write(["file", "line", "reason", "text"])
        for _, item in items:
            self.rows += 1
            if isinstance(item, Data):
                yield item
                continue
            self.rejected += 1
            self.first = self.first or item
            if write:
                write([item.file, item.line, item.reason, item.text])

    def _judge(self) -> None:
        if self.rejected > self.max_rejects * self.rows:
            where = f" All are listed in {self.path}." if self.path else ""
            raise InputError(
                f"at most {self.max_rejects:.0%} of the rows to be unreadable",
                f"{self.rejected} of {self.rows}; the first: {self.first}",
                f"Correct the rows or raise max_rejects.{where}",
            )
