"""``gduq train``: from a file, a dataset or a config to a model with a verdict."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gduq.cli.base import (
    AsJson,
    TrustSource,
    app,
    echo,
    print_json,
    print_rows,
    resumable,
    status,
    summary_rows,
)
from gduq.errors import InputError

if TYPE_CHECKING:
    from gduq.report.verdict import Verdict
    from gduq.runs.config import RunConfig
    from gduq.runs.folder import RunFolder

__all__ = ["train"]

_RECIPES = ("head", "thawed", "paper")
_KINDS = ("vanilla", "anchored", "ensemble", "mcdropout", "heads", "laplace")
_METHODS: dict[str, dict[str, str]] = {
    "choose": {"kind": "choose"},
    "plain": {"kind": "vanilla"},
    **{recipe: {"kind": "anchored", "recipe": recipe} for recipe in _RECIPES},
    **{kind: {"kind": kind} for kind in _KINDS},
}
_SHOWN = 6  # names of targets and of classes
_ALONE = (
    "It has one hypothesis: epistemic is 0 in every row, and hypotheses never disagree. Novelty "
    "says what is unlike the training data; --set method.budget=1.5, or --method ensemble, lets "
    "more hypotheses compete."
)
_GO_ON = "The same command goes on from the last checkpoint"
_ENDING = (".csv", ".tsv", ".safetensors", ".toml")


def _option(text: str, *names: str) -> Any:
    return typer.Option(*names, help=text)


@app.command()
def train(
    source: Annotated[
        str | None,
        typer.Argument(
            help="Your data: a .csv or .tsv with SMILES, a .safetensors file of graphs, "
            "a TU folder, package.module:Name of a PyG dataset; or the name of a dataset; or a "
            "config (.toml); or a run folder, to train again with changes."
        ),
    ] = None,
    target: Annotated[
        list[str] | None, _option("Column to learn; repeat for several, or 'NR-*' for all such.")
    ] = None,
    unit: Annotated[
        list[str] | None, _option("Unit of each target (default: in [ ] or ( ) after its name).")
    ] = None,
    smiles: Annotated[
        str | None, _option("Column of SMILES (default: told by name or content).")
    ] = None,
    task: Annotated[
        str | None, _option("values, classes or labels, where the columns do not tell.")
    ] = None,
    by: Annotated[
        str | None,
        _option(
            "What the test differs in: scaffold (default for molecules), size (for other graphs), "
            "group=COLUMN, time=COLUMN, or random for no shift."
        ),
    ] = None,
    method: Annotated[
        str | None, _option(f"{', '.join(_METHODS)} (default for your own data: choose).")
    ] = None,
    recipe: Annotated[
        str | None, _option("Anchored: head (default), thawed (default with --at) or paper.")
    ] = None,
    at: Annotated[str | None, _option("Anchors: head, readout, input, a layer.")] = None,
    epochs: Annotated[int | None, _option("How long to train at most.")] = None,
    seed: Annotated[int | None, _option("Seed of everything that is random.")] = None,
    data: Annotated[str | None, _option("Dataset, as in `gduq data list`.")] = None,
    changes: Annotated[
        list[str] | None, _option("Change a value: --set training.epochs=50; repeat.", "--set")
    ] = None,
    root: Annotated[
        Path, _option("Folder of all runs; this one gets its own in it.", "--root", "-o")
    ] = Path("runs"),
    dry_run: Annotated[
        bool,
        _option("Show what would be read, cut and trained; write nothing.", "--dry-run"),
    ] = False,
    trust_source: TrustSource = False,
    as_json: AsJson = False,
) -> None:
    """Train a model on your data, judge it, and say how far to trust it.

    A validation set and a test that differs from training are cut automatically. Model, numbers
    and a report go to one folder, which is found by data and settings: asked again, nothing is
    repeated; interrupted, it goes on. Rows that cannot be read are listed and left out; the exit
    code is then 3.
    """
    with resumable(_GO_ON):
        wanted = _config(source, data, _changes(locals()), trust_source)
        if dry_run:
            _show_plan(wanted, as_json)
            return
        _check_root(root, wanted)
        if wanted.data.source is None:
            _train_named(wanted, root, as_json)
        else:
            _train_own(wanted, root, as_json)


# -- what is asked for: all of it is checked before anything heavy is imported ---------------------


def _changes(options: dict[str, Any]) -> dict[str, Any]:
    """The values of a config that options give; ``--set`` wins over all others."""
    method, at = options["method"], options["at"]
    if method is not None and method not in _METHODS:
        raise InputError(f"--method from {', '.join(_METHODS)}", repr(method))
    if at is not None and at.removeprefix("-").isdecimal():
        at = int(at)
    found = {f"method.{key}": value for key, value in _METHODS.get(method, {}).items()}
    own = {"targets": "target", "units": "unit", "smiles": "smiles", "task": "task", "by": "by"}
    given = {f"data.{key}": options[name] or None for key, name in own.items()}
    given |= {"method.recipe": options["recipe"], "method.at": at}
    given |= {"training.epochs": options["epochs"], "seed": options["seed"]}
    found |= {key: value for key, value in given.items() if value is not None}
    for change in options["changes"] or ():
        key, equals, text = change.partition("=")
        if not equals or not key:
            raise InputError("--set key=value", repr(change))
        try:
            found[key.strip()] = json.loads(text)
        except (ValueError, RecursionError):
            found[key.strip()] = text
    return found


def _config(
    source: str | None, data: str | None, changes: dict[str, Any], trusted: bool
) -> RunConfig:
    from gduq.runs.config import RunConfig

    if data is not None:
        changes["data.name"] = data
    if source is not None:
        if source.endswith(".toml"):
            return RunConfig.read(source, changes, trusted)
        if data is not None:
            raise InputError("one thing to train on", f"{source} and --data {data}")
        if (Path(source) / "config.json").is_file():
            return RunConfig.read(source, changes, trusted)
        changes["data.source" if _is_own(source) else "data.name"] = source
    if not {"data.name", "data.source"} & set(changes):
        wanted = "your data, the name of a dataset, or a config (.toml)"
        raise InputError(wanted, "none", "See gduq train --help.")
    return RunConfig.from_values({}, changes)


def _is_own(source: str) -> bool:
    from gduq.data.catalog import names
    from gduq.data.source import is_object

    if source in names() or source.startswith("tu/"):
        return False
    path = Path(source)
    if path.exists() or path.suffix in _ENDING or is_object(source):
        return True
    if "/" in source and not path.suffix:
        return False  # a slip in the name of a dataset; the near ones are told
    raise InputError("a file, a folder, the name of a dataset or a config", repr(source))


def _check_root(root: Path, config: RunConfig) -> None:
    """Nothing of the user's lies where the run is to go."""
    from gduq.data.outputs import check_outputs

    folder = root / config.folder_name
    for place in (root, folder):
        if place.exists() and not place.is_dir():
            raise InputError("a folder as --root", f"{place}, which is a file")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / "config.json").is_file():
        raise InputError("a new folder for the run", f"{folder}, which holds something else")
    if config.data.source is not None and not config.data.is_object:
        check_outputs({"--root": folder}, [Path(config.data.source)])


