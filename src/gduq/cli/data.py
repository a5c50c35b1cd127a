"""``gduq data``: datasets by name."""

from __future__ import annotations

import typer

from gduq.cli.base import AsJson, app, print_rows

__all__ = ["data_app"]

data_app = typer.Typer(no_args_is_help=True, help="Datasets by name.")
app.add_typer(data_app, name="data")


@data_app.command("list")
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
