"""``gduq demo``: the whole road on generated data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gduq.cli.base import app, counted

if TYPE_CHECKING:
    from rich.table import Table

    from gduq.runs.demo import Comparison

__all__ = ["demo"]


@app.command()
def demo(
    seeds: Annotated[int, typer.Option(min=1, help="Repetitions, each with other data.")] = 3,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs of every training.")] = 300,
    output: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("out"),
) -> None:
    """Train a network, wrap it, and let its data shift: what it says, and what gduq says.

    Needs no data and about a minute. Writes report.html and demo.csv.
    """
    import torch
    from rich.console import Console

    from gduq.runs.demo import compare, contenders, story, write

    torch.set_num_threads(1)  # the graph is small: a second thread would only wait
    console = Console(highlight=False)
    with console.status("Starting") as status:
        found = compare(seeds, epochs, notify=status.update)
        status.update("Writing the report")
        page = _report(found, output, f"gduq demo --seeds {seeds} --epochs {epochs}")
    told = story(found.results)
    console.print(
        "A network learns the role of nodes in a graph, mostly from their colours. Then colours "
        "go missing; at last they mislead. How sure is it, and how often is it right?"
    )
    console.print(_stages(told))
    console.print(f"{_sentence(told.loc['ood_test'])}\n\n{_novelty(told['novelty'])}\n")
    console.print("All models where colours mislead (cost: trainings of one network):\n")
    console.print(contenders(found.results).round(3).to_string())
    console.print(
        f"\nMeans over {counted(seeds, 'seed')}. gduq prepares for features that go missing, not "
        "for colours that mislead. How it does on real data: RESULTS.md.\n"
    )
    console.print(f"Every run:           {write(found.results, output)}", soft_wrap=True)
    console.print(f"The report (seed 0): {page.resolve()}", soft_wrap=True)


def _stages(told: Any) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("colours")
    for name in ("network\nsays", "is right", "with gduq\nsays", "is right", "novelty"):
        table.add_column(name, justify="right", vertical="bottom")
    for stage, row in told.iterrows():
        shares = [f"{row[f'{what}_{who}']:.0%}" for who in ("plain", "gduq")
                  for what in ("confidence", "accuracy")]  # fmt: skip
        table.add_row(_words(str(stage)), *shares, f"{row['novelty']:.2f}")
    return table


def _words(stage: str) -> str:
    if "=" in stage:
        return f"{float(stage.split('=')[1]):.0%} missing"
    return {"id_test": "as in training", "ood_test": "mislead"}[stage]


def _sentence(row: Any) -> str:
    return (
        f"Where colours mislead, the network {_gap(row['accuracy_plain'], row['confidence_plain'])}"
        f"; with gduq it {_gap(row['accuracy_gduq'], row['confidence_gduq'])}."
    )


def _gap(right: float, says: float) -> str:
    points = round(100 * says) - round(100 * right)
    verdict = f"{abs(points)} points too {'sure' if points > 0 else 'careful'}"
    return f"is {says:.0%} sure and {right:.0%} right ({verdict if points else 'as it should be'})"


def _novelty(novelty: Any) -> str:
    *first, last = (f"{value:.2f}" for value in novelty)
    return (
        "Novelty is about 0.5 on data like the training data. While colours went missing it was "
        f"{', '.join(first)}. Where they mislead it is {last}: no alarm sees every shift."
    )


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
    title = "A network whose data shifts"
    return write(subjects, output / "report.html", title=title, reproduce=command)
