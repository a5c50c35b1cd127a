"""Every method on one cell and seed, all from the same trained networks."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from gduq.anchoring import Recipe, anchor
from gduq.baselines import Ensemble, HeadEnsemble, LastLayerLaplace, MCDropout, Neighbours
from gduq.baselines.network import Network
from gduq.data.splits import Splits
from gduq.data.view import View
from gduq.evaluation.calibrated import Whole
from gduq.evaluation.inputs import whole_graph
from gduq.graph import Rows
from gduq.novelty.odd_structure import structure_distance
from gduq.prediction import Prediction, predict
from gduq.shifts.copies import shifted_copies
from gduq.training import fit
from gduq.training.candidates import Candidates
from gduq.training.choosing import stack
from gduq.training.fit_settings import FitSettings
from gduq.training.fitting import Fit
from gduq_reproduction.comparison.cells import ShiftCell
from gduq_reproduction.comparison.energies import GEBM, gnnsafe

__all__ = [
    "BUDGETS",
    "SPLITS",
    "MethodAnswers",
    "Work",
    "energies",
    "made",
    "scores_of_novelty",
]

SPLITS = ("id_val", "id_test", "ood_test")
BUDGETS = (1.2, 1.5, 2.5)
MEMBERS = 3


@dataclass(frozen=True, eq=False)
class MethodAnswers:
    """What a method says before calibration, and what its training cost.

    Attributes:
        parts: Predictions of `SPLITS`.
        copies: Predictions of the shifted copies of ``id_val``.
        cost: Training in all, in trainings of the plain network; of a candidate the least budget.
        notes: What to keep beside the figures.
        whole: Predictions of all nodes of the one graph, where calibrators are to read it.
    """

    parts: Mapping[str, Prediction]
    copies: tuple[Prediction, ...]
    cost: float
    notes: Mapping[str, Any] = field(default_factory=dict)
    whole: Whole | None = None

    def mapped(self, change: Callable[[Prediction], Prediction]) -> MethodAnswers:
        """The same with another reading of the hypotheses."""
        parts = {name: change(p) for name, p in self.parts.items()}
        return MethodAnswers(parts, tuple(map(change, self.copies)), self.cost, self.notes)


@dataclass(eq=False)
class Work:
    """A cell with one seed, and what methods share on it.

    Args:
        cell: Data, network, schedule.
        seed: Of the split and of everything that is trained.
    """

    cell: ShiftCell
    seed: int
    seconds: dict[str, float] = field(default_factory=dict)

    @cached_property
    def splits(self) -> Splits:
        return self.cell.splits(self.seed)

    @cached_property
    def views(self) -> dict[str, View]:
        return {name: getattr(self.splits, name) for name in SPLITS}

    @cached_property
    def copies(self) -> list[View]:
        return list(shifted_copies(self.views["id_val"], self.seed))

    @cached_property
    def plain(self) -> nn.Module:
        """The trained network."""
        net = self.cell.network(self.splits, 1000 * self.seed)
        with self.clock("plain"):
            self.train(net, 1000 * self.seed)
        return net.eval()

    @property
    def like(self) -> Any:
        return self.splits.train.graphs[0]

    def train(
        self, model: nn.Module, seed: int | None = None, blind: bool = False, **changes: Any
    ) -> None:
        """Train with the schedule of the cell; calibration comes later, for everybody alike.

        A ``blind`` training takes all epochs and their last weights, without validation rows.
        """
        options: dict[str, Any] = {
            "epochs": self.cell.epochs,
            "lr": self.cell.lr,
            "batch_size": self.cell.batch_size,
            "weight_decay": self.cell.weight_decay,
            "patience": self.cell.patience,
            "seed": self.seed if seed is None else seed,
            "calibrate": None,
            "progress": False,
        }
        if blind:
            options |= {"select": "last", "patience": None}
        val = None if blind else self.views["id_val"]
        fit(model, self.splits.train, val, **(options | changes))

    def finish(self, model: nn.Module) -> None:
        """Only what a model on the trained network needs, in its own time."""
        self.train(model, epochs=None, lr=None, batch_size=None)

    def candidates(self, budget: float) -> Candidates:
        """Those of `gduq.choose` for the plain network."""
        settings = FitSettings(
            epochs=self.cell.epochs,
            given_lr=self.cell.lr,
            given_batch_size=self.cell.batch_size,
            weight_decay=self.cell.weight_decay,
            milestones=(),
            gamma=0.1,
            select="best",
            patience=self.cell.patience,
            seed=self.seed,
        )
        plain = Network(copy.deepcopy(self.plain))
        plain.locate(self.like)
        fit = Fit(self.splits.train, self.views["id_val"], settings, progress=False)
        return Candidates(plain, fit, budget)

    @contextmanager
    def clock(self, name: str) -> Iterator[None]:
        """Seconds of processor time, one thread."""
        start = time.process_time()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.process_time() - start

    def answers(
        self, model: nn.Module, cost: float, features: bool = False, **notes: Any
    ) -> MethodAnswers:
        """What a model says of all rows; ``cost`` in seconds, the plain training not counted."""
        parts = {name: predict(model, view, features=features) for name, view in self.views.items()}
        copies = tuple(
            predict(model, view, features=features, novelty=False) for view in self.copies
        )
        return MethodAnswers(parts, copies, 1 + cost / self.seconds["plain"], notes)

    def whole(self, model: nn.Module) -> Whole | None:
        """Of a node task, for calibrators that read the graph."""
        return whole_graph(model, {**self.views, "train": self.splits.train})

    def timed(self, name: str, model: nn.Module, train: Callable[[], None]) -> MethodAnswers:
        """Train a model on top of the plain network, and ask it."""
        with self.clock(name):
            train()
        return self.answers(model, self.seconds[name])


def made(work: Work, part: str) -> Iterator[tuple[str, MethodAnswers]]:
    """All methods of a part.

    Args:
        work: Where.
        part: ``"methods"``; ``"controls"``, only those that the paper's networks are held against;
            ``"paper"``, what the paper trains from scratch; or ``"last"``, the same with the
            weights of the last epoch, as the paper takes them, and the plain network too.
    """
    yield from {"methods": _methods, "controls": _controls, "paper": _paper, "last": _last}[part](
        work
    )


def _plain(work: Work) -> MethodAnswers:
    plain = Network(work.plain)
    work.train(plain, epochs=0)  # what its outputs mean, and novelty
    return work.answers(plain, 0.0, features=True)


def _controls(work: Work) -> Iterator[tuple[str, MethodAnswers]]:
    yield "plain", replace(_plain(work), whole=work.whole(work.plain))
    yield "ensemble of 3", _ensemble(work)


def _methods(work: Work) -> Iterator[tuple[str, MethodAnswers]]:
    net, seed = work.plain, work.seed
    yield "plain", _plain(work)
    dropout = MCDropout(net, seed=seed)
    yield "mc dropout", work.timed("dropout", dropout, lambda: work.train(dropout, epochs=0))
    heads = HeadEnsemble(net, seed=seed)
    yield "head ensemble", work.timed("heads", heads, lambda: work.finish(heads))
    masked = HeadEnsemble(net, mask=0.05, seed=seed)
    yield "head ensemble, masked", work.timed("masked", masked, lambda: work.finish(masked))
    laplace = LastLayerLaplace(net, seed=seed)
    yield "laplace", work.timed("laplace", laplace, lambda: work.finish(laplace))
    near = Neighbours(net, seed=seed)
    yield "neighbours", work.timed("neighbours", near, lambda: work.finish(near))
    head = anchor(net, seed=seed, like=work.like)
    yield "anchored head", work.timed("head", head, lambda: work.finish(head))
    yield from _chosen(work)
    yield "ensemble of 3", _ensemble(work)


def _ensemble(work: Work) -> MethodAnswers:
    members = [work.plain]
    with work.clock("ensemble"):
        for i in range(1, MEMBERS):
            member = work.cell.network(work.splits, 1000 * work.seed + i)
            work.train(member, 1000 * work.seed + i)
            members.append(member.eval())
        model = Ensemble(members)
        work.train(model, epochs=0)
    return work.answers(model, work.seconds["ensemble"])


def _chosen(work: Work) -> Iterator[tuple[str, MethodAnswers]]:
    """`gduq.choose` with every budget; candidates that several budgets share are trained once.

    Each candidate by itself comes too, as `gduq.choose` calibrated it: on copies.
    """
    with work.clock("set up"):
        candidates = work.candidates(BUDGETS[-1])
    found, spent, remaining = [], [], iter(candidates)
    while True:
        start = time.process_time()
        candidate = next(remaining, None)
        if candidate is None:
            break
        found.append(candidate)
        spent.append(time.process_time() - start)
        parts = {name: predict(candidate.model, work.views[name]) for name in SPLITS[1:]}
        yield f"candidate: {candidate.name}", MethodAnswers(parts, (), candidate.budget)
    for budget in BUDGETS:
        within = [i for i, candidate in enumerate(found) if candidate.budget <= budget]
        with work.clock(f"stack {budget}"):
            model = stack(candidates, [found[i] for i in within])
        seconds = work.seconds["set up"] + work.seconds[f"stack {budget}"]
        seconds += sum(spent[i] for i in within)
        assert model.leaderboard is not None
        board = model.leaderboard
        weights = board.set_index("candidate")["weight"].round(3).to_dict()
        yield f"choose {budget}", work.answers(model, seconds, weights=weights)


def _paper(work: Work) -> Iterator[tuple[str, MethodAnswers]]:
    """Anchors as in the paper, from scratch and on the frozen network; and the paper's readings of
    the hypotheses."""
    _ = work.plain
    yield from _from_scratch(work)
    seed, rows = 1000 * work.seed, _rows(work)
    recipe = Recipe.paper(rows, at="readout", freeze=True)
    frozen = anchor(work.plain, recipe=recipe, seed=seed, like=work.like)
    found = work.timed("pretrained", frozen, lambda: work.train(frozen, seed))
    yield from _readings("pretrained", found)


def _last(work: Work) -> Iterator[tuple[str, MethodAnswers]]:
    """Without a look at validation rows for the weights."""
    seed = 1000 * work.seed
    net = work.cell.network(work.splits, seed)
    with work.clock("plain"):
        work.train(net, seed, blind=True)
    plain = Network(net.eval())
    work.train(plain, epochs=0)
    yield "plain, last epoch", work.answers(plain, 0.0)
    for name, found in _from_scratch(work, blind=True):
        yield f"{name}, last epoch", found


def _rows(work: Work) -> Rows:
    return "node" if work.cell.on_nodes else "graph"


def _from_scratch(work: Work, blind: bool = False) -> Iterator[tuple[str, MethodAnswers]]:
    seed, places = 1000 * work.seed, dict[str, int | str](L1=1, L2=2)
    places = {"NFA": "input", **places} if work.cell.on_nodes else {**places, "readout": "readout"}
    for name, at in places.items():
        model = anchor(
            work.cell.network(work.splits, seed),
            recipe=Recipe.paper(_rows(work), at=at),
            seed=seed,
            like=work.like,
        )
        with work.clock(name):
            work.train(model, seed, blind)
        alone = work.answers(model, work.seconds[name] - work.seconds["plain"])
        yield from _readings(name, replace(alone, whole=work.whole(model)))


def _readings(name: str, found: MethodAnswers) -> Iterator[tuple[str, MethodAnswers]]:
    yield name, found
    yield f"{name}, mean logits", found.mapped(Prediction.mean_logits)
    for rule in ("paper", "released"):
        yield f"{name}, {rule} rule", found.mapped(lambda p, r=rule: p.rescaled(r))  # type: ignore[misc]


def energies(work: Work) -> dict[str, dict[str, Tensor]]:
    """Per energy and split the score of every row; nodes only. Edges are left out for ``gebm``,
    which reads nodes alone and brings the graph in by itself, as published."""
    graph = work.like
    model = Network(work.plain)
    everything = torch.ones(graph.num_nodes, dtype=torch.bool)
    alone = graph.clone()
    alone.edge_index = graph.edge_index[:, :0]
    linked, single = (
        predict(model, View(g, rows=everything), features=True, novelty=False)
        for g in (graph, alone)
    )
    train = work.splits.train.rows
    assert linked.features is not None
    assert single.features is not None
    fitted = GEBM.fit(linked.logits[train], linked.features[train], graph.y[train])
    found = {
        "gnnsafe": gnnsafe(linked.logits, graph.edge_index),
        "gebm": fitted(single.logits, single.features, graph.edge_index),
        "gebm, with edges": fitted(linked.logits, linked.features, graph.edge_index),
    }
    return {
        name: {split: values[view.rows] for split, view in work.views.items()}
        for name, values in found.items()
    }


def scores_of_novelty(work: Work) -> dict[str, tuple[Tensor, Tensor]]:
    """Novelty of ID and OOD test rows; and by what the network makes of them, or by their
    structure, alone."""
    model = Network(work.plain)
    work.train(model, epochs=0)
    novelty, both = model.novelty, [_described(model, work.views[split]) for split in SPLITS[1:]]
    home, away = both
    found = {
        "novelty": (novelty(*home), novelty(*away)),
        "representation alone": (novelty(home[0]), novelty(away[0])),
    }
    if home[1] is not None and away[1] is not None:
        known = novelty.structure
        pair = structure_distance(home[1], known), structure_distance(away[1], known)
        found["structure alone"] = pair
    return found


def _described(model: Network, view: View) -> tuple[Tensor, Tensor | None]:
    found = predict(model, view, features=True, novelty=False).features
    assert found is not None
    parts = [model.structure(graph) for graph in view.batches(256)]
    told = [part for part in parts if part is not None]
    return found, torch.cat(told) if len(told) == len(parts) else None
