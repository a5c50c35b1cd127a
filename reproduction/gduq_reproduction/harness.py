"""The harness of all tables: cells × seeds × methods, in parallel, into one table on disk.

What a job (a method on a cell and seed) found goes into ``<store>-<scale>.csv`` in one go: a call
that is killed loses the jobs in work only, and the next one goes on with what is missing. The file
has a line per cell, seed, method, calibration and split, a column per measure; `long` has one line
per figure.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from gduq._io import atomic_path, locked
from gduq.runs.parallel import parallel_map
from gduq_reproduction.cells import Cell
from gduq_reproduction.methods import LAST, Work

__all__ = ["Job", "Rows", "Store", "long", "run_jobs"]

JOB = ["cell", "seed", "job", "settings"]  # settings: their fingerprint
FIGURE = ["cell", "seed", "method", "calibration", "split"]
Rows = Callable[..., Iterable[dict[str, Any]]]


@dataclass(frozen=True)
class Job:
    """What one worker does: a method on one cell and seed."""

    cell: Cell
    seed: int
    name: str  # the method, maybe with `gduq_reproduction.methods.LAST`
    rows: Rows  # makes the figures, given a `Work`, the name and options
    options: tuple[Any, ...] = ()
    root: Path = Path("out/bench")  # of the store and of trained networks
    chemprop: Path | None = None  # the interpreter of an environment with Chemprop

    @property
    def title(self) -> str:
        return f"{self.cell.name}, {self.name}, seed {self.seed}"

    @property
    def key(self) -> tuple[str, int, str, str]:
        return self.cell.name, self.seed, self.name, self.cell.settings

    def run(self) -> pd.DataFrame:
        """Its figures."""
        last, networks = self.name.endswith(LAST), self.root / "networks"
        work = Work(self.cell, self.seed, last, networks, self.chemprop)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # few rows, hypotheses that agree: the figures show it
            found = pd.DataFrame(list(self.rows(work, self.name, *self.options)))
        return found.assign(**dict(zip(JOB, self.key, strict=True)))


@dataclass(frozen=True)
class Store:
    """All figures of a table, in one CSV file."""

    path: Path

    def read(self) -> pd.DataFrame:
        if not self.path.is_file():
            return pd.DataFrame(columns=[*JOB, *FIGURE[2:]])
        return pd.read_csv(self.path, dtype={"settings": str})

    def done(self) -> set[tuple[Any, ...]]:
        """Keys of the jobs whose figures are there."""
        return set(self.read()[JOB].drop_duplicates().itertuples(index=False, name=None))

    def add(self, job: Job) -> None:
        """Do a job and keep its figures, all of them or nothing, in place of older ones."""
        found = job.run()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with locked(self.path), atomic_path(self.path) as path:
            table = pd.concat([self.read(), found], ignore_index=True)
            table = table[~table.duplicated([*FIGURE, "job"], keep="last")]
            table.to_csv(path, index=False, float_format="%.7g")


def long(table: pd.DataFrame) -> pd.DataFrame:
    """One line per figure: cell, seed, method, calibration, split, measure, value."""
    known = table.drop(columns=["job", "settings", "weights"], errors="ignore")
    found = known.melt(FIGURE, var_name="measure", value_name="value").dropna(subset="value")
    return found.reset_index(drop=True)


def run_jobs(
    jobs: Sequence[Job], store: Store, only: str = "", **where: Any
) -> tuple[pd.DataFrame, dict[str, str]]:
    """Do what is not done yet, of jobs whose title has the regular expression ``only``, in order:
    the figures of all jobs that are done, and tracebacks of those that failed. ``where``: workers,
    engine, progress, of `gduq.runs.parallel.parallel_map`."""
    done = store.done()
    todo = [job for job in jobs if job.key not in done and re.search(only, job.title)]
    outcomes = parallel_map(store.add, todo, name=lambda job: job.title, **where)
    failures = {each.item.title: each.error for each in outcomes if each.error is not None}
    table = store.read()
    wanted = pd.MultiIndex.from_tuples([job.key for job in jobs], names=JOB)
    return table[table.set_index(JOB).index.isin(wanted)], failures
