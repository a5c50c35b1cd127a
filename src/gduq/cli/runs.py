"""``gduq train``, ``calibrate`` and ``evaluate``: runs on disk."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gduq.cli.base import AsJson, app, print_json, print_rows, status
from gduq.cli.completion import among, datasets
from gduq.cli.predict import Call, Network, Smiles, Target
from gduq.errors import InputError

if TYPE_CHECKING:
    from gduq.experiments.config import RunConfig
    from gduq.experiments.folder import RunFolder

__all__ = ["calibrate", "evaluate", "train"]

Run = Annotated[Path, typer.Argument(help="A run folder of `gduq train`.")]
_KINDS = ("vanilla", "anchored", "ensemble", "mcdropout", "heads", "laplace", "choose")
_MEASURES = ("accuracy", "ece", "nll", "brier", "auroc", "gep_error")


@app.command()
def train(
    config: Annotated[
        Path | None, typer.Argument(help="A TOML file; see docs/train.md. Options come on top.")
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change a value: --set training.epochs=50. Repeat as needed."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="Dataset, as in `gduq data list`.", autocompletion=datasets),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="vanilla, anchored, ensemble, mcdropout, heads, laplace or choose.",
            autocompletion=among(_KINDS),
        ),
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            help="Anchored: head (default), thawed (default with --at) or paper.",
            autocompletion=among(("head", "thawed", "paper")),
        ),
    ] = None,
    at: Annotated[str | None, typer.Option(help="Anchors: head, readout, input, a layer.")] = None,
    epochs: Annotated[int | None, typer.Option(help="How long to train.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of everything that is random.")] = None,
    root: Annotated[
        Path, typer.Option("--root", "-o", help="Folder of all runs; this one gets its own in it.")
    ] = Path("runs"),
    logger: Annotated[
        str | None, typer.Option(help="Also log the epochs: csv or tensorboard.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train one model, predict every split, measure; all of it in one folder.

    The folder is found by the config: asked again, nothing is repeated; interrupted, it goes on.
    """
    from gduq.experiments.run import run

    given: dict[str, Any] = {"data.name": data, "method.kind": method, "method.recipe": recipe}
    given |= {"method.at": _number(at)}
    given |= {"training.epochs": epochs, "seed": seed}
    values = {key: value for key, value in given.items() if value is not None}
    wanted = _config(config, {**values, **_parsed(changes or [])})
    folder = run(wanted, root, progress=not as_json, logger=logger)
    if as_json:
        print_json({"run": folder.path, "hash": wanted.hash, "scores": folder.scores})
        return
    typer.echo(f"{wanted.title}: {folder.path}")
    print_rows(_scores(folder), as_json=False)
    typer.echo(f"Next: gduq report {shlex.quote(str(folder.path))} -o report.html")


def _config(path: Path | None, changes: dict[str, Any]) -> RunConfig:
    from gduq.experiments.config import RunConfig

    if path is not None:
        return RunConfig.from_toml(path, changes)
    if "data.name" not in changes:
        raise InputError("a config file, or --data with the name of a dataset", "neither")
    bare = RunConfig(data={"name": changes["data.name"]})
    return bare.with_(changes)


def _parsed(changes: Iterable[str]) -> dict[str, Any]:
    """``key=value`` texts; values are read as JSON, else taken as text."""
    found = {}
    for change in changes:
        key, equals, text = change.partition("=")
        if not equals or not key:
            raise InputError("--set key=value", repr(change))
        try:
            found[key.strip()] = json.loads(text)
        except ValueError:
            found[key.strip()] = text
    return found


def _number(text: str | None) -> int | str | None:
    return int(text) if text is not None and text.removeprefix("-").isdecimal() else text


def _scores(folder: RunFolder) -> list[dict[str, Any]]:
    """One row per calibrator and split."""
    scores = {name: found for name, found in folder.scores.items() if name != "skipped"}
    return [
        {"calibrator": name, "split": split, **{m: values[m] for m in _MEASURES if m in values}}
        for name, splits in scores.items()
        for split, values in splits.items()
    ]


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
    from gduq.experiments.calibrated import export
    from gduq.experiments.folder import RunFolder

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
    rows = [row for row in _scores(folder) if row["calibrator"] in ("none", *names)]
    print_rows(rows, as_json)


def _no_bundle(path: Path, do: str) -> None:
    """Tell who hands over a bundle what to do with it."""
    if (path / "bundle.json").is_file() and not (path / "config.json").is_file():
        raise InputError("a run folder of `gduq train`", f"{path}, which is a bundle", do)


def _calibrators(names: list[str], corrupted: bool) -> list[str]:
    """The names, those that can also learn from corrupted copies marked so if that is wished."""
    from gduq.evaluation.copies import VARIANTS

    marked = {name: variant for variant, name in VARIANTS.items()}
    if corrupted and not any(name in marked for name in names):
        raise InputError(f"--corrupted with --method {', '.join(marked)}", ", ".join(names))
    return [marked.get(name, name) if corrupted else name for name in dict.fromkeys(names)]


def _fitted(folder: RunFolder, names: list[str]) -> None:
    """Scores of the calibrators in the folder, or an error that says which cannot be fitted."""
    from gduq.experiments.run import recalibrate

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
    smiles: Smiles = "smiles",
    target: Target = None,
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
    from gduq.experiments.folder import RunFolder
    from gduq.experiments.rowfiles import check_output
    from gduq.experiments.run import evaluated

    names = _calibrators(method or [], corrupted)
    if output is not None:
        check_output(output, (".json", ".md"))
    if data:
        from gduq.cli.judge import judge
        from gduq.cli.serve import Request

        with status("Evaluating", as_json):
            request = Request(run, smiles=smiles, target=target, net=net, call=call)
            found = judge(request, data, names, subgroups)
    else:
        _no_bundle(run, f"Say what to judge it on: gduq evaluate {run} --data FILE.")
        folder = RunFolder(run)
        with status("Evaluating", as_json):
            _fitted(folder, names)
            found = evaluated(folder, subgroups=True) if subgroups else folder.evaluation()
    for name, reason in found.settings.get("skipped", {}).items():
        typer.echo(f"Note: without {name}: {reason}", err=True)
    if output is None:
        typer.echo(found.to_json() if as_json else found.to_markdown(), nl=False)
        return
    (found.to_json if output.suffix == ".json" else found.to_markdown)(output)
    typer.echo(f"Written to {output}")
