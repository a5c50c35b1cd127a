"""What the head route costs on every dataset at hand: predicting, fitting, choosing, Laplace."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import torch

import gduq
from gduq.errors import InputError
from gduq.training.fit_settings import FitSettings
from gduq.training.side_by_side import RowSet, train_heads
from timing import Row, at_most, medians

NODES = ("cbas/color/covariate", "webkb/university/covariate", "cora-ml/degree/covariate",
         "citeseer/degree/covariate", "coauthor-cs/degree/covariate")  # fmt: skip
GRAPHS = ("tu/MUTAG/size", "tu/PROTEINS/size", "tu/NCI1/size", "tu/NCI109/size")
EPOCHS = {"node": 200, "graph": 100}


def rows(repeats: int = 7) -> Iterator[Row]:
    """All rows, with one and with two threads, the worst dataset of each."""
    for threads in (1, 2):
        torch.set_num_threads(threads)
        found: dict[str, list[tuple[float, str]]] = {}
        for name in (*NODES, *GRAPHS):
            try:
                splits = gduq.data.load(name)
            except (InputError, OSError):  # not on this machine
                continue
            for what, ratio in _measured(splits, repeats).items():
                found.setdefault(what, []).append((ratio, name))
        for what, (bar, text) in BARS.items():
            each = sorted(found.get(what, []))
            if each:
                worst, where = each[-1]
                middle = each[len(each) // 2][0]
                label = f"{text} ({threads} thread{'s' * (threads > 1)})"
                note = f"worst of {len(each)} datasets: {where}; median {middle:.2f}"
                yield at_most(label, worst, bar, note)
                if what == "fit":
                    yield at_most(f"  the same, median dataset ({threads})", middle, 0.15)


BARS = {
    "predict": (1.1, "head, K = 10, prediction against the plain network"),
    "fit": (0.3, "head: whole fit (5 masks, calibration, novelty) against training the network"),
    "masks": (2.0, "five masks side by side against one"),
    "laplace": (1.5, "Laplace: fit and predict against a plain pass over the same data"),
    "choose": (1.2, "choose(budget=1.2), network's training included, against training it"),
}


def _measured(splits: gduq.data.Splits, repeats: int) -> dict[str, float]:
    task = splits.train.task
    graph = splits.train.graphs[0]
    classes = int(splits.train.target.max()) + 1
    conv = "gcn" if task == "node" else "gin"
    torch.manual_seed(0)
    net = gduq.nn.GNN(graph.x.size(1), 64, classes, 3, conv=conv, task=task, head="mlp")
    train, val, test = splits.train, splits.id_val, splits.ood_test
    assert val is not None
    assert test is not None
    start = time.perf_counter()
    gduq.fit(
        net, train, val, epochs=EPOCHS[task], weight_decay=1e-3, calibrate=None, progress=False
    )
    network = time.perf_counter() - start
    model = gduq.anchor(net)
    start = time.perf_counter()
    gduq.fit(model, train, val, progress=False)
    fit = time.perf_counter() - start
    start = time.perf_counter()
    gduq.choose(net, train, val, progress=False)
    chosen = time.perf_counter() - start
    batches = list(test.batches(256))
    net.eval()
    with torch.no_grad():
        seconds = medians(
            {
                "plain": lambda: [net(batch) for batch in batches],
                "head": lambda: [model.sample(batch) for batch in batches],
            },
            repeats,
        )
    return {
        "predict": seconds["head"] / seconds["plain"],
        "fit": fit / network,
        "masks": _masks(model, train, val, repeats),
        "laplace": _laplace(net, train, val, test, repeats),
        "choose": (network + chosen) / network,
    }


def _masks(model: gduq.Anchored, train: object, val: object, repeats: int) -> float:
    """Ten epochs of five heads against ten of one."""
    seen = gduq.predict(model, train, features=True, novelty=False)
    held = gduq.predict(model, val, features=True, novelty=False)
    assert seen.features is not None
    assert held.features is not None

    def run(count: int) -> None:
        job = model.head_job(seen.features)
        assert job is not None
        train_heads(
            replace(job, heads=job.heads[:count], masks=job.masks[:count]),
            RowSet(seen.features, seen.require_target()),
            RowSet(held.features, held.require_target()),
            model.target,
            FitSettings(epochs=10, given_batch_size=128),
        )

    seconds = medians({"one": lambda: run(1), "five": lambda: run(5)}, min(3, repeats))
    return seconds["five"] / seconds["one"]


def _laplace(
    net: gduq.nn.GNN,
    train: gduq.data.View,
    val: gduq.data.View,
    test: gduq.data.View,
    repeats: int,
) -> float:
    """Fitting to training and validation rows and predicting test rows, against a plain pass."""

    def laplace() -> None:
        model = gduq.LastLayerLaplace(net)
        gduq.fit(model, train, val, calibrate=None, progress=False)
        gduq.predict(model, test)

    def plain() -> None:
        for rows in (train, val, test):
            gduq.predict(net, rows)

    seconds = medians({"plain": plain, "laplace": laplace}, repeats)
    return seconds["laplace"] / seconds["plain"]


if __name__ == "__main__":
    for found in rows():
        print(f"{found['ratio']:8.3f} {found['bar']:9} {found['row']}  {found['note']}", flush=True)
