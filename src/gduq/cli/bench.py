"""``gduq bench``: the tables and figures of the paper, and the benchmark of molecules."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gduq.cli.base import AsJson, app, print_rows
from gduq.cli.completion import TABLES, among
from gduq.cli.replacing import check_replaced
from gduq.cli.stopping import going_on_later
from gduq.data.outputs import check_output
from gduq.errors import InputError

if TYPE_CHECKING:
    from gduq.paper.bench_result import BenchResult

__all__ = ["bench", "write_table"]

_FORMS = {".md": "markdown", ".tex": "latex", ".json": "json", ".csv": "csv"}


@app.command()
def bench(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A table; without one, all of them are listed.", autocompletion=among(TABLES)
        ),
    ] = None,
    scale: Annotated[
        str,
        typer.Option(
            help="smoke (a minute), small (an hour on two cores) or paper.",
            autocompletion=among(("smoke", "small", "paper")),
        ),
    ] = "smoke",
    root: Annotated[Path, typer.Option(help="Folder of all runs and tables.")] = Path("out/bench"),
    engine: Annotated[
        str, typer.Option(help="local or ray.", autocompletion=among(("local", "ray")))
    ] = "local",
    workers: Annotated[
        int | None, typer.Option(min=0, help="Processes (default: one a core); 0: in this one.")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="How many (default: as the scale has it).")
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="Of a Ray cluster; auto looks for one.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Also write the table: .md, .tex, .json or .csv."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a table of the paper anew, its printed figures beside ours, or that of molecules.

    What is finished is not repeated; what was interrupted goes on. Runs that fail are shown, the
    rest goes on, and the exit code is 3.
    """
    if name is None:
        print_rows(_listed(), as_json)
        return
    if output is not None:
        check_output(output, tuple(_FORMS))
        check_replaced(output, "bench")
    from gduq.paper.bench import bench as make

    options: dict[str, Any] = {"engine": engine, "workers": workers, "seeds": seeds}
    with going_on_later("The same command goes on with the runs that are missing"):
        result = make(name, scale, root, progress=not as_json, address=address, **options)  # type: ignore[arg-type]
    if output is not None:
        write_table(result, output)
    typer.echo(result.to_json() if as_json else result.to_markdown(), nl=False)
    if result.failures:
        typer.echo(f"Note: {len(result.failures)} run(s) failed; ask again to retry.", err=True)
        raise typer.Exit(3)


def _listed() -> list[dict[str, Any]]:
    from gduq.paper.specs import OWN
    from gduq.paper.tables import TABLES

    tables = [
        {"name": name, "row": "" if t.row is None else t.row, "shows": t.title}
        for name, t in TABLES.items()
    ]
    return [*tables, *({"name": name, "row": "", "shows": what} for name, what in OWN.items())]


def write_table(result: BenchResult, path: Path, form: str | None = None) -> Path:
    """Write a table in the format that is named, or that the file's name says."""
    form, given = form or _FORMS.get(path.suffix), form
    if form not in _FORMS.values():
        got = repr(given) if given else path.name
        known = ", ".join(_FORMS.values())
        raise InputError(f"a table as {known}", got, "Pages (html) are made of runs.")
    getattr(result, f"to_{form}")(path)
    return path
