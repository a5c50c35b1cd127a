"""``gduq bench``: the tables and figures of the paper, and the benchmark of molecules.

`pyproject.toml` points here: the entry point ``bench`` of the group ``gduq.commands``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from gduq.cli.base import AsJson, Force, Output, command, going_on_later, print_rows
from gduq.cli.completion import among
from gduq.data.outputs import FORMATS, check_new

__all__ = ["bench"]

_SCALES = ("smoke", "small", "paper")
_FORMS = {ending: name for name, ending in FORMATS.items() if name != "html"}


@command()
def bench(
    name: Annotated[str | None, typer.Argument()] = None,
    scale: Annotated[str, typer.Option(autocompletion=among(_SCALES))] = "smoke",
    root: Path = Path("out/bench"),
    engine: Annotated[str, typer.Option(autocompletion=among(("local", "ray")))] = "local",
    workers: Annotated[int | None, typer.Option(min=0)] = None,
    seeds: Annotated[int | None, typer.Option(min=1)] = None,
    address: str | None = None,
    output: Output = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Make a table of the paper anew, its printed figures beside ours, or that of molecules.

    What is finished is not repeated; what was interrupted goes on. Runs that fail are shown, the
    rest goes on, and the exit code is 3.

    Args:
        name: A table; without one, all of them are listed.
        scale: smoke (a minute), small (an hour on two cores) or paper.
        root: Folder of all runs and tables.
        engine: local or ray.
        workers: Processes (default: one per core); 0: in this one.
        seeds: How many (default: as the scale has it).
        address: Of a Ray cluster; auto looks for one.
        output: Also write the table: .md, .tex, .json or .csv.
    """
    if name is None:
        print_rows(_listed(), as_json)
        return
    check_new(output, force, tuple(_FORMS))
    from gduq_reproduction.bench import bench as make

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
    from gduq_reproduction.specs import OWN
    from gduq_reproduction.tables import TABLES

    shown = {name: ("" if t.row is None else t.row, t.title) for name, t in TABLES.items()}
    shown |= {name: ("", what) for name, what in OWN.items()}
    return [{"name": name, "row": row, "shows": what} for name, (row, what) in shown.items()]
