"""``gduq calibrate`` and ``evaluate``: runs on disk."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gduq._io import read_metadata, write_text
from gduq.cli.base import (
    AsJson,
    Force,
    TrustSource,
    app,
    echo,
    print_rows,
    status,
    summary_rows,
    takes,
)
from gduq.cli.request import Request, check_there, files_of, source_of, trust_runs
from gduq.data.outputs import check_new
from gduq.errors import InputError

if TYPE_CHECKING:
    from gduq.evaluation import Evaluation

__all__ = ["calibrate", "evaluate"]

_SHOWN = 20  # rows left out that are named one by one
Methods = Annotated[list[str] | None, typer.Option(help="Calibrator; repeat for several.")]
Corrupted = Annotated[
    bool, typer.Option("--corrupted", help="Fit it on shifted copies of the rows too.")
]


@app.command()
def calibrate(
    run: Annotated[Path, typer.Argument(help="A run folder of `gduq train`.")],
    method: Methods = None,
    corrupted: Corrupted = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Also save the model with the (one) calibrator here."),
    ] = None,
    force: Force = False,
    trust_source: TrustSource = False,
    as_json: AsJson = False,
) -> None:
    """Fit calibrators on a run's validation predictions; nothing is trained."""
    check_there([run])
    _no_bundle(
        run, "`gduq predict --calibrator NAME --calibration-data FILE` calibrates its answers."
    )
    check_new(output, force, reads=[run / "bundle", source_of(run)])
    trust_runs([run], trust_source)
    from gduq.runs.folder import RunFolder

    folder = RunFolder(run)
    names = _calibrators(method or [folder.predictions()["id_val"].calibrator], corrupted)
    if output is not None and len(names) > 1:
        raise InputError("one --method to save with --output", ", ".join(names))
    with status("Calibrating", as_json):
        found = folder.recalibrate(names).evaluation()
        if output is not None:
            folder.save_calibrated(names[0], output)
    print_rows(summary_rows(found, names), as_json)
    if output is not None and not as_json:
        echo(f"Written to {output}")


@app.command()
@takes(Request, "bundle", "smiles", "target", "net", "call")
def evaluate(
    request: Request,
    data: Annotated[
        list[str] | None,
        typer.Option(help="Judge on a dataset by name, or files of labelled graphs: [split=]FILE."),
    ] = None,
    method: Methods = None,
    corrupted: Corrupted = False,
    subgroups: Annotated[
        bool, typer.Option("--subgroups", help="Also groups of rows: by degree and size.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write to this .json or .md file instead."),
    ] = None,
    force: Force = False,
    trust_source: TrustSource = False,
    as_json: AsJson = False,
) -> None:
    """Measure a run: every split and calibrator; with -o or --json all measures, with intervals.

    Calibrators named by --method are fitted first and stay with the run. With --data the model of a
    run or bundle is judged on other data; calibrators are then fitted on id_val, and nothing is
    kept. Rows that cannot be read are listed and left out; the exit code is then 3.
    """
    run = request.bundle
    check_there([run])
    reads = [run / "metrics.json", source_of(run)]
    check_new(output, force, (".json", ".md"), reads)
    if data:
        found = _on_other_data(request, data, method or [], corrupted, subgroups, as_json)
    else:
        trust_runs([run], trust_source)
        _no_bundle(run, f"Say what to judge it on: gduq evaluate {run} --data FILE.")
        from gduq.runs.folder import RunFolder

        folder = RunFolder(run)
        with status("Evaluating", as_json):
            found = folder.recalibrate(_calibrators(method or [], corrupted)).evaluation()
            if subgroups:
                found = folder.evaluate(subgroups=True)
    for name, reason in found.settings.get("skipped", {}).items():
        echo(f"Note: without {name}: {reason}", err=True)
    left_out = found.settings.get("rejected", ())
    for reason in left_out[:_SHOWN]:
        echo(f"Note: left out: {reason}", err=True)
    if len(left_out) > _SHOWN:
        echo(f"Note: {len(left_out)} rows left out; all of them: -o evaluation.json", err=True)
    if output is not None:
        if output.suffix == ".json":
            found.to_json(output)
        else:
            write_text(output, found.to_markdown())
        typer.echo(f"Written to {output}")
    elif as_json:
        typer.echo(found.to_json(), nl=False)
    else:  # all of it is wider than any screen
        print_rows(summary_rows(found))
        typer.echo("Everything, with intervals: -o evaluation.md, or --json.")
    if left_out:
        raise typer.Exit(3)


def _on_other_data(
    request: Request, data: list[str], methods: list[str], corrupted: bool, subgroups: bool,
    as_json: bool,
) -> Evaluation:  # fmt: skip
    request.check()
    files = files_of(data)
    request.check_labelled(files.values())
    if subgroups and files:
        raise InputError("--subgroups with a run, or the name of a dataset", ", ".join(data))
    if methods and files and "id_val" not in files:
        raise InputError(f"--data id_val=FILE to fit {methods[0]} on", ", ".join(data))
    from gduq.cli.answering import judge

    with status("Evaluating", as_json):
        return judge(request, data[0], files, _calibrators(methods, corrupted), subgroups)


def _no_bundle(path: Path, do: str) -> None:
    """Tell who hands over a bundle what to do with it."""
    if "document" in read_metadata(path):
        raise InputError("a run folder of `gduq train`", f"{path}, which is a bundle", do)


def _calibrators(names: list[str], corrupted: bool) -> list[str]:
    """The names, those that can also learn from corrupted copies marked so if that is wished."""
    from gduq.calibration import METHODS, parse_name

    names = list(dict.fromkeys(parse_name(name)[0] for name in names))
    copying = {name for name, cls in METHODS.items() if not cls.needs_graph}
    if corrupted and not copying & set(names):
        raise InputError(f"--corrupted with --method {', '.join(copying)}", ", ".join(names))
    return [f"{name}+corrupted" if corrupted and name in copying else name for name in names]
