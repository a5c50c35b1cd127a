"""``gduq bench``: the tables and figures of the paper, the comparison and molecules.

`pyproject.toml` points here: the entry point ``bench`` of the group ``gduq.commands``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from gduq.cli.base import app
from gduq.data.outputs import check_new
from gduq.errors import InputError

__all__ = ["bench"]


@app.command()
def bench(
    name: Annotated[str | None, typer.Argument()] = None,
    scale: str = "smoke",
    root: Path = Path("out/bench"),
    engine: str = "local",
    workers: Annotated[int | None, typer.Option(min=0)] = None,
    seeds: Annotated[int | None, typer.Option(min=1)] = None,
    chemprop: Path | None = None,
    only: str = "",
    output: Annotated[Path | None, typer.Option("--output", "-o")] = None,
    force: bool = False,
) -> None:
    """Make a table of the paper anew, its printed figures beside ours, or one of our own.

    What is finished is not repeated; what was interrupted goes on. Runs that fail are shown, the
    rest goes on, and the exit code is 3.

    Args:
        name: A table; without one, all of them are listed.
        scale: smoke (a minute), small (hours on two cores) or paper.
        root: Folder of all figures and tables.
        engine: local or ray; RAY_ADDRESS names a cluster.
        workers: Processes (default: one per core); 0: in this one.
        seeds: How many (default: as the scale has it).
        chemprop: Interpreter of an environment with Chemprop, for molecules.
        only: Do only runs whose title (cell, method, seed) has this regular expression.
        output: Also write the table (.md), or every figure (.csv).
        force: Replace a file that is there.
    """
    if output is not None:
        if output.suffix not in (".md", ".csv"):
            raise InputError("an output that ends in .md or .csv", output)
        check_new(output, force)
    from gduq_reproduction import bench as made
    from gduq_reproduction.tables import TABLES

    if name is None:
        for key, table in TABLES.items():
            typer.echo(f"{key:18}{table.title}")
        return
    options: Any = {"scale": scale, "engine": engine, "workers": workers, "chemprop": chemprop}
    try:
        result = made.bench(name, root=root, seeds=seeds, only=only, **options)
    except KeyboardInterrupt:
        typer.echo("Stopped. The same command goes on with the runs that are missing.", err=True)
        raise typer.Exit(130) from None
    if output is not None:
        result.write(output)
    typer.echo(result.to_markdown())
    if result.failures:
        typer.echo(f"Note: {len(result.failures)} run(s) failed; ask again to retry.", err=True)
        raise typer.Exit(3)
