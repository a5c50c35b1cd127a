"""``gduq demo``: a network is trained, wrapped by gduq, and then its data shifts.

The data is CBAS (coloured houses on a random graph), generated on the spot: in training a node's
colour mostly tells its class. Then colours go missing; at last they are there, but mislead.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from gduq.cli.base import Force, app, echo, option, print_rows, status
from gduq.data.outputs import check_new

if TYPE_CHECKING:
    import pandas as pd

    from gduq.report import Subject

__all__ = ["OURS", "PLAIN", "compare", "demo", "means_by_stage"]

PLAIN, OURS = "plain", "gduq"
_SEVERITIES = (1, 3, 5)


@app.command()
def demo(
    seeds: Annotated[int, option("Repetitions, each with other data.", min=1)] = 3,
    epochs: Annotated[int, option("Epochs of every training.", min=1)] = 300,
    output: Annotated[Path, option("Folder for the results.", "--output", "-o")] = Path("out"),
    force: Force = False,
) -> None:
    """Train a network, wrap it, and let its data shift: what it says, and what gduq says.

    Needs no data and less than a minute. Writes report.html and demo.csv.
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
        command = f"gduq demo --seeds {seeds} --epochs {epochs}"
        page = write(subjects, output / "report.html", "A network whose data shifts", command)
    results.to_csv(output / "demo.csv", index=False)
    stages = means_by_stage(results)
    last = stages.loc["ood_test"]
    sure = {who: f"{last[f'confidence_{who}']:.0%} sure and {last[f'accuracy_{who}']:.0%} right"
            for who in (PLAIN, OURS)}  # fmt: skip
    echo(
        "A network learns the role of nodes in a graph, mostly from their colours. Then colours go "
        "missing; at last (ood_test) they mislead. How sure is it, and how often is it right?\n"
    )
    print_rows(stages.round(2).reset_index().to_dict("records"))
    echo(
        f"\nWhere colours mislead, the network is {sure[PLAIN]}; with gduq it is {sure[OURS]}. "
        "Novelty is about 0.5 on data like the training data, and rises as colours go missing. "
        f"Where they mislead it is {last['novelty']:.2f}: no alarm sees every shift.\n\n"
        f"Means over {seeds} seed(s). How gduq and others do on real data: RESULTS.md.\n\n"
        f"Every run:           {output / 'demo.csv'}\nThe report (seed 0): {page.resolve()}"
    )


def compare(
    seeds: int = 3,
    epochs: int = 300,
    hidden: int = 64,
    root: Path | None = None,
    notify: Callable[[str], None] = lambda _: None,
) -> tuple[pd.DataFrame, list[Subject]]:
    """Train a network on every seed's data, wrap it, and measure both at every stage.

    Returns:
        One row per seed, model and stage: accuracy, mean confidence, mean novelty and training
        seconds; and the models of the first seed, for a report.
    """
    import pandas as pd
    import torch

    from gduq import anchor, fit, predict
    from gduq.data import load
    from gduq.evaluation import evaluate
    from gduq.models import as_predictor
    from gduq.nn import GNN
    from gduq.report import Subject
    from gduq.shifts import LEVELS, feature_mask

    rows, subjects = [], []
    for seed in range(seeds):
        notify(f"seed {seed}: training")
        splits = load("cbas/color/concept", root=root, seed=seed)
        train, val, given = splits.train, splits.id_val, dict(splits)
        views = {"id_val": val, "id_test": given["id_test"]}
        for s in _SEVERITIES:
            views[f"missing colours={LEVELS[s]:g}"] = feature_mask(given["id_test"], s)
        views["ood_test"] = given["ood_test"]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            channels, classes = train.graphs[0].x.size(1), len(splits.class_names)
            net = GNN(channels, hidden, classes, 3, conv="gcn", task="node", head="mlp")
        start = time.perf_counter()
        fit(net, train, val, epochs=epochs, lr=3e-3, calibrate=None, seed=seed, progress=False)
        seconds = {PLAIN: time.perf_counter() - start}
        ours = anchor(net, seed=seed)
        fit(ours, train, val, seed=seed, progress=False)
        seconds[OURS] = time.perf_counter() - start
        for name, model in ((PLAIN, as_predictor(net)), (OURS, ours)):
            found = {stage: predict(model, view) for stage, view in views.items()}
            for stage, p in list(found.items())[1:]:
                row = {"seed": seed, "model": name, "stage": stage, "seconds": seconds[name]}
                row["confidence"] = float(p.confidence.mean())
                row["accuracy"] = float(p.correct.double().mean())
                row["novelty"] = float("nan") if p.novelty is None else float(p.novelty.mean())
                rows.append(row)
            if seed == 0:
                cost, measured = {"train_seconds": seconds[name]}, evaluate(found, resamples=500)
                subjects.append(Subject(name, found, cost, splits=splits, evaluation=measured))
    return pd.DataFrame(rows), subjects


def means_by_stage(results: pd.DataFrame) -> pd.DataFrame:
    """One row per stage, means over seeds: how often right, how sure, how unlike the training."""
    means = results.groupby(["model", "stage"], sort=False).mean()
    plain, ours = means.loc[PLAIN], means.loc[OURS]
    both = ["confidence", "accuracy"]
    joined = plain[both].join(ours[both], lsuffix="_plain", rsuffix="_gduq")
    return joined.assign(novelty=ours["novelty"])
