"""How benchmarks measure: tasks take turns, so that a busy moment hits all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

Row = tuple[str, float, str]  # what, ratio, note
Task = Callable[[], object]
REPEATS = 5


def seconds(task: Task) -> float:
    """Of one run."""
    start = time.perf_counter()
    task()
    return time.perf_counter() - start


def medians(**tasks: Task) -> dict[str, float]:
    """Median seconds of each task."""
    for task in tasks.values():
        task()  # warm up: caches, allocator, threads
    turns = [{name: seconds(task) for name, task in tasks.items()} for _ in range(REPEATS)]
    return {name: statistics.median(turn[name] for turn in turns) for name in tasks}
