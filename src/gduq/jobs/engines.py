"""The same cells on all cores, or on a Ray cluster: `map_cells`.

A cell that raises, or whose worker dies, is marked as failed with what is known of the reason; the
rest goes on.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, Generic, TypeVar

from gduq.errors import InputError
from gduq.jobs.live import Watch, watching
from gduq.jobs.progress import heard_by
from gduq.whole import whole

__all__ = ["ENGINES", "Outcome", "attempt", "map_cells"]

ENGINES = ("local", "ray")
# Cells share a machine, and one thread gives equal bits on all of them.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
C = TypeVar("C")
R = TypeVar("R")
Tried = tuple[Any, str | None, float]  # value, traceback, seconds
Ended = tuple[int, Any, str | None, float]  # the same, the number of the cell before it


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
    folder: Path | None = None,
) -> list[Outcome[C, R]]:
    """Do ``worker(cell)`` for every cell, whatever happens to some of them.

    Args:
        cells: What to work on; sent to the workers.
        worker: What to do; functions of a notebook or script are fine.
        engine: ``"local"`` or ``"ray"`` (needs the ``[ray]`` extra).
        workers: How many at a time; one per core by default (for Ray: as many as the cluster
            takes). 0 does the work in this process, which then shares the fate of the cells (local
            only).
        progress: Show cells ended, running and failed, the time left and what running cells tell
            (`gduq.jobs.progress`): live on a terminal, one line per cell elsewhere.
            ``False`` is silent.
        title: What the cells are, for the view.
        name: What to call a cell there.
        address: Of a Ray cluster; ``"auto"`` looks for one. A local one is started by default.
        needs: For every cell the numbers of those that must have ended, well or not, before it
            starts.
        folder: One that all machines of a cluster see: what running cells tell travels through it.

    Returns:
        One `Outcome` per cell, in the order of the cells.

    Example:
        >>> found = map_cells([1, 0], lambda n: 1 / n, workers=0, progress=False)
        >>> found[0].value, found[1].error.splitlines()[-1]
        (1.0, 'ZeroDivisionError: division by zero')
    """
    if engine not in ENGINES:
        raise InputError(f"an engine from {', '.join(ENGINES)}", repr(engine))
    if workers is not None:
        workers = whole("workers", workers, least=0)
    order = _order(len(cells), needs)
    if not cells:
        return []
    shared = folder if engine == "ray" else None
    with watching(title, [name(cell) for cell in cells], progress, shared) as watch:
        pool = _pool(engine, worker, workers, len(cells), address)
        try:
            ended = dict(_ended(cells, order, pool, watch))
        finally:  # also on Ctrl-C
            pool.close()
    return [ended[i] for i in range(len(cells))]


def _ended(
    cells: Sequence[Any], order: TopologicalSorter[int], pool: Any, watch: Watch
) -> Iterator[tuple[int, Outcome[Any, Any]]]:
    """Give the pool what is ready, whenever it takes more; what ends, as it ends."""
    waiting = deque(order.get_ready())
    while order.is_active():
        while waiting and pool.free:
            i = waiting.popleft()
            pool.start(i, cells[i], watch.started(i))
        for i, value, error, seconds in pool.ended():
            watch.ended(i, error)
            order.done(i)
            waiting.extend(order.get_ready())
            yield i, Outcome(cells[i], value, error, seconds)


def _order(count: int, needs: Sequence[Sequence[int]]) -> TopologicalSorter[int]:
    """Numbers of cells, each ready once all it needs have ended."""
    if needs and len(needs) != count:
        raise InputError(f"needs of all {count} cells", f"{len(needs)} of them")
    if not all(0 <= j < count for before in needs for j in before):
        raise InputError(f"needs from 0 to {count - 1}", [list(before) for before in needs])
    order = TopologicalSorter(dict.fromkeys(range(count), ()))
    for i, before in enumerate(needs):
        order.add(i, *before)
    try:
        order.prepare()
    except CycleError as error:
        raise InputError("cells that can be put in order", f"a circle: {error}") from None
    return order


def _pool(
    engine: str, worker: Callable[[Any], Any], workers: int | None, cells: int, address: str | None
) -> Any:
    """What does the cells; those that end are asked for until none is left."""
    if engine == "ray":
        from gduq.jobs.ray_engine import RayTasks

        return RayTasks(worker, workers, address)
    if workers == 0:
        return _Here(worker)
    from gduq.data.parallel import default_workers
    from gduq.jobs.local import Processes

    return Processes(worker, min(workers or default_workers(), cells))


class _Here:
    """Does one cell after the other in this process."""

    def __init__(self, worker: Callable[[Any], Any]) -> None:
        import torch

        self._worker, self._done = worker, list[Ended]()
        self._threads, self._set_threads = torch.get_num_threads(), torch.set_num_threads

    @property
    def free(self) -> bool:
        return not self._done

    def start(self, i: int, cell: Any, news: Path | None) -> None:
        self._done.append((i, *attempt(self._worker, cell, news)))

    def ended(self) -> list[Ended]:
        done, self._done = self._done, []
        return done

    def close(self) -> None:
        self._set_threads(self._threads)


def attempt(worker: Callable[[Any], Any], cell: Any, news: Path | None = None) -> Tried:
    """Do one cell with one thread; only an interrupt gets through.

    Args:
        worker: What to do with it.
        cell: What to work on.
        news: File for the latest line that the cell tells.
    """
    if "torch" in sys.modules:  # if not, it is still to read `ONE_THREAD`
        sys.modules["torch"].set_num_threads(1)
    start = time.perf_counter()
    try:
        with nullcontext() if news is None else heard_by(news.write_text):
            value, error = worker(cell), None
    except Exception:
        value, error = None, traceback.format_exc()
    return value, error, time.perf_counter() - start
