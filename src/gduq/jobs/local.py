"""The local engine: processes of one thread each, that outlive nobody.

Every process is a pool of one, so that its death breaks nothing but the cell it had. It is started
anew (not forked: torch's threads would not survive it, and not by importing the main script: no
``__main__`` guard is needed).
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from joblib.externals.loky import ProcessPoolExecutor  # type: ignore[import-untyped]

from gduq.jobs.engines import ONE_THREAD, Ended, Tried, attempt

__all__ = ["Processes"]

_ALIVE = 0.5  # seconds between two looks for the parent


class Processes:
    """Does cells in at most ``size`` processes at a time."""

    def __init__(self, worker: Callable[[Any], Any], size: int) -> None:
        self._worker, self._size = worker, size
        self._idle: list[Any] = []
        self._busy: dict[Future[Tried], tuple[int, Any, float]] = {}

    @property
    def free(self) -> bool:
        """Whether another cell can start."""
        return len(self._busy) < self._size

    def start(self, i: int, cell: Any, news: Path | None) -> None:
        """Give cell i to a process that has nothing to do."""
        pool = self._idle.pop() if self._idle else _hire()
        future = pool.submit(attempt, self._worker, cell, news)
        self._busy[future] = (i, pool, time.perf_counter())

    def ended(self) -> list[Ended]:
        """What has ended; waits for the first."""
        with warnings.catch_warnings():  # a process that has grown too large is replaced: no news
            warnings.filterwarnings("ignore", message="A worker stopped while some jobs")
            done = wait(self._busy, return_when=FIRST_COMPLETED).done
        return [self._collected(future) for future in done]

    def _collected(self, future: Future[Tried]) -> Ended:
        i, pool, since = self._busy.pop(future)
        error = future.exception()
        if isinstance(error, BrokenProcessPool):
            pool.shutdown(kill_workers=True)
            code = re.search(r"exit codes[^{]*\{(.*?)\}", str(error))
            reason = f"The worker died{f': {code[1]}' if code else ''}."
            return i, None, reason, time.perf_counter() - since
        self._idle.append(pool)
        if error is not None:
            reason = f"The cell or its value cannot be sent: {error!r}"
            return i, None, reason, time.perf_counter() - since
        return (i, *future.result())

    def close(self) -> None:
        """End all processes, whatever they do."""
        for pool in [*self._idle, *(pool for _, pool, _ in self._busy.values())]:
            pool.shutdown(kill_workers=True)


def _hire() -> Any:
    return ProcessPoolExecutor(1, initializer=_begin, initargs=(os.getpid(),), env=ONE_THREAD)


def _begin(parent: int) -> None:
    """First thing in a worker: the parent alone hears Ctrl-C, and nobody works for nobody."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def leave() -> None:
        while os.getppid() == parent:
            time.sleep(_ALIVE)
        os._exit(1)

    threading.Thread(target=leave, daemon=True).start()
