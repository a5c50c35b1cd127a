"""``gduq data``: datasets by name, and files of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from gduq.cli.base import (
    AsJson,
    Force,
    Limit,
    Root,
    Seed,
    app,
    command,
    counted,
    print_json,
    print_rows,
)
from gduq.cli.completion import datasets
from gduq.data.outputs import check_new
from gduq.errors import InputError

__all__ = ["data_app"]

data_app = typer.Typer(no_args_is_help=True, help="Datasets: list, prepare, describe, convert.")
app.add_typer(data_app, name="data")

_BY = ("size", "degree", "feature", "scaffold", "group", "time", "target", "class")
Targets = Annotated[list[str] | None, typer.Option("--target", help="Table: target column(s).")]
TableTask = Annotated[
    str | None, typer.Option(help="Table: what the targets are (classes, labels, values).")
]
Dataset = Annotated[str, typer.Argument(autocompletion=datasets)]


@command(of=data_app, called="list")
def data_list(as_json: AsJson = False) -> None:
    """Show every dataset: name, size, task, shift, and where it comes from."""
    from gduq.data.catalog import find, names

    rows = [
        {
            "name": name,
            "size": family.rows,
            "target": f"{family.classes} classes" if family.classes else "value",
            "task": family.task,
            "domain": family.domain,
            "shift": name.rsplit("/", 1)[-1],
            "source": family.source,
        }
        for name, family in ((name, find(name)) for name in names())
    ]
    print_rows(rows, as_json)
    if not as_json:
        typer.echo("Any other name of the TU collection works as tu/<NAME>/size.")


@command(of=data_app, called="prepare")
def data_prepare(
    name: Dataset, root: Root = None, seed: Seed = 0, limit: Limit = None, as_json: AsJson = False
) -> None:
    """Build the cache of a dataset ahead (and download its files if need be).

    Args:
        name: As in `gduq data list`.
    """
    from gduq.data.catalog import load

    splits = load(name, root, seed, limit)
    sizes = {split: len(view) for split, view in [*splits, *splits.severities.items()]}
    if as_json:
        print_json({"name": name, "splits": sizes, "sources": splits.sources})
        return
    shown = ", ".join(f"{split} {size}" for split, size in sizes.items())
    for line in (splits.description, shown, *(f"from {source}" for source in splits.sources)):
        typer.echo(line)


@command(of=data_app, called="describe")
def data_describe(
    name: Dataset,
    by: str = "size",
    attribute: str | None = None,
    test: list[str] | None = None,
    smiles: str = "smiles",
    target: Targets = None,
    task: TableTask = None,
    plot: Path | None = None,
    force: Force = False,
    root: Root = None,
    seed: Seed = 0,
    limit: Limit = None,
    as_json: AsJson = False,
) -> None:
    """Say what moved between train and each test split: size, degree, labels, features.

    Args:
        name: A dataset's name, or your own file or TU folder.
        by: Own data: what to cut by (size, degree, feature, scaffold, group, time, target, class).
        attribute: Own data: the attribute for --by feature (default: sum of x), group and time.
        test: Own data, --by group or class: what to leave out (default: the last).
        smiles: Own table: the column of SMILES.
        plot: Draw histograms to this image file.
    """
    if by not in _BY:
        raise InputError(f"--by from {', '.join(_BY)}", repr(by))
    check_new(plot, force, reads=[Path(name)])
    from gduq.data.catalog import limited, load
    from gduq.data.describe import compare
    from gduq.data.describe import plot as draw

    if Path(name).exists():
        from gduq.data.files import read

        graphs = read(name, smiles=smiles, targets=target or [], task=task)  # type: ignore[arg-type]
        splits = limited(_own_splits(graphs, by, attribute, test or [], seed), limit, seed)
    else:
        splits = load(name, root, seed, limit)
    if plot is not None:
        draw(splits, plot)
    rows = [row.as_dict() for row in compare(splits)]
    if not as_json:
        typer.echo(splits.description)
        typer.echo(", ".join(f"{split} {len(view)}" for split, view in splits))
    print_rows(rows, as_json)


def _own_splits(graphs: Any, by: str, attribute: str | None, test: list[str], seed: int) -> Any:
    from gduq import shifts

    if by in ("size", "degree", "scaffold"):
        return getattr(shifts, by)(graphs, seed=seed)
    if by == "feature":
        return shifts.feature(graphs, attribute, seed=seed)
    if by == "target":
        return shifts.target(graphs, seed=seed, task="graph")
    values = _values(graphs, "y" if by == "class" else attribute)
    if by == "time":
        return shifts.time(graphs, values, seed=seed, task="graph")
    known = {str(value): value for value in values}
    left_out = [known.get(text, text) for text in test] or [max(known.values())]
    if by == "class":
        return shifts.class_out(graphs, left_out, seed=seed, task="graph")
    return shifts.group(graphs, values, left_out, seed=seed, task="graph")


def _values(graphs: Any, attribute: str | None) -> list[Any]:
    """Per graph the value of an attribute that must be there."""
    if attribute is None:
        raise InputError("--attribute NAME with --by group or time", "none")
    found = []
    for graph in graphs:
        if attribute not in graph:
            raise InputError(f"graphs with an attribute {attribute!r}", f"only {graph.keys()}")
        value = graph[attribute]
        if not isinstance(value, str) and value.numel() != 1:
            raise InputError(f"one {attribute!r} per graph", f"shape {list(value.shape)}")
        found.append(value if isinstance(value, str) else value.item())
    return found


@command(of=data_app, called="convert")
def data_convert(
    source: str,
    target: str,
    smiles: str = "smiles",
    column: Targets = None,
    task: TableTask = None,
    rejects: str | None = None,
    max_rejects: float = 0.1,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write your own graphs as one safetensors file; unreadable rows are listed and left out.

    Args:
        source: A TU folder, or a .csv or .tsv with SMILES.
        target: The .safetensors file to write.
        smiles: Table: the column of SMILES.
        rejects: File for unreadable rows (default: TARGET.rejects.csv).
        max_rejects: Share of unreadable rows at which to stop.
    """
    check_new(Path(target).expanduser(), force, reads=[Path(source).expanduser()])
    from gduq.data.files import convert

    done = convert(
        source,
        target,
        smiles=smiles,
        targets=column or [],
        task=task,  # type: ignore[arg-type]
        rejects=rejects,
        max_rejects=max_rejects,
        overwrite=force,
    )
    if as_json:
        print_json(vars(done))
    else:
        typer.echo(f"{counted(done.graphs, 'graph')} written to {done.path}")
        if done.rejected:
            left = counted(done.rejected, "row")
            typer.echo(f"{left} left out, listed in {done.rejects}", err=True)
    if done.rejected:
        raise typer.Exit(3)
