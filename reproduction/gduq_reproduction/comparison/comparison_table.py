"""`bench`: all cells and seeds on all cores, in one table on disk that later calls go on with."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gduq.disk import atomic_path, locked
from gduq_reproduction.comparison.bars import bars
from gduq_reproduction.comparison.cells import ShiftCell, cells
from gduq_reproduction.comparison.comparison_result import ComparisonResult, overview, records_of
from gduq_reproduction.comparison.methods import Work
from gduq_reproduction.comparison.scoring import MEASURES, rows_of
from gduq_reproduction.specs import OWN, ScaleName

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["NAME", "PARTS", "bench", "collect", "read", "table_path"]

NAME = "comparison"
PARTS: dict[str, tuple[str, ...]] = {
    "smoke": ("methods", "novelty", "paper"),
    "small": ("methods", "novelty", "paper"),
    "paper": ("controls", "paper", "last"),
}
SEEDS = {"smoke": 1, "small": 3, "paper": 5}
LARGE_SEEDS = 2  # of large cells at paper scale, which take longest
_KEY = ["cell", "seed", "part", "settings"]  # settings: their fingerprint
_COLUMNS = [
    *_KEY,
    "method",
    "level",
    "split",
    *MEASURES,
    "auroc",
    "cost",
    "weights",
]


@dataclass(frozen=True)
class ComparisonJob:
    """What one worker does: the methods of a part on one cell and seed."""

    cell: ShiftCell
    seed: int
    part: str
    path: Path

    @property
    def title(self) -> str:
        return f"{self.cell.name}, {self.part}, seed {self.seed}"

    @property
    def key(self) -> tuple[str, int, str, str]:
        return self.cell.name, self.seed, self.part, self.cell.fingerprint(self.part)


def table_path(root: Path, scale: str) -> Path:
    """Where all figures are."""
    return root / f"{NAME}-{scale}.csv"


def bench(
    scale: ScaleName, root: Path, seeds: int | None, command: str, do: Callable[..., Any]
) -> ComparisonResult:
    """Do what is not done yet, and make the table.

    Args:
        scale: ``"smoke"`` (a minute, generated data), ``"small"``, or ``"paper"``: the paper's
            networks as published, where two cores can train them.
        root: Folder of the table.
        seeds: How many; as the scale has it by default (at paper scale fewer of large cells).
        command: That makes it again.
        do: `gduq.jobs.engines.map_cells` on the engine that was asked for.
    """
    path, count = table_path(root, scale), seeds or SEEDS[scale]
    most = seeds or (LARGE_SEEDS if scale == "paper" else count)
    numbered = list(enumerate(cells(scale)))
    turns = [
        (_turn(scale, cell, seed, i), ComparisonJob(cell, seed, part, path))
        for part, seed, (i, cell) in product(PARTS[scale], range(count), numbered)
        if (seed < most or not cell.large) and (cell.on_nodes or part != "last")
    ]
    wanted = [job for _, job in sorted(turns, key=lambda pair: pair[0])]
    done = _done(path)
    todo = [job for job in wanted if job.key not in done]
    outcomes = do(todo, work, title=NAME, name=lambda job: job.title)
    failures = {o.cell.title: o.error for o in outcomes if o.error is not None}
    return collect(wanted, scale, command, failures)


def _turn(scale: ScaleName, cell: ShiftCell, seed: int, number: int) -> tuple[bool, int, int]:
    """When a cell has its turn: the large ones last, one after the other. At paper scale all of
    them do a seed before the next."""
    return cell.large, seed if scale == "paper" else 0, number * cell.large


def collect(
    wanted: Sequence[ComparisonJob], scale: ScaleName, command: str, failures: dict[str, str]
) -> ComparisonResult:
    """The result of the figures that are there; what is missing shows as fewer seeds."""
    keys, table = {job.key for job in wanted}, read(wanted[0].path)
    there = [key in keys for key in table[_KEY].itertuples(index=False, name=None)]
    table = table[there]
    missing, shown = len(keys) - len(table[_KEY].drop_duplicates()), overview(table)
    means = [
        (*key, *(f"{value:.3f}" for value in row[:-1]), f"{row[-1]:.0f}")
        for key, row in zip(shown.index, shown.to_numpy(), strict=True)
    ]
    note = f"{missing} of {len(keys)} jobs are missing: some means are of fewer seeds or cells."
    return ComparisonResult(
        NAME,
        scale,
        records_of(table, scale, command),
        OWN[NAME],
        (note,) if missing else (),
        failures,
        bars=tuple(bars(table)),
        means=tuple(means),
    )


def work(job: ComparisonJob) -> None:
    """What a worker does with a job: all rows of it, or none, become part of the table."""
    import pandas as pd

    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few rows, hypotheses that agree: the figures show it
        rows = list(rows_of(Work(job.cell, job.seed), job.part))
    found = pd.DataFrame(rows).assign(**dict(zip(_KEY, job.key, strict=True)))
    if "weights" in found:
        found["weights"] = [
            json.dumps(w) if isinstance(w, dict) else None for w in found["weights"]
        ]
    with locked(job.path):
        if job.key in _done(job.path):
            return
        known = read(job.path)
        same = (known[_KEY[:3]] == list(job.key[:3])).all(axis=1)  # of other settings: it goes
        table = pd.concat([t for t in (known[~same], found) if len(t)])
        with atomic_path(job.path) as temporary:
            table.reindex(columns=_COLUMNS).to_csv(temporary, index=False, float_format="%.5g")


def read(path: Path) -> pd.DataFrame:
    """The table; empty where there is none yet."""
    import pandas as pd

    if not path.is_file():
        return pd.DataFrame(columns=_COLUMNS)
    return pd.read_csv(path, dtype={"settings": str})


def _done(path: Path) -> set[tuple[str, int, str, str]]:
    found = read(path)[_KEY].drop_duplicates()
    return set(found.itertuples(index=False, name=None))
