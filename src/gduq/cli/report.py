"""``gduq report``: one page about runs."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from gduq.cli.base import AsJson, Force, TrustSource, app, print_json, status
from gduq.cli.request import check_there, source_of, trust_runs
from gduq.data.outputs import check_new, check_output
from gduq.errors import InputError

__all__ = ["report"]


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders of runs.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="File to write, .html or .json.")
    ] = Path("report.html"),
    title: Annotated[
        str | None, typer.Option(help="Title of the page (default: the target and its file).")
    ] = None,
    force: Force = False,
    trust_source: TrustSource = False,
    as_json: AsJson = False,
) -> None:
    """Write one page about runs that a person can read.

    The first run is what the others are compared with; of a folder of runs, a vanilla one. Runs
    that differ in the seed only are shown as one model, with means over seeds. The page needs no
    network.
    """
    check_output(output, (".html", ".json"))
    check_there(runs)
    reads = [source for path in runs for source in _read_for(path)]
    own = any((run / "report.html").resolve() == output.resolve() for run in runs)
    check_new(output, force or own, reads=reads)
    trust_runs((f for path in runs for f in (path, *_finished(path))), trust_source)
    sources = [folder for path in runs for folder in _run_folders(path)]
    from gduq.report import subjects_from_runs, write

    with status("Reading", as_json) as line:
        subjects = subjects_from_runs(sources, notify=lambda n: line.update(f"Reading {n}"))
        line.update("Writing")
        again = shlex.join(["gduq", "report", *map(str, runs), "-o", str(output)])
        write(subjects, output, title, again)
    if as_json:
        print_json({"report": output.resolve(), "runs": sources})
    else:
        typer.echo(f"{len(sources)} run(s) in {output.resolve()}")


def _read_for(path: Path) -> list[Path | None]:
    """What the runs in a folder were trained on."""
    return [source_of(run) for run in (path, *_finished(path))]


def _finished(folder: Path) -> list[Path]:
    return [file.parent for file in folder.glob("*/finished")]


def _run_folders(path: Path) -> list[Path]:
    """A run folder, or the finished runs in a folder."""
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
