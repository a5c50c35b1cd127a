"""What people see while cells run: a live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

__all__ = ["Watch", "watching"]


class Watch:
    """Is told what starts and ends; this one says nothing."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self.done = self.failed = 0

    def started(self, i: int) -> Path | None:
        """Cell i is on its way; the file for what it tells, where somebody reads it."""
        return None

    def ended(self, i: int, error: str | None) -> None:
        """Cell i is done, or has failed with this traceback."""
        self.done += error is None
        self.failed += error is not None


class _Lines(Watch):
    """A line whenever a cell ends, for pipes and CI."""

    def ended(self, i: int, error: str | None) -> None:
        super().ended(i, error)
        reason = "" if error is None else error.strip().splitlines()[-1][:160]
        word = "done" if error is None else f"FAILED ({reason})"
        sys.stderr.write(f"[{self.done + self.failed}/{len(self.names)}] {self.names[i]}: {word}\n")
        sys.stderr.flush()


class _Live(Watch):
    """A bar with counts, and the running cells with what they tell, renewed in place."""

    def __init__(self, names: Sequence[str], title: str, bars: Any, news: Path) -> None:
        super().__init__(names)
        self._bars, self._news, self._rows = bars, news, dict[int, Any]()
        self._start = time.monotonic()
        self._all = bars.add_task(title, total=len(names), says=self._summary)

    def _summary(self) -> str:
        ended, total = self.done + self.failed, len(self.names)
        text = f"{self.done}/{total} done, {len(self._rows)} running, {self.failed} failed"
        left = (time.monotonic() - self._start) / max(ended, 1) * (total - ended)
        return f"{text}, {timedelta(seconds=round(left))} left" if ended else text

    def started(self, i: int) -> Path:
        file = self._news / str(i)
        self._rows[i] = self._bars.add_task(
            f"  {self.names[i]}", total=None, says=lambda: file.read_text() if file.exists() else ""
        )
        return file

    def ended(self, i: int, error: str | None) -> None:
        super().ended(i, error)
        self._bars.remove_task(self._rows.pop(i))
        self._bars.update(self._all, completed=self.done + self.failed)


@contextmanager
def watching(
    title: str, names: Sequence[str], show: bool, folder: Path | None = None
) -> Iterator[Watch]:
    """A watch that fits where standard error goes; what cells tell travels through the folder."""
    if not show or not names:
        yield Watch(names)
        return
    if not sys.stderr.isatty() or os.environ.get("CI"):
        yield _Lines(names)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn
    from rich.table import Column
    from rich.text import Text

    class Says(ProgressColumn):
        def render(self, task: Any) -> Text:
            return Text(task.fields["says"]())

    columns = (
        TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, ratio=2)),
        BarColumn(20),
        Says(table_column=Column(no_wrap=True, ratio=3)),
        TimeElapsedColumn(),
    )
    with (
        tempfile.TemporaryDirectory(prefix=".news-", dir=folder) as news,
        Progress(*columns, console=Console(stderr=True), expand=True) as bars,
    ):
        yield _Live(names, title, bars, Path(news))
