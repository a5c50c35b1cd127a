"""Side-by-side timing: every figure is a ratio of medians measured in one run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def medians(tasks: dict[str, Callable[[], object]], repeats: int = 7) -> dict[str, float]:
    """Median seconds of each task; the tasks take turns, so a busy moment hits all of them."""
    for task in tasks.values():
        task()  # warm up: caches, allocator, threads
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    for _ in range(repeats):
        for name, task in tasks.items():
            start = time.perf_counter()
            task()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def row(name: str, ratio: float, bar: str, met: bool, note: str = "") -> Row:
    """One line of the table."""
    return {"row": name, "ratio": ratio, "bar": bar, "met": met, "note": note}


def at_most(name: str, ratio: float, bar: float, note: str = "") -> Row:
    return row(name, ratio, f"<= {bar:g}x", ratio <= bar, note)


def at_least(name: str, ratio: float, bar: float, note: str = "") -> Row:
    return row(name, ratio, f">= {bar:g}x", ratio >= bar, note)


def peak_memory(task: Callable[[], object]) -> float | None:
    """Gigabytes that a task adds to this process at its peak; ``None`` where Linux can't tell."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return None
    before = _status("VmRSS")
    task()
    return max(0.0, _status("VmHWM") - before)


def _status(key: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) / 2**20
    raise RuntimeError(f"no {key} in /proc/self/status")
