"""`bench`: the runs of a table on all cores, and the table from what they left on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

from gduq.errors import InputError, did_you_mean
from gduq.jobs.engines import map_cells
from gduq.jobs.progress import heard
from gduq.runs.config import RunConfig
from gduq.runs.folder import FINISHED
from gduq.runs.run import requirements, run
from gduq.runs.tracking import EpochNews
from gduq.runs.training import fit_options
from gduq.whole import whole
from gduq_reproduction.bench_result import BenchResult, record, verdicts
from gduq_reproduction.run_scores import add_scores, known_in, scores_in
from gduq_reproduction.specs import OWN, PaperTable, ScaleName, Setting
from gduq_reproduction.tables import TABLES

__all__ = ["bench", "find_table", "results_path"]

Do = Callable[..., Any]  # `map_cells` on the engine that was asked for


def bench(
    name: str,
    scale: ScaleName = "smoke",
    root: str | Path = "out/bench",
    engine: str = "local",
    workers: int | None = None,
    seeds: int | None = None,
    progress: bool = True,
    *,
    address: str | None = None,
) -> BenchResult:
    """Make a table or figure of the paper.

    Runs are found by their hash: what is finished, for this table or another, is not repeated, and
    what was interrupted goes on. Runs that fail are retried at the next call; their cells say so.
    The result is also written to ``root/tables/<name>-<scale>.json``.

    Args:
        name: One of `gduq_reproduction.tables.TABLES`, ``"comparison"`` or ``"molecules"``.
        scale: ``"smoke"`` (a minute, generated data), ``"small"`` (about an hour on two cores) or
            ``"paper"`` (the published schedule).
        root: Folder of all runs and tables.
        engine: ``"local"`` or ``"ray"``.
        workers: Processes; see `gduq.jobs.engines.map_cells`.
        seeds: How many; as the scale has it by default.
        progress: Show what is going on.
        address: Of a Ray cluster.
    """
    table = None if name in OWN else find_table(name)
    if scale not in get_args(ScaleName):
        raise InputError(f"a scale from {', '.join(get_args(ScaleName))}", repr(scale))
    if seeds is not None:
        seeds = whole("seeds", seeds, least=1)
    root = Path(root).resolve()
    root.mkdir(parents=True, exist_ok=True)
    command = f"gduq bench {name} --scale {scale}" + (f" --seeds {seeds}" if seeds else "")
    do: Do = partial(
        map_cells, engine=engine, workers=workers, progress=progress, address=address, folder=root
    )
    if table is None:
        own = import_module(f"gduq_reproduction.{name}.{name}_table")
        result: BenchResult = own.bench(scale, root, seeds, command, do)
    elif table.producer is not None:
        result = _produced(name, table, scale, root, command, do, alone=workers != 0)
    else:
        result = _trained(name, table, scale, seeds, root, command, do)
    path = results_path(root, name, scale)
    path.parent.mkdir(exist_ok=True)
    result.to_json(path)
    return result


def find_table(name: str) -> PaperTable:
    """A table by name; an unknown one raises `InputError` with near names."""
    if name not in TABLES:
        known = (*TABLES, *OWN)
        raise InputError("the name of a table", repr(name), did_you_mean(name, known))
    return TABLES[name]


def results_path(root: Path, name: str, scale: str) -> Path:
    """Where `bench` keeps its result."""
    return root / "tables" / f"{name}-{scale}.json"


# -- tables of trained models --------------------------------------------------------------------


def _trained(
    name: str,
    table: PaperTable,
    scale: ScaleName,
    seeds: int | None,
    root: Path,
    command: str,
    do: Do,
) -> BenchResult:
    configs = list(table.configs(scale, seeds or table.seeds_at(scale)))
    failures = _run_all(name, configs, root, do)
    found: dict[tuple[Setting, str], list[dict[str, Any]]] = {}
    for setting, variant, _, config in configs:
        scores = {} if config.hash in failures else scores_in(root / config.hash)
        found.setdefault((setting, variant), []).append(scores)
    records = [
        record(name, key, values, scale=scale, command=command, printed=table.printed, note=note)
        for (setting, variant), scores in found.items()
        for key, values, note in _cells(table, setting, variant, scale, scores)
    ]
    return BenchResult(
        name,
        scale,
        verdicts(records),
        table.title,
        _notes(table, scale),
        dict(failures.values()),
        runs=tuple(dict.fromkeys(c.hash for *_, c in configs if c.hash not in failures)),
    )


def _cells(
    table: PaperTable,
    setting: Setting,
    variant: str,
    scale: ScaleName,
    scores: Sequence[Mapping[str, Any]],
) -> Iterator[tuple[dict[str, str], list[float | None], str]]:
    """Key, values by seed and note of every cell of a setting and variant."""
    where = {"dataset": setting.dataset, "shift": setting.shift, "model": setting.model}
    splits = [s for s in table.splits if any(s in run.get("none", {}) for run in scores)]
    for calibrator in ("none", *table.calibrators_of(variant, scale)):
        skipped = [run["skipped"][calibrator] for run in scores
                   if calibrator in run.get("skipped", {})]  # fmt: skip
        failed = sum(not run for run in scores)
        note = skipped[0] if skipped else f"{failed} run(s) failed" if failed else ""
        for split in splits or table.splits[:1]:
            for metric in table.metrics:
                key = {**where, "variant": variant, "calibrator": calibrator}
                values = [run.get(calibrator, {}).get(split, {}).get(metric) for run in scores]
                if not note and all(value is None for value in values):
                    continue  # it does not apply: scores on features to an ensemble, say
                yield {**key, "split": split, "metric": metric}, values, note


def _run_all(
    name: str, cells: Sequence[tuple[Setting, str, int, RunConfig]], root: Path, do: Do
) -> dict[str, tuple[str, str]]:
    """Do what is not done yet, what others need first; titles and tracebacks of failures."""
    titles = {config.hash: f"{setting.data} {setting.model} {variant}, seed {seed}"
              for setting, variant, seed, config in reversed(cells)}  # fmt: skip
    wanted = _wanted(config for *_, config in cells)
    todo = [config for config in wanted if not _done(config, root)]
    place = {config.hash: i for i, config in enumerate(todo)}
    needs = [[place[r.hash] for r in requirements(c) if r.hash in place] for c in todo]

    def title(config: RunConfig) -> str:
        return titles.get(config.hash, config.title)  # members of ensembles are in no cell

    outcomes = do(todo, partial(_one_run, root), title=name, name=title, needs=needs)
    return {o.cell.hash: (title(o.cell), o.error) for o in outcomes if not o.ok}


def _one_run(root: Path, config: RunConfig) -> None:
    """What a worker does with a config."""
    news = EpochNews(fit_options(config)["epochs"]) if heard() else None
    add_scores(run(config, root, progress=False, logger=news, evaluate=False), config.calibrators)


def _wanted(configs: Iterable[RunConfig]) -> list[RunConfig]:
    """Every run once, with all calibrators asked of it, and those that others need."""
    wanted: dict[str, RunConfig] = {}

    def visit(config: RunConfig) -> None:
        for needed in requirements(config):
            visit(needed)
        known = wanted.get(config.hash)
        names = dict.fromkeys((*(known.calibrators if known else ()), *config.calibrators))
        wanted[config.hash] = config.with_({"calibrators": tuple(names)})

    for config in configs:
        visit(config)
    return list(wanted.values())


def _done(config: RunConfig, root: Path) -> bool:
    """Whether a run is finished and has the scores asked for."""
    path = root / config.hash
    return (path / FINISHED).is_file() and {"none", *config.calibrators} <= known_in(path)


def _notes(table: PaperTable, scale: ScaleName) -> tuple[str, ...]:
    labels = f"Paper: {', '.join(table.labels)}." if table.labels else ""
    ece = "The released code measures ECE in 100 bins (ece100); ece has 15."
    return tuple(filter(None, (labels, table.note, ece if "ece" in table.metrics else "")))


# -- tables of numbers that are not from training ------------------------------------------------


def _produced(
    name: str, table: PaperTable, scale: ScaleName, root: Path, command: str, do: Do, alone: bool
) -> BenchResult:
    """Made by the module of that name: its cells, their titles, numbers and figures."""
    maker = import_module(f"gduq_reproduction.{table.producer}")
    # One at a time where time is what is measured: cells share the machine's memory bus.
    options = {"workers": 1} if alone and table.producer == "runtime" else {}
    outcomes = do(maker.cells(table, scale), maker.make, title=name, name=maker.title, **options)
    values: dict[tuple[tuple[str, str], ...], list[float]] = {}
    for outcome in (o for o in outcomes if o.ok):
        for key, value in outcome.value["numbers"]:  # cells with equal keys differ in the seed
            values.setdefault(tuple(key.items()), []).append(value)
    made = [
        record(name, dict(key), found, scale=scale, command=command, printed=table.printed)
        for key, found in values.items()
    ]
    failures = {maker.title(o.cell): o.error for o in outcomes if not o.ok}
    data = [outcome.value["data"] for outcome in outcomes if outcome.ok]
    drawn = maker.draw(root, name, scale, data) if hasattr(maker, "draw") else ()
    return BenchResult(
        name, scale, made, table.title, _notes(table, scale), failures, figures=drawn
    )
