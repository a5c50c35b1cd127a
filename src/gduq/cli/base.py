"""What all commands share: the program itself, its options, its manners.

Nothing heavy is imported here or at the top of any command: ``gduq --help`` must answer at once.
"""

from __future__ import annotations

import errno
import math
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from gduq.data.cells import printable
from gduq.disk import to_json
from gduq.errors import InputError

__all__ = [
    "AsJson",
    "Limit",
    "Root",
    "Seed",
    "app",
    "counted",
    "fail",
    "print_json",
    "print_rows",
    "status",
]


_ORDER = (
    "demo",
    "train",
    "predict",
    "serve",
    "export",
    "calibrate",
    "evaluate",
    "report",
    "bench",
    "data",
    "points",
)


class _Group(TyperGroup):
    """Turns a user's mistake into one sentence, without a traceback."""

    _spoke = False

    def list_commands(self, ctx: Any) -> list[str]:
        """In the order of use."""
        return sorted(super().list_commands(ctx), key=_ORDER.index)

    def main(self, *args: Any, **options: Any) -> Any:
        """Typer itself ends without a word where Ctrl-C comes before the command has begun."""
        self._spoke = False
        try:
            return super().main(*args, **options)
        except SystemExit as ended:
            if ended.code == 130 and not self._spoke:
                typer.echo("Stopped.", err=True)
            raise

    def invoke(self, ctx: Any) -> Any:
        self._spoke = True
        try:
            return super().invoke(ctx)
        except InputError as error:
            fail(str(error))
        except KeyboardInterrupt:
            typer.echo("Stopped.", err=True)
            raise typer.Exit(130) from None
        except OSError as error:  # a disk that is full, a place nobody may write to
            if error.errno in (None, errno.EPIPE):
                raise
            where = f": {error.filename}" if error.filename else ""
            fail(f"{error.strerror or error}{where}")


def fail(message: str, code: int = 2) -> None:
    """End the program with one sentence on standard error."""
    typer.echo(f"Error: {printable(' '.join(message.split()))}", err=True)
    raise typer.Exit(code) from None


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    typer.echo(f"Warning: {printable(str(message))}", err=True)


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich takes half of the time of --help to import
    help="Uncertainty people can trust for graph neural networks.",
    epilog="Exit codes: 0 done; 2 a mistake in what was asked; 3 done, but some inputs were left "
    "out (they are listed); 1 anything else.",
)

Root = Annotated[
    Path | None, typer.Option(help="Cache folder (default: GDUQ_CACHE or the user's cache).")
]
Seed = Annotated[int, typer.Option(help="Seed of everything that is random.")]
Limit = Annotated[int | None, typer.Option(help="Rows in all splits together (default: all).")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


def _version(wanted: bool) -> None:
    if wanted:
        from gduq import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _setup(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_version, help="Show the version.")
    ] = False,
) -> None:
    warnings.showwarning = _show_warning
    # torch says so of every sparse matrix, and nobody can do anything about it
    warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")


def counted(number: int, noun: str) -> str:
    """A number of things.

    Example:
        >>> counted(1, "row"), counted(2, "row")
        ('1 row', '2 rows')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


def print_json(content: Any) -> None:
    """One JSON document on standard output; infinite numbers as strings, NaN as null."""
    typer.echo(to_json(content, None, str, str))


def print_rows(rows: list[dict[str, Any]], as_json: bool) -> None:
    """A table for people, JSON for machines."""
    if as_json:
        print_json(rows)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    names = list(dict.fromkeys(name for row in rows for name in row))
    table = Table(*names, box=None, pad_edge=False)
    for row in rows:  # as Text: what is in brackets is no markup
        table.add_row(*(Text(_shown(row.get(name))) for name in names))
    console = Console()
    if not console.is_terminal:
        console = Console(width=200)  # a file or a pipe has no width to fit
    console.print(table)


def _shown(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else printable(str(value))


@contextmanager
def status(text: str, as_json: bool = False) -> Iterator[Any]:
    """A line that says what goes on, on a terminal only; its ``update`` changes the text."""
    if as_json or not sys.stderr.isatty():
        yield _Silent()
        return
    from rich.console import Console

    with Console(stderr=True).status(text) as shown:
        yield shown


class _Silent:
    """A status that nobody sees."""

    def update(self, text: str) -> None:
        """Nothing to see."""
