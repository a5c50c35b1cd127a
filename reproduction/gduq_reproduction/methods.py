"""Every method on one cell and seed, all from the same trained networks."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Mapping
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
    """What a method predicts before calibration, and what its training cost."""

    parts: Mapping[str, Prediction]  # of `SPLITS` and of further test sets
    copies: tuple[Prediction, ...]  # of the shifted copies of id_val
    seconds: float  # of training in all, as processor time of one thread
    cost: float  # the same in trainings of the plain network
    model: nn.Module | None = None  # which was asked, if it is one of ours
    reading: Callable[[Any], Prediction] = lambda p: p  # of its hypotheses, see `mapped`

    def mapped(self, change: Callable[[Any], Prediction]) -> Answers:
        """The same with another reading of the hypotheses."""
        parts = {name: change(p) for name, p in self.parts.items()}
        copies = tuple(map(change, self.copies))
        return replace(self, parts=parts, copies=copies, reading=change)


@dataclass(eq=False)
class Work:
    """A cell with one seed, and what methods share on it."""

    cell: Cell
    seed: int  # of the split and of everything that is trained
    last: bool = False  # weights of the last epoch, as in the paper, not of the lowest val loss
    folder: Path | None = None  # where trained networks are kept, for the next method or call
    chemprop: Path | None = None  # the interpreter of an environment with Chemprop
    seconds: dict[str, float] = field(default_factory=dict)
    kept: float = 0.0  # seconds of trainings, of earlier calls, whose weights were at hand
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
        """A trained network; several differ in their seed."""
        if number not in self._nets:
            seed = 1000 * self.seed + number
            net = self.cell.network(self.splits, seed)
            name = f"network {number}"
            self.seconds[name] = self.fitted(gduq.Network(net), name, seed)
            self._nets[number] = net.eval()
        return self._nets[number]

    def fitted(self, model: nn.Module, name: str, seed: int, **changes: Any) -> float:
        """Train a model, from where an earlier call was killed, or take its weights from the
        folder; seconds of its training."""
        start = time.process_time()
        if self.folder is None:
            self.train(model, seed, **changes)
            return time.process_time() - start
        file = re.sub(r"[^\w.-]+", "-", f"{self.cell.name}-{self.cell.settings}-{seed}-{name}")
        path, ends = self.folder / file, {False: ".pt", True: "-last.pt"}
        wanted = path.with_name(file + ends[self.last])
        known = wanted.is_file()
        if not known:
            resume = path.with_name(f"{file}{'-last' * (self.last and not self.cell.both)}")
            self.train(model, seed, **changes, resume=resume)
            seconds, states = time.process_time() - start, {self.last: model.state_dict()}
            if self.cell.both:
                states[False] = model.state_dict()
                end = torch.load(resume / "checkpoint.pt", weights_only=True)["run"]["last"]
                states[True] = {key: value[0] for key, value in end.items()}
            for last, state in states.items():
                with atomic_path(path.with_name(file + ends[last])) as part:
                    torch.save({"weights": state, "seconds": seconds}, part)
            shutil.rmtree(resume)
        kept = torch.load(wanted, weights_only=True)
        model.load_state_dict(kept["weights"])
        self.kept += known * kept["seconds"]
        return float(kept["seconds"])

    def train(self, model: nn.Module, seed: int | None = None, **changes: Any) -> None:
        """Train with the schedule of the cell; calibration comes later, for everybody alike."""
        cell = self.cell
        last = self.last and not (cell.both and "resume" in changes)
        options: dict[str, Any] = {
            **cell.schedule,
            "milestones": [round(share * cell.epochs) for share in cell.falls],
            "gamma": 0.3,
            "patience": None if last else cell.patience,
            "seed": self.seed if seed is None else seed,
            "calibrate": None,
            "progress": False,
        }
        val = None if last else self.views["id_val"]
        gduq.fit(model, self.splits.train, val, **(options | changes))

    def finish(self, model: nn.Module) -> nn.Module:
        """Only what a model on the trained network needs, in its own time."""
        self.train(model, milestones=(), patience=None, epochs=None, lr=None, batch_size=32)
        return model

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
    start, work.kept = time.process_time(), 0.0
    model = METHODS[method](work)
    seconds += time.process_time() - start + work.kept
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
    cell, seed = work.cell, 1000 * work.seed + number
    net = work.plain if recipe.get("freeze") else cell.network(work.splits, seed)
    chosen = Recipe.paper(cell.task, **recipe)
    model = gduq.anchor(net, recipe=chosen, seed=seed, like=work.like)
    if chosen.freeze:
        work.train(model, seed)
    else:
        name, epochs = f"{chosen.at} {chosen.anchors or ''}", cell.epochs + cell.more_epochs
        work.fitted(model, name, seed, epochs=epochs)
        _ready(work, model)
    return _with_bank(work, model) if model.point.moves else model


def _with_bank(work: Work, model: Any) -> nn.Module:
    """Take anchors of prediction from the rows that the cell says."""
    if work.cell.bank != "train":
        model.fit_anchors(work.views[work.cell.bank], batch_size=work.cell.batch_size)
    return model  # type: ignore[no-any-return]


def _anchored_ensemble(work: Work) -> nn.Module:
    members = [_paper(work, number, at="readout") for number in range(MEMBERS)]
    return _with_bank(work, _ready(work, gduq.Ensemble(members)))


_HIDDEN: dict[str, int | str] = {"L1": 1, "L2": 2, "readout": "readout"}
SCRATCH: dict[str, Callable[[Work], nn.Module]] = {
    "NFA": partial(_paper, at="input"),
    **{name: partial(_paper, at=at) for name, at in _HIDDEN.items()},
    **{f"{n} gaussian": partial(_paper, at=at, anchors="gaussian") for n, at in _HIDDEN.items()},
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
    **{f"choose {budget}": partial(_choose, budget=budget) for budget in (1.2, 1.5, 2.5)},
    "ensemble of 3": lambda w: _ready(w, gduq.Ensemble([*map(w.network, range(MEMBERS))])),
    **SCRATCH,
    "pretrained": partial(_paper, at="readout", freeze=True),
}
