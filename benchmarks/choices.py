"""The search behind the defaults: which anchoring (and which plain network) is best on validation.

    python benchmarks/choices.py [--only NAME ...] [--seeds N] [--root out/choices] [--json FILE]

Every candidate of both sides is trained on the development cells with seeds that no table uses, and
judged on ``id_val`` and on corrupted copies of it; no shifted split is read. Plain networks get as
many candidates as anchored ones. The page docs/choices.md is written from what this prints.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gduq import metrics, shifts
from gduq.bundle import load
from gduq.data import View
from gduq.experiments import build
from gduq.experiments.config import RunConfig
from gduq.experiments.engines import map_cells
from gduq.experiments.folder import write_json
from gduq.experiments.run import run
from gduq.prediction import Prediction, predict

FIRST_SEED = 100  # tables use 0, 1, 2, ...
EDGES = ("edge_drop", "edge_rewire")
CORRUPTIONS = ("feature_noise", "feature_mask", *EDGES)
SEVERITY = 4

_GIN = {"conv": "gin", "hidden_channels": 64}
_GCN = {"conv": "gcn", "hidden_channels": 64}
CELLS: dict[str, dict[str, Any]] = {
    "tu/PROTEINS/size": {"model": _GIN, "training": {"epochs": 50, "batch_size": 64}},
    "motif-lpe/basis/covariate": {
        "limit": 2000, "model": {**_GIN, "positional": "laplacian"}, "training": {"epochs": 30},
    },
    "cbas/color/concept": {"model": _GCN, "training": {"epochs": 400, "lr": 3e-3}},
    "cbas/color/covariate": {"model": _GCN, "training": {"epochs": 400, "lr": 3e-3}},
    "webkb/university/covariate": {"model": _GCN, "training": {"epochs": 200}},
    "cora-ml/degree/covariate": {"model": _GCN, "training": {"epochs": 200}},
}  # fmt: skip

_PAPER = {"graph": "readout", "node": "input"}


def _anchored(at: Any, **training: Any) -> dict[str, Any]:
    head = training.pop("head", "linear")
    scope = training.pop("scope", "graph")
    return {
        "model": {"head": head},
        "method": {"kind": "anchored", "at": at, "scope": scope, "head": None},
        "training": {"draws": 1, "mask": 0.0, **training},
    }


CANDIDATES: dict[str, dict[str, Any]] = {
    "paper": _anchored(_PAPER, scope="row"),
    "readout mlp": _anchored("readout", head="mlp"),
    "readout mlp, mask .2": _anchored("readout", head="mlp", mask=0.2),
    "readout mlp, 4 draws, mask .2": _anchored("readout", head="mlp", draws=4, mask=0.2),
    "readout mlp, 4 draws, mask .1": _anchored("readout", head="mlp", draws=4, mask=0.1),
    "readout mlp, 10 draws, mask .1": _anchored("readout", head="mlp", draws=10, mask=0.1),
    "readout mlp, rows, 10 draws, mask .2": _anchored(
        "readout", head="mlp", scope=None, draws=10, mask=0.2
    ),
    "layer 2, 4 draws, mask .1": _anchored(2, draws=4, mask=0.1),
    "input, 4 draws, mask .1": _anchored("input", draws=4, mask=0.1),
    **{
        f"plain, {head} head, dropout {dropout}, decay {decay:g}": {
            "model": {"head": head, "dropout": dropout},
            "method": {"kind": "vanilla"},
            "training": {"weight_decay": decay},
        }
        for head, dropout, decay in (
            *itertools.product(("linear", "mlp"), (0.5, 0.2), (0.0, 1e-3)),
            ("linear", 0.5, 1e-4),
        )
    },
}


def config(cell: str, candidate: str, seed: int) -> RunConfig:
    """The run of a candidate on a development cell."""
    base, own = CELLS[cell], CANDIDATES[candidate]
    task = "graph" if cell.startswith(("tu/", "motif", "cmnist")) else "node"
    method = dict(own["method"])
    if isinstance(method.get("at"), Mapping):
        method["at"] = method["at"][task]
    return RunConfig(
        data={"name": cell, "limit": base.get("limit")},
        model={**base["model"], **own["model"]},
        method=method,
        training={"select": "last", **base["training"], **own["training"]},
        calibrators=(),
        seed=seed,
    )


class Judge:
    """Trains one candidate and measures it on validation data, once."""

    def __init__(self, root: str) -> None:
        self.root = root

    def __call__(self, what: tuple[str, str, int]) -> dict[str, Any]:
        folder = run(config(*what), self.root, progress=False, evaluate=False)
        kept = folder.path / "validation.json"
        if not kept.is_file():
            write_json(kept, self._measured(folder))
        found: dict[str, Any] = json.loads(kept.read_text())
        return found

    def _measured(self, folder: Any) -> dict[str, Any]:
        view = build.splits_of(folder.config).id_val
        model, _ = load(folder.bundle)
        scores = {"clean": _scores(predict(model, view))}
        has_features = view.graphs[0].get("x") is not None
        for name in CORRUPTIONS if has_features else EDGES:
            scores[name] = _scores(predict(model, _corrupted(view, name)))
        return {"scores": scores, "seconds": folder.info["seconds"]}


def _corrupted(view: View, name: str) -> View:
    change = getattr(shifts, name)
    changed: View = change(view, SEVERITY, seed=0)
    return changed


def _scores(p: Prediction) -> dict[str, float]:
    mixed = p.with_samples(p.samples.softmax(-1).mean(0, keepdim=True).log())
    return {
        "accuracy": metrics.accuracy(p),
        "ece": metrics.ece(p, strict=False),
        "nll": metrics.nll(p),
        "ece_mixed": metrics.ece(mixed, strict=False),
        "nll_mixed": metrics.nll(mixed),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=list(CANDIDATES), metavar="NAME")
    parser.add_argument("--cells", nargs="+", default=list(CELLS), metavar="NAME")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--root", default="out/choices")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    seeds = range(FIRST_SEED, FIRST_SEED + options.seeds)
    names = [n for n in CANDIDATES if any(n == o for o in options.only)]
    todo = [(cell, name, seed) for seed in seeds for name in names for cell in options.cells]
    outcomes = map_cells(
        todo, Judge(options.root), title="choices", name=lambda w: f"{w[0]} {w[1]} {w[2]}"
    )
    records = []
    for outcome in outcomes:
        cell, candidate, seed = outcome.cell
        if outcome.value is None:
            print(outcome.error)
            continue
        records.append({"cell": cell, "candidate": candidate, "seed": seed, **outcome.value})
    if options.json:
        options.json.write_text(json.dumps(records, indent=1) + "\n")
    print(table(records))


def table(records: list[dict[str, Any]]) -> str:
    """A row a candidate: means over cells and seeds, on clean and on corrupted validation data."""
    lines = [
        "| candidate | accuracy | ECE | NLL | accuracy, corrupted | ECE, corrupted "
        "| NLL, corrupted | NLL of mean probabilities, corrupted |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(r["candidate"] for r in records):
        own = [r for r in records if r["candidate"] == name]
        clean = [_mean(own, m, ("clean",)) for m in ("accuracy", "ece", "nll")]
        shifted = [_mean(own, m, CORRUPTIONS) for m in ("accuracy", "ece", "nll", "nll_mixed")]
        figures = " | ".join(f"{v:.3f}" for v in (*clean, *shifted))
        lines.append(f"| {name} | {figures} |")
    return "\n".join(lines)


def _mean(records: list[dict[str, Any]], metric: str, on: tuple[str, ...]) -> float:
    return statistics.fmean(
        statistics.fmean(r["scores"][where][metric] for where in on if where in r["scores"])
        for r in records
    )


if __name__ == "__main__":
    main()
