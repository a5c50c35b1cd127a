"""`parallel_map`: one function of many items, on all cores or on a Ray cluster, by joblib."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import joblib  # type: ignore[import-untyped]
import torch

from gduq.errors import check_int, not_installed, one_of

__all__ = ["Outcome", "parallel_map"]

C = TypeVar("C")
R = TypeVar("R")


@dataclass(frozen=True)
class Outcome(Generic[C, R]):
    """What became of an item: its value, or the traceback of its failure."""

    item: C
    value: R | None = None
    error: str | None = None


def parallel_map(
    function: Callable[[C], R],
    items: Sequence[C],
    *,
    workers: int | None = None,
    engine: str = "local",
    progress: bool = True,
    name: Callable[[C], str] = str,
) -> list[Outcome[C, R]]:
    """``function(item)`` for every item, on one thread each; one that raises fails alone.

    Args:
        function: What to do; functions of a notebook or script are fine.
        items: What to work on; sent to the workers.
        workers: Processes at a time; by default one per core (for Ray: as many as the cluster
            has). 0 or 1 does the work in this process.
        engine: ``"local"``, or ``"ray"``: a local one, or the cluster that ``RAY_ADDRESS`` names.
        progress: Write a line per item to standard error.
        name: What to call an item.

    Returns:
        One `Outcome` per item, in their order.

    Example:
        >>> found = parallel_map(lambda n: 1 / n, [1, 0], workers=1, progress=False)
        >>> found[0].value, found[1].error.splitlines()[-1]
        (1.0, 'ZeroDivisionError: division by zero')
    """
    one_of("an engine", engine, ("local", "ray"))
    jobs = -1 if workers is None else max(1, check_int("workers", workers, least=0))
    backend = {"backend": "loky", "inner_max_num_threads": 1}
    if engine == "ray":
        try:
            from ray.util.joblib import register_ray
        except ImportError:
            raise not_installed("Ray for engine='ray'", "ray", ", or engine='local'.") from None
        register_ray()
        backend = {"backend": "ray"}
    done: dict[int, Outcome[C, R]] = {}
    with joblib.parallel_config(**backend):
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
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return number, Outcome(item, function(item))
    except Exception:
        return number, Outcome(item, error=traceback.format_exc())
    finally:
        torch.set_num_threads(threads)
