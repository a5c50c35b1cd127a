"""``gduq calibrate`` and ``evaluate``: runs on disk."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gduq.cli.base import AsJson, app, print_rows, status
from gduq.cli.completion import datasets
from gduq.cli.predict import Call, Network, SmilesColumn, Targets
from gduq.cli.train import scores_of, told_of
from gduq.errors import InputError

if TYPE_CHECKING:
    from gduq.runs.folder import RunFolder

__all__ = ["calibrate", "evaluate"]

Run = Annotated[Path, typer.Argument(help="A run folder of `gduq train`.")]


Methods = Annotated[list[str] | None, typer.Option(help="Calibrator; repeat for several.")]
Corrupted = Annotated[
    bool,
    typer.Option("--corrupted", help="Fit it on shifted copies of the rows too."),
]


@app.command()
def calibrate(
    run: Run,
    method: Methods = None,
    corrupted: Corrupted = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Also save the model with the (one) calibrator here."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Fit calibrators on a run's validation predictions; nothing is trained."""
    from gduq.runs.calibrated import export
    from gduq.runs.folder import RunFolder

    _no_bundle(
        run, "`gduq predict --calibrator NAME --calibration-data FILE` calibrates its answers."
    )
    names, folder = _calibrators(method or ["temperature"], corrupted), RunFolder(run)
    if output is not None and len(names) > 1:
        raise InputError("one --method to save with --output", ", ".join(names))
    with status("Calibrating", as_json):
        _fitted(folder, names)
        if output is not None:
            export(folder, names[0], output)
    rows = [row for row in scores_of(folder) if row["calibrator"] in ("none", *names)]
    print_rows(rows, as_json)


def _no_bundle(path: Path, do: str) -> None:
    """Tell who hands over a bundle what to do with it."""
    if (path / "bundle.json").is_file() and not (path / "config.json").is_file():
        raise InputError("a run folder of `gduq train`", f"{path}, which is a bundle", do)


def _calibrators(names: list[str], corrupted: bool) -> list[str]:
    """The names, those that can also learn from corrupted copies marked so if that is wished."""
    from gduq.calibration import method_name
    from gduq.evaluation.shifted_copies import VARIANTS

    names = [method_name(name) for name in names]
    marked = {name: variant for variant, name in VARIANTS.items()}
    if corrupted and not any(name in marked for name in names):
        raise InputError(f"--corrupted with --method {', '.join(marked)}", ", ".join(names))
    return [marked.get(name, name) if corrupted else name for name in dict.fromkeys(names)]


def _fitted(folder: RunFolder, names: list[str]) -> None:
    """Scores of the calibrators in the folder, or an error that says which cannot be fitted."""
    from gduq.runs.run import recalibrate

    skipped = recalibrate(folder, names).scores.get("skipped", {})
    for name in names:
        if name in skipped:
            raise InputError(f"calibrators that fit this run, not {name}", skipped[name])


Subgroups = Annotated[
    bool,
    typer.Option(
        "--subgroups", help="Also groups by degree, size, homophily, distance to training nodes."
    ),
]
Judged = Annotated[
    Path, typer.Argument(help="A run folder of `gduq train`; with --data also a bundle.")
]
On = Annotated[
    list[str] | None,
    typer.Option(
        "--data",
        help="Judge on this instead: a dataset's name, or a file of labelled graphs; "
        "split=FILE for several.",
        autocompletion=datasets,
    ),
]


@app.command()
def evaluate(
    run: Judged,
    data: On = None,
    method: Methods = None,
    corrupted: Corrupted = False,
    subgroups: Subgroups = False,
    smiles: SmilesColumn = None,
    target: Targets = None,
    net: Network = None,
    call: Call = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write to this .json or .md file instead.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show everything measured of a run: every split and calibrator, with intervals.

    Calibrators named by --method are fitted first and stay with the run. With --data the model is
    judged on other data; calibrators are then fitted on id_val, and nothing is kept.
    """
    from gduq.deploy.rowfiles import check_output
    from gduq.runs.folder import RunFolder
    from gduq.runs.run import evaluated

    names = _calibrators(method or [], corrupted)
    if output is not None:
        check_output(output, (".json", ".md"))
    if data:
        from gduq.cli.answering import Request
        from gduq.cli.evaluate_files import judge

        with status("Evaluating", as_json):
            columns = tuple(target) if target else None
            request = Request(run, smiles=smiles, target=columns, net=net, call=call)
            found = judge(request, data, names, subgroups)
    else:
        _no_bundle(run, f"Say what to judge it on: gduq evaluate {run} --data FILE.")
        folder = RunFolder(run)
        with status("Evaluating", as_json):
            _fitted(folder, names)
            found = evaluated(folder, subgroups=True) if subgroups else folder.evaluation()
    for name, reason in found.settings.get("skipped", {}).items():
        typer.echo(f"Note: without {name}: {reason}", err=True)
    if output is None and not as_json and sys.stdout.isatty():  # all of it is wider than any screen
        print_rows(told_of(found), as_json=False)
        typer.echo("Everything, with intervals: gduq evaluate ... -o evaluation.md")
        return
    if output is None:
        typer.echo(found.to_json() if as_json else found.to_markdown(), nl=False)
        return
    (found.to_json if output.suffix == ".json" else found.to_markdown)(output)
    typer.echo(f"Written to {output}")
