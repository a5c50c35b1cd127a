"""Tables of numbers that are not from training: parameters, Gaussians of anchors, running times.

Each function makes the rows of one job, as `gduq_reproduction.scoring.work_rows` does for methods.
"""

from __future__ import annotations

import statistics
import timeit
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn
from torch_geometric.utils import scatter

import gduq
from gduq.calibration import TemperatureScaling
from gduq_reproduction.methods import Work

__all__ = ["gaussian_rows", "parameter_rows", "runtime_rows", "setting_rows", "size_rows",
           "split_rows"]  # fmt: skip

Row = dict[str, Any]
# Width of the features and number of outputs; SST2 has one logit.
_WIDTHS = {"cmnist": (3, 10), "motif-exact": (4, 3), "sst2": (768, 1), "cora": (8710, 70),
           "webkb": (1703, 5), "cbas": (4, 4)}  # fmt: skip
_ROW = {"method": "plain", "calibration": "none", "split": ""}
_EPOCHS = {"graph": 4, "node": 21}  # the first is a warm-up


def parameter_rows(work: Work, job: str) -> Iterator[Row]:
    """Counts of all variants, without any data; hidden layers of networks with a virtual node are
    counted without it too, as the paper does."""
    cell = work.cell
    sizes = _WIDTHS[cell.data.split("/")[0]]
    options: dict[str, Any] = {"positional": None, "dropout": 0.0, "degree": None}
    net = cell.network_of(*sizes, **options)
    bare = cell.network_of(*sizes, **options, virtual_node=False)
    models: dict[str, nn.Module] = {"plain": net, "NFA": _anchored(net, "input")}
    for layer in range(1, cell.num_layers) if cell.task == "graph" else ():
        models[f"L{layer}"] = _anchored(bare, layer)
        if cell.virtual_node:
            models[f"L{layer}, with the virtual node"] = _anchored(net, layer)
    if cell.task == "graph":
        models["readout"] = _anchored(net, "readout")
    for method, model in models.items():
        trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
        yield {**_ROW, "method": method, "parameters": trained}


def split_rows(work: Work, job: str) -> Iterator[Row]:
    """How many graphs or nodes each split has."""
    for name, view in work.splits:
        yield {**_ROW, "split": name, "count": len(view)}


def size_rows(work: Work, job: str) -> Iterator[Row]:
    """Shares of classes, numbers and mean sizes of all graphs, of small and of large ones."""
    views = dict(work.splits)
    small = [views[name] for name in ("train", "id_val", "id_test")]
    parts = {"all": list(views.values()), "smallest 50 %": small,
             "largest 10 %": [views["ood_test"]]}  # fmt: skip
    for split, part in parts.items():
        first = 100 * float(torch.cat([view.target == 0 for view in part]).double().mean())
        sizes = torch.cat([torch.tensor([g.num_nodes for g in view.graphs]) for view in part])
        numbers = {"% class A": first, "% class B": 100 - first, "# graphs": len(sizes)}
        yield {**_ROW, "split": split, **numbers, "mean size": float(sizes.double().mean())}


def setting_rows(work: Work, job: str) -> Iterator[Row]:
    """The published settings, as the cells have them."""
    cell = work.cell
    found = {"layers": cell.num_layers, "epochs": cell.epochs, "learning rate": cell.lr,
             "features": _WIDTHS[cell.data.split("/")[0]][0]}  # fmt: skip
    found |= (
        {"epochs": cell.epochs / 10} if cell.task == "node" else {"batch size": cell.batch_size}
    )
    yield {**_ROW, **found}


def _anchored(net: gduq.nn.GNN, at: int | str) -> nn.Module:
    return gduq.anchor(net, at=at, recipe="paper")


def gaussian_rows(work: Work, job: str) -> Iterator[Row]:
    """Smallest, largest, mean and deviation over dimensions of the means and of the deviations of
    features: of training nodes, or of means over training graphs, as the paper's figures have them
    (anchors of graph tasks are drawn from rows of nodes)."""
    view, parts = work.splits.train, list[Tensor]()
    for graph in view.batches():
        x = graph.x if graph.get("x") is not None else graph.pe
        x = x.to_dense() if x.layout != torch.strided else x
        parts.append(scatter(x, graph.batch, reduce="mean") if view.rows is None else x[view.rows])
    rows = torch.cat(parts).double()
    table = pd.DataFrame({"mu": rows.mean(dim=0), "std": rows.std(dim=0)})
    found = table.agg(["min", "max", "mean", "std"]).fillna(0.0)
    numbers = {f"{of}_{name}": found.loc[of, name] for name in table for of in found.index}
    yield {**_ROW, "split": "train", **numbers}


def runtime_rows(work: Work, job: str) -> Iterator[Row]:
    """Seconds of an epoch and of a prediction, every method beside the plain network in one
    process, and ratios to it."""
    test, val = work.splits.ood_test, work.views["id_val"]
    plain = work.cell.network(work.splits, 0)

    def measured(model: nn.Module) -> tuple[float, float]:
        options = {**work.cell.schedule, "epochs": _EPOCHS[work.cell.task]}
        history = gduq.fit(model, work.splits.train, val, **options, calibrate=None, progress=False)
        epoch = statistics.median(record["seconds"] for record in history.records[1:])
        return epoch, _fastest(lambda: gduq.predict(model, test, novelty=False))

    measured(plain)  # the machine is warm now
    epoch, predicting = first = measured(plain)
    p = gduq.predict(plain, val)
    fitting = _fastest(lambda: TemperatureScaling().fit(p))
    found = {
        ("plain", "none"): first,
        ("ensemble of 3", "none"): (3 * epoch, 3 * predicting),
        ("plain", "validation"): (epoch, predicting + fitting),
    }
    for method, at in (("L1", 1), ("L2", 2), ("readout", "readout"), ("pretrained", "readout")):
        freeze = method == "pretrained"
        model = gduq.anchor(plain, at=at, recipe="paper", freeze=freeze, like=work.like)
        found[method, "none"] = measured(model)
    for (method, calibration), (epoch, predicting) in found.items():
        row: Row = {"method": method, "calibration": calibration, "split": ""}
        row |= {"epoch_seconds": epoch, "predict_seconds": predicting}
        yield row | {"epoch_ratio": epoch / first[0], "predict_ratio": predicting / first[1]}


def _fastest(job: Callable[[], object]) -> float:
    return min(timeit.repeat(job, number=1, repeat=5))
