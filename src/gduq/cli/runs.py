"""``gduq train``, ``calibrate`` and ``evaluate``: runs on disk."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gduq.cli.base import AsJson, app, print_json, print_rows, status
from gduq.errors import InputError

if TYPE_CHECKING:
    from gduq.experiments.config import RunConfig
    from gduq.experiments.folder import RunFolder

__all__ = ["calibrate", "evaluate", "train"]

Run = Annotated[Path, typer.Argument(help="A run folder of `gduq train`.")]
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
    data: Annotated[str | None, typer.Option(help="Dataset, as in `gduq data list`.")] = None,
    method: Annotated[
        str | None, typer.Option(help="vanilla, anchored, ensemble or mcdropout.")
    ] = None,
    at: Annotated[str | None, typer.Option(help="Anchors: input, a layer number, readout.")] = None,
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

    given = {"data.name": data, "method.kind": method, "method.at": _number(at)}
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
    return int(text) if text is not None and text.isdecimal() else text


def _scores(folder: RunFolder) -> list[dict[str, Any]]:
    """One row a calibrator and split."""
    scores = {name: found for name, found in folder.scores.items() if name != "skipped"}
    return [
        {"calibrator": name, "split": split, **{m: values[m] for m in _MEASURES if m in values}}
        for name, splits in scores.items()
        for split, values in splits.items()
    ]


@app.command()
def calibrate(
    run: Run,
    method: Annotated[
        list[str] | None, typer.Option(help="Calibrator; repeat for several.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Also save the model with the (one) calibrator here."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Fit calibrators on a run's validation predictions; nothing is trained."""
    from gduq.experiments.folder import RunFolder
    from gduq.experiments.run import recalibrate

    names = method or ["temperature"]
    folder = RunFolder(run)
    with status("Calibrating", as_json):
        recalibrate(folder, names)
    skipped = folder.scores.get("skipped", {})
    refused = [name for name in names if name in skipped]
    if refused:
        raise InputError(f"calibrators that fit this run, not {refused[0]}", skipped[refused[0]])
    if output is not None:
        _export(folder, names, output)
    rows = [row for row in _scores(folder) if row["calibrator"] in ("none", *names)]
    print_rows(rows, as_json)


def _export(folder: RunFolder, names: list[str], output: Path) -> None:
    """The model of a run with a calibrator in one bundle, for `gduq predict` and `gduq.load`."""
    from gduq.bundle import describe, load, save
    from gduq.calibration import METHODS

    if len(names) > 1 or names[0] not in METHODS or METHODS[names[0]].needs_graph:
        raise InputError("one calibrator of single rows to save", ", ".join(names))
    model, _ = load(folder.bundle)
    predictions = folder.predictions()
    kind = METHODS[names[0]]
    options: dict[str, Any] = {"train": predictions["train"]} if kind.needs_features else {}
    fitted = kind(**options).fit(predictions["id_val"])
    save(model, output, fitted, describe(folder.bundle).class_names)


@app.command()
def evaluate(
    run: Run,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write to this .json or .md file instead.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show everything measured of a run: every split, with intervals."""
    from gduq.experiments.folder import RunFolder

    with status("Evaluating", as_json):
        found = RunFolder(run).evaluation()
    if output is None:
        typer.echo(found.to_json() if as_json else found.to_markdown(), nl=False)
        return
    from gduq.experiments.rowfiles import check_output

    check_output(output, (".json", ".md"))
    (found.to_json if output.suffix == ".json" else found.to_markdown)(output)
    typer.echo(f"Written to {output}")
