"""``gduq monitor``: whether rows that were answered are still like the training data."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gduq.cli.base import AsJson, Force, Text, app, echo, option, print_json, print_rows, takes
from gduq.cli.request import Request
from gduq.data.outputs import check_new
from gduq.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from gduq.data.table import Table
    from gduq.ood import Monitor, RiskMonitor

__all__ = ["monitor"]

_PICTURES = (".svg", ".png", ".pdf")
_TRUTH = "Column of true classes, or of a label's 0 and 1, in the files; empty: not known yet."
_TOLERATED = "With --truth: share of errors without alarm (default: validation's and 0.05)."
_MEANING = {
    "novelty": "rows are not like the training data",
    "errors": "more errors than tolerated",
}


@app.command()
@takes(Request, "bundle")
def monitor(
    request: Request,
    answers: Annotated[list[Path], typer.Argument(help="Files of `gduq predict`, oldest first.")],
    truth: Annotated[Text, option(_TRUTH)] = None,
    tolerated: Annotated[float | None, option(_TOLERATED)] = None,
    alpha: Annotated[float, option("Accepted probability of a false alarm.")] = 0.05,
    output: Annotated[Path | None, option("A picture, .svg.", "--output", "-o")] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Watch answers over time: are rows still like the training data, and answers still right?

    Compares the novelty of rows, in the order of the files, with that of the validation rows kept
    with the model. While nothing changes there is an alarm in at most --alpha of all streams,
    however long they are. With --truth the same for errors, of the rows whose truth is known.

    The exit code is 3 if there was an alarm.
    """
    check_new(output, force, _PICTURES, [request.bundle, *answers])
    from gduq.bundle import load_reference
    from gduq.data.table import read_table
    from gduq.ood import Monitor, RiskMonitor

    known, tables = load_reference(request.file), [read_table(path) for path in answers]
    if known is None or known.novelty is None:
        do = "Runs of `gduq train` have it; gduq.save(..., reference=p_val) keeps it."
        raise InputError("a model with the novelty of validation rows", request.bundle, do)
    if nodes := [table.path for table in tables if "node" in table.names]:
        raise InputError("answers about graphs", f"{nodes[0]}, which is about nodes")
    streams: dict[str, tuple[Monitor | RiskMonitor, Callable[[Table], pd.Series[float]]]]
    streams = {"novelty": (Monitor(known.novelty, alpha), _novelty)}
    if truth is not None:
        part = known.parts().get(truth, known.parts().get(""))
        correct = getattr(part, "correct", None)  # of classes and labels
        if correct is None:
            raise InputError("--truth of a model of classes, or the name of a label", truth)
        usual = min(0.99, 1.05 - float(correct.double().mean()))
        risk = RiskMonitor(usual if tolerated is None else tolerated, alpha)
        streams["errors"] = (risk, partial(_errors, truth=truth))
    rows, alarms = [dict[str, object](file=table.path.name) for table in tables], list[str]()
    curves = {name: list[float]() for name in streams}
    for name, (watch, read) in streams.items():
        for table, row in zip(tables, rows, strict=True):
            values, seen, rang = read(table), watch.rows, watch.alarm
            curves[name] += watch.update(values.tolist()).tolist()
            row |= {"rows" if name == "novelty" else "known": len(values), name: values.mean()}
            if name == "novelty":
                row["above 0.99"] = (values > 0.99).mean()
            row[f"log capital ({name})"] = watch.log_capital
            if watch.alarm_at is not None and not rang:
                where = f"row {values.index[watch.alarm_at - seen - 1]} of {table.path}"
                alarms.append(f"Alarm at {where}, after {watch.alarm_at} rows: {_MEANING[name]}.")
    if output is not None:
        _draw(curves, alpha, output)
    if as_json:
        print_json({"alarms": alarms, "files": rows})
    else:
        print_rows(rows)
        echo(
            "\n".join(alarms) or f"No alarm: one rings at a log capital of {-math.log(alpha):.3g}."
        )
    if alarms:
        raise typer.Exit(3)


def _novelty(table: Table) -> pd.Series[float]:
    """The novelty of all rows that have one."""
    import pandas as pd

    texts = table.column("novelty")
    try:
        return pd.to_numeric(texts[texts != ""]).dropna()
    except ValueError as error:
        raise InputError(f"numbers as the novelty in {table.path}", error) from None


def _errors(table: Table, truth: str) -> pd.Series[float]:
    """Whether the answers are wrong, of all rows whose truth is known."""
    columns = (name for name in (f"label_{truth}", "class", "label") if name in table.names)
    given, known = table.column(next(columns, "label")), table.column(truth).map(_comparable)
    classes = [name.removeprefix("prob_") for name in table.names if name.startswith("prob_")]
    classes = ["0", "1"] if given.name == f"label_{truth}" else classes
    known = known[known != ""]
    if odd := set(known) - set(map(_comparable, classes)):
        raise InputError(f"{', '.join(classes)} in column {truth!r} of {table.path}", min(odd))
    return (known != given.map(_comparable)[known.index]).astype(float)


def _comparable(text: str) -> str:
    """A class as it is compared: 1.0 is 1, and Active is active."""
    try:
        return f"{float(text):g}".replace("nan", "")
    except ValueError:
        return text.casefold()


def _draw(curves: Mapping[str, Sequence[float]], alpha: float, path: Path) -> None:
    """The logarithms of the capitals over the rows."""
    from matplotlib.figure import Figure

    from gduq._io import atomic_path

    figure = Figure(figsize=(6.4, 3.2), layout="constrained")
    axes = figure.subplots()
    for name, values in curves.items():
        axes.plot(range(1, len(values) + 1), values, label=name)
    axes.axhline(-math.log(alpha), color="gray", linestyle="--", label="alarm")
    axes.set(xlabel="rows", ylabel="log capital: evidence of a change")
    axes.legend(frameon=False)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format=path.suffix[1:])
