"""The candidates of `gduq.choose`: made within a cost, and judged by validation rows."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from gduq.anchoring.anchored import Anchored
from gduq.anchoring.recipe import Recipe, Scope
from gduq.baselines.ensemble import Ensemble, redraw, seeded
from gduq.baselines.laplace import LastLayerLaplace
from gduq.baselines.network import Network
from gduq.errors import InputError, warn_user
from gduq.graph import Rows, on_device
from gduq.nn.tracing import trace
from gduq.nn.trunk import as_chain
from gduq.novelty.nearest import Novelty
from gduq.prediction.predicting import device_of_model
from gduq.prediction.predictor import Predictor
from gduq.training.batches import first_graph, some, truths
from gduq.training.epochs import told_target
from gduq.training.finishing import Evidence, GraphRows, copies_of, judged
from gduq.training.fit_settings import FitSettings
from gduq.training.fitting import Fit
from gduq.training.side_by_side import train_heads
from gduq.training.trunk_rows import TrunkRows, learn_on_rows

__all__ = ["PLANS", "Candidate", "Candidates", "Plan"]

_ANCHORS = 3  # as many passes as an ensemble of three; more cost time and change nothing
_BATCH = 256
_ROWS = 256  # that tell what the outputs of a network mean

Made = Iterator[tuple[str, Predictor]]  # what to add to the name, and the model


@dataclass(frozen=True)
class Plan:
    """A training with anchors that `gduq.choose` may do."""

    budget: float  # the least one that has it
    at: int | str  # where the anchors are, as in `Recipe`
    share: float  # of the epochs that the network was trained for
    scope: Scope = "row"  # who shares an anchor
    mask: float = 0.05  # share of masked rows
    draws: int = 1  # anchors per row and step
    fresh: bool = False  # whether it starts with other weights, not from the trained network

    def __str__(self) -> str:
        layer = "the last layer" if self.at == -1 else f"layer {self.at}"
        place = self.at if isinstance(self.at, str) else layer
        shared = ", one anchor per graph" if self.scope == "graph" else ""
        return f"{'from scratch' if self.fresh else 'trained on'}, anchors at {place}{shared}"


_NODES = (Plan(1.2, -1, 0.08), Plan(1.5, 1, 0.125), Plan(2.5, 1, 0.75, fresh=True))
_GRAPHS = (
    Plan(1.2, "input", 0.08, "graph"),
    Plan(1.5, "input", 0.15),
    Plan(2.5, "input", 0.75, "graph", fresh=True),
)
# By what is answered for, the cheapest first; docs/choices.md has the search.
PLANS: Mapping[Rows, Sequence[Plan]] = {"node": _NODES, "edge": _NODES, "graph": _GRAPHS}


@dataclass(frozen=True, eq=False)
class Candidate:
    """A calibrated model with what is known of it."""

    name: str
    budget: float  # the least one that has it
    model: Predictor
    seconds: float  # that it took to train
    losses: Tensor  # of validation rows, then of each copy of them [1 + copies, n]
    predicting: float  # seconds it takes to predict the validation rows


class Candidates:
    """All candidates that a budget allows, the plain network (which is located) first."""

    def __init__(self, plain: Network, fit: Fit, budget: float) -> None:
        self.plain, self.fit, self.budget = plain, fit, budget
        self.seed, (self.train, self.val) = fit.settings.seed, fit.batches
        assert self.val is not None
        self.first = first_graph(fit.train)
        self.rows: TrunkRows | None = None
        trunk = plain.trunk
        if trunk is not None and trunk.has_head:
            trunk.requires_grad_(False)
            self.rows = TrunkRows.collect(
                trunk, self.train, self.val, fit.read_target, "shifted", self.seed
            )
            plain.target = self.rows.target
        else:
            generator = torch.Generator().manual_seed(self.seed)
            graph = some(self.train, _ROWS, _BATCH, generator)[0]
            batches, y = [on_device(graph, device_of_model(plain))], truths(self.train, "train")
            plain.target = told_target(plain, batches, y, True, fit.read_target)
            plain.target.check(truths(self.val, "val"), "val")
        start = time.perf_counter()
        judged(plain, self.val, _BATCH)
        self.pass_seconds = time.perf_counter() - start

    def __iter__(self) -> Iterator[Candidate]:
        """Train and judge them; what the network does not allow is left out, with a warning."""
        for name, budget, make in self._plans():
            if budget > self.budget:
                continue
            start = time.perf_counter()
            try:
                for suffix, model in make():
                    yield self.judged(name + suffix, budget, model, time.perf_counter() - start)
                    start = time.perf_counter()
            except InputError as error:
                if make == self._plain:
                    raise
                warn_user(f"choose leaves out '{name}': {error}")

    def _plans(self) -> Iterator[tuple[str, float, Callable[[], Made]]]:
        """Name, least budget and making of every candidate, the cheapest first."""
        epochs, target = self.fit.settings.epochs, self.plain.target
        # Heads need no epochs. Where these are known, training on is the better buy for classes
        # and labels; real values lost by it.
        heads_first = not epochs or (target is not None and target.kind == "values")
        yield "plain", 1.0, self._plain
        if self.rows is not None:
            yield "Laplace", 1.0, partial(self._laplace, self.rows)
            budget = 1.0 if heads_first else 1.5
            yield "anchored head", budget, partial(self._heads, self.rows)
        for plan in self._plans_here if epochs else ():
            budget = max(plan.budget, 1.5) if heads_first else plan.budget
            yield str(plan), budget, partial(self.anchored, plan)
        if epochs:
            yield "ensemble of 3", 5.0, self._ensemble

    @property
    def _plans_here(self) -> Iterator[Plan]:
        """The plans for places that the network has, each place once."""
        seen = set[tuple[Any, ...]]()
        trunk, layers = self.plain.trunk, self._layers
        for plan in PLANS["graph" if trunk is None else trunk.answers]:
            place = layers - 1 if plan.at == -1 else plan.at
            key = place, plan.scope, plan.fresh
            if key not in seen and (isinstance(place, str) or 0 <= place < layers):
                seen.add(key)
                yield plan

    @property
    def _layers(self) -> int:
        """How many layers of message passing the network has."""
        chain = as_chain(self.plain.net)
        if chain is not None:
            return sum(isinstance(point, int) for point in chain.points) + 1
        return len(trace(self.plain.net, self.first, self.plain.call).layers)

    # -- making --------------------------------------------------------------------------------

    def _plain(self) -> Made:
        yield "", self.plain

    def _heads(self, rows: TrunkRows) -> Made:
        """One candidate per mask: all of them are trained side by side."""
        recipe = Recipe.head()
        first = self._on_trunk(rows, recipe)
        job = first.head_job(rows.train.h)
        assert job is not None
        assert first.target is not None
        train_heads(job, rows.train, rows.val, first.target, self._head_settings, tempered=True)
        for mask, head in zip(recipe.masks, job.heads, strict=True):
            model = self._on_trunk(rows, recipe.with_(mask=mask))
            model.set_bank(first.bank)
            model.take_heads([head])
            yield f", mask {mask}", model

    def _on_trunk(self, rows: TrunkRows, recipe: Recipe) -> Anchored:
        model = Anchored(rows.trunk.net, recipe, self.plain.call, self.seed, trunk=rows.trunk)
        model.target = rows.target
        model.adapt(rows.held.outputs, rows.held.y)
        return model

    def _laplace(self, rows: TrunkRows) -> Made:
        model = LastLayerLaplace(None, call=self.plain.call, seed=self.seed, trunk=rows.trunk)
        learn_on_rows(model, rows, self._head_settings)
        yield "", model

    @property
    def _head_settings(self) -> FitSettings:
        """Heads are trained until validation rows say stop."""
        return replace(self.fit.settings, epochs=None, given_lr=None, given_batch_size=None)

    def anchored(self, plan: Plan) -> Made:
        """The network with anchors, trained on or anew, for a part of the epochs."""
        net = self.plain.net
        # What a network of one's own makes of its input first may be an embedding of categories.
        embeds = plan.at == "input" and as_chain(net) is None
        recipe = Recipe.thawed(
            at=0 if embeds else plan.at,
            anchors="gaussian" if embeds else None,
            init="random" if plan.fresh else "identity",
            scope=plan.scope,
            num_anchors=_ANCHORS,
            mask=plan.mask,
            draws=plan.draws,
        )
        net = _fresh(net, self.seed + 1) if plan.fresh else _learning(net)
        model = Anchored(net, recipe, self.plain.call, self.seed, self.first)
        yield "", self._trained(model, plan.share)

    def _ensemble(self) -> Made:
        """The network and two more of its kind."""
        members: list[Predictor] = [copy.deepcopy(self.plain)]
        members[0].set_temperature(1.0, None)
        for i in (1, 2):
            member = Network(_fresh(self.plain.net, self.seed + 100 + i), self.plain.call)
            members.append(self._trained(member, 1.0))
        model = Ensemble(members)
        assert self.plain.target is not None
        model.target = self.plain.target.combined()
        yield "", model

    def _trained(self, model: Predictor, share: float) -> Predictor:
        settings = self.fit.settings
        assert settings.epochs is not None
        epochs = max(1, round(settings.epochs * share))
        replace(self.fit, settings=replace(settings, epochs=epochs)).run(model, None)
        model.novelty = Novelty()  # the mixture has one for all
        return model

    # -- judging -------------------------------------------------------------------------------

    def evidence(self, model: Predictor) -> Evidence:
        """Rows and copies to judge a model by: those that the trunk has given, if it reads them."""
        rows = self.rows
        return rows if rows is not None and model.trunk is rows.trunk else self._graphs

    @cached_property
    def _graphs(self) -> GraphRows:
        copies = list(copies_of(self.val, self.seed))
        return GraphRows(self.train, self.val, copies, _BATCH, self.seed)

    def judged(self, name: str, budget: float, model: Predictor, seconds: float) -> Candidate:
        """Calibrate a model, and note the losses of validation rows and copies."""
        evidence = self.evidence(model)
        model.eval()
        evidence.calibrate(model)
        assert model.target is not None
        start, found = time.perf_counter(), []
        predicting = self.pass_seconds if evidence is self.rows else 0.0
        for i, rows in enumerate((evidence.val, *evidence.copies)):
            outputs, y, weights = evidence.judged(model, rows)
            found.append(model.target.nll(model.calibrated(outputs, weights), y, weights))
            if i == 0:
                predicting += time.perf_counter() - start
        losses = torch.stack(found).double().cpu()
        return Candidate(name, budget, model, seconds, losses, predicting)


def _learning(net: nn.Module) -> nn.Module:
    """A copy all of which can be trained."""
    return copy.deepcopy(net).requires_grad_(True)


def _fresh(net: nn.Module, seed: int) -> nn.Module:
    """A network of the same kind with weights drawn anew."""
    return seeded(lambda _: redraw(_learning(net)), seed).train()
