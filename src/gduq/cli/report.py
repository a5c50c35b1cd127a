"""``gduq report``: one page about runs, or a table of the paper in other formats."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gduq.cli.base import AsJson, Force, TrustSource, command, print_json, status
from gduq.cli.request import check_there, source_of, trust_runs
from gduq.data.outputs import FORMATS, check_new, check_output
from gduq.errors import InputError

if TYPE_CHECKING:
    from gduq.paper.bench_result import BenchResult

__all__ = ["report"]


@command()
def report(
    runs: list[Path],
    output: Annotated[Path, typer.Option("--output", "-o")] = Path("report.html"),
    form: Annotated[str | None, typer.Option("--format")] = None,
    title: str | None = None,
    force: Force = False,
    trust_source: TrustSource = False,
    as_json: AsJson = False,
) -> None:
    """Write one page about runs that a person can read.

    The first run is what the others are compared with; of a folder of runs, a vanilla one. Runs
    that differ in the seed only are shown as one model, with means over seeds. The page needs no
    network. Of a table with several datasets the page shows the runs of the first; markdown, latex,
    json and csv show all.

    Args:
        runs: Run folders, folders of runs, or a table that `gduq bench` wrote (.json).
        output: File to write.
        form: html, markdown, latex, json, csv (default: by the name).
        title: Title of the page (default: the target and its file).
    """
    if form is not None and form not in FORMATS:
        raise InputError(f"a format from {', '.join(FORMATS)}", repr(form))
    check_output(output, tuple(FORMATS.values()) if form is None else (output.suffix,))
    kind = form or {ending: name for name, ending in FORMATS.items()}[output.suffix]
    check_there(runs)
    reads = [source for path in runs for source in _read_for(path)]
    own = any((run / "report.html").resolve() == output.resolve() for run in runs)
    check_new(output, force or own, reads=reads)
    if len(runs) == 1 and runs[0].suffix == ".json" and kind != "html":
        getattr(_table(runs[0]), f"to_{kind}")(output)
        sources = runs
    else:
        trust_runs((f for path in runs for f in (path, *_finished(path))), trust_source)
        sources = [folder for path in runs for folder in _run_folders(path)]
        from gduq.report import subjects_from_runs, write

        with status("Reading", as_json) as line:
            subjects = subjects_from_runs(sources, notify=lambda n: line.update(f"Reading {n}"))
            line.update("Writing")
            again = shlex.join(["gduq", "report", *map(str, runs), "-o", str(output)])
            write(subjects, output, kind, title, reproduce=again)
    if as_json:
        print_json({"report": output.resolve(), "runs": sources})
    else:
        typer.echo(f"{len(sources)} run(s) or table(s) in {output.resolve()}")


def _read_for(path: Path) -> list[Path | None]:
    """A table, or what the runs in a folder were trained on."""
    return [path] if path.is_file() else [source_of(run) for run in (path, *_finished(path))]


def _finished(folder: Path) -> list[Path]:
    return [file.parent for file in folder.glob("*/finished")]


def _run_folders(path: Path) -> list[Path]:
    """A run folder, the finished runs in a folder, or those of a table's first dataset."""
    if path.suffix == ".json" and path.is_file():
        return _runs_of(_table(path), path.parent.parent)
    if (path / "config.json").is_file():
        return [path]
    found = _finished(path)
    if not found:
        got = f"{path}, which has no finished run"
        raise InputError("a run folder, or a folder of runs", got, "Make one with `gduq train`.")
    return sorted(found, key=_place)


def _place(path: Path) -> tuple[bool, str, str, int]:
    """Where a run stands among others of its folder: vanilla first, then by title and seed."""
    from gduq.runs.folder import RunFolder

    config = RunFolder(path).config
    title = config.title.removesuffix(f"seed {config.seed}")
    return config.method.kind != "vanilla", config.data.name, title, config.seed


def _table(path: Path) -> BenchResult:
    from gduq.paper.bench_result import BenchResult

    return BenchResult.from_json(path)


def _runs_of(table: BenchResult, root: Path) -> list[Path]:
    """Runs that can be compared row by row: of one dataset and network, all seeds."""
    from gduq.runs.folder import RunFolder

    if not table.runs:
        do = "Choose another format: markdown, latex, json or csv."
        raise InputError("a table made of runs", table.name, do)
    configs: dict[Path, Any] = {root / run: RunFolder(root / run).config for run in table.runs}
    first = next(iter(configs.values()))
    same = (first.data, first.model)
    return [path for path, c in configs.items() if (c.data, c.model) == same]
