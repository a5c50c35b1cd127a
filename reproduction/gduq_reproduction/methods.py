"""Every method on one cell and seed, all from the same trained networks."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import gduq
from gduq import Prediction, Recipe
from gduq.data import Splits, View
from gduq.graphs import Graph
from gduq.shifts.corruptions import shifted_copies
from gduq_reproduction.cells import Cell

__all__ = ["LAST", "METHODS", "Answers", "Work", "answers_of"]

SPLITS = ("id_val", "id_test", "ood_test")
MEMBERS = 3  # of every ensemble
LAST = ", last epoch"


@dataclass(frozen=True, eq=False)
class Answers:
    """What a method predicts before calibration, and what its training cost.

    Attributes:
        parts: Predictions of `SPLITS` and of further test sets.
        copies: Predictions of the shifted copies of ``id_val``.
        seconds: Of training in all, as processor time of one thread.
        cost: The same in trainings of the plain network.
        model: Which was asked, if it is one of ours.
        notes: What to keep beside the figures.
    """

    parts: Mapping[str, Prediction]
    copies: tuple[Prediction, ...]
    seconds: float
    cost: float
    model: nn.Module | None = None
    notes: Mapping[str, Any] = field(default_factory=dict)

    def mapped(self, change: Callable[[Any], Prediction]) -> Answers:
        """The same with another reading of the hypotheses."""
        parts = {name: change(p) for name, p in self.parts.items()}
        return replace(self, parts=parts, copies=tuple(map(change, self.copies)))


@dataclass(eq=False)
class Work:
    """A cell with one seed, and what methods share on it.

    Args:
        cell: Data, network, schedule.
        seed: Of the split and of everything that is trained.
        last: Take the weights of the last epoch, without a look at validation rows, as the paper
            does; else those of the lowest validation loss.
        folder: Where trained networks are kept, for the next method or call.
        chemprop: The interpreter of an environment with Chemprop.
    """

    cell: Cell
    seed: int
    last: bool = False
    folder: Path | None = None
    chemprop: Path | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    _nets: dict[int, nn.Module] = field(default_factory=dict)

    @cached_property
    def splits(self) -> Splits:
        return self.cell.splits(self.seed)

    @cached_property
    def views(self) -> dict[str, View]:
        tests = {name: getattr(self.splits, name) for name in SPLITS}
        return {**tests, **self.splits.severities}

    @cached_property
    def copies(self) -> list[View]:
        return list(shifted_copies(self.views["id_val"], self.seed))

    @property
    def like(self) -> Graph:
        graph: Graph = self.splits.train.graphs[0]
        return graph

    @property
    def plain(self) -> nn.Module:
        """The trained network."""
        return self.network(0)

    def network(self, number: int) -> nn.Module:
        """A trained network; several differ in their seed. Kept in memory and on disk."""
        if number not in self._nets:
            seed, name = 1000 * self.seed + number, f"network {number}"
            net = self.cell.network(self.splits, seed)
            path = self._path(number)
            if path is not None and path.is_file():
                kept = torch.load(path, weights_only=True)
                net.load_state_dict(kept["weights"])
                self.seconds[name] = kept["seconds"]
            else:
                with self.clock(name):
                    self.train(net, seed)
                self._save(path, {"weights": net.state_dict(), "seconds": self.seconds[name]})
            self._nets[number] = net.eval()
        return self._nets[number]

    def _path(self, number: int) -> Path | None:
        cell = re.sub(r"[^\w.-]+", "-", self.cell.name)
        end = "-last" if self.last else ""
        name = f"{cell}-{self.cell.settings}-{self.seed}-{number}{end}.pt"
        return None if self.folder is None else self.folder / name

    def _save(self, path: Path | None, content: Mapping[str, Any]) -> None:
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            torch.save(dict(content), path.with_suffix(".part"))
            path.with_suffix(".part").replace(path)

    def train(self, model: nn.Module, seed: int | None = None, **changes: Any) -> None:
        """Train with the schedule of the cell; calibration comes later, for everybody alike."""
        cell = self.cell
        options: dict[str, Any] = {
            "epochs": cell.epochs,
            "lr": cell.lr,
            "batch_size": cell.batch_size,
            "weight_decay": cell.weight_decay,
            "milestones": [round(share * cell.epochs) for share in cell.falls],
            "gamma": 0.3,
            "patience": None if self.last else cell.patience,
            "select": "last" if self.last else "best",
            "seed": self.seed if seed is None else seed,
            "calibrate": None,
            "progress": False,
        }
        val = None if self.last else self.views["id_val"]
        gduq.fit(model, self.splits.train, val, **(options | changes))

    def finish(self, model: nn.Module) -> nn.Module:
        """Only what a model on the trained network needs, in its own time."""
        options: dict[str, Any] = {"epochs": None, "lr": None, "batch_size": None}
        self.train(model, milestones=(), patience=None, select="best", **options)
        return model

    @contextmanager
    def clock(self, name: str) -> Iterator[None]:
        """Seconds of processor time, one thread."""
        start = time.process_time()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.process_time() - start


def answers_of(work: Work, method: str) -> Answers:
    """Train a method, and ask it."""
    if method.startswith("chemprop"):
        from gduq_reproduction.chemprop import chemprop_answers

        return chemprop_answers(work, method)
    networks = MEMBERS if method == "ensemble of 3" else 0 if method in SCRATCH else 1
    seconds = _seconds(work, networks)
    with work.clock(method):
        model = METHODS[method](work)
    seconds += work.seconds[method]
    features = method == "plain"
    parts = {n: gduq.predict(model, view, features=features) for n, view in work.views.items()}
    copies = [gduq.predict(model, v, features=features, novelty=False) for v in work.copies]
    board = getattr(model, "leaderboard", None)
    notes = {} if board is None else board.set_index("candidate")["weight"].round(3).to_dict()
    return Answers(parts, tuple(copies), seconds, seconds / _seconds(work, 1), model, notes)


def _seconds(work: Work, networks: int) -> float:
    """Of the training of some networks."""
    for number in range(networks):
        work.network(number)
    return sum(work.seconds[f"network {number}"] for number in range(networks))


# -- methods ---------------------------------------------------------------------------------------


def _ready(work: Work, model: nn.Module) -> nn.Module:
    """Nothing is trained: what its outputs mean, and novelty."""
    work.train(model, epochs=0, milestones=(), patience=None)
    return model


def _choose(work: Work, budget: float) -> nn.Module:
    cell = work.cell
    return gduq.choose(
        work.plain,
        work.splits.train,
        work.views["id_val"],
        budget=budget,
        epochs=cell.epochs,
        lr=cell.lr,
        batch_size=cell.batch_size,
        weight_decay=cell.weight_decay,
        seed=work.seed,
        progress=False,
    )


def _trained_on(work: Work) -> nn.Module:
    """Training goes on with anchors at the last layer, for a quarter of the epochs."""
    model = gduq.anchor(work.plain, recipe=Recipe.thawed(), seed=work.seed, like=work.like)
    work.train(model, epochs=max(1, work.cell.epochs // 4), lr=None, milestones=())
    return model


def _paper(work: Work, number: int = 0, **recipe: Any) -> nn.Module:
    """Anchors as in the paper: from scratch, or on the frozen network."""
    seed = 1000 * work.seed + number
    net = work.plain if recipe.get("freeze") else work.cell.network(work.splits, seed)
    chosen = Recipe.paper(work.cell.task, **recipe)
    model = gduq.anchor(net, recipe=chosen, seed=seed, like=work.like)
    work.train(model, seed, epochs=work.cell.epochs + work.cell.more_epochs)
    return model


def _anchored_ensemble(work: Work) -> nn.Module:
    members = [_paper(work, number, at="readout") for number in range(MEMBERS)]
    return _ready(work, gduq.Ensemble(members))


SCRATCH: dict[str, Callable[[Work], nn.Module]] = {
    "NFA": partial(_paper, at="input"),
    "L1": partial(_paper, at=1),
    "L2": partial(_paper, at=2),
    "readout": partial(_paper, at="readout"),
    "L1 gaussian": partial(_paper, at=1, anchors="gaussian"),
    "L2 gaussian": partial(_paper, at=2, anchors="gaussian"),
    "readout gaussian": partial(_paper, at="readout", anchors="gaussian"),
    "anchored ensemble": _anchored_ensemble,
}
METHODS: dict[str, Callable[[Work], nn.Module]] = {
    "plain": lambda w: _ready(w, gduq.Network(w.plain)),
    "mc dropout": lambda w: _ready(w, gduq.MCDropout(w.plain, seed=w.seed)),
    "head ensemble": lambda w: w.finish(gduq.HeadEnsemble(w.plain, seed=w.seed)),
    "head ensemble, masked": lambda w: w.finish(gduq.HeadEnsemble(w.plain, mask=0.05, seed=w.seed)),
    "laplace": lambda w: w.finish(gduq.LastLayerLaplace(w.plain)),
    "neighbours": lambda w: w.finish(gduq.Neighbours(w.plain, seed=w.seed)),
    "anchored head": lambda w: w.finish(gduq.anchor(w.plain, seed=w.seed, like=w.like)),
    "trained on": _trained_on,
    "choose 1.2": partial(_choose, budget=1.2),
    "choose 1.5": partial(_choose, budget=1.5),
    "choose 2.5": partial(_choose, budget=2.5),
    "ensemble of 3": lambda w: _ready(
        w, gduq.Ensemble([w.network(number) for number in range(MEMBERS)])
    ),
    **SCRATCH,
    "pretrained": partial(_paper, at="readout", freeze=True),
}
