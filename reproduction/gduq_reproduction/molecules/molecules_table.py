"""`bench`: all jobs on all cores, and the table of what they left on disk."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gduq.disk import locked, write_json
from gduq_reproduction.bench_result import record
from gduq_reproduction.molecules import ours, peer
from gduq_reproduction.molecules.answers import StoredAnswers
from gduq_reproduction.molecules.bars import BEST, Found, bars
from gduq_reproduction.molecules.molecules_result import MoleculesResult
from gduq_reproduction.molecules.plan import OURS, PEERS, MoleculeJob, jobs
from gduq_reproduction.molecules.scoring import LEVELS, likelihood, score
from gduq_reproduction.specs import OWN, ScaleName

__all__ = ["bench", "collect", "work"]

NAME = "molecules"
VERSION = 1  # of the scores
RECIPES = ("gduq", "gduq-thawed", "gduq-choose")  # of which validation rows choose the best
Table = dict[tuple[str, str, int], dict[str, Found]]


def bench(
    scale: ScaleName, root: Path, seeds: int | None, command: str, do: Callable[..., Any]
) -> MoleculesResult:
    """Do what is not done yet, and make the table.

    Args:
        scale: ``"smoke"`` (a minute, without Chemprop) or ``"small"``.
        root: Folder of all results; answers of every method and split are kept in it.
        seeds: How many; as the scale has it by default.
        command: That makes it again.
        do: `gduq.jobs.engines.map_cells` on the engine that was asked for.
    """
    wanted = jobs(scale, seeds, root / NAME)
    todo = [job for job in wanted if not job.done]
    if any(job.side != "ours" for job in todo):
        peer.environment()  # once, before workers ask for it
    place = {job: i for i, job in enumerate(todo)}
    needs = [[place[first] for first in job.needs if first in place] for job in todo]
    outcomes = do(todo, work, title=NAME, name=lambda job: job.title, needs=needs)
    failures = {o.cell.title: o.error for o in outcomes if o.error is not None}
    return collect(wanted, scale, command, failures)


def work(job: MoleculeJob) -> None:
    """What a worker does with a job, unless another call has done it meanwhile."""
    with locked(job.folder / job.side):
        if not job.done:
            (ours if job.side == "ours" else peer).run(job)


def collect(
    wanted: list[MoleculeJob],
    scale: ScaleName,
    command: str,
    failures: dict[str, str] | None = None,
) -> MoleculesResult:
    """The table of all answers that are there; what is missing shows as fewer seeds."""
    table = _scored(wanted)
    made: dict[tuple[tuple[str, str], ...], list[float]] = {}
    for (dataset, shift, _), methods in table.items():
        where = {"dataset": dataset, "shift": shift, "model": "bond-gnn"}
        for method, found in methods.items():
            for key, value in _numbers(found):
                name = {**where, "variant": method, **key}
                made.setdefault(tuple(name.items()), []).append(value)
    records = [
        record(NAME, dict(key), values, scale=scale, command=command)
        for key, values in made.items()
    ]
    missing = len({(j.dataset, j.shift, j.seed, m) for j in wanted for m in j.methods}) - sum(
        method != BEST for methods in table.values() for method in methods
    )
    notes = (f"{missing} of the methods' answers are missing: some means are of fewer seeds.",)
    return MoleculesResult(
        NAME,
        scale,
        records,
        OWN[NAME],
        notes if missing else (),
        failures or {},
        bars=tuple(bars(table)),
    )


def _numbers(found: Found) -> list[tuple[dict[str, str], float]]:
    timed = ({"calibrator": "none", "split": "", "metric": "train_seconds"}, found.seconds)
    scored = [
        ({"calibrator": level, "split": split, "metric": metric}, value)
        for level in LEVELS
        for split, numbers in found.scores[level].items()
        for metric, value in numbers.items()
    ]
    return [timed, *scored]


def _scored(wanted: list[MoleculeJob]) -> Table:
    """Scores of every method that is there, by dataset, shift and seed."""
    table: Table = {}
    for job in wanted:
        if job.side != "ours":
            continue
        there = [method for method in (*OURS, *PEERS) if job.file(method).is_file()]
        with ours.one_thread(), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # few rows, which the seeds show
            found = {method: _judged(job, method) for method in there}
        scores = {m: Found(one["scores"], one["seconds"]) for m, one in found.items()}
        if set(RECIPES) <= scores.keys():
            best = min(RECIPES, key=lambda m: found[m]["likelihood"])
            plain = scores["vanilla"].seconds  # all recipes go on from one network
            spent = plain + sum(scores[m].seconds - plain for m in RECIPES)
            scores[BEST] = Found(scores[best].scores, spent)
        table[job.dataset, job.shift, job.seed] = scores
    return table


def _judged(job: MoleculeJob, method: str) -> dict[str, Any]:
    """Scores of a method, and how it fares on validation rows; kept beside its answers."""
    like = job.file("vanilla")
    files = [job.file(method), *([like] if method in PEERS and like.is_file() else [])]
    key = [VERSION, *((file.stat().st_mtime_ns, file.stat().st_size) for file in files)]
    path = job.folder / f"{method}.json"
    if path.is_file():
        kept = json.loads(path.read_text(encoding="utf-8"))
        if kept["key"] == json.loads(json.dumps(key)):
            return dict(kept)
    answers = StoredAnswers.load(job.file(method))
    found = {
        "key": key,
        "scores": score(answers, StoredAnswers.load(like) if len(files) == 2 else None),
        "likelihood": likelihood(answers),
        "seconds": answers.seconds,
    }
    write_json(path, found)
    return found
