"""``gduq demo``: a network is trained, wrapped by gduq, and then its data shifts.

The data is CBAS (coloured houses on a random graph), generated on the spot: in training a node's
colour mostly tells its class. Then colours go missing; at last they are there, but mislead.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gduq.cli.base import Force, app, counted, print_rows
from gduq.data.outputs import check_new

if TYPE_CHECKING:
    import pandas as pd

    from gduq.data import Splits
    from gduq.models.predictor import Predictor
    from gduq.report import Subject

__all__ = ["OURS", "PLAIN", "compare", "demo", "means_by_stage"]

PLAIN, OURS = "plain", "gduq"
_SEVERITIES = (1, 3, 5)


@app.command()
def demo(
    seeds: Annotated[int, typer.Option(min=1, help="Repetitions, each with other data.")] = 3,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs of every training.")] = 300,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the results.")] = Path(
        "out"
    ),
    force: Force = False,
) -> None:
    """Train a network, wrap it, and let its data shift: what it says, and what gduq says.

    Needs no data and about a minute. Writes report.html and demo.csv.
    """
    output.mkdir(parents=True, exist_ok=True)
    for name in ("report.html", "demo.csv"):
        check_new(output / name, force)
    import torch
    from rich.console import Console

    from gduq.report import write

    torch.set_num_threads(1)  # the graph is small: a second thread would only wait
    console = Console(highlight=False)
    with console.status("Starting") as line:
        results, subjects = compare(seeds, epochs, notify=line.update)
        line.update("Writing the report")
        command = f"gduq demo --seeds {seeds} --epochs {epochs}"
        title = "A network whose data shifts"
        page = write(subjects, output / "report.html", title=title, reproduce=command)
    results.to_csv(output / "demo.csv", index=False)
    stages = means_by_stage(results)
    console.print(
        "A network learns the role of nodes in a graph, mostly from their colours. Then colours "
        "go missing; at last they mislead. How sure is it, and how often is it right?\n"
    )
    print_rows([_row(str(stage), row) for stage, row in stages.iterrows()])
    last, novelty = stages.loc["ood_test"], [f"{value:.2f}" for value in stages["novelty"]]
    console.print(
        f"\nWhere colours mislead, the network {_gap(last, 'plain')}; with gduq it "
        f"{_gap(last, 'gduq')}.\n\nNovelty is about 0.5 on data like the training data. While "
        f"colours went missing it was {', '.join(novelty[:-1])}. Where they mislead it is "
        f"{novelty[-1]}: no alarm sees every shift.\n\n"
        "All models where colours mislead (cost: trainings of one network):\n"
    )
    table = results[results["stage"] == "ood_test"].drop(columns=["seed", "stage"])
    table = table.groupby("model", sort=False).mean()
    table["cost"] = table["seconds"] / table.loc[PLAIN, "seconds"]
    console.print(table[["accuracy", "ece", "nll", "cost"]].round(3).to_string())
    console.print(
        f"\nMeans over {counted(seeds, 'seed')}. gduq prepares for features that go missing, not "
        "for colours that mislead. How it does on real data: RESULTS.md.\n"
    )
    console.print(f"Every run:           {output / 'demo.csv'}", soft_wrap=True)
    console.print(f"The report (seed 0): {page.resolve()}", soft_wrap=True)


def _row(stage: str, row: Any) -> dict[str, str]:
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


def compare(
    seeds: int = 3,
    epochs: int = 300,
    hidden: int = 64,
    root: Path | None = None,
    notify: Callable[[str], None] = lambda _: None,
) -> tuple[pd.DataFrame, list[Subject]]:
    """Train the models on every seed's data and measure them at every stage.

    All have the same splits, epochs, learning rate and choice of weights (the best validation
    loss). All but the plain network end with a temperature, as `gduq.fit` has it.

    Returns:
        One row per seed, model and stage: accuracy, mean confidence, ECE, NLL, Brier score, mean
        novelty and training seconds; and the models of the first seed, for a report.
    """
    import pandas as pd

    from gduq import metrics
    from gduq.data import load
    from gduq.evaluation import evaluate
    from gduq.prediction import predict
    from gduq.report import Subject
    from gduq.shifts import LEVELS, feature_mask

    rows, subjects = [], []
    for seed in range(seeds):
        splits = load("cbas/color/concept", root=root, seed=seed)
        views = dict(splits)
        home = views["id_test"]
        stages = {"id_test": home}
        stages |= {f"missing colours={LEVELS[s]:g}": feature_mask(home, s) for s in _SEVERITIES}
        stages["ood_test"] = views["ood_test"]
        for name, model, spent in _models(splits, hidden, epochs, seed, notify):
            start = time.perf_counter()
            found = {stage: predict(model, view) for stage, view in stages.items()}
            cost = {"train_seconds": spent, "predict_seconds": time.perf_counter() - start}
            for stage, p in found.items():
                scores = {m: getattr(metrics, m)(p) for m in ("accuracy", "ece", "nll", "brier")}
                scores["confidence"] = float(p.confidence.mean())
                scores["novelty"] = float("nan") if p.novelty is None else float(p.novelty.mean())
                row = {"seed": seed, "model": name, "stage": stage, "seconds": spent}
                rows.append(row | {measure: float(value) for measure, value in scores.items()})
            if seed == 0:
                found = {"id_val": predict(model, splits.id_val), **found}
                measured = evaluate(found, resamples=500)
                subjects.append(Subject(name, found, cost=cost, splits=splits, evaluation=measured))
    return pd.DataFrame(rows), subjects


def _models(
    splits: Splits, hidden: int, epochs: int, seed: int, notify: Callable[[str], None]
) -> Iterator[tuple[str, Predictor, float]]:
    """All models of a seed with the seconds of their training; each has the same plain network."""
    import torch

    from gduq.anchoring import anchor
    from gduq.models import Ensemble, as_predictor
    from gduq.nn import GNN
    from gduq.training import fit

    def trained(model: torch.nn.Module, **options: Any) -> float:
        start = time.perf_counter()
        fit(model, splits.train, splits.id_val, seed=seed, progress=False, **options)
        return time.perf_counter() - start

    def network(member: int) -> tuple[GNN, float]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1000 * member + seed)
            channels, classes = splits.train.graphs[0].x.size(1), len(splits.class_names)
            net = GNN(channels, hidden, classes, 3, conv="gcn", task="node", head="mlp")
        return net, trained(net, epochs=epochs, lr=3e-3, calibrate=None)

    notify(f"seed {seed}: training a network")
    net, spent = network(0)
    yield PLAIN, as_predictor(net), spent
    notify(f"seed {seed}: gduq.anchor, gduq.fit")
    model = anchor(net, seed=seed)
    yield OURS, model, spent + trained(model)
    notify(f"seed {seed}: training two more networks for an ensemble")
    others = [network(member) for member in (1, 2)]
    together = Ensemble([net, *(other for other, _ in others)])
    cost = spent + sum(more for _, more in others)
    yield "ensemble of 3", together, cost + trained(together, epochs=0)
    more = trained(net, epochs=0)
    yield "plain, calibrated", as_predictor(net), spent + more


def means_by_stage(results: pd.DataFrame) -> pd.DataFrame:
    """One row per stage, means over seeds: how often right, how sure, how unlike the training."""
    means = results.groupby(["model", "stage"], sort=False).mean()
    plain, ours = means.loc[PLAIN], means.loc[OURS]
    return (
        plain[["accuracy", "confidence"]]
        .join(ours[["accuracy", "confidence"]], lsuffix="_plain", rsuffix="_gduq")
        .assign(novelty=ours["novelty"])
    )
