"""What all commands share: the program, its options, how it prints and how it ends.

Nothing heavy is imported here or at the top of any command: ``gduq --help`` must answer at once.
"""

from __future__ import annotations

import errno
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer
from typer.core import TyperGroup

from gduq._io import to_json
from gduq.data.outputs import printable
from gduq.errors import InputError

if TYPE_CHECKING:
    from rich.status import Status

    from gduq.evaluation import Evaluation

__all__ = ["AsJson", "Force", "Methods", "Output", "Text", "Texts", "app", "echo", "option",
           "print_json", "print_rows", "status", "summary_rows", "takes"]  # fmt: skip


def option(text: str, *names: str, **more: Any) -> Any:
    """An option of a command, with its help."""
    return typer.Option(*names, help=text, **more)


Text: TypeAlias = str | None
Texts: TypeAlias = list[str] | None
AsJson = Annotated[bool, option("Print JSON for machines.", "--json")]
Output = Annotated[Path, option("File to write.", "--output", "-o")]
Force = Annotated[bool, option("Replace a file that is there.", "--force")]
Methods = Annotated[Texts, option("Calibrator, or NAME+corrupted: with shifted copies; repeat.")]


class _Group(TyperGroup):
    """Turns a user's mistake into one sentence, without a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except InputError as error:
            message = str(error)
        except KeyboardInterrupt:
            trains = ctx.invoked_subcommand == "train"
            goes_on = " The same command goes on from the last checkpoint." if trains else ""
            echo(f"Stopped.{goes_on}", err=True)
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
    "out (they are listed), or a monitor rang; 1 anything else.",
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
    """Let a command take the fields of a dataclass with these names (default: all) as options; its
    first argument is made of them. Annotations of the fields are those of Typer."""

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


def print_json(content: object) -> None:
    """One JSON document on standard output; infinite numbers as strings, NaN as null."""
    typer.echo(to_json(content, None, str, str))


def print_rows(rows: Sequence[Mapping[str, object]], as_json: bool = False) -> None:
    """A table for people, JSON for machines."""
    if as_json:
        print_json(rows)
        return
    import pandas as pd

    table = pd.DataFrame(rows, dtype=object)
    echo(table.to_string(index=False, na_rep="–", float_format="{:.4g}".format))


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


def status(text: str, as_json: bool = False) -> Status:
    """A line that says what goes on, on a terminal only; its ``update`` changes the text."""
    from rich.console import Console

    return Console(stderr=True, quiet=as_json).status(text)
