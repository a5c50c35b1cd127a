"""What people see while cells run: a live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

__all__ = ["Watch", "duration", "watching"]

_SHOWN = 8  # running cells that the live view names


class Watch:
    """Counts what runs and what has ended; this one says nothing."""

    live = False  # whether news of running cells is shown

    def __init__(self, title: str, names: Sequence[str]) -> None:
        self.title, self.names = title, names
        self.running: dict[int, float] = {}
        self.news: dict[int, str] = {}
        self.done = self.failed = 0
        self.start = time.monotonic()

    def started(self, i: int) -> None:
        """Cell i is on its way."""
        self.running[i] = time.monotonic()

    def told(self, i: int, text: str) -> None:
        """Cell i says how far it is."""
        self.news[i] = text

    def ended(self, i: int, error: str | None) -> None:
        """Cell i is done, or has failed with this traceback."""
        self.running.pop(i, None)
        self.news.pop(i, None)
        self.done += error is None
        self.failed += error is not None

    @property
    def left(self) -> float | None:
        """Seconds to go, at the pace so far; ``None`` before the first cell has ended."""
        ended = self.done + self.failed
        if not ended:
            return None
        return (time.monotonic() - self.start) / ended * (len(self.names) - ended)

    @property
    def summary(self) -> str:
        """One line of counts.

        Example:
            >>> Watch("cells", ["a", "b"]).summary
            'cells: 0/2 done, 0 running, 0 failed'
        """
        text = (
            f"{self.title}: {self.done}/{len(self.names)} done, {len(self.running)} running, "
            f"{self.failed} failed"
        )
        return text if self.left is None else f"{text}, {duration(self.left)} left"


class _Lines(Watch):
    """A line whenever a cell ends, for pipes and CI."""

    def ended(self, i: int, error: str | None) -> None:
        super().ended(i, error)
        word = "done" if error is None else f"FAILED ({_last(error)})"
        sys.stderr.write(f"[{self.done + self.failed}/{len(self.names)}] {self.names[i]}: {word}\n")
        sys.stderr.flush()


class _Live(Watch):
    """A bar, the counts and the running cells with their news, renewed in place."""

    live = True

    def __rich__(self) -> Any:
        from rich.console import Group
        from rich.padding import Padding
        from rich.progress_bar import ProgressBar
        from rich.text import Text

        now = time.monotonic()
        bar = ProgressBar(total=len(self.names), completed=self.done + self.failed, width=60)
        lines: list[Any] = [
            Padding(bar, 0),  # a bare bar ends without a line break
            Text(self.summary, style="red" if self.failed else ""),
        ]
        for i, since in list(self.running.items())[:_SHOWN]:
            lines.append(_line(f"  {self.names[i]}  {duration(now - since)}", style="dim"))
            if i in self.news:
                lines.append(_line(f"    {self.news[i]}", style="dim"))
        return Group(*lines)


def _line(text: str, style: str) -> Any:
    """One line of the terminal, whatever its width."""
    from rich.text import Text

    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


@contextmanager
def watching(title: str, names: Sequence[str], show: bool) -> Iterator[Watch]:
    """A watch that fits where standard error goes."""
    if not show or not names:
        yield Watch(title, names)
        return
    if not sys.stderr.isatty() or os.environ.get("CI"):
        yield _Lines(title, names)
        return
    from rich.console import Console
    from rich.live import Live

    watch = _Live(title, names)
    with Live(watch, console=Console(stderr=True), refresh_per_second=4):
        yield watch


def duration(seconds: float) -> str:
    """A time for people.

    Example:
        >>> duration(5), duration(95), duration(7260)
        ('5 s', '1 min 35 s', '2 h 1 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _last(error: str) -> str:
    return error.strip().splitlines()[-1][:160]
