"""``gduq calibrate`` and ``evaluate``: runs on disk."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gduq.cli.base import AsJson, Force, Output, TrustSource, command, print_rows, say, status
from gduq.cli.completion import ALL_CALIBRATORS, among, check_calibrator, datasets
from gduq.cli.request import (
    Request,
    Told,
    bundle_file,
    check_there,
    files_of,
    source_of,
    trust_runs,
)
from gduq.cli.score_rows import ranked_class, told_of
from gduq.data.outputs import check_new
from gduq.disk import safetensors_metadata, write_text
from gduq.errors import InputError

if TYPE_CHECKING:
    from gduq.evaluation import Evaluation
    from gduq.runs.folder import RunFolder

__all__ = ["calibrate", "evaluate"]

_LISTED = 20  # rows left out that are told one by one
Methods = Annotated[
    list[str] | None,
    typer.Option(help="Calibrator; repeat for several.", autocompletion=among(ALL_CALIBRATORS)),
]
Corrupted = Annotated[
    bool, typer.Option("--corrupted", help="Fit it on shifted copies of the rows too.")
]


@command()
def calibrate(
    run: Path,
    method: Methods = None,
    corrupted: Corrupted = False,
    output: Output = None,
    force: Force = False,
    trust_source: TrustSource = False,
    as_json: AsJson = False,
) -> None:
    """Fit calibrators on a run's validation predictions; nothing is trained.

    Args:
        run: A run folder of `gduq train`.
        output: Also save the model with the (one) calibrator here.
    """
    _check(run, method)
    _no_bundle(
        run, "`gduq predict --calibrator NAME --calibration-data FILE` calibrates its answers."
    )
    check_new(output, force, reads=[run / "bundle", source_of(run)])
    trust_runs([run], trust_source)
    from gduq.runs.calibrated import export
    from gduq.runs.folder import RunFolder

    usual = {"values": "deviation", "labels": "per_label"}.get(Told.by(run).kind, "temperature")
    names, folder = _calibrators(method or [usual], corrupted), RunFolder(run)
    if output is not None and len(names) > 1:
        raise InputError("one --method to save with --output", ", ".join(names))
    with status("Calibrating", as_json):
        found = _fit(folder, names)
        if output is not None:
            export(folder, names[0], output)
    print_rows(told_of(found, names), as_json)
    if output is not None and not as_json:
        say(f"Written to {output}")


@command("bundle", "smiles", "target", "net", "call")
def evaluate(
    request: Request,
    data: Annotated[list[str] | None, typer.Option(autocompletion=datasets)] = None,
    method: Methods = None,
    corrupted: Corrupted = False,
    subgroups: bool = False,
    output: Output = None,
    force: Force = False,
    trust_source: TrustSource = False,
    as_json: AsJson = False,
) -> None:
    """Measure a run: every split and calibrator; with -o or --json all measures, with intervals.

    Calibrators named by --method are fitted first and stay with the run. With --data the model of a
    run or bundle is judged on other data; calibrators are then fitted on id_val, and nothing is
    kept. Rows that cannot be read are listed and left out; the exit code is then 3.

    Args:
        bundle: A run folder of `gduq train`; with --data also a bundle.
        data: Judge on this instead: a dataset's name, or a file of labelled graphs; split=FILE for
            several.
        subgroups: Also groups by degree, size, homophily, distance to training nodes.
        output: Write to this .json or .md file instead.
    """
    run = request.bundle
    _check(run, method)
    reads = [run / "metrics.json", source_of(run)]
    check_new(output, force, (".json", ".md"), reads)
    if data:
        found = _on_other_data(request, data, method or [], corrupted, subgroups, as_json)
    else:
        trust_runs([run], trust_source)
        _no_bundle(run, f"Say what to judge it on: gduq evaluate {run} --data FILE.")
        from gduq.runs.folder import RunFolder
        from gduq.runs.run import evaluated

        folder = RunFolder(run)
        with status("Evaluating", as_json):
            found = _fit(folder, _calibrators(method or [], corrupted))
            if subgroups:
                found = evaluated(folder, subgroups=True)
    for name, reason in found.settings.get("skipped", {}).items():
        say(f"Note: without {name}: {reason}", err=True)
    left_out = found.settings.get("rejected", ())
    for reason in left_out[:_LISTED]:
        say(f"Note: left out: {reason}", err=True)
    if len(left_out) > _LISTED:
        say(f"Note: {len(left_out)} rows left out; all of them: -o evaluation.json", err=True)
    if output is not None:
        if output.suffix == ".json":
            found.to_json(output)
        else:
            write_text(output, found.to_markdown())
        typer.echo(f"Written to {output}")
    elif as_json:
        typer.echo(found.to_json(), nl=False)
    else:  # all of it is wider than any screen
        from gduq.bundle import describe

        print_rows(told_of(found))
        names = describe(bundle_file(run)).class_names or ()  # labels and values have some too
        if found.settings.get("about", "classes") == "classes" and ranked_class(names):
            say(ranked_class(names))
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


def _check(run: Path, methods: list[str] | None) -> None:
    """Raise where there is no run, or for names that no calibrator for its model has."""
    check_there([run])
    for name in methods or ():
        check_calibrator(name, Told.by(run).kind)


def _no_bundle(path: Path, do: str) -> None:
    """Tell who hands over a bundle what to do with it."""
    if "document" in safetensors_metadata(path):
        raise InputError("a run folder of `gduq train`", f"{path}, which is a bundle", do)


def _calibrators(names: list[str], corrupted: bool) -> list[str]:
    """The names, those that can also learn from corrupted copies marked so if that is wished."""
    from gduq.calibration import method_name
    from gduq.evaluation.named_calibrators import VARIANTS

    names = [method_name(name) for name in names]
    marked = {name: variant for variant, name in VARIANTS.items()}
    if corrupted and not any(name in marked for name in names):
        raise InputError(f"--corrupted with --method {', '.join(marked)}", ", ".join(names))
    return [marked.get(name, name) if corrupted else name for name in dict.fromkeys(names)]


def _fit(folder: RunFolder, names: list[str]) -> Evaluation:
    """The evaluation with the calibrators, or an error that says which cannot be fitted."""
    from gduq.runs.run import recalibrate

    found = recalibrate(folder, names).evaluation()
    skipped = found.settings["skipped"]
    for name in names:
        if name in skipped:
            raise InputError(f"calibrators that fit this run, not {name}", skipped[name])
    return found
