"""`parallel_map`: one function of many items, on all cores or on a Ray cluster, by joblib."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

import joblib  # type: ignore[import-untyped]
import torch

from gduq._checks import check_int, one_of
from gduq.errors import not_installed

__all__ = ["ENGINES", "Outcome", "parallel_map"]

ENGINES = ("local", "ray")
C = TypeVar("C")
R = TypeVar("R")


@dataclass(frozen=True)
class Outcome(Generic[C, R]):
    """What became of an item: its value, or the traceback of its failure."""

    item: C
    value: R | None
    error: str | None
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return self.error is None


def parallel_map(
    function: Callable[[C], R],
    items: Sequence[C],
    *,
    workers: int | None = None,
    engine: str = "local",
    address: str | None = None,
    progress: bool = True,
    name: Callable[[C], str] = str,
) -> list[Outcome[C, R]]:
    """``function(item)`` for every item; one that raises fails alone.

    Every worker has one thread: items share the machine, and one thread gives equal bits on all
    machines.

    Args:
        function: What to do; functions of a notebook or script are fine.
        items: What to work on; sent to the workers.
        workers: Processes at a time; by default one per core (for Ray: as many as the cluster
            has). 0 or 1 does the work in this process.
        engine: ``"local"``, or ``"ray"`` (needs the ``[ray]`` extra).
        address: Of a Ray cluster; ``"auto"`` looks for one. A local one is started by default.
        progress: Write a line per item to standard error.
        name: What to call an item.

    Returns:
        One `Outcome` per item, in their order.

    Example:
        >>> found = parallel_map(lambda n: 1 / n, [1, 0], workers=1, progress=False)
        >>> found[0].value, found[1].error.splitlines()[-1]
        (1.0, 'ZeroDivisionError: division by zero')
    """
    one_of("an engine", engine, ENGINES)
    jobs = -1 if workers is None else max(1, check_int("workers", workers, least=0))
    done: dict[int, Outcome[C, R]] = {}
    with _backend(engine, address):
        pool = joblib.Parallel(jobs, return_as="generator_unordered", batch_size=1)
        tasks = (joblib.delayed(_attempt)(function, i, item) for i, item in enumerate(items))
        for number, outcome in pool(tasks):
            done[number] = outcome
            if progress:
                error = (outcome.error or "").strip().splitlines()
                how = f"FAILED ({error[-1][:160]})" if error else "done"
                sys.stderr.write(f"[{len(done)}/{len(items)}] {name(outcome.item)}: {how}\n")
    return [done[number] for number in range(len(items))]


def _attempt(function: Callable[[C], R], number: int, item: C) -> tuple[int, Outcome[C, R]]:
    """One item, on one thread; only an interrupt gets through."""
    start, threads = time.perf_counter(), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        value, error = function(item), None
    except Exception:
        value, error = None, traceback.format_exc()
    finally:
        torch.set_num_threads(threads)
    return number, Outcome(item, value, error, time.perf_counter() - start)


@contextmanager
def _backend(engine: str, address: str | None) -> Iterator[None]:
    """Where joblib works: processes of this machine, or a Ray that is ended if begun here."""
    if engine == "local":
        with joblib.parallel_config("loky", inner_max_num_threads=1):
            yield
        return
    try:
        import ray
        from ray.util.joblib import register_ray
    except ImportError:
        raise not_installed("Ray for engine='ray'", "ray", ", or engine='local'.") from None
    begun_here = not ray.is_initialized()
    if begun_here:
        ray.init(address=address or "local", log_to_driver=False)
    register_ray()
    try:
        with joblib.parallel_config("ray"):
            yield
    finally:
        if begun_here:
            ray.shutdown()
