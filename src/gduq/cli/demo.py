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

from gduq.cli.base import Force, app, counted, echo, print_rows, status
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

    from gduq.report import write

    torch.set_num_threads(1)  # the graph is small: a second thread would only wait
    with status("Starting") as line:
        results, subjects = compare(seeds, epochs, notify=line.update)
        line.update("Writing the report")
        command, title = (
            f"gduq demo --seeds {seeds} --epochs {epochs}",
            "A network whose data shifts",
        )
        page = write(subjects, output / "report.html", title=title, reproduce=command)
    results.to_csv(output / "demo.csv", index=False)
    stages = means_by_stage(results)
    last, novelty = stages.loc["ood_test"], [f"{value:.2f}" for value in stages["novelty"]]
    sure = {who: f"{last[f'confidence_{who}']:.0%} sure and {last[f'accuracy_{who}']:.0%} right"
            for who in (PLAIN, OURS)}  # fmt: skip
    echo(
        "A network learns the role of nodes in a graph, mostly from their colours. Then colours "
        "go missing; at last (ood_test) they mislead. How sure is it, and how often is it right?\n"
    )
    print_rows(stages.round(2).reset_index().to_dict("records"))
    echo(
        f"\nWhere colours mislead, the network is {sure[PLAIN]}; with gduq it is {sure[OURS]}.\n\n"
        "Novelty is about 0.5 on data like the training data. While colours went missing it was "
        f"{', '.join(novelty[:-1])}. Where they mislead it is {novelty[-1]}: no alarm sees every "
        "shift.\n\nAll models where colours mislead (cost: trainings of one network):\n"
    )
    table = results[results["stage"] == "ood_test"].drop(columns=["seed", "stage"])
    table = table.groupby("model", sort=False).mean()
    table["cost"] = table["seconds"] / table.loc[PLAIN, "seconds"]
    shown = table[["accuracy", "ece", "nll", "cost"]].round(3).reset_index()
    print_rows(shown.to_dict("records"))
    echo(
        f"\nMeans over {counted(seeds, 'seed')}. gduq prepares for features that go missing, not "
        "for colours that mislead. How it does on real data: RESULTS.md.\n\n"
        f"Every run:           {output / 'demo.csv'}\nThe report (seed 0): {page.resolve()}"
    )


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
        One row per seed, model and stage: accuracy, ECE, NLL, mean confidence, mean novelty and
        training seconds; and the models of the first seed, for a report.
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
        views = {"id_val": splits.id_val, "id_test": (home := dict(splits)["id_test"])}
        views |= {f"missing colours={LEVELS[s]:g}": feature_mask(home, s) for s in _SEVERITIES}
        views["ood_test"] = dict(splits)["ood_test"]
        for name, model, spent in _models(splits, hidden, epochs, seed, notify):
            start = time.perf_counter()
            found = {stage: predict(model, view) for stage, view in views.items()}
            cost = {"train_seconds": spent, "predict_seconds": time.perf_counter() - start}
            for stage, p in list(found.items())[1:]:
                scores = {m: float(getattr(metrics, m)(p)) for m in ("accuracy", "ece", "nll")}
                scores["confidence"] = float(p.confidence.mean())
                scores["novelty"] = float("nan") if p.novelty is None else float(p.novelty.mean())
                row = {"seed": seed, "model": name, "stage": stage, "seconds": spent}
                rows.append(row | scores)
            if seed == 0:
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
        notify(f"seed {seed}: training network {member + 1} of 3")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1000 * member + seed)
            channels, classes = splits.train.graphs[0].x.size(1), len(splits.class_names)
            net = GNN(channels, hidden, classes, 3, conv="gcn", task="node", head="mlp")
        return net, trained(net, epochs=epochs, lr=3e-3, calibrate=None)

    net, spent = network(0)
    yield PLAIN, as_predictor(net), spent
    model = anchor(net, seed=seed)
    yield OURS, model, spent + trained(model)
    nets, more = zip(*(network(member) for member in (1, 2)), strict=True)
    together = Ensemble([net, *nets])
    yield "ensemble of 3", together, spent + sum(more) + trained(together, epochs=0)
    calibrating = trained(net, epochs=0)
    yield "plain, calibrated", as_predictor(net), spent + calibrating


def means_by_stage(results: pd.DataFrame) -> pd.DataFrame:
    """One row per stage, means over seeds: how often right, how sure, how unlike the training."""
    means = results.groupby(["model", "stage"], sort=False).mean()
    plain, ours = means.loc[PLAIN], means.loc[OURS]
    both = ["confidence", "accuracy"]
    joined = plain[both].join(ours[both], lsuffix="_plain", rsuffix="_gduq")
    return joined.assign(novelty=ours["novelty"])
