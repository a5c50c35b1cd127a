"""What all commands share: the program, its options, how it prints and how it ends.

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
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer
from typer.core import TyperGroup

from gduq._io import to_json
from gduq.data.outputs import printable
from gduq.errors import InputError

if TYPE_CHECKING:
    from gduq.evaluation import Evaluation

__all__ = ["AsJson", "Force", "Methods", "Output", "Text", "Texts", "TrustSource", "app",
           "counted", "echo", "option", "print_json", "print_rows", "resumable", "status",
           "summary_rows", "takes"]  # fmt: skip


def option(text: str, *names: str, **more: Any) -> Any:
    """An option of a command, with its help."""
    return typer.Option(*names, help=text, **more)


Text: TypeAlias = str | None
Texts: TypeAlias = list[str] | None
AsJson = Annotated[bool, option("Print JSON for machines.", "--json")]
Output = Annotated[Path, option("File to write.", "--output", "-o")]
Force = Annotated[bool, option("Replace a file that is there.", "--force")]
_METHODS = "Calibrator; NAME+corrupted learns from shifted copies too. Repeat it."
Methods = Annotated[Texts, option(_METHODS)]
_TRUST = "Import the data that a stored config names as package.module:Name: it is code."
TrustSource = Annotated[bool, option(_TRUST, "--trust-source")]


class _Group(TyperGroup):
    """Turns a user's mistake into one sentence, without a traceback."""

    def invoke(self, ctx: Any) -> Any:
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


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich takes half of the time of --help to import
    help="Uncertainty people can trust for graph neural networks.",
    epilog="Exit codes: 0 done; 2 a mistake in what was asked; 3 done, but some inputs were left "
    "out (they are listed); 1 anything else.",
)


def _version(wanted: bool) -> None:
    if wanted:
        from gduq import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _setup(
    version: Annotated[
        bool, option("Show the version.", "--version", is_eager=True, callback=_version)
    ] = False,
) -> None:
    warnings.showwarning = lambda message, *_, **__: echo(f"Warning: {message}", err=True)
    # torch says so of every sparse matrix, and nobody can do anything about it
    warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")


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


# -- printing --------------------------------------------------------------------------------------


def echo(text: str, err: bool = False) -> None:
    """Print a line in which names out of a user's file may stand."""
    typer.echo(printable(text), err=err)


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


def print_rows(rows: Sequence[dict[str, Any]], as_json: bool = False) -> None:
    """A table for people, JSON for machines."""
    if as_json:
        print_json(rows)
        return
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [names, *([_cell(row.get(name)) for name in names] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        padded = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        typer.echo("  ".join(padded).rstrip())


def _cell(value: object) -> str:
    if isinstance(value, float):
        return "–" if math.isnan(value) else f"{value:.4g}"
    return "–" if value is None else printable(str(value))


def summary_rows(
    evaluation: Evaluation, calibrators: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """The few measures that say most: a row per split, calibrator and, of several, target.

    Of ``calibrators`` only these and none are shown; all without. Labels are shown together: one
    by one they are in the report.
    """
    from gduq.prediction import Prediction

    names = Prediction.of_kind(evaluation.settings.get("about", "classes")).summary
    table = evaluation.table.rename(columns={"variant": "target"})
    table = table[(table["kind"] == "metrics") & (table["split"] != "train")]
    table = table[table["measure"].isin(names)]
    if calibrators is not None:
        table = table[table["calibrator"].isin(("none", *calibrators))]
    if (table["target"] == "").any():
        table = table[table["target"] == ""]
    keys = ["split", *(key for key in ("calibrator", "target") if table[key].nunique() > 1)]
    return [
        dict(zip(keys, key, strict=True)) | dict(zip(part["measure"], part["value"], strict=True))
        for key, part in table.groupby(keys, sort=False)
    ]


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
