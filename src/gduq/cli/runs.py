"""``gduq calibrate``, ``evaluate`` and ``report``: runs on disk."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gduq.cli.base import (
    AsJson,
    Force,
    Methods,
    Texts,
    app,
    echo,
    option,
    print_rows,
    status,
    summary_rows,
    takes,
)
from gduq.cli.request import Request, source_of
from gduq.data.outputs import check_new
from gduq.errors import InputError

if TYPE_CHECKING:
    from gduq.calibration import Calibrator
    from gduq.evaluation import Evaluation
    from gduq.runs.folder import RunFolder

__all__ = ["calibrate", "evaluate", "report"]


@app.command()
def calibrate(
    run: Annotated[Path, typer.Argument(help="A run folder of `gduq train`.")],
    method: Methods = None,
    output: Annotated[Path | None, option("Save model and calibrator.", "--output", "-o")] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Fit calibrators on a run's validation predictions; nothing is trained."""
    check_new(output, force, reads=[run / "bundle", source_of(run)])
    from gduq.runs.folder import RunFolder

    folder = RunFolder(run)
    methods = method or [folder.predictions()["id_val"].calibrator]
    if output is not None and len(methods) > 1:
        raise InputError("one --method to save with --output", ", ".join(methods))
    with status("Calibrating", as_json):
        if output is not None:
            folder.save_calibrated(methods[0], output)
        found = folder.evaluation(methods)
    print_rows(summary_rows(found, methods), as_json)
    if output is not None and not as_json:
        echo(f"Written to {output}")


@app.command()
@takes(Request, "bundle", "smiles", "target", "net", "call")
def evaluate(
    request: Request,
    data: Annotated[Texts, option("Judge on labelled files: [split=]FILE; repeat.")] = None,
    method: Methods = None,
    subgroups: Annotated[bool, option("Also by degree and size.", "--subgroups")] = False,
    output: Annotated[Path | None, option("A .json file.", "--output", "-o")] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Measure a run: every split and calibrator; with -o or --json all measures, with intervals.

    Calibrators named by --method are fitted first and stay with the run. With --data the model of a
    run or bundle is judged on other data; calibrators are then fitted on id_val, and nothing is
    kept. Rows that cannot be read are listed and left out; the exit code is then 3.
    """
    run = request.bundle
    check_new(output, force, (".json",), [run / "metrics.json", source_of(run)])
    from gduq.runs.folder import RunFolder

    with status("Evaluating", as_json):
        if data:
            found = _on_files(request, data, method or [], subgroups)
        else:
            found = RunFolder(run).evaluation(method or [], subgroups)
    for name, reason in found.settings.get("skipped", {}).items():
        echo(f"Note: without {name}: {reason}", err=True)
    left_out = found.settings.get("rejected", ())
    if left_out:
        echo(f"Note: {len(left_out)} row(s) left out, the first: {left_out[0]}", err=True)
    if output is not None:
        found.to_json(output)
        echo(f"Written to {output}")
    elif as_json:
        typer.echo(found.to_json(), nl=False)
    else:  # all of it is wider than any screen
        print_rows(summary_rows(found))
        echo("Everything, with intervals: -o evaluation.json, or --json.")
    if left_out:
        raise typer.Exit(3)


def _on_files(
    request: Request, data: Sequence[str], methods: Sequence[str], subgroups: bool
) -> Evaluation:
    """What is measured on labelled files; rows left out are in its settings."""
    from gduq.evaluation import evaluate
    from gduq.serve.service import Service

    model, saved = request.load()
    service, found, rejects = Service(model, None, request.info.class_names), {}, list[str]()
    for text in data:
        split, _, name = text.rpartition("=")
        split = split or Path(name).stem
        if split in found:
            raise InputError("a split of its own for every file", text, "Use --data split=FILE.")
        found[split], bad = request.labelled(service, Path(name))
        rejects += map(str, bad)
    calibrators: list[str | Calibrator] = [*([] if saved is None else [saved]), *methods]
    measured = evaluate(found, None, calibrators, subgroups=subgroups)
    return replace(measured, settings={**measured.settings, "rejected": rejects})


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders of runs.")],
    output: Annotated[Path, option("File to write, .html or .json.", "--output", "-o")] = Path(
        "report.html"
    ),
    force: Force = False,
) -> None:
    """Write one page about runs that a person can read.

    The first run is what the others are compared with; of a folder of runs, a plain one. Runs
    that differ in the seed only are shown as one model, with means over seeds. The page needs no
    network.
    """
    from gduq.report import subjects_from_runs, write

    folders = [folder for path in runs for folder in _folders(path)]
    own = any((path / "report.html").resolve() == output.resolve() for path in runs)
    reads = [source_of(folder.path) for folder in folders]
    check_new(output, force or own, (".html", ".json"), reads)
    with status("Reading") as line:
        subjects = subjects_from_runs(folders, notify=lambda n: line.update(f"Reading {n}"))
        line.update("Writing")
        again = shlex.join(["gduq", "report", *map(str, runs), "-o", str(output)])
        write(subjects, output, reproduce=again)
    echo(f"{len(folders)} run(s) in {output.resolve()}")


def _folders(path: Path) -> list[RunFolder]:
    """A run, or the finished runs in a folder: plain ones first."""
    from gduq.runs.folder import RunFolder

    if (path / "config.json").is_file():
        return [RunFolder(path)]
    found = [RunFolder(file.parent) for file in path.glob("*/finished")]
    if not found:
        do = "Make one with `gduq train`."
        raise InputError("a run folder, or a folder with finished runs", path, do)
    return sorted(found, key=lambda f: (f.config.method.kind != "plain", f.config.title))
