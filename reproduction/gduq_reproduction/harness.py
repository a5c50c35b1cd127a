"""The harness of all tables: cells × seeds × methods, in parallel, into one table on disk.

What a job (a method on a cell and seed) found is one small file, written in one go: a call that is
killed loses the jobs in work only, and the next one goes on with what is missing. At its end a call
joins the files into ``<store>-<scale>.csv``: a line per cell, seed, method, calibration and split,
a column per measure. `long` has one line per figure.
"""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import joblib  # type: ignore[import-untyped]
import pandas as pd
import torch
from filelock import FileLock

from gduq_reproduction.cells import Cell
from gduq_reproduction.methods import LAST, Work

__all__ = ["KEYS", "Job", "Store", "long", "parallel", "run_jobs"]

JOB = ["cell", "seed", "job", "settings"]  # settings: their fingerprint
FIGURE = ["cell", "seed", "method", "calibration", "split"]
KEYS = [*JOB, "method", "calibration", "split"]
TEXT = [*KEYS, "weights"]
Rows = Callable[..., Iterable[dict[str, Any]]]


@dataclass(frozen=True)
class Job:
    """What one worker does: a method on one cell and seed.

    Args:
        cell: Data, network, schedule.
        seed: Of the split and of everything that is trained.
        name: The method, maybe with `gduq_reproduction.methods.LAST`.
        rows: Makes the figures, given a `Work`, the name and ``options``.
        options: Of ``rows``.
        root: Folder of the store and of trained networks.
        chemprop: The interpreter of an environment with Chemprop.
    """

    cell: Cell
    seed: int
    name: str
    rows: Rows
    options: tuple[Any, ...] = ()
    root: Path = Path("out/bench")
    chemprop: Path | None = None

    @property
    def title(self) -> str:
        return f"{self.cell.name}, {self.name}, seed {self.seed}"

    @property
    def key(self) -> tuple[str, int, str, str]:
        return self.cell.name, self.seed, self.name, self.cell.settings

    def run(self) -> pd.DataFrame:
        """Its figures, one thread."""
        torch.set_num_threads(1)
        last, networks = self.name.endswith(LAST), self.root / "networks"
        work = Work(self.cell, self.seed, last, networks, self.chemprop)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # few rows, hypotheses that agree: the figures show it
            found = pd.DataFrame(list(self.rows(work, self.name, *self.options)))
        return found.assign(**dict(zip(JOB, self.key, strict=True)))


@dataclass(frozen=True)
class Store:
    """All figures of a table, in a CSV file and one file per job that is not in it yet."""

    path: Path

    @property
    def folder(self) -> Path:
        return self.path.with_suffix("")

    def read(self) -> pd.DataFrame:
        """All figures; newer ones take the place of older ones."""
        files = [self.path, *sorted(self.folder.glob("*.csv"), key=lambda f: f.stat().st_mtime_ns)]
        parts = [pd.read_csv(f, dtype={"settings": str}) for f in files if f.is_file()]
        if not parts:
            return pd.DataFrame(columns=TEXT)
        table = pd.concat(parts, ignore_index=True)
        newest = ~table.duplicated(FIGURE, keep="last")
        first = [name for name in TEXT if name in table]
        return table[newest][[*first, *(name for name in table if name not in first)]]

    def done(self) -> set[tuple[Any, ...]]:
        """Keys of the jobs whose figures are there."""
        return set(self.read()[JOB].drop_duplicates().itertuples(index=False, name=None))

    def add(self, job: Job, found: pd.DataFrame) -> None:
        """Keep what a job found, all of it or nothing."""
        self.folder.mkdir(parents=True, exist_ok=True)
        name = joblib.hash(job.key)
        temporary = self.folder / f".{name}.{os.getpid()}"
        found.to_csv(temporary, index=False, float_format="%.5g")
        temporary.replace(self.folder / f"{name}.csv")

    def merge(self) -> pd.DataFrame:
        """Join all files into one, and read it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{self.path}.lock"):
            files, table = list(self.folder.glob("*.csv")), self.read()
            if files:
                temporary = self.path.with_suffix(".part")
                table.to_csv(temporary, index=False, float_format="%.5g")
                temporary.replace(self.path)
            for file in files:  # a kill before leaves figures twice, of which one is read
                file.unlink(missing_ok=True)
        return table


def long(table: pd.DataFrame) -> pd.DataFrame:
    """One line per figure: cell, seed, method, calibration, split, measure, value."""
    known = table.drop(columns=[c for c in ("job", "settings", "weights") if c in table])
    found = known.melt(FIGURE, var_name="measure", value_name="value").dropna(subset="value")
    return found.reset_index(drop=True)


def run_jobs(
    jobs: Sequence[Job],
    store: Store,
    workers: int | None = None,
    engine: str = "local",
    address: str | None = None,
    progress: bool = True,
) -> tuple[pd.DataFrame, dict[str, str]]:
    """Do what is not done yet: the figures of these jobs, and tracebacks of those that failed.

    Args:
        jobs: In the order of their turns.
        store: Where figures are kept.
        workers: Processes (default: one per core); 0: in this one.
        engine: ``"local"`` or ``"ray"``.
        address: Of a Ray cluster.
        progress: Print a line per job.
    """
    done = store.done()
    todo = [job for job in jobs if job.key not in done]
    failures: dict[str, str] = {}
    with parallel(engine, address):
        pool = joblib.Parallel(
            1 if workers == 0 else workers or -1, return_as="generator_unordered"
        )
        for i, (title, error) in enumerate(pool(joblib.delayed(_one)(job, store) for job in todo)):
            if error:
                failures[title] = error
            if progress:
                end = f"failed: {error.strip().splitlines()[-1]}" if error else "done"
                sys.stderr.write(f"[{i + 1}/{len(todo)}] {title}: {end}\n")
    table = store.merge()
    wanted = {job.key for job in jobs}
    there = [key in wanted for key in table[JOB].itertuples(index=False, name=None)]
    return table[there], failures


def _one(job: Job, store: Store) -> tuple[str, str]:
    """What a worker does with a job: its title, and the traceback of a failure."""
    try:
        store.add(job, job.run())
    except Exception:  # the other jobs go on
        return job.title, traceback.format_exc()
    return job.title, ""


def parallel(engine: str, address: str | None = None) -> AbstractContextManager[Any]:
    """Where joblib works: in processes of this machine, or on a Ray cluster."""
    if engine == "local":
        return nullcontext()
    import ray
    from ray.util.joblib import register_ray

    ray.init(address=address, ignore_reinit_error=True)
    register_ray()
    found: AbstractContextManager[Any] = joblib.parallel_config(backend="ray")
    return found
