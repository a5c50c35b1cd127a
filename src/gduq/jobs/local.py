"""The local engine: a few processes, each with one torch thread, that outlive nobody.

A process is started anew (not forked: torch's threads would not survive it, and not by importing
the main script: no ``__main__`` guard is needed). It gets one cell at a time through a pipe. When
it dies, only the cell it had is lost and another takes its place; when its parent dies, it ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from joblib.externals.loky.backend import get_context  # type: ignore[import-untyped]

from gduq.jobs.engines import Ended, attempt, one_thread
from gduq.jobs.live import Watch
from gduq.jobs.queue import Todo

try:  # a package of its own since joblib 1.6
    import cloudpickle  # type: ignore[import-untyped, unused-ignore]
except ImportError:
    from joblib.externals import cloudpickle  # type: ignore[import-untyped, unused-ignore]

__all__ = ["in_processes"]

_ALIVE = 0.5  # seconds between two looks for the parent


@dataclass
class _Worker:
    """A process, our end of its pipe, and the cell it works on."""

    process: Any
    pipe: Connection
    cell: int | None = None
    since: float = 0.0

    def give(self, i: int, cell: Any) -> None:
        self.cell, self.since = i, time.perf_counter()
        with contextlib.suppress(OSError):  # it died while it was idle: collected as dead
            self.pipe.send_bytes(cloudpickle.dumps(cell))

    def stop(self) -> None:
        self.pipe.close()
        self.process.terminate()
        self.process.join(5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def in_processes(
    cells: Sequence[Any],
    worker: Callable[[Any], Any],
    todo: Todo,
    size: int,
    watch: Watch,
) -> Iterator[Ended]:
    """Cells as they end, done by at most ``size`` processes."""
    code = cloudpickle.dumps((worker, watch.live))
    crew: list[_Worker] = []
    try:
        while todo or any(w.cell is not None for w in crew):
            idle = [w for w in crew if w.cell is None]
            wanted = min(size - len(crew), todo.ready - len(idle))
            hired = [_hire(code) for _ in range(wanted)]
            crew += hired
            for member in [*idle, *hired][: todo.ready]:
                i = todo.take()
                watch.started(i)
                member.give(i, cells[i])
            for busy in _ready(crew):
                ended = _collect(busy, watch)
                if ended is None:
                    continue
                if busy.cell is not None:  # it is no more
                    crew.remove(busy)
                    busy.stop()
                yield ended
                todo.ended(ended[0])
    finally:  # also on Ctrl-C, or when nobody wants the rest
        for member in crew:
            member.stop()


def _hire(code: bytes) -> _Worker:
    context = get_context("loky")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, code, os.getpid()), daemon=False)
    process.start()
    theirs.close()
    return _Worker(process, ours)


def _ready(crew: list[_Worker]) -> list[_Worker]:
    """Busy workers that have something to say or have died; waits for the first."""
    busy = {w.pipe: w for w in crew if w.cell is not None}
    return [busy[pipe] for pipe in wait(list(busy))]  # type: ignore[index]


def _collect(worker: _Worker, watch: Watch) -> Ended | None:
    """The answer of a worker, which is then idle; one that died keeps its cell. ``None``: news."""
    i = worker.cell
    assert i is not None
    try:
        said = cloudpickle.loads(worker.pipe.recv_bytes())
    except (EOFError, OSError):
        worker.process.join(5)
        return i, None, _obituary(worker.process.exitcode), time.perf_counter() - worker.since
    if isinstance(said, str):
        watch.told(i, said)
        return None
    worker.cell = None
    value, error, seconds = said
    return i, value, error, seconds


def _obituary(code: int | None) -> str:
    """Why a worker ended, as far as the system says.

    Example:
        >>> _obituary(-9)
        'The worker was killed by SIGKILL: out of memory, or by somebody.'
        >>> _obituary(3)
        'The worker ended with exit code 3.'
    """
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        reason = ": out of memory, or by somebody" if name == "SIGKILL" else ""
        return f"The worker was killed by {name}{reason}."
    return f"The worker ended with exit code {code}."


# -- in the worker -------------------------------------------------------------------------------


def _serve(pipe: Connection, code: bytes, parent: int) -> None:
    """One cell after the other, until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears it and ends us
    threading.Thread(target=_leave_with, args=(parent,), daemon=True).start()
    one_thread()
    worker, live = cloudpickle.loads(code)

    def tell(text: str) -> None:
        with contextlib.suppress(OSError):  # nobody there: the thread above ends us
            pipe.send_bytes(cloudpickle.dumps(text))

    while True:
        try:
            cell = cloudpickle.loads(pipe.recv_bytes())
        except (EOFError, OSError):
            return
        pipe.send_bytes(_answer(attempt(worker, cell, tell if live else None)))


def _answer(outcome: tuple[Any, str | None, float]) -> bytes:
    try:
        packed: bytes = cloudpickle.dumps(outcome)
    except Exception as error:  # a value that cannot travel is a failed cell, not a dead worker
        packed = cloudpickle.dumps((None, f"The value cannot be sent: {error!r}", outcome[2]))
    return packed


def _leave_with(parent: int) -> None:
    """End this process when its parent is gone, so that nobody trains for nobody."""
    while os.getppid() == parent:
        time.sleep(_ALIVE)
    os._exit(1)
