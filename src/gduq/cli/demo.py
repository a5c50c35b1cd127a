"""``gduq demo``: the whole road on generated data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from gduq.cli.base import Force, Natural, command, counted, print_rows
from gduq.data.outputs import check_new

if TYPE_CHECKING:
    from gduq.runs.demo import Comparison

__all__ = ["demo"]


@command()
def demo(
    seeds: Natural = 3, epochs: Natural = 300, output: Path = Path("out"), force: Force = False
) -> None:
    """Train a network, wrap it, and let its data shift: what it says, and what gduq says.

    Needs no data and about a minute. Writes report.html and demo.csv.

    Args:
        seeds: Repetitions, each with other data.
        epochs: Epochs of every training.
        output: Folder for the results.
    """
    output.mkdir(parents=True, exist_ok=True)
    for name in ("report.html", "demo.csv"):
        check_new(output / name, force)
    import torch
    from rich.console import Console

    from gduq.runs.demo import compare, contenders, story, write

    torch.set_num_threads(1)  # the graph is small: a second thread would only wait
    console = Console(highlight=False)
    with console.status("Starting") as line:
        found = compare(seeds, epochs, notify=line.update)
        line.update("Writing the report")
        page = _report(found, output, f"gduq demo --seeds {seeds} --epochs {epochs}")
    told = story(found.results)
    console.print(
        "A network learns the role of nodes in a graph, mostly from their colours. Then colours "
        "go missing; at last they mislead. How sure is it, and how often is it right?\n"
    )
    print_rows([_stage(str(stage), row) for stage, row in told.iterrows()])
    last, novelty = told.loc["ood_test"], [f"{value:.2f}" for value in told["novelty"]]
    console.print(
        f"\nWhere colours mislead, the network {_gap(last, 'plain')}; with gduq it "
        f"{_gap(last, 'gduq')}.\n\nNovelty is about 0.5 on data like the training data. While "
        f"colours went missing it was {', '.join(novelty[:-1])}. Where they mislead it is "
        f"{novelty[-1]}: no alarm sees every shift.\n\n"
        "All models where colours mislead (cost: trainings of one network):\n"
    )
    console.print(contenders(found.results).round(3).to_string())
    console.print(
        f"\nMeans over {counted(seeds, 'seed')}. gduq prepares for features that go missing, not "
        "for colours that mislead. How it does on real data: RESULTS.md.\n"
    )
    console.print(f"Every run:           {write(found.results, output)}", soft_wrap=True)
    console.print(f"The report (seed 0): {page.resolve()}", soft_wrap=True)


def _stage(stage: str, row: Any) -> dict[str, str]:
    """A line of the table: what both say, and how often they are right."""
    words = {"id_test": "as in training", "ood_test": "mislead"}
    missing = stage.partition("=")[2]
    found = {"colours": f"{float(missing):.0%} missing" if missing else words[stage]}
    for who, name in (("plain", "network"), ("gduq", "with gduq")):
        found[f"{name} says"] = f"{row[f'confidence_{who}']:.0%}"
        found[f"{name} is right"] = f"{row[f'accuracy_{who}']:.0%}"
    return found | {"novelty": f"{row['novelty']:.2f}"}


def _gap(row: Any, who: str) -> str:
    says, right = row[f"confidence_{who}"], row[f"accuracy_{who}"]
    points = round(100 * says) - round(100 * right)
    verdict = f"{abs(points)} points too {'sure' if points > 0 else 'careful'}"
    return f"is {says:.0%} sure and {right:.0%} right ({verdict if points else 'as it should be'})"


def _report(found: Comparison, output: Path, command: str) -> Path:
    from gduq.evaluation import evaluate
    from gduq.report import Subject, write

    subjects = [
        Subject(name, said, cost=found.seconds[name], splits=found.splits,
                evaluation=evaluate(said, resamples=500))
        for name, said in found.predictions.items()
    ]  # fmt: skip
    title = "A network whose data shifts"
    return write(subjects, output / "report.html", title=title, reproduce=command)
