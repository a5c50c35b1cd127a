"""The search behind the defaults: which anchored head, on which network, is best on validation.

    python benchmarks/choices.py [--cells NAME ...] [--seeds N] [--root FOLDER]

Plain networks get a share of the epochs, anchored heads on them the rest: from the network's own
head or afresh, with more or fewer masked rows, with and without less confidence far from the
anchors. Schedules are those of the tables at small scale, seeds are such that no table uses. All
are judged on ``id_val`` and under a stand-in for shift that is made of the same rows: corrupted
copies, or the largest of the *training* graphs, left out of training (cells "... by size"). No
shifted split is read. The page docs/choices.md is written from what this prints.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import itertools
import json
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gduq import Anchored, metrics
from gduq.anchored_linear import Init
from gduq.data import Splits, View
from gduq.evaluation.copies import changes_of
from gduq.experiments import build
from gduq.experiments.config import RunConfig
from gduq.experiments.engines import map_cells
from gduq.experiments.folder import write_json
from gduq.experiments.specs import Setting
from gduq.experiments.tables import TABLES
from gduq.prediction import Prediction, predict
from gduq.tempering import NEAR
from gduq.training import fit

FIRST_SEED = 100  # tables use 0, 1, 2, ...
SEVERITY = 4
BY_SIZE = " by size"  # the largest fifth of the training graphs stands for the shift

NODES = ("webkb/university/covariate gcn", "cora-ml/degree/concept gcn", "cbas/color/covariate gcn")
GRAPHS = ("tu/PROTEINS/size gin", "motif-lpe/basis/covariate gin")
LARGER = ("tu/PROTEINS/size gin", "sst2/length/covariate gin")
CELLS = (*NODES, *GRAPHS, *(cell + BY_SIZE for cell in LARGER))

SHARES = (0.9, 1.0)  # of the epochs that are the plain network's; the head gets the rest
ON_TOP = 0.1  # of the epochs, for a head on a network that had all of them
DRAWS = 10
MASKS = (0.1, 0.2, 0.3)
INITS: tuple[Init, ...] = ("identity", "random")


class Judge:
    """Trains a plain network and every anchored head on it, and measures them on validation data.

    Heads of a kind with and without less confidence far from the anchors are one training.
    """

    def __init__(self, root: str) -> None:
        self.root = Path(root)

    def __call__(self, what: tuple[str, float, int]) -> dict[str, Any]:
        cell, share, seed = what
        config = setting(cell).config("vanilla", seed, "small")
        own = repr((config.hash, ON_TOP, DRAWS, MASKS, INITS, NEAR)).encode()
        name = f"{cell} {share:g} {seed} {hashlib.sha256(own).hexdigest()[:8]}.json"
        kept = self.root / name.replace("/", "_").replace(" ", "-")
        if not kept.is_file():
            kept.parent.mkdir(parents=True, exist_ok=True)
            splits, shifted = data(config, by_size=cell.endswith(BY_SIZE))
            views = {"clean": splits.id_val, **shifted}
            models = candidates(config, share, splits, MASKS)
            found = {
                name: {view: _scores(predict(model, rows)) for view, rows in views.items()}
                for name, model in models
            }
            write_json(kept, found)
        result: dict[str, Any] = json.loads(kept.read_text())
        return result


def candidates(
    config: RunConfig, share: float, splits: Splits, masks: Sequence[float]
) -> Iterator[tuple[str, nn.Module]]:
    """The plain network of a share of the epochs, and what comes of it with anchors."""
    config = config.with_({"model.head": "mlp"})
    whole = config.training.epochs
    before = max(1, round(share * whole))
    head = whole - before or max(1, round(ON_TOP * whole))
    options = {**config.training.model_dump(), "seed": config.seed, "progress": False}
    plain = build.network(config.model, splits, config.seed)
    fit(plain, splits.train, **{**options, "draws": 1, "mask": 0.0, "epochs": before})
    yield named(share), plain
    anchors: dict[str, Any] = {"freeze": True, "seed": config.seed, "temper": "distance"}
    same = Anchored(plain, init="identity", **anchors)
    yield f"{named(share)}, tempered", same.fit_bank(splits.train)
    for init, mask in itertools.product(INITS, masks):
        model = Anchored(plain, init=init, **anchors)
        fit(model, splits.train, **{**options, "draws": DRAWS, "mask": mask, "epochs": head})
        yield named(share, init, mask, temper=True), model
        bare = copy.deepcopy(model)
        bare.temper = False
        yield named(share, init, mask), bare


def named(share: float, init: Init | None = None, mask: float = 0.0, temper: bool = False) -> str:
    """What a candidate is called in the tables."""
    if init is None:
        return f"plain, {share:g} of the epochs"
    on_top = f" + {ON_TOP:g}" if share == 1.0 else ""
    return f"after {share:g}{on_top}, {init}, mask {mask:g}{', tempered' if temper else ''}"


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


def _scores(p: Prediction) -> dict[str, float]:
    return {
        "accuracy": metrics.accuracy(p),
        "ece": metrics.ece(p, strict=False),
        "nll": metrics.nll(p),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", nargs="+", default=list(CELLS), metavar="NAME")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--root", default="out/choices")
    options = parser.parse_args()
    seeds = range(FIRST_SEED, FIRST_SEED + options.seeds)
    todo = [(c, share, s) for s in seeds for share in SHARES for c in options.cells]
    outcomes = map_cells(
        todo, Judge(options.root), title="choices", name=lambda w: f"{w[0]}, {w[1]}, {w[2]}"
    )
    records = []
    for outcome in outcomes:
        cell, _, seed = outcome.cell
        if outcome.value is None:
            print(outcome.error)
            continue
        records += [
            {"cell": cell, "candidate": name, "seed": seed, "scores": scores}
            for name, scores in outcome.value.items()
        ]
    for title, cells in (("Node tasks", NODES), ("Graph tasks", set(CELLS) - set(NODES))):
        own = [r for r in records if r["cell"] in cells]
        if own:
            count = len({r["cell"] for r in own})
            print(f"**{title}**, means over {count} cells, {options.seeds} seed(s):\n")
            print(table(own) + "\n")


def table(records: list[dict[str, Any]]) -> str:
    """A row a candidate: means over cells and seeds, on clean validation data and under shift.

    The last two columns count where it is better than the plain network of all epochs.
    """
    lines = [
        "| candidate | accuracy | ECE | NLL | accuracy, shifted | ECE, shifted | NLL, shifted "
        "| NLL no worse | ECE lower, shifted |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    plain = {(r["cell"], r["seed"]): r["scores"] for r in records if r["candidate"] == named(1.0)}
    for name in dict.fromkeys(r["candidate"] for r in records):
        own = {(r["cell"], r["seed"]): r["scores"] for r in records if r["candidate"] == name}
        figures = [f"{statistics.fmean(_of(s, m, clean) for s in own.values()):.3f}"
                   for clean in (True, False) for m in ("accuracy", "ece", "nll")]  # fmt: skip
        both = [key for key in own if key in plain]
        kept = sum(_of(own[k], "nll", True) <= _of(plain[k], "nll", True) for k in both)
        lower = sum(_of(own[k], "ece", False) < _of(plain[k], "ece", False) for k in both)
        counts = [f"{n} of {len(both)}" for n in (kept, lower)]
        lines.append(f"| {name} | {' | '.join((*figures, *counts))} |")
    return "\n".join(lines)


def _of(scores: dict[str, dict[str, float]], metric: str, clean: bool) -> float:
    return statistics.fmean(v[metric] for k, v in scores.items() if (k == "clean") == clean)


if __name__ == "__main__":
    main()
