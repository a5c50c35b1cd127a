"""The Ray engine: the same cells on a cluster, or on a local Ray."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from gduq.errors import InputError, not_installed
from gduq.jobs.engines import ONE_THREAD, Ended, attempt

__all__ = ["RayTasks", "connect"]


class RayTasks:
    """Does cells as Ray tasks with one CPU each, at most ``most`` at a time.

    Nothing is retried, as a cell may be what kills. A cluster that is already connected is used
    and left connected. Folders that cells write to must be seen by all machines.
    """

    def __init__(
        self, worker: Callable[[Any], Any], most: int | None, address: str | None = None
    ) -> None:
        self._ray = _ray()
        self._ours = not self._ray.is_initialized()
        if self._ours:
            connect(self._ray, address, most)
        self._task = self._ray.remote(num_cpus=1, max_retries=0)(attempt)
        self._worker, self._most = self._ray.put(worker), most
        self._busy: dict[Any, int] = {}

    @property
    def free(self) -> bool:
        """Whether another task can be given."""
        return not self._most or len(self._busy) < self._most

    def start(self, i: int, cell: Any, news: Path | None) -> None:
        """Give cell i to the cluster."""
        self._busy[self._task.remote(self._worker, cell, news)] = i

    def ended(self) -> list[Ended]:
        """What has ended; waits for the first."""
        done, _ = self._ray.wait(list(self._busy))
        return [self._collected(reference) for reference in done]

    def _collected(self, reference: Any) -> Ended:
        i = self._busy.pop(reference)
        try:
            return (i, *self._ray.get(reference))
        except self._ray.exceptions.RayError as failure:
            return i, None, f"The Ray task failed: {failure}", 0.0

    def close(self) -> None:
        """End what runs, and the Ray that was started here."""
        for reference in self._busy:
            self._ray.cancel(reference, force=True)
        if self._ours:
            self._ray.shutdown()


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise not_installed("Ray for engine='ray'", "ray", ", or engine='local'.") from None
    return ray


def connect(ray: Any, address: str | None, workers: int | None) -> None:
    """To the cluster at an address, or to a local Ray that is started for it."""
    options: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
    if address is None:
        options |= {"num_cpus": workers or None, "include_dashboard": False}
    try:
        ray.init(address=address or "local", runtime_env={"env_vars": ONE_THREAD}, **options)
    except ConnectionError as error:
        raise InputError("a Ray cluster that answers", f"{address} ({error})") from None
    except Exception as error:  # Ray gives a local one 30 seconds, and then says just Exception
        if "timed out during startup" not in str(error):
            raise
        do = "Try again when the machine is less busy, or use engine='local'."
        raise InputError("a local Ray that starts", "none within Ray's time limit", do) from error
