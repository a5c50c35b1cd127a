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
    TrustSource,
    app,
    echo,
    option,
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
_METHOD = (
    "choose (default for your own data), plain, head, thawed, paper, anchored, ensemble, "
    "mcdropout, heads or laplace."
)
data_app = typer.Typer(no_args_is_help=True, help="Datasets by name.")
app.add_typer(data_app, name="data")


@app.command()
def train(
    source: Annotated[
        str,
        typer.Argument(
            help="Your data: a .csv or .tsv with SMILES, a .safetensors file of graphs, "
            "package.module:Name of a PyG dataset; or the name of a dataset; or a "
            "config (.toml); or a run folder, to train again with changes."
        ),
    ],
    target: Annotated[Texts, option("Column to learn; repeat, or 'NR-*' for all such.")] = None,
    unit: Annotated[
        Texts, option("Of each target (default: in [ ] or ( ) after its name).")
    ] = None,
    smiles: Annotated[Text, option("Column of SMILES (default: by name or content).")] = None,
    task: Annotated[Text, option("values, classes or labels, where columns do not tell.")] = None,
    by: Annotated[Text, option(_BY)] = None,
    method: Annotated[Text, option(_METHOD)] = None,
    at: Annotated[Text, option("Anchors: head, readout, input, a layer.")] = None,
    epochs: Annotated[int | None, option("How long to train at most.")] = None,
    seed: Annotated[int | None, option("Seed of everything that is random.")] = None,
    settings: Annotated[Texts, option("--set training.epochs=50; repeat.", "--set")] = None,
    root: Annotated[Path, option("Folder of all runs.", "--root", "-o")] = Path("runs"),
    dry_run: Annotated[bool, option("Only show what would be done.", "--dry-run")] = False,
    trust_source: TrustSource = False,
    as_json: AsJson = False,
) -> None:
    """Train a model on your data, judge it, and say how far to trust it.

    A validation set and a test that differs from training are cut automatically. Model, numbers
    and a report go to one folder, which is found by data and settings: asked again, nothing is
    repeated; interrupted, it goes on. Rows that cannot be read are listed and left out; the exit
    code is then 3.
    """
    given: dict[str, Any] = {"data.targets": target, "data.units": unit, "data.smiles": smiles}
    given |= {"data.task": task, "data.by": by, "training.epochs": epochs, "seed": seed}
    given |= {"method.at": None if at is None else _parsed(at), "method.kind": method}
    if method in ("head", "thawed", "paper"):
        given |= {"method.kind": "anchored", "method.recipe": method}
    elif method == "plain":
        given["method.kind"] = "vanilla"
    changes = {key: value for key, value in given.items() if value not in (None, [])}
    for text in settings or ():
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise InputError("--set key=value", repr(text))
        changes[key.strip()] = _parsed(value)
    with resumable("The same command goes on from the last checkpoint"):
        config = _config(source, changes, trust_source)
        from gduq.runs.build import plan
        from gduq.runs.run import run

        with status(f"Reading {config.data.name}", as_json):
            planned = plan(config)
        if not as_json:
            _show(planned)
        elif dry_run:
            print_json(planned)
        if not dry_run:
            folder = run(config, root, progress=not as_json)
            _conclude(folder, planned, as_json)


def _parsed(text: str) -> Any:
    """A value as JSON, or else as text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _config(source: str, changes: dict[str, Any], trusted: bool) -> RunConfig:
    from gduq.data.catalog import names
    from gduq.data.source import is_object
    from gduq.runs.config import RunConfig

    path = Path(source)
    if path.suffix == ".toml" or (path / "config.json").is_file():
        return RunConfig.read(source, changes, trusted)
    own = source not in names() and (path.exists() or path.suffix or is_object(source))
    return RunConfig.from_values({}, {"data.source" if own else "data.name": source} | changes)


def _show(plan: dict[str, Any]) -> None:
    """What is read, cut and trained, in lines."""
    echo(plan["description"])
    for name, value in plan.items():
        if name not in ("description", "cut", "rejected"):
            listed = list(map(str, value)) if isinstance(value, (tuple, list)) else [str(value)]
            more = f", ... ({len(listed)} in all)" if len(listed) > _SHOWN else ""
            echo(f"{name}: {', '.join(listed[:_SHOWN])}{more}")
    for line in plan["cut"]:
        echo(f"  {line}")
    for line in plan["rejected"][:_SHOWN]:
        echo(f"Left out: {line}")


def _conclude(folder: RunFolder, plan: dict[str, Any], as_json: bool) -> None:
    """The scores; of one's own data also a report, how far to trust it, and what to type next."""
    scores = summary_rows(folder.evaluation())
    found: dict[str, Any] = {"run": folder.path, "hash": folder.config.hash, "scores": scores}
    lines = [f"Next: gduq report {shlex.quote(str(folder.path))} -o report.html"]
    if folder.config.data.source is not None:
        from gduq.report import subjects_from_runs, write
        from gduq.report.verdict import verdict

        with status("Writing the report", as_json):
            subjects, page = subjects_from_runs([folder]), folder.path / "report.html"
            result = verdict(subjects)
            commands = next_commands(folder, result)
            measured = (folder.path / "metrics.json").stat().st_mtime
            if not page.is_file() or page.stat().st_mtime < measured:
                write(subjects, page, reproduce=commands[-1])
        p = folder.predictions()["id_val"]
        alone = p.num_samples == 1 and not p.epistemic.any()
        found |= {"kind": plan["task"], "report": page, "rejected": len(plan["rejected"])}
        found |= {"verdict": result.headline, "one_hypothesis": bool(alone)}
        lines = ["", result.headline]
        lines += [f"What to do: {result.advice.text}"] if result.advice is not None else []
        lines += [_ALONE] if alone else []
        lines += [f"Report: {page}", "Next:", *(f"  {command}" for command in commands)]
    if plan["rejected"]:
        lines.append(f"Left out: {len(plan['rejected'])}, see {folder.path / 'rejects.csv'}")
    if as_json:
        print_json(found)
    else:
        echo(f"{folder.config.title}: {folder.path}")
        print_rows(scores)
        echo("\n".join(lines))
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
    trusted = " --trust-source" if data.is_object else ""
    return [*found, f"gduq report {run}{trusted} -o report.html"]


@data_app.command("list")
def data_list(as_json: AsJson = False) -> None:
    """Show every dataset: name, size, task, shift, and where it comes from."""
    from gduq.data.catalog import find, names

    rows = [
        {"name": name, "size": family.rows, "task": family.task, "domain": family.domain,
         "target": f"{family.classes} classes" if family.classes else "value",
         "shift": name.rsplit("/", 1)[-1], "source": family.source}
        for name, family in ((name, find(name)) for name in names())
    ]  # fmt: skip
    print_rows(rows, as_json)
    if not as_json:
        echo("Any other name of the TU collection works as tu/<NAME>/size.")
