"""``gduq calibrate`` and ``evaluate``: runs on disk."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gduq.cli.base import AsJson, app, print_rows, status
from gduq.cli.completion import ALL_CALIBRATORS, among, check_calibrator, datasets
from gduq.cli.predict import Call, Network, SmilesColumn, Targets
from gduq.cli.replacing import MARK, check_replaced, source_of
from gduq.cli.request import Request, Told, bundle_of, check_there, files_of
from gduq.cli.score_rows import ranked_class, told_of
from gduq.data.cells import printable
from gduq.data.outputs import check_output
from gduq.disk import safetensors_metadata, write_text
from gduq.errors import InputError

if TYPE_CHECKING:
    from gduq.evaluation import Evaluation
    from gduq.runs.folder import RunFolder

__all__ = ["calibrate", "evaluate"]

Run = Annotated[Path, typer.Argument(help="A run folder of `gduq train`.")]
Methods = Annotated[
    list[str] | None,
    typer.Option(help="Calibrator; repeat for several.", autocompletion=among(ALL_CALIBRATORS)),
]
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
    check_there([run])
    _check_methods(run, method or [])
    _no_bundle(
        run, "`gduq predict --calibrator NAME --calibration-data FILE` calibrates its answers."
    )
    if output is not None:
        check_replaced(output, "calibrate", reads=[run / "bundle", source_of(run)])
    from gduq.runs.calibrated import export
    from gduq.runs.folder import RunFolder

    names, folder = _calibrators(method or ["temperature"], corrupted), RunFolder(run)
    if output is not None and len(names) > 1:
        raise InputError("one --method to save with --output", ", ".join(names))
    with status("Calibrating", as_json):
        found = _fitted(folder, names)
        if output is not None:
            export(folder, names[0], output)
    print_rows(told_of(found, names), as_json)


def _check_methods(run: Path, names: list[str]) -> None:
    """Names that no calibrator for this model has, before torch is imported."""
    for name in names:
        check_calibrator(name, Told.by(run).kind)


def _no_bundle(path: Path, do: str) -> None:
    """Tell who hands over a bundle what to do with it."""
    if "document" in safetensors_metadata(path):
        raise InputError("a run folder of `gduq train`", f"{path}, which is a bundle", do)


def _class_names(path: Path) -> tuple[str, ...]:
    """Of the model of a run or bundle; none where it names none."""
    from gduq.bundle import describe

    return tuple(describe(bundle_of(path)[0]).class_names or ())


def _calibrators(names: list[str], corrupted: bool) -> list[str]:
    """The names, those that can also learn from corrupted copies marked so if that is wished."""
    from gduq.calibration import method_name
    from gduq.evaluation.named_calibrators import VARIANTS

    names = [method_name(name) for name in names]
    marked = {name: variant for variant, name in VARIANTS.items()}
    if corrupted and not any(name in marked for name in names):
        raise InputError(f"--corrupted with --method {', '.join(marked)}", ", ".join(names))
    return [marked.get(name, name) if corrupted else name for name in dict.fromkeys(names)]


def _fitted(folder: RunFolder, names: list[str]) -> Evaluation:
    """The evaluation with the calibrators, or an error that says which cannot be fitted."""
    from gduq.runs.run import recalibrate

    found = recalibrate(folder, names).evaluation()
    for name in names:
        if name in found.settings["skipped"]:
            reason = found.settings["skipped"][name]
            raise InputError(f"calibrators that fit this run, not {name}", reason)
    return found


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
    """Measure a run: every split and calibrator; with -o or --json all measures, with intervals.

    Calibrators named by --method are fitted first and stay with the run. With --data the model is
    judged on other data; calibrators are then fitted on id_val, and nothing is kept.
    """
    check_there([run])
    _check_methods(run, method or [])
    if output is not None:
        check_output(output, (".json", ".md"))
        check_replaced(output, "evaluate", reads=[run / "metrics.json", source_of(run)])
    if data:
        request = Request.of({**locals(), "bundle": run}).check()
        files = files_of(data)
        request.check_labelled(files.values())
        if subgroups and files:
            raise InputError("--subgroups with a run, or the name of a dataset", ", ".join(data))
        if method and files and "id_val" not in files:
            raise InputError(f"--data id_val=FILE to fit {method[0]} on", ", ".join(data))
        from gduq.cli.answering import judge

        with status("Evaluating", as_json):
            found = judge(request, data[0], files, _calibrators(method or [], corrupted), subgroups)
    else:
        _no_bundle(run, f"Say what to judge it on: gduq evaluate {run} --data FILE.")
        from gduq.runs.folder import RunFolder
        from gduq.runs.run import evaluated

        folder = RunFolder(run)
        with status("Evaluating", as_json):
            found = _fitted(folder, _calibrators(method or [], corrupted))
            if subgroups:
                found = evaluated(folder, subgroups=True)
    for name, reason in found.settings.get("skipped", {}).items():
        typer.echo(f"Note: without {name}: {reason}", err=True)
    if output is not None:
        if output.suffix == ".json":
            found.to_json(output)
        else:
            write_text(output, f"{MARK}\n\n{found.to_markdown()}")
        typer.echo(f"Written to {output}")
    elif as_json:
        typer.echo(found.to_json(), nl=False)
    else:  # all of it is wider than any screen
        print_rows(told_of(found), as_json=False)
        if ranked := ranked_class(_class_names(run)):
            typer.echo(printable(ranked))
        typer.echo("Everything, with intervals: -o evaluation.md, or --json.")