def _train_named(wanted: RunConfig, root: Path, as_json: bool) -> None:
    from gduq.runs.run import run

    folder = run(wanted, root, progress=not as_json)
    scores = summary_rows(folder.evaluation())
    if as_json:
        print_json({"run": folder.path, "hash": wanted.hash, "scores": scores})
        return
    typer.echo(f"{wanted.title}: {folder.path}")
    print_rows(scores)
    typer.echo(f"Next: gduq report {shlex.quote(str(folder.path))} -o report.html")


def _show_plan(wanted: RunConfig, as_json: bool) -> None:
    from gduq.runs.build import plan

    found = plan(wanted)
    if as_json:
        print_json(found)
        return
    echo(found.pop("description"))
    rejected = found.pop("rejected")
    for name, value in found.items():
        shown = ", ".join(map(str, value)) if isinstance(value, (tuple, list)) else value
        if name != "cut":
            echo(f"{name}: {shown}")
    for line in found["cut"]:
        echo(f"  {line}")
    for line in rejected[:_SHOWN]:
        echo(f"Left out: {line}")
    if len(rejected) > _SHOWN:
        echo(f"... and {len(rejected) - _SHOWN} more rows left out")


# -- data of one's own -----------------------------------------------------------------------------


def _train_own(wanted: RunConfig, root: Path, as_json: bool) -> None:
    """Read, train, judge, report, and say how far to trust it."""
    from gduq.runs.build import own_of
    from gduq.runs.run import prepare, run

    with status(f"Reading {wanted.data.name}", as_json):
        own = own_of(wanted)
    assert own is not None
    path = prepare(wanted, root)
    if not as_json:
        _describe(wanted, own, path)
    folder = run(wanted, root, progress=not as_json)
    with status("Writing the report", as_json):
        verdict, page = _report(folder)
    p = folder.predictions()["id_val"]
    scores, alone = summary_rows(folder.evaluation()), p.num_samples == 1 and not p.epistemic.any()
    if as_json:
        content = {"run": folder.path, "hash": wanted.hash, "kind": own.target.kind, "report": page}
        content |= {"rejected": len(own.rejects), "verdict": verdict.headline}
        print_json(content | {"one_hypothesis": bool(alone), "scores": scores})
    else:
        print_rows(scores)
        if len(names := own.splits.class_names) == 2:
            echo(f"roc_auc and average_precision are those of the class {names[1]!r}.")
        echo("")
        echo(verdict.headline)
        if verdict.advice is not None:
            echo(f"What to do: {verdict.advice.text}")
        if alone:
            echo(_ALONE)
        echo(f"Report: {page}\nNext:")
        for command in _next(folder, verdict, own.splits.train.task):
            echo(f"  {command}")
    if own.rejects:
        raise typer.Exit(3)


