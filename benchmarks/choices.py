"""The search behind the defaults: which anchoring (and which plain network) is best on validation.

    python benchmarks/choices.py [--only NAME ...] [--cells NAME ...] [--seeds N] [--root FOLDER]

Every candidate of both sides is trained on the development cells, with the schedules of the tables
at small scale and seeds that no table uses, and judged on ``id_val`` and under a stand-in for shift
that is made of the same rows: corrupted copies, or the largest of the *training* graphs, left out
of training (cells "... by size"). No shifted split is read. Then: how long to train an anchored
head on a finished network. The page docs/choices.md is written from what this prints.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import statistics
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gduq import metrics
from gduq.data import Splits, View
from gduq.evaluation.copies import changes_of
from gduq.experiments import build
from gduq.experiments.config import RunConfig
from gduq.experiments.engines import map_cells
from gduq.experiments.folder import write_json
from gduq.experiments.specs import Setting
from gduq.experiments.tables import TABLES
from gduq.prediction import Prediction, predict
from gduq.training import fit

FIRST_SEED = 100  # tables use 0, 1, 2, ...
SEVERITY = 4
BY_SIZE = " by size"  # the largest fifth of the training graphs stands for the shift

NODES = (
    *("webkb/university/covariate gcn", "cora-ml/degree/concept gcn"),
    *("cbas/color/concept gcn", "cbas/color/covariate gcn"),
)
GRAPHS = ("tu/PROTEINS/size gin", "tu/NCI109/size gin")
LARGER = ("tu/PROTEINS/size gin", "tu/NCI1/size gcn", "sst2/length/covariate gin")
CELLS = (*NODES, *GRAPHS, *(cell + BY_SIZE for cell in LARGER))


def _anchored(plain: float = 0.0, **training: Any) -> dict[str, Any]:
    """Anchors at the readout; ``plain`` is the share of epochs before they are put on.

    With ``more`` that network is finished, and its head gets a share of the epochs on top.
    """
    return {"plain": plain, "freeze": plain > 0, "draws": 10, **training}


CANDIDATES: dict[str, dict[str, Any]] = {
    "from the start, no mask": _anchored(mask=0.0),
    "from the start, mask .2": _anchored(mask=0.2),
    "from the start, mask .3": _anchored(mask=0.3),
    "after half, frozen, no mask": _anchored(0.5, mask=0.0),
    "after half, frozen, mask .2": _anchored(0.5, mask=0.2),
    "after half, frozen, mask .3": _anchored(0.5, mask=0.3),
    **{
        f"plain, {head} head, dropout {dropout}": {"model": {"head": head, "dropout": dropout}}
        for head, dropout in itertools.product(("linear", "mlp"), (0.5, 0.2))
    },
    "plain, mlp head, no weight decay": {
        "model": {"head": "mlp"}, "training": {"weight_decay": 0.0},
    },
    "plain, mlp head, half the epochs": {"model": {"head": "mlp"}, "epochs": 0.5},
}  # fmt: skip
FINISHED = {
    f"{more:g} of the epochs": _anchored(1.0, more=more, mask=0.3) for more in (0.1, 0.2, 0.5)
}
EVERY = {**CANDIDATES, **FINISHED}


class Judge:
    """Trains one candidate and measures it on validation data, once."""

    def __init__(self, root: str) -> None:
        self.root = Path(root)

    def __call__(self, what: tuple[str, str, int]) -> dict[str, Any]:
        cell, candidate, seed = what
        own = setting(cell).config("vanilla", seed, "small").hash, json.dumps(EVERY[candidate])
        digest = hashlib.sha256(repr(own).encode()).hexdigest()[:8]
        name = f"{cell} {candidate} {seed} {digest}.json"
        kept = self.root / name.replace("/", "_").replace(" ", "-")
        if not kept.is_file():
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_json(kept, _judged(cell, EVERY[candidate], seed))
        found: dict[str, Any] = json.loads(kept.read_text())
        return found


def _judged(cell: str, candidate: dict[str, Any], seed: int) -> dict[str, Any]:
    config = setting(cell).config("vanilla", seed, "small")
    splits, shifted = data(config, by_size=cell.endswith(BY_SIZE))
    model, seconds = trained(config, candidate, splits)
    scores = {"clean": _scores(predict(model, splits.id_val))}
    for name, view in shifted.items():
        scores[name] = _scores(predict(model, view))
    return {"scores": scores, "seconds": seconds}


def setting(cell: str) -> Setting:
    """Data, network and schedule of a cell, as the tables have them."""
    name, conv = cell.removesuffix(BY_SIZE).split(" ")
    found = (s for table in TABLES.values() for s in table.settings_at("small"))
    return next(s for s in found if s.data == name and s.conv == conv)


def data(config: RunConfig, by_size: bool) -> tuple[Splits, dict[str, View]]:
    """What to train and validate on, and the views that stand for a shift."""
    splits = build.splits_of(config)
    assert splits.id_val is not None
    if not by_size:
        spoilt = {c.__name__: c(splits.id_val, SEVERITY) for c in changes_of(splits.id_val)}
        return splits, spoilt
    graphs = sorted(splits.train.graphs, key=lambda graph: (graph.num_nodes, graph.num_edges))
    large = -(-len(graphs) // 5)
    rest = graphs[:-large]
    order = torch.randperm(len(rest), generator=torch.Generator().manual_seed(config.seed))
    val, train = order[: len(rest) // 5].tolist(), order[len(rest) // 5 :].tolist()
    views = {"train": View([rest[i] for i in train]), "id_val": View([rest[i] for i in val])}
    return splits.with_(**views), {"larger": View(graphs[-large:])}


def trained(
    config: RunConfig, candidate: dict[str, Any], splits: Splits
) -> tuple[nn.Module, float]:
    """The model of a candidate and the seconds it took; anchored ones have a two-layer head."""
    changes = {f"training.{k}": v for k, v in candidate.get("training", {}).items()}
    changes |= {f"model.{k}": v for k, v in candidate.get("model", {"head": "mlp"}).items()}
    config = config.with_(changes)
    whole = round(config.training.epochs * candidate.get("epochs", 1.0))
    before = round(whole * candidate.get("plain", 1.0))
    options = {**config.training.model_dump(), "seed": config.seed, "progress": False}
    model: nn.Module = build.network(config.model, splits, config.seed)
    seconds = 0.0
    if before:
        plain = {**options, "draws": 1, "mask": 0.0, "epochs": before}
        seconds += fit(model, splits.train, **plain).seconds
    if "plain" in candidate:
        method = {"kind": "anchored", "freeze": candidate["freeze"]}
        model = build.anchored(config.with_({"method": method}), model)
        after = round(candidate.get("more", 0.0) * whole) or whole - before
        own = {"draws": candidate["draws"], "mask": candidate["mask"], "epochs": after}
        seconds += fit(model, splits.train, **{**options, **own}).seconds
    return model, seconds


def _scores(p: Prediction) -> dict[str, float]:
    return {
        "accuracy": metrics.accuracy(p),
        "ece": metrics.ece(p, strict=False),
        "nll": metrics.nll(p),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=list(EVERY), metavar="NAME")
    parser.add_argument("--cells", nargs="+", default=list(CELLS), metavar="NAME")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--root", default="out/choices")
    options = parser.parse_args()
    seeds = range(FIRST_SEED, FIRST_SEED + options.seeds)
    todo = [(c, n, s) for s in seeds for n in options.only for c in options.cells]
    outcomes = map_cells(
        todo, Judge(options.root), title="choices", name=lambda w: f"{w[0]}, {w[1]}, {w[2]}"
    )
    records = []
    for outcome in outcomes:
        cell, candidate, seed = outcome.cell
        if outcome.value is None:
            print(outcome.error)
            continue
        records.append({"cell": cell, "candidate": candidate, "seed": seed, **outcome.value})
    for title, cells in (("Node tasks", NODES), ("Graph tasks", set(CELLS) - set(NODES))):
        for names, what in (
            (CANDIDATES, ""),
            (FINISHED, ", an anchored head on a finished network"),
        ):
            own = [r for r in records if r["cell"] in cells and r["candidate"] in names]
            if own:
                count = len({r["cell"] for r in own})
                print(f"**{title}**{what}, means over {count} cells, {options.seeds} seed(s):\n")
                print(table(own) + "\n")


def table(records: list[dict[str, Any]]) -> str:
    """A row a candidate: means over cells and seeds, on clean validation data and under shift."""
    lines = [
        "| candidate | accuracy | ECE | NLL | accuracy, shifted | ECE, shifted | NLL, shifted |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(r["candidate"] for r in records):
        own = [r["scores"] for r in records if r["candidate"] == name]
        figures = [f"{statistics.fmean(_of(s, m, clean) for s in own):.3f}"
                   for clean in (True, False) for m in ("accuracy", "ece", "nll")]  # fmt: skip
        lines.append(f"| {name} | {' | '.join(figures)} |")
    return "\n".join(lines)


def _of(scores: dict[str, dict[str, float]], metric: str, clean: bool) -> float:
    return statistics.fmean(v[metric] for k, v in scores.items() if (k == "clean") == clean)


if __name__ == "__main__":
    main()
