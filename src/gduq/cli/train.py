"""``gduq train``: from a file, a dataset or a config to a model with a verdict."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gduq.cli.base import AsJson, app, going_on_later, print_json, print_rows
from gduq.cli.completion import among, datasets
from gduq.cli.score_rows import scores_of
from gduq.cli.train_own import train_own
from gduq.errors import InputError

if TYPE_CHECKING:
    from gduq.runs.config import RunConfig

__all__ = ["train"]

_RECIPES = ("head", "thawed", "paper")
_KINDS = ("vanilla", "anchored", "ensemble", "mcdropout", "heads", "laplace")
_METHODS: dict[str, dict[str, str]] = {
    "choose": {"kind": "choose"},
    "plain": {"kind": "vanilla"},
    **{recipe: {"kind": "anchored", "recipe": recipe} for recipe in _RECIPES},
    **{kind: {"kind": kind} for kind in _KINDS},
}
_GO_ON = "The same command goes on from the last checkpoint"
_ENDING = (".csv", ".tsv", ".safetensors", ".toml")

Source = Annotated[
    str | None,
    typer.Argument(
        help="Your data: a .csv or .tsv with SMILES, a TU folder, a .safetensors file of graphs, "
        "package.module:Name of a PyG dataset; or the name of a dataset; or a config (.toml); or a "
        "run folder, to train again with changes."
    ),
]
Targets = Annotated[
    list[str] | None,
    typer.Option("--target", help="Column to learn; repeat for several, or 'NR-*' for all such."),
]
Units = Annotated[
    list[str] | None,
    typer.Option("--unit", help="Unit of each target (default: in [ ] or ( ) after its name)."),
]
Smiles = Annotated[
    str | None, typer.Option(help="Column of SMILES (default: told by name or content).")
]
Task = Annotated[
    str | None, typer.Option(help="values, classes or labels, where the columns do not tell.")
]
By = Annotated[
    str | None,
    typer.Option(
        help="What the test differs in: scaffold (default for molecules), size (for other graphs), "
        "group=COLUMN, time=COLUMN, or random for no shift."
    ),
]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", help="Change a value: --set training.epochs=50. Repeat as needed."),
]
Method = Annotated[
    str | None,
    typer.Option(
        help=f"{', '.join(_METHODS)} (default for your own data: choose).",
        autocompletion=among(_METHODS),
    ),
]


@app.command()
def train(
    source: Source = None,
    target: Targets = None,
    unit: Units = None,
    smiles: Smiles = None,
    task: Task = None,
    by: By = None,
    method: Method = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            help="Anchored: head (default), thawed (default with --at) or paper.",
            autocompletion=among(_RECIPES),
        ),
    ] = None,
    at: Annotated[str | None, typer.Option(help="Anchors: head, readout, input, a layer.")] = None,
    epochs: Annotated[int | None, typer.Option(help="How long to train at most.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of everything that is random.")] = None,
    data: Annotated[
        str | None,
        typer.Option(help="Dataset, as in `gduq data list`.", autocompletion=datasets),
    ] = None,
    changes: Changes = None,
    root: Annotated[
        Path, typer.Option("--root", "-o", help="Folder of all runs; this one gets its own in it.")
    ] = Path("runs"),
    logger: Annotated[
        str | None, typer.Option(help="Also log the epochs: csv or tensorboard.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train a model on your data, judge it, and say how far to trust it.

    A validation set and a test that differs from training are cut automatically. Model, numbers
    and a report go to one folder, which is found by data and settings: asked again, nothing is
    repeated; interrupted, it goes on. Rows that cannot be read are listed and left out; the exit
    code is then 3.
    """
    with going_on_later(_GO_ON):
        wanted = _config(source, data, _changes(locals()))
        _check_root(root, wanted)
        if wanted.data.source is None:
            _train_named(wanted, root, logger, as_json)
        else:
            train_own(wanted, root, logger, as_json)


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


def _config(source: str | None, data: str | None, changes: dict[str, Any]) -> RunConfig:
    from gduq.runs.config import RunConfig

    if data is not None:
        changes["data.name"] = data
    if source is not None:
        if source.endswith(".toml"):
            return RunConfig.from_toml(source, changes)
        if data is not None:
            raise InputError("one thing to train on", f"{source} and --data {data}")
        if (Path(source) / "config.json").is_file():
            return RunConfig.from_run(source, changes)
        changes["data.source" if _is_own(source) else "data.name"] = source
    if not {"data.name", "data.source"} & set(changes):
        wanted = "your data, the name of a dataset, or a config (.toml)"
        raise InputError(wanted, "none", "See gduq train --help.")
    return RunConfig.from_values({}, changes)


def _is_own(source: str) -> bool:
    from gduq.data.catalog import names
    from gduq.runs.source import is_object

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


def _train_named(wanted: RunConfig, root: Path, logger: str | None, as_json: bool) -> None:
    from gduq.runs.run import run

    folder = run(wanted, root, progress=not as_json, logger=logger)
    if as_json:
        print_json({"run": folder.path, "hash": wanted.hash, "scores": folder.scores})
        return
    typer.echo(f"{wanted.title}: {folder.path}")
    print_rows(scores_of(folder))
    typer.echo(f"Next: gduq report {shlex.quote(str(folder.path))} -o report.html")
