"""``gduq train``: from a file, a dataset or a config to a model with a verdict; ``data list``."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gduq.cli.base import (
    AsJson,
    Text,
    Texts,
    app,
    echo,
    option,
    print_json,
    print_rows,
    status,
    summary_rows,
)
from gduq.errors import InputError

if TYPE_CHECKING:
    from gduq.report.verdict import Verdict
    from gduq.runs.config import RunConfig
    from gduq.runs.folder import RunFolder

__all__ = ["data_app", "train"]

_SHOWN = 6  # names of targets and classes, and rows left out
_ALONE = (
    "It has one hypothesis: epistemic is 0 in every row, and hypotheses never disagree. Novelty "
    "says what is unlike the training data; --set method.budget=1.5, or --method ensemble, lets "
    "more hypotheses compete."
)
_BY = (
    "What the test differs in: scaffold (default for molecules), size (for other graphs), "
    "group=COLUMN, time=COLUMN, or random for no shift."
)
_SOURCE = (
    "Your data: a table with SMILES (- for standard input), or a .safetensors file of graphs; or "
    "the name of a dataset; or a config (.toml); or a run folder, to train again with changes."
)
_METHOD = "choose (default), plain, head, thawed, paper, ensemble, heads or laplace."
data_app = typer.Typer(no_args_is_help=True, help="Datasets by name.")
app.add_typer(data_app, name="data")


@app.command()
def train(
    source: Annotated[str, typer.Argument(help=_SOURCE)],
    target: Annotated[Texts, option("Column to learn; repeat, or 'NR-*' for all such.")] = None,
    smiles: Annotated[Text, option("Column of SMILES (default: by name or content).")] = None,
    task: Annotated[Text, option("values, classes or labels, where columns do not tell.")] = None,
    by: Annotated[Text, option(_BY)] = None,
    method: Annotated[Text, option(_METHOD)] = None,
    epochs: Annotated[int | None, option("How long to train at most.")] = None,
    seed: Annotated[int | None, option("Seed of everything that is random.")] = None,
    settings: Annotated[Texts, option("--set training.epochs=50; repeat.", "--set")] = None,
    root: Annotated[Path, option("Folder of all runs.", "--root", "-o")] = Path("runs"),
    dry_run: Annotated[bool, option("Only show what would be done.", "--dry-run")] = False,
    as_json: AsJson = False,
) -> None:
    """Train a model on your data, judge it, and say how far to trust it.

    A validation set and a test that differs from training are cut automatically. Model, numbers
    and a report go to one folder, which is found by data and settings: asked again, nothing is
    repeated; interrupted, it goes on. Rows that cannot be read are listed and left out; the exit
    code is then 3.
    """
    given: dict[str, object] = {"data.targets": target, "data.smiles": smiles, "data.task": task}
    given |= {"data.by": by, "method.kind": method, "training.epochs": epochs, "seed": seed}
    changes = {key: value for key, value in given.items() if value not in (None, [])}
    for text in settings or ():
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise InputError("--set key=value", repr(text))
        changes[key.strip()] = _parsed(value)
    config = _config(source, changes)
    from gduq.runs.folder import plan
    from gduq.runs.run import run

    with status(f"Reading {config.data.name}", as_json):
        planned = plan(config)
    if not as_json:
        _show(planned)
    elif dry_run:
        print_json(planned)
    if not dry_run:
        _conclude(run(config, root, progress=not as_json), planned, as_json)


def _parsed(text: str) -> object:
    """A value as JSON, or else as text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _config(source: str, changes: dict[str, object]) -> RunConfig:
    from gduq.data.catalog import names
    from gduq.runs.config import RunConfig

    path = Path(source)
    if path.suffix == ".toml" or (path / "config.json").is_file():
        return RunConfig.read(source, changes)
    own = source not in names() and bool(source == "-" or path.exists() or path.suffix)
    return RunConfig.from_values({}, {"data.source" if own else "data.name": source} | changes)


def _show(plan: dict[str, Any]) -> None:
    """What is read, cut and trained, in lines."""
    for name, value in plan.items():
        listed = list(map(str, value)) if isinstance(value, (tuple, list)) else [str(value)]
        if name == "cut":
            echo("\n  ".join(["cut:", *listed]))
        elif value:
            more = f", ... ({len(listed)} in all)" if len(listed) > _SHOWN else ""
            echo(f"{name}: {', '.join(listed[:_SHOWN])}{more}")


def _conclude(folder: RunFolder, plan: dict[str, Any], as_json: bool) -> None:
    """The scores, a report, how far to trust the model, and what to type next."""
    from gduq.report import subjects_from_runs, write
    from gduq.report.verdict import verdict

    with status("Writing the report", as_json):
        scores, page = summary_rows(folder.evaluation()), folder.path / "report.html"
        subjects = subjects_from_runs([folder])
        result = verdict(subjects)
        commands = next_commands(folder, result)
        write(subjects, page, reproduce=commands[-1])
    p = folder.predictions()["id_val"]
    alone = p.num_samples == 1 and not p.epistemic.any()
    if as_json:
        found = {"run": folder.path, "hash": folder.config.hash, "scores": scores, "report": page}
        found |= {"kind": p.kind, "rejected": len(plan["rejected"]), "verdict": result.headline}
        print_json(found | {"one_hypothesis": bool(alone)})
    else:
        echo(f"{folder.config.title}: {folder.path}")
        print_rows(scores)
        echo(f"\n{result.headline}")
        if result.advice is not None:
            echo(f"What to do: {result.advice.text}")
        if alone:
            echo(_ALONE)
        echo("\n  ".join([f"Report: {page}\nNext:", *commands]))
        if plan["rejected"]:
            echo(f"Left out: {len(plan['rejected'])}, see {folder.path / 'rejects.csv'}")
    if plan["rejected"]:
        raise typer.Exit(3)


def next_commands(folder: RunFolder, verdict: Verdict) -> list[str]:
    """What to type next: what the verdict advises, a prediction, and a report at the end."""
    from gduq.report.verdict import CALIBRATED

    run, data, advice = shlex.quote(str(folder.path)), folder.config.data, verdict.advice
    found = [advice.command] if advice is not None and advice.command else []
    # what `calibrate` writes takes the place of the run
    model = CALIBRATED if advice is not None and advice.action == "calibrate" else run
    if folder.info["task"] == "graph" and not any("gduq predict" in text for text in found):
        new = "new.csv" if data.smiles is not None else "new.safetensors"
        found.append(f"gduq predict {model} {new} -o answers.csv")
    return [*found, f"gduq report {run} -o report.html"]


@data_app.command("list")
def data_list(as_json: AsJson = False) -> None:
    """Show every dataset: name, size, task, shift, and where it comes from.

    Any other name of the TU collection works as tu/<NAME>/size.
    """
    from gduq.data.catalog import find, names

    rows = [
        {"name": name, "size": family.rows, "task": family.task, "domain": family.domain,
         "target": f"{family.classes} classes" if family.classes else "value",
         "shift": name.rsplit("/", 1)[-1], "source": family.source}
        for name, family in ((name, find(name)) for name in names())
    ]  # fmt: skip
    print_rows(rows, as_json)