def _describe(wanted: RunConfig, own: Any, path: Path) -> None:
    """What is learned, what was left out, and how the rows are cut."""
    splits, names = own.splits, own.splits.target_names or ("y",)
    units = splits.units or ("",) * len(names)
    learned = [f"{n} [{u}]" if u else n for n, u in zip(names, units, strict=True)]
    classes = f" ({_first(splits.class_names)})" if splits.class_names else ""
    echo(f"{splits.description} To learn: {_first(learned)}, as {own.target.kind}{classes}.")
    if own.rejects:
        listed = path / "rejects.csv"
        echo(f"Note: left out, see {listed}; the first: {own.rejects[0][1]}", err=True)
    for line in own.cut:
        echo(f"  {line}")


def _first(names: Sequence[str]) -> str:
    more = f", ... ({len(names)} in all)" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}"


def _report(folder: RunFolder) -> tuple[Verdict, Path]:
    """The verdict, and the page in the run's folder."""
    from gduq.report import subjects_from_runs, write
    from gduq.report.verdict import verdict

    subjects = subjects_from_runs([folder])
    page = folder.path / "report.html"
    metrics = folder.path / "metrics.json"
    if not page.is_file() or page.stat().st_mtime < metrics.stat().st_mtime:
        command = f"gduq report {shlex.quote(str(folder.path))}{_trusted(folder)} -o report.html"
        write(subjects, page, reproduce=command)
    return verdict(subjects), page


def _next(folder: RunFolder, verdict: Verdict, rows: str) -> Iterable[str]:
    """What to type next."""
    from gduq.report.verdict import CALIBRATED

    model = run = shlex.quote(str(folder.path))
    if verdict.advice is not None and verdict.advice.action == "calibrate":
        model = CALIBRATED  # what the first command writes takes the place of the run
    new = "new.csv" if folder.config.data.smiles is not None else "new.safetensors"
    advised = verdict.advice.command if verdict.advice is not None else ""
    answers = rows == "graph" and not advised.startswith("gduq predict")
    predict = f"gduq predict {model} {new} -o answers.csv" if answers else ""
    report = f"gduq report {run}{_trusted(folder)} -o report.html"
    return [command for command in (advised, predict, report) if command]


def _trusted(folder: RunFolder) -> str:
    """What later commands on a run of a Python object must be told."""
    return " --trust-source" if folder.config.data.is_object else ""
