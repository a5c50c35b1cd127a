"""The Ray engine: the same cells on a cluster, or on a local Ray."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from gduq.errors import InputError
from gduq.jobs.engines import Ended, attempt, one_thread
from gduq.jobs.live import Watch
from gduq.jobs.queue import Todo

__all__ = ["on_ray"]

_THREADS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
_LOOK = 0.5  # seconds between two looks at the news, where somebody watches


def on_ray(
    cells: Sequence[Any],
    worker: Callable[[Any], Any],
    todo: Todo,
    workers: int | None,
    watch: Watch,
    address: str | None = None,
) -> Iterator[Ended]:
    """Cells as they end, each a Ray task with one CPU; at most ``workers`` at a time.

    A cluster that is already connected is used and left connected. Folders that cells write to
    must be seen by all machines.
    """
    ray = _ray()
    ours = not ray.is_initialized()
    if ours:
        _connect(ray, address, workers)
    try:
        yield from _tasks(ray, cells, worker, todo, workers or len(cells), watch)
    finally:
        if ours:
            ray.shutdown()


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise InputError(
            "Ray for engine='ray'", "none installed", "pip install 'gduq[ray]', or engine='local'."
        ) from None
    return ray


def _connect(ray: Any, address: str | None, workers: int | None) -> None:
    options: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
    if address is None:
        options |= {"num_cpus": workers or None, "include_dashboard": False}
    try:
        ray.init(address=address or "local", runtime_env={"env_vars": _THREADS}, **options)
    except ConnectionError as error:
        raise InputError("a Ray cluster that answers", f"{address} ({error})") from None
    except Exception as error:  # Ray gives a local one 30 seconds, and then says just Exception
        if "timed out during startup" not in str(error):
            raise
        do = "Try again when the machine is less busy, or use engine='local'."
        raise InputError("a local Ray that starts", "none within Ray's time limit", do) from error


def _tasks(
    ray: Any,
    cells: Sequence[Any],
    worker: Callable[[Any], Any],
    todo: Todo,
    most: int,
    watch: Watch,
) -> Iterator[Ended]:
    """A new task whenever one ends; nothing is retried, as a cell may be what kills."""
    task = ray.remote(num_cpus=1, max_retries=0)(_task)
    board = ray.remote(num_cpus=0)(_Board).remote() if watch.live else None
    shared = ray.put(worker)
    running: dict[Any, int] = {}
    news = None if board is None else board.take.remote()
    try:
        while todo or running:
            while todo.ready and len(running) < most:
                i = todo.take()
                running[task.remote(shared, cells[i], i, board)] = i
                watch.started(i)
            ready, _ = ray.wait(list(running), timeout=None if board is None else _LOOK)
            for reference in ready:
                ended = _ended(ray, running.pop(reference), reference)
                yield ended
                todo.ended(ended[0])
            if board is not None:
                news = _heard(ray, board, news, watch)
    finally:
        for reference in running:
            ray.cancel(reference, force=True)
        if board is not None:
            ray.kill(board)


def _heard(ray: Any, board: Any, news: Any, watch: Watch) -> Any:
    """Pass on the news that was asked for, if it is there, and ask again.

    What is slow to come is waited for: the board has taken it down already.
    """
    ready, _ = ray.wait([news], timeout=0)
    if not ready:
        return news
    with contextlib.suppress(ray.exceptions.RayError):  # a board that died is no reason to stop
        for i, text in ray.get(news).items():
            watch.told(i, text)
    return board.take.remote()


def _ended(ray: Any, i: int, reference: Any) -> Ended:
    try:
        value, error, seconds = ray.get(reference)
    except ray.exceptions.RayError as failure:
        return i, None, f"The Ray task failed: {failure}", 0.0
    return i, value, error, seconds


class _Board:
    """Where tasks pin the latest news of their cells."""

    def __init__(self) -> None:
        self.news: dict[int, str] = {}

    def pin(self, i: int, text: str) -> None:
        self.news[i] = text

    def take(self) -> dict[int, str]:
        found, self.news = self.news, {}
        return found


def _task(
    worker: Callable[[Any], Any], cell: Any, i: int, board: Any
) -> tuple[Any, str | None, float]:
    one_thread()
    tell = None if board is None else lambda text: board.pin.remote(i, text)
    return attempt(worker, cell, tell)
