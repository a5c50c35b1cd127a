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
from gduq._io import atomic_path
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
    """

    parts: Mapping[str, Prediction]
    copies: tuple[Prediction, ...]
    seconds: float
    cost: float
    model: nn.Module | None = None

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
        return gduq.data.load(self.cell.data, seed=self.seed, limit=self.cell.limit)

    @cached_property
    def views(self) -> dict[str, View]:
        return {**{name: getattr(self.splits, name) for name in SPLITS}, **self.splits.severities}

    @cached_property
    def copies(self) -> list[View]:
        return list(shifted_copies(self.views["id_val"], self.seed))

    @property
    def like(self) -> Graph:
        return self.splits.train.graphs[0]

    @property
    def plain(self) -> nn.Module:
        """The trained network."""
        return self.network(0)

    def network(self, number: int) -> nn.Module:
        """A trained network; several differ in their seed. Kept in memory and on disk."""
        if number in self._nets:
            return self._nets[number]
        seed, name = 1000 * self.seed + number, f"network {number}"
        net = self.cell.network(self.splits, seed)
        file = re.sub(r"[^\w.-]+", "-", f"{self.cell.name}-{self.cell.settings}-{seed}")
        path = (self.folder or Path()) / f"{file}{'-last' * self.last}.pt"
        if self.folder is not None and path.is_file():
            kept = torch.load(path, weights_only=True)
            net.load_state_dict(kept["weights"])
            self.seconds[name] = kept["seconds"]
        else:
            with self.clock(name):
                self.train(net, seed)
            if self.folder is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                with atomic_path(path) as part:
                    torch.save({"weights": net.state_dict(), "seconds": self.seconds[name]}, part)
        self._nets[number] = net.eval()
        return net

    def train(self, model: nn.Module, seed: int | None = None, **changes: Any) -> None:
        """Train with the schedule of the cell; calibration comes later, for everybody alike."""
        cell = self.cell
        options: dict[str, Any] = {
            **cell.schedule,
            "milestones": [round(share * cell.epochs) for share in cell.falls],
            "gamma": 0.3,
            "patience": None if self.last else cell.patience,
            "seed": self.seed if seed is None else seed,
            "calibrate": None,
            "progress": False,
        }
        val = None if self.last else self.views["id_val"]
        gduq.fit(model, self.splits.train, val, **(options | changes))

    def finish(self, model: nn.Module) -> nn.Module:
        """Only what a model on the trained network needs, in its own time."""
        options: dict[str, Any] = {"epochs": None, "lr": None, "batch_size": 32}
        self.train(model, milestones=(), patience=None, **options)
        return model

    @contextmanager
    def clock(self, name: str) -> Iterator[None]:
        """Seconds of processor time, one thread."""
        start = time.process_time()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.process_time() - start

    def trained(self, networks: int) -> float:
        """Seconds of the training of some networks."""
        for number in range(networks):
            self.network(number)
        return sum(self.seconds[f"network {number}"] for number in range(networks))


def answers_of(work: Work, method: str) -> Answers:
    """Train a method, and ask it."""
    if method.startswith("chemprop"):
        from gduq_reproduction.chemprop import chemprop_answers

        return chemprop_answers(work, method)
    seconds = work.trained(MEMBERS if method == "ensemble of 3" else int(method not in SCRATCH))
    with work.clock(method):
        model = METHODS[method](work)
    seconds += work.seconds[method]
    features = method == "plain"
    parts = {n: gduq.predict(model, view, features=features) for n, view in work.views.items()}
    copies = [gduq.predict(model, v, features=features, novelty=False) for v in work.copies]
    return Answers(parts, tuple(copies), seconds, seconds / work.trained(1), model)


# -- methods ---------------------------------------------------------------------------------------


def _ready(work: Work, model: nn.Module) -> nn.Module:
    """Nothing is trained: what its outputs mean, and novelty."""
    work.train(model, epochs=0, milestones=(), patience=None)
    return model


def _choose(work: Work, budget: float) -> nn.Module:
    options = {**work.cell.schedule, "budget": budget, "seed": work.seed, "progress": False}
    return gduq.choose(work.plain, work.splits.train, work.views["id_val"], **options)


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


_HIDDEN: dict[str, int | str] = {"L1": 1, "L2": 2, "readout": "readout"}
SCRATCH: dict[str, Callable[[Work], nn.Module]] = {
    "NFA": partial(_paper, at="input"),
    **{name: partial(_paper, at=at) for name, at in _HIDDEN.items()},
    **{f"{n} gaussian": partial(_paper, at=at, anchors="gaussian") for n, at in _HIDDEN.items()},
    "anchored ensemble": lambda w: _ready(
        w, gduq.Ensemble([_paper(w, number, at="readout") for number in range(MEMBERS)])
    ),
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
