"""`parallel_map`: one function of many items, on all cores or on a Ray cluster, by joblib."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import joblib  # type: ignore[import-untyped]
from joblib.externals.loky.process_executor import (  # type: ignore[import-untyped]
    TerminatedWorkerError,
)

from gduq._checks import check_int, one_of
from gduq.errors import InputError, not_installed

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
    title: str = "",
    name: Callable[[C], str] = str,
) -> list[Outcome[C, R]]:
    """``function(item)`` for every item; one that raises fails alone.

    Every worker has one thread: items share the machine, and one thread gives equal bits on all
    machines. A worker that dies fails the items that are under way, the rest goes on.

    Args:
        function: What to do; functions of a notebook or script are fine.
        items: What to work on; sent to the workers.
        workers: Processes at a time; by default one per core (for Ray: as many as the cluster
            has). 0 or 1 does the work in this process.
        engine: ``"local"``, or ``"ray"`` (needs the ``[ray]`` extra).
        address: Of a Ray cluster; ``"auto"`` looks for one. A local one is started by default.
        progress: Show how many are done: a bar on a terminal, a line per item elsewhere.
        title: What the items are, for the bar.
        name: What to call an item.

    Returns:
        One `Outcome` per item, in their order.

    Example:
        >>> found = parallel_map(lambda n: 1 / n, [1, 0], workers=1, progress=False)
        >>> found[0].value, found[1].error.splitlines()[-1]
        (1.0, 'ZeroDivisionError: division by zero')
    """
    one_of("an engine", engine, ENGINES)
    if workers is not None:
        workers = check_int("workers", workers, least=0)
    done: dict[int, Outcome[C, R]] = {}
    started: list[int] = []
    numbers = iter(range(len(items)))

    def tasks() -> Iterator[Any]:
        for number in numbers:
            started.append(number)
            yield joblib.delayed(_attempt)(function, number, items[number])

    with _engine(engine, workers, address) as run, _shown(title, len(items), progress) as show:
        while len(done) < len(items):
            try:
                for number, *outcome in run(tasks()):
                    done[number] = Outcome(items[number], *outcome)
                    show(name(items[number]), done[number].error)
            except TerminatedWorkerError:
                for number in [n for n in started if n not in done]:
                    died = "A worker died, of this item or of one beside it: is memory enough?"
                    done[number] = Outcome(items[number], None, died)
                    show(name(items[number]), died)
    return [done[number] for number in range(len(items))]


def _attempt(function: Callable[[Any], Any], number: int, item: Any) -> tuple[Any, ...]:
    """Number, value, traceback and seconds of one item; only an interrupt gets through."""
    start, torch = time.perf_counter(), sys.modules.get("torch")
    threads = torch.get_num_threads() if torch else 1
    if threads > 1:
        torch.set_num_threads(1)  # type: ignore[union-attr]
    try:
        value, error = function(item), None
    except Exception:
        value, error = None, traceback.format_exc()
    finally:
        if threads > 1:
            torch.set_num_threads(threads)  # type: ignore[union-attr]
    return number, value, error, time.perf_counter() - start


@contextmanager
def _engine(
    engine: str, workers: int | None, address: str | None
) -> Iterator[Callable[[Iterator[Any]], Any]]:
    """joblib on processes of one thread each, or on a Ray that is ended where it was begun here."""
    if engine == "local":
        jobs = joblib.cpu_count() if workers is None else max(workers, 1)
        own = {"initializer": _begin_worker, "initargs": (os.getpid(),)} if jobs > 1 else {}
        with joblib.parallel_config("loky", n_jobs=jobs, inner_max_num_threads=1, **own):
            yield joblib.Parallel(
                return_as="generator_unordered", pre_dispatch="n_jobs", batch_size=1
            )
        return
    try:
        import ray
        from ray.util.joblib import register_ray
    except ImportError:
        raise not_installed("Ray for engine='ray'", "ray", ", or engine='local'.") from None
    begun_here = not ray.is_initialized()
    if begun_here:
        threads = {"env_vars": {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}}
        try:
            ray.init(address=address or "local", runtime_env=threads, log_to_driver=False)
        except ConnectionError as error:
            raise InputError("a Ray cluster that answers", f"{address} ({error})") from None
    register_ray()
    try:
        with joblib.parallel_config("ray", n_jobs=workers or -1):
            yield joblib.Parallel(batch_size=1)
    finally:
        if begun_here:
            ray.shutdown()


def _begin_worker(parent: int) -> None:
    """First thing in a worker: the parent alone hears Ctrl-C, and no worker outlives it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def leave() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=leave, daemon=True).start()


@contextmanager
def _shown(title: str, total: int, wanted: bool) -> Iterator[Callable[[str, str | None], None]]:
    """Is called with the name of each item that ended, and what went wrong, if so."""
    if not wanted:
        yield lambda name, error: None
        return
    ended = failed = 0
    advance: Callable[[str], object] | None = None

    def show(name: str, error: str | None) -> None:
        nonlocal ended, failed
        ended, failed = ended + 1, failed + (error is not None)
        if advance is not None:
            advance(f"{title} ({failed} failed)" if failed else title)
        if advance is None or error is not None:
            how = "done" if error is None else f"FAILED ({error.strip().splitlines()[-1][:160]})"
            sys.stderr.write(f"[{ended}/{total}] {name}: {how}\n")
            sys.stderr.flush()

    if not sys.stderr.isatty() or os.environ.get("CI"):
        yield show
        return
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=total)
        advance = lambda text: bar.update(task, advance=1, description=text)  # noqa: E731
        yield show
