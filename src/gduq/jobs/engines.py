"""The same cells on all cores, or on a Ray cluster: `map_cells`.

Every worker is a process of its own with one torch thread. A cell that raises, or whose worker
dies, is marked as failed with what is known of the reason; the rest goes on.
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from gduq.data.parallel import default_workers
from gduq.errors import InputError
from gduq.jobs.live import Watch, watching
from gduq.jobs.progress import heard_by
from gduq.jobs.queue import Todo

__all__ = ["ENGINES", "Outcome", "attempt", "map_cells"]

ENGINES = ("local", "ray")
C = TypeVar("C")
R = TypeVar("R")


@dataclass(frozen=True)
class Outcome(Generic[C, R]):
    """What became of a cell: its value, or the traceback of its failure."""

    cell: C
    value: R | None
    error: str | None
    seconds: float

    @property
    def ok(self) -> bool:
        return self.error is None


def map_cells(
    cells: Sequence[C],
    worker: Callable[[C], R],
    engine: str = "local",
    workers: int | None = None,
    progress: bool = True,
    *,
    title: str = "cells",
    name: Callable[[C], str] = str,
    address: str | None = None,
    needs: Sequence[Sequence[int]] = (),
) -> list[Outcome[C, R]]:
    """Do ``worker(cell)`` for every cell, whatever happens to some of them.

    Args:
        cells: What to work on; sent to the workers.
        worker: What to do; functions of a notebook or script are fine.
        engine: ``"local"`` or ``"ray"`` (needs the ``[ray]`` extra).
        workers: How many at a time; one a core by default (for Ray: as many as the cluster takes).
            0 does the work in this process, which then shares the fate of the cells (local only).
        progress: Show cells done, running and failed, the time left and what running cells tell
            (`gduq.jobs.progress`): live on a terminal, one line per cell elsewhere.
            ``False`` is silent.
        title: What the cells are, for the view.
        name: What to call a cell there.
        address: Of a Ray cluster; ``"auto"`` looks for one. A local one is started by default.
        needs: For every cell the numbers of those that must have ended, well or not, before it
            starts.

    Returns:
        One `Outcome` a cell, in the order of the cells.

    Example:
        >>> found = map_cells([1, 0], lambda n: 1 / n, workers=0, progress=False)
        >>> found[0].value, found[1].error.splitlines()[-1]
        (1.0, 'ZeroDivisionError: division by zero')
    """
    if engine not in ENGINES:
        raise InputError(f"an engine from {', '.join(ENGINES)}", repr(engine))
    if workers is not None and (isinstance(workers, bool) or workers < 0):
        raise InputError("workers >= 0", repr(workers))
    outcomes: dict[int, Outcome[C, R]] = {}
    todo = Todo(len(cells), needs)
    with watching(title, [name(cell) for cell in cells], progress) as watch:
        for i, value, error, seconds in _stream(
            cells, worker, todo, engine, workers, address, watch
        ):
            outcomes[i] = Outcome(cells[i], value, error, seconds)
            watch.ended(i, error)
    return [outcomes[i] for i in range(len(cells))]


Ended = tuple[int, Any, str | None, float]  # which cell, its value, its traceback, its seconds


def _stream(
    cells: Sequence[Any],
    worker: Callable[[Any], Any],
    todo: Todo,
    engine: str,
    workers: int | None,
    address: str | None,
    watch: Watch,
) -> Iterator[Ended]:
    """What ends, as it ends."""
    if not cells:
        return iter(())
    if engine == "ray":
        from gduq.jobs.ray_engine import on_ray

        return on_ray(cells, worker, todo, workers, watch, address)
    if workers == 0:
        return _here(cells, worker, todo, watch)
    from gduq.jobs.local import in_processes

    size = min(workers or default_workers(), len(cells))
    return in_processes(cells, worker, todo, size, watch)


def _here(
    cells: Sequence[Any], worker: Callable[[Any], Any], todo: Todo, watch: Watch
) -> Iterator[Ended]:
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        while todo:
            i = todo.take()
            watch.started(i)
            tell = partial(watch.told, i) if watch.live else None
            yield (i, *attempt(worker, cells[i], tell))
            todo.ended(i)
    finally:
        torch.set_num_threads(threads)


def attempt(
    worker: Callable[[Any], Any], cell: Any, listener: Callable[[str], None] | None = None
) -> tuple[Any, str | None, float]:
    """Value, traceback and seconds of one cell; only an interrupt gets through."""
    start = time.perf_counter()
    try:
        with nullcontext() if listener is None else heard_by(listener):
            value, error = worker(cell), None
    except Exception:
        value, error = None, traceback.format_exc()
    return value, error, time.perf_counter() - start


def one_thread() -> None:
    """Called first in every worker: cells share a machine, and one thread gives equal bits."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"
    import torch

    torch.set_num_threads(1)
