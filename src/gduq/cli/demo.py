"""``gduq demo``: the whole road on generated data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gduq.cli.base import app

if TYPE_CHECKING:
    from gduq.runs.demo import Comparison

__all__ = ["demo"]


@app.command()
def demo(
    seeds: Annotated[int, typer.Option(min=1, help="Repetitions, each with other data.")] = 3,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs of every training.")] = 300,
    output: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("out"),
) -> None:
    """Train a plain network, an ensemble and G-ΔUQ on generated data; judge them under shift.

    Needs no data and about a minute on two cores. Writes report.html and demo.csv.
    """
    import torch
    from rich.console import Console

    from gduq.runs.demo import compare, summary, write

    torch.set_num_threads(1)  # the graph is small: a second thread would only wait
    console = Console()
    with console.status("Starting") as status:
        found = compare(seeds, epochs, notify=status.update)
        status.update("Writing the report")
        page = _report(found, output, f"gduq demo --seeds {seeds} --epochs {epochs}")
    console.print(
        "CBAS, concept shift: colour tells the class in training and nothing in ood_test.\n"
        f"Means over {seeds} seeds; cost is training time relative to the plain network.\n"
    )
    console.print(summary(found.results).round(3).to_string())
    console.print(f"\nEvery run: {write(found.results, output)}")
    console.print(f"The report (seed 0): {page.resolve()}", soft_wrap=True)


def _report(found: Comparison, output: Path, command: str) -> Path:
    from gduq.evaluation import evaluate
    from gduq.report import Subject, write

    subjects = [
        Subject(
            name,
            said,
            cost=found.seconds[name],
            splits=found.splits,
            evaluation=evaluate(said, resamples=500),
        )
        for name, said in found.predictions.items()
    ]
    output.mkdir(parents=True, exist_ok=True)
    title = "CBAS under concept shift"
    return write(subjects, output / "report.html", title=title, reproduce=command)
