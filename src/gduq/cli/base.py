"""What all commands share: the program itself, its options, its manners.

Nothing heavy is imported here or at the top of any command: ``gduq --help`` must answer at once.
"""

from __future__ import annotations

import errno
import inspect
import math
import shlex
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from gduq._io import to_json
from gduq.data.outputs import printable
from gduq.errors import REPRODUCTION, InputError

if TYPE_CHECKING:
    from gduq.evaluation import Evaluation

__all__ = [
    "AsJson",
    "Force",
    "Limit",
    "Natural",
    "Output",
    "Root",
    "Seed",
    "TrustSource",
    "app",
    "command",
    "counted",
    "echo",
    "print_json",
    "print_rows",
    "resumable",
    "status",
    "summary_rows",
    "takes",
]

_ORDER = ("demo", "train", "predict", "serve", "export", "calibrate", "evaluate", "report", "bench",
          "data", "points")  # fmt: skip


class _Group(TyperGroup):
    """Turns a user's mistake into one sentence, without a traceback."""

    _spoke = False

    def list_commands(self, ctx: Any) -> list[str]:
        """In the order of use."""
        return sorted(super().list_commands(ctx), key=lambda name: (*_ORDER, name).index(name))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command; that of a package which is not installed is named."""
        found = super().get_command(ctx, cmd_name)
        if found is None and cmd_name == "bench":
            raise InputError("the package gduq_reproduction for `gduq bench`", "none", REPRODUCTION)
        return found

    def main(self, *args: Any, **options: Any) -> Any:
        """Typer itself ends without a word where Ctrl-C comes before the command has begun."""
        self._spoke = False
        try:
            return super().main(*args, **options)
        except SystemExit as ended:
            if ended.code == 130 and not self._spoke:
                echo("Stopped.", err=True)
            raise

    def invoke(self, ctx: Any) -> Any:
        self._spoke = True
        try:
            return super().invoke(ctx)
        except InputError as error:
            message = str(error)
        except KeyboardInterrupt:
            echo("Stopped.", err=True)
            raise typer.Exit(130) from None
        except OSError as error:  # a disk that is full, a place nobody may write to
            if error.errno in (None, errno.EPIPE):
                raise
            where = f": {error.filename}" if error.filename else ""
            message = f"{error.strerror or error}{where}"
        echo(f"Error: {' '.join(message.split())}", err=True)
        raise typer.Exit(2)


def echo(text: str, err: bool = False) -> None:
    """Print a line in which names out of a user's file may stand."""
    typer.echo(printable(text), err=err)


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    echo(f"Warning: {message}", err=True)


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
Output = Annotated[Path, typer.Option("--output", "-o", help="File to write.")]
Force = Annotated[bool, typer.Option("--force", help="Replace a file that is there.")]
TrustSource = Annotated[
    bool,
    typer.Option(
        "--trust-source",
        help="Import the data that a stored config names as package.module:Name: it is code.",
    ),
]
Natural = Annotated[int, typer.Option(min=1)]


def command(of: typer.Typer = app, called: str | None = None) -> Callable[..., Any]:
    """Register a command of another package."""
    return of.command(called)


def takes(options: type, *names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let a command take the fields of a dataclass as options; its first argument is made of them.

    Args:
        options: The dataclass; annotations of its fields are those of Typer.
        names: The fields; all by default.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
        every = inspect.signature(options, eval_str=True).parameters.values()
        shared = [one for one in every if not names or one.name in names]

        def run(**given: Any) -> None:
            function(options(**{one.name: given.pop(one.name) for one in shared}), **given)

        merged = [one.replace(kind=one.KEYWORD_ONLY) for one in (*shared[:1], *own, *shared[1:])]
        run.__signature__ = inspect.Signature(merged)  # type: ignore[attr-defined]
        run.__doc__, run.__name__ = function.__doc__, function.__name__
        return run

    return decorate


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


def print_rows(rows: list[dict[str, Any]], as_json: bool = False) -> None:
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


def summary_rows(
    evaluation: Evaluation, calibrators: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """The few measures that say most: a row per split, calibrator and, of several, value.

    Of ``calibrators`` only these and none are shown; all without. Labels are shown together: one
    by one they are in the report.
    """
    from gduq.prediction import ClassPrediction, LabelPrediction, ValuePrediction

    shown = {c.kind: c.summary for c in (ClassPrediction, LabelPrediction, ValuePrediction)}
    names, table = shown[evaluation.settings.get("about", ClassPrediction.kind)], evaluation.table
    held = table[(table["kind"] == "metrics") & table["measure"].isin(names)]
    held = held[held["split"] != "train"]
    if calibrators is not None:
        held = held[held["calibrator"].isin(("none", *calibrators))]
    if (held["variant"] == "").any():
        held = held[held["variant"] == ""]
    several = [name for name in ("calibrator", "variant") if held[name].nunique() > 1]
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    for one in held.to_dict("records"):
        start = {"target" if n == "variant" else n: one[n] for n in ("split", *several)}
        key = (one["split"], one["calibrator"], one["variant"])
        rows.setdefault(key, start)[one["measure"]] = one["value"]
    return list(rows.values())


@contextmanager
def status(text: str, as_json: bool = False) -> Iterator[Any]:
    """A line that says what goes on, on a terminal only; its ``update`` changes the text."""
    if as_json or not sys.stderr.isatty():
        yield SimpleNamespace(update=lambda text: None)
        return
    from rich.console import Console

    with Console(stderr=True).status(text) as shown:
        yield shown


@contextmanager
def resumable(what: str) -> Iterator[None]:
    """End with one line on standard error where Ctrl-C or SIGTERM stops the block.

    Args:
        what: What the same command does when it is given again.
    """
    caught: list[int] = []

    def stop(number: int, _: Any) -> None:
        caught.append(number)
        raise KeyboardInterrupt

    in_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, stop) if in_main else None
    try:
        yield
    except KeyboardInterrupt:
        echo(f"Stopped. {what}: {shlex.join(['gduq', *sys.argv[1:]])}", err=True)
        raise typer.Exit(128 + (caught[0] if caught else signal.SIGINT)) from None
    finally:
        if in_main:
            signal.signal(signal.SIGTERM, before)
