"""``gduq data``: datasets by name, and files of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

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

__all__ = ["data_app"]

data_app = typer.Typer(no_args_is_help=True, help="Datasets: list, prepare, describe, convert.")
app.add_typer(data_app, name="data")

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
    by: str | None = None,
    smiles: str | None = None,
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
        name: A dataset's name, or your own file or TU folder, which is cut as `gduq train` does.
        by: Own data: what the test differs in, as in `gduq train`: scaffold (default for
            molecules), size (for other graphs), group=COLUMN, time=COLUMN or random.
        smiles: Own table: the column of SMILES (default: told by name or content).
        plot: Draw histograms to this image file.
    """
    check_new(plot, force, reads=[Path(name)])
    from gduq.data.catalog import load
    from gduq.data.describe import compare
    from gduq.data.describe import plot as draw

    if Path(name).exists():
        from gduq.runs.config import RunConfig
        from gduq.runs.source_splits import own_data

        told = {"smiles": smiles, "targets": target or (), "task": task, "by": by}
        data = {"source": name, **told, "seed": seed, "limit": limit}
        splits = own_data(RunConfig(data=data).data).splits
    else:
        splits = load(name, root, seed, limit)
    if plot is not None:
        draw(splits, plot)
    rows = [row.as_dict() for row in compare(splits)]
    if not as_json:
        typer.echo(splits.description)
        typer.echo(", ".join(f"{split} {len(view)}" for split, view in splits))
    print_rows(rows, as_json)


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
