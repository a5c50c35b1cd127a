"""``gduq bench``: the tables and figures of the paper, and the benchmark of molecules."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from gduq.cli.base import AsJson, app, going_on_later, print_rows
from gduq.cli.completion import TABLES, among
from gduq.cli.replacing import check_replaced
from gduq.data.outputs import FORMATS, check_output

__all__ = ["bench"]

_FORMS = {ending: name for name, ending in FORMATS.items() if name != "html"}


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

    options: Any = {"engine": engine, "workers": workers, "seeds": seeds, "address": address}
    with going_on_later("The same command goes on with the runs that are missing"):
        result = make(name, scale, root, progress=not as_json, **options)  # type: ignore[arg-type]
    if output is not None:
        getattr(result, f"to_{_FORMS[output.suffix]}")(output)
    typer.echo(result.to_json() if as_json else result.to_markdown(), nl=False)
    if result.failures:
        typer.echo(f"Note: {len(result.failures)} run(s) failed; ask again to retry.", err=True)
        raise typer.Exit(3)


def _listed() -> list[dict[str, Any]]:
    from gduq.paper.specs import OWN
    from gduq.paper.tables import TABLES

    shown = {name: ("" if t.row is None else t.row, t.title) for name, t in TABLES.items()}
    shown |= {name: ("", what) for name, what in OWN.items()}
    return [{"name": name, "row": row, "shows": what} for name, (row, what) in shown.items()]
