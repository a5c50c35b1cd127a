"""``gduq demo``: the whole road on generated data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gduq.cli.base import app

__all__ = ["demo"]


@app.command()
def demo(
    seeds: Annotated[int, typer.Option(min=1, help="Repetitions, each with other data.")] = 3,
    output: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("out"),
) -> None:
    """Train a plain network, an ensemble and G-ΔUQ on generated data; judge them under shift."""
    from rich.console import Console

    from gduq.experiments.demo import compare, summary, write

    console = Console()
    with console.status("Starting") as status:
        results = compare(seeds, notify=status.update)
    table = summary(results)
    console.print(
        f"CBAS, concept shift: colour tells the class in training and nothing in ood_test. "
        f"Means over {seeds} seeds; cost is training time relative to the vanilla network."
    )
    console.print(table.round(3).to_string())
    console.print(f"Every run: {write(results, output)}")
