"""Rows that cannot be read: what is wrong with which line, and how many of them are too many."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gduq.data.safe_text import safe_cell
from gduq.disk import atomic_path
from gduq.errors import InputError

if TYPE_CHECKING:
    from torch_geometric.data import Data

__all__ = ["Reject", "RejectList", "RejectLog"]


@dataclass(frozen=True)
class Reject:
    """A row that could not be made into a graph."""

    file: str
    line: int  # from 1; 0 where there are no lines
    reason: str
    text: str = ""  # of the row, shortened

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}: {self.reason}"


class RejectList:
    """A CSV file of the rows that were left out, in place when the block ends well.

    Without any row there is no file; a list of an earlier call is then emptied. A file that is
    there and is no such list is somebody's own: it is refused, not replaced.
    """

    columns = ("file", "row", "line", "reason", "text")

    def __init__(self, path: Path) -> None:
        if not path.parent.is_dir():
            raise InputError("a folder for the rejects that exists", path.parent)
        if path.exists() and not self._is_ours(path):
            got = f"{path}, which exists and is no list of rejects"
            raise InputError("a new file for the rejects", got, "Choose another name.")
        self.path, self.rows, self.first = path, 0, ""
        self._stack = ExitStack()
        self._writer: Any = None

    def _is_ours(self, path: Path) -> bool:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.readline(200).strip() == ",".join(self.columns).encode()

    def __enter__(self) -> RejectList:
        if self.path.exists():
            self._open()
        return self

    def write(self, file: object, row: int, reject: Reject) -> None:
        """Add a row."""
        if self._writer is None:
            self._open()
        self.rows += 1
        self.first = self.first or f"{file}, row {row}: {reject.reason}"
        found = (str(file), row, reject.line or "", reject.reason, reject.text)
        self._writer.writerow(safe_cell(v) if isinstance(v, str) else v for v in found)

    def _open(self) -> None:
        temporary = self._stack.enter_context(atomic_path(self.path))
        out = temporary.open("w", newline="", encoding="utf-8", errors="backslashreplace")
        self._writer = csv.writer(self._stack.enter_context(out))
        self._writer.writerow(self.columns)

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)


class RejectLog:
    """Lets good graphs through and lists the others in a CSV file, if a path is given; more than
    the share ``max_rejects`` of them is an error."""

    def __init__(self, path: Path | None, max_rejects: float) -> None:
        if not 0 <= max_rejects <= 1:
            raise InputError("max_rejects from 0 to 1, a share of the rows", max_rejects)
        self.max_rejects = max_rejects
        self.list = None if path is None else RejectList(path)
        self.rows = self.rejected = 0
        self.first: Reject | None = None

    def __str__(self) -> str:
        return f"{self.rejected} of {self.rows} rows are left out, first {self.first}"

    def good(self, items: Iterable[tuple[int, Data | Reject]]) -> Iterator[Data]:
        """The graphs among the items. The list of rejects is in place before an error is raised."""
        with self.list or nullcontext():
            for row, item in items:
                self.rows += 1
                if not isinstance(item, Reject):
                    yield item
                    continue
                self.rejected += 1
                self.first = self.first or item
                if self.list is not None:
                    self.list.write(item.file, row, item)
        if self.rejected > self.max_rejects * self.rows:
            where = f" All are listed in {self.list.path}." if self.list else ""
            raise InputError(
                f"at most {self.max_rejects:.0%} of the rows to be unreadable",
                f"{self.rejected} of {self.rows}; the first: {self.first}",
                f"Correct the rows or raise max_rejects.{where}",
            )
