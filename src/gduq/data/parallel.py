"""Work in several processes, with a progress bar when a person is looking."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

__all__ = ["default_workers", "progress_bar", "run"]

_T = TypeVar("_T")


def default_workers() -> int:
    """The cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run(
    job: Callable[[_T], None], todo: Sequence[_T], workers: int | None = None, title: str = ""
) -> None:
    """Do ``job(item)`` for every item, in processes for more than one worker.

    Processes are started anew (not forked), so a script needs no ``__main__`` guard and threads of
    torch are no danger; ``job`` and the items are pickled for the way there.
    """
    workers = min(workers or default_workers(), len(todo))
    with progress_bar(title, len(todo)) as advance:
        if workers <= 1:
            for item in todo:
                job(item)
                advance()
            return
        import joblib  # type: ignore[import-untyped]

        pool = joblib.Parallel(n_jobs=workers, return_as="generator_unordered")
        for _ in pool(joblib.delayed(job)(item) for item in todo):
            advance()


@contextlib.contextmanager
def progress_bar(title: str, total: int, show: bool | None = None) -> Iterator[Callable[[], None]]:
    """A bar on standard error; yields the function that moves it on. ``None``: on a terminal."""
    if not total or not (sys.stderr.isatty() if show is None else show):
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda: bar.advance(task)
