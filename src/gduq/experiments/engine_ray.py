"""The Ray engine: the same cells on a cluster, or on a local Ray."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from gduq.errors import InputError
from gduq.experiments.engines import Ended, attempt, one_thread

__all__ = ["on_ray"]

_THREADS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def on_ray(
    cells: Sequence[Any],
    worker: Callable[[Any], Any],
    workers: int | None,
    started: Callable[[int], None],
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
        yield from _tasks(ray, cells, worker, workers or len(cells), started)
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


def _tasks(
    ray: Any,
    cells: Sequence[Any],
    worker: Callable[[Any], Any],
    most: int,
    started: Callable[[int], None],
) -> Iterator[Ended]:
    """A new task whenever one ends; nothing is retried, as a cell may be what kills."""
    task = ray.remote(num_cpus=1, max_retries=0)(_task)
    shared = ray.put(worker)
    todo = list(range(len(cells)))[::-1]
    running: dict[Any, int] = {}
    try:
        while todo or running:
            while todo and len(running) < most:
                i = todo.pop()
                running[task.remote(shared, cells[i])] = i
                started(i)
            (ready,), _ = ray.wait(list(running), num_returns=1)
            yield _ended(ray, running.pop(ready), ready)
    finally:
        for reference in running:
            ray.cancel(reference, force=True)


def _ended(ray: Any, i: int, reference: Any) -> Ended:
    try:
        value, error, seconds = ray.get(reference)
    except ray.exceptions.RayError as failure:
        return i, None, f"The Ray task failed: {failure}", 0.0
    return i, value, error, seconds


def _task(worker: Callable[[Any], Any], cell: Any) -> tuple[Any, str | None, float]:
    one_thread()
    return attempt(worker, cell)
