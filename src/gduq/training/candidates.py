"""The candidates of `gduq.choose`: made within a cost, and judged by validation rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from gduq.anchoring.anchored import Anchored
from gduq.anchoring.recipe import Recipe, Scope
from gduq.baselines.ensemble import seeded
from gduq.baselines.laplace import LastLayerLaplace
from gduq.baselines.neighbours import Neighbours
from gduq.baselines.network import Network
from gduq.data.view import View
from gduq.errors import InputError, warn_user
from gduq.graph import Rows, on_device
from gduq.nn.call import copied, redraw
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
from gduq.training.trunk_rows import TrunkRows, learn_on_rows

__all__ = ["PLANS", "Candidate", "Candidates", "Plan"]

_ANCHORS = 3  # as many passes as an ensemble of three; more cost time and change nothing
_BATCH = 256
_ROWS = 256  # that tell what the outputs of a network mean

_HEAD = Recipe.head(mask=0.05)  # one share will do: others end up beside it in the mixture


@dataclass(frozen=True)
class Plan:
    """A training that `gduq.choose` may do."""

    budget: float  # the least one that has it
    at: int | str | None  # where the anchors are, as in `Recipe`; None: no anchors
    share: float  # of the epochs that the network was trained for
    scope: Scope = "row"  # who shares an anchor
    mask: float = 0.05  # share of masked rows
    draws: int = 1  # anchors per row and step
    fresh: int = 0  # 0: it goes on from the trained network; 1, 2, ...: from weights drawn anew

    def __str__(self) -> str:
        if self.at is None:
            return f"network {self.fresh + 1}"
        layer = "the last layer" if self.at == -1 else f"layer {self.at}"
        place = self.at if isinstance(self.at, str) else layer
        shared = ", one anchor per graph" if self.scope == "graph" else ""
        return f"{'from scratch' if self.fresh else 'trained on'}, anchors at {place}{shared}"


_NETWORKS = (Plan(2.5, None, 1.0, fresh=1), Plan(3.5, None, 1.0, fresh=2))
_NODES = (Plan(1.5, -1, 0.03), Plan(1.5, 1, 0.125), *_NETWORKS)
_GRAPHS = (Plan(1.5, "input", 0.08, "graph"), Plan(1.5, "input", 0.1), *_NETWORKS)
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
        self.seed, self.train, val = fit.settings.seed, fit.train, fit.val
        assert val is not None
        self.val = val if isinstance(val, View) else val.in_order()  # rows are compared
        self.first = on_device(first_graph(fit.train), device_of_model(plain))
        self.seen: list[TrunkRows] = []  # by the networks that have a head, the plain one first
        rows = self._rows(plain)
        if rows is not None:
            plain.target = rows.target
        else:
            generator = torch.Generator().manual_seed(self.seed)
            graph = some(self.train, _ROWS, _BATCH, generator)[0]
            batches, y = [on_device(graph, device_of_model(plain))], truths(self.train, "train")
            plain.target = told_target(plain, batches, y, True, fit.read_target)
            plain.target.check_val(truths(self.val, "val"), y)
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
                model = make()
                found = self.judged(name, budget, model, time.perf_counter() - start)
            except InputError as error:
                if name == "plain":
                    raise
                warn_user(f"choose leaves out '{name}': {error}")
                continue
            yield found

    def _plans(self) -> Iterator[tuple[str, float, Callable[[], Predictor]]]:
        """Name, least budget and making of every candidate, the cheapest first."""
        has_head = bool(self.seen)
        yield "plain", 1.0, lambda: self.plain
        for rows in self.seen[:1]:
            yield self.on_rows(rows, 1.0)
            yield "anchored head", 1.2, partial(self._head, rows)
        for i, plan in enumerate(self._plans_here if self.fit.settings.epochs else ()):
            # Without a head there is nothing cheaper than the first of them.
            budget = plan.budget if has_head or i else 1.2
            before = len(self.seen)
            yield str(plan), budget, partial(self.planned, plan)
            for rows in self.seen[before:]:  # of a network that was trained anew
                yield self.on_rows(rows, budget, f", {plan}")
            del self.seen[before:]

    def on_rows(
        self, rows: TrunkRows, budget: float, whose: str = ""
    ) -> tuple[str, float, Callable[[], Predictor]]:
        """What a network with a head allows in one pass over the training rows."""
        values = rows.target.kind == "values"
        name, kind = ("Laplace", LastLayerLaplace) if values else ("neighbours", Neighbours)
        return f"{name}{whose}", budget, partial(self.learned, kind, rows)

    @property
    def _plans_here(self) -> Iterator[Plan]:
        """The plans for places that the network has, each place once."""
        seen = set[tuple[Any, ...]]()
        trunk, layers = self.plain.trunk, self._layers
        for plan in PLANS["graph" if trunk is None else trunk.answers]:
            place = layers - 1 if plan.at == -1 else plan.at
            key = place, plan.scope, plan.fresh
            if key not in seen and (not isinstance(place, int) or 0 <= place < layers):
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

    def _rows(self, network: Network) -> TrunkRows | None:
        """All rows as a network with a head gives them; they are kept for what stands on it."""
        trunk = network.trunk
        if trunk is None or not trunk.has_head:
            return None
        trunk.requires_grad_(False)
        # What trains on is judged on the copies later; else each is gone once the trunk saw it.
        least = min(plan.budget for plan in PLANS[trunk.answers])
        trains = self.fit.settings.epochs is not None and self.budget >= least
        copies = self._graphs.copies if trains else copies_of(self.val, self.seed)
        known = network.target  # what a network was trained for here
        read = self.fit.read_target if known is None else lambda _: known
        rows = TrunkRows.collect(trunk, self.train, self.val, read, copies)
        self.seen.append(rows)
        return rows

    def learned(self, kind: Callable[..., Predictor], rows: TrunkRows) -> Predictor:
        """A model that stands on the trunk of these rows."""
        model = kind(None, call=self.plain.call, seed=self.seed, trunk=rows.trunk)
        learn_on_rows(model, rows, self._head_settings)
        return model

    def _head(self, rows: TrunkRows) -> Predictor:
        net, trunk = rows.trunk.net, rows.trunk
        model = Anchored(net, _HEAD, self.plain.call, self.seed, trunk=trunk)
        learn_on_rows(model, rows, self._head_settings)
        return model

    @property
    def _head_settings(self) -> FitSettings:
        """Heads are trained until validation rows say stop."""
        return replace(self.fit.settings, epochs=None, given_lr=None, given_batch_size=None)

    def planned(self, plan: Plan) -> Predictor:
        """The network trained on with anchors, or another one of its kind."""
        net, call = self.plain.net, self.plain.call
        net = _fresh(net, self.seed + 100 * plan.fresh) if plan.fresh else _learning(net)
        if plan.at is None:
            network = Network(net, call)
            self._trained(network, plan.share)
            self._rows(network)
            return network
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
        return self._trained(Anchored(net, recipe, call, self.seed, self.first), plan.share)

    def _trained(self, model: Predictor, share: float) -> Predictor:
        settings = self.fit.settings
        assert settings.epochs is not None
        epochs = max(1, round(settings.epochs * share))
        replace(self.fit, settings=replace(settings, epochs=epochs)).run(model, None)
        model.novelty = Novelty()  # the mixture has one for all
        return model

    # -- judging -------------------------------------------------------------------------------

    def evidence(self, model: Predictor) -> Evidence:
        """Rows and copies to judge a model by: those that its trunk has given, if it reads them."""
        for rows in self.seen:
            if rows.trunk is model.trunk:
                return rows
        return self._graphs

    @cached_property
    def _graphs(self) -> GraphRows:
        copies = list(copies_of(self.val, self.seed))
        return GraphRows(self.train, self.val, copies, _BATCH, self.seed)

    def judged(self, name: str, budget: float, model: Predictor, seconds: float) -> Candidate:
        """Calibrate a model, and note the losses of validation rows and copies."""
        evidence = self.evidence(model)
        model.eval()
        sets = evidence.calibrate(model)
        assert model.target is not None
        start = time.perf_counter()
        evidence.judged(model, evidence.val)
        predicting = time.perf_counter() - start
        if isinstance(evidence, TrunkRows):
            predicting += self.pass_seconds
        found = [model.target.nll(model.calibrated(z, w), y, w) for z, y, w, _ in sets]
        losses = torch.stack(found).double().cpu()
        return Candidate(name, budget, model, seconds, losses, predicting)


def _learning(net: nn.Module) -> nn.Module:
    """A copy all of which can be trained."""
    return copied(net).requires_grad_(True)


def _fresh(net: nn.Module, seed: int) -> nn.Module:
    """A network of the same kind with weights drawn anew."""
    return seeded(lambda _: redraw(_learning(net)), seed).train()
