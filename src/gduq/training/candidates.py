"""The candidates of `gduq.choose`: made within a cost, and judged by validation rows."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from gduq.anchoring.anchored import Anchored
from gduq.anchoring.recipe import Recipe
from gduq.baselines.ensemble import Ensemble, redraw, seeded
from gduq.baselines.laplace import LastLayerLaplace
from gduq.baselines.network import Network
from gduq.errors import InputError, warn_user
from gduq.graph import Rows, on_device
from gduq.nn.tracing import trace
from gduq.nn.trunk import Trunk, as_chain
from gduq.novelty.nearest import Novelty
from gduq.prediction.predicting import device_of_model
from gduq.prediction.predictor import Predictor
from gduq.training.batches import as_batches, first_graph, some, truths
from gduq.training.finishing import Judged, copies_of, fit_temperature, judged, settle
from gduq.training.first_pass import told_target
from gduq.training.fit_settings import FitSettings
from gduq.training.fitting import Fit
from gduq.training.plans import PLANS, Plan
from gduq.training.side_by_side import train_heads
from gduq.training.trunk_rows import TrunkRows, calibrate_on_rows, judged_on_rows, learn_on_rows

__all__ = ["Candidate", "Candidates"]

_ANCHORS = 3  # as many passes as an ensemble of three; more cost time and change nothing
_BATCH = 256
_ROWS = 256  # that tell what the outputs of a network mean

Made = Iterator[tuple[str, Predictor]]  # what to add to the name, and the model


@dataclass(frozen=True, eq=False)
class Candidate:
    """A calibrated model with what is known of it.

    Attributes:
        name: In few words.
        budget: The least one that has it.
        model: The model.
        seconds: How long it took to train.
        losses: Of validation rows, then of each copy of them ``[1 + copies, n]``.
        predicting: Seconds it takes to predict the validation rows.
    """

    name: str
    budget: float
    model: Predictor
    seconds: float
    losses: Tensor
    predicting: float


class Candidates:
    """All candidates that a budget allows, the plain network first.

    Args:
        plain: The network, located.
        fit: Data and settings.
        budget: As in `gduq.choose`.
    """

    def __init__(self, plain: Network, fit: Fit, budget: float) -> None:
        self.plain, self.fit, self.budget = plain, fit, budget
        self.seed = fit.settings.seed
        self.train, self.val = as_batches(fit.train, "train"), as_batches(fit.val, "val")
        self.first = first_graph(fit.train)
        self.rows: TrunkRows | None = None
        trunk = plain.trunk
        if trunk is not None and trunk.has_head:
            trunk.requires_grad_(False)
            self.rows = TrunkRows.collect(
                trunk, self.train, self.val, fit.read_target, "shifted", _BATCH, self.seed
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
            yield "Laplace", 1.0, self._laplace
            yield "anchored head", 1.0 if heads_first else 1.5, self._heads
        for plan in self._plans_here if epochs else ():
            budget = max(plan.budget, 1.5) if heads_first else plan.budget
            yield str(plan), budget, partial(self.anchored, plan)
        if epochs:
            yield "ensemble of 3", 5.0, self._ensemble

    @property
    def _plans_here(self) -> Iterator[Plan]:
        """The plans for places that the network has, each place once."""
        seen = set[tuple[Any, ...]]()
        for plan in PLANS[self._answers]:
            place = self._layers - 1 if plan.at == -1 else plan.at
            key = place, plan.scope, plan.fresh
            if key not in seen and (isinstance(place, str) or 0 <= place < self._layers):
                seen.add(key)
                yield plan

    # -- making --------------------------------------------------------------------------------

    def _plain(self) -> Made:
        yield "", self.plain

    def _heads(self) -> Made:
        """One candidate per mask: all of them are trained side by side."""
        rows, recipe = self._rows, Recipe.head()
        first = self._on_trunk(recipe)
        job = first.head_job(rows.train.h)
        assert job is not None
        assert first.target is not None
        train_heads(job, rows.train, rows.val, first.target, self._head_settings, tempered=True)
        for mask, head in zip(recipe.masks, job.heads, strict=True):
            model = self._on_trunk(recipe.with_(mask=mask))
            model.set_bank(first.bank)
            model.take_heads([head])
            yield f", mask {mask}", model

    def _on_trunk(self, recipe: Recipe) -> Anchored:
        model = Anchored(self._trunk.net, recipe, self.plain.call, self.seed, trunk=self._trunk)
        rows = self._rows
        assert rows.val is not None
        model.target = rows.target
        model.adapt(rows.val.outputs, rows.val.y)
        return model

    def _laplace(self) -> Made:
        model = LastLayerLaplace(None, call=self.plain.call, seed=self.seed, trunk=self._trunk)
        learn_on_rows(model, self._rows, self._head_settings)
        yield "", model

    def anchored(self, plan: Plan) -> Made:
        """The network with anchors, trained on or anew, for a part of the epochs."""
        net = self.plain.net
        # What a network of one's own makes of its input first may be an embedding of categories.
        embeds = plan.at == "input" and as_chain(net) is None
        net = _fresh(net, self.seed + 1) if plan.fresh else _learning(net)
        recipe = Recipe.thawed(
            at=0 if embeds else plan.at,
            anchors="gaussian" if embeds else None,
            init="random" if plan.fresh else "identity",
            scope=plan.scope,
            num_anchors=_ANCHORS,
            mask=plan.mask,
            draws=plan.draws,
        )
        model = Anchored(net, recipe, self.plain.call, self.seed, self.first)
        yield "", self._trained(model, max(1, round(self._epochs * plan.share)))

    def _ensemble(self) -> Made:
        """The network and two more of its kind."""
        call, members = self.plain.call, [copy.deepcopy(self.plain)]
        members[0].set_temperature(1.0, None)
        for i in (1, 2):
            member = Network(_fresh(self.plain.net, self.seed + 100 + i), call)
            self._trained(member, self._epochs)
            members.append(member)
        model = Ensemble(members)
        assert self.plain.target is not None
        model.target = self.plain.target.combined()
        yield "", model

    def _trained(self, model: Predictor, epochs: int) -> Predictor:
        own = replace(self.fit, settings=replace(self.fit.settings, epochs=epochs))
        own.run(model, None)
        model.novelty = Novelty()  # the mixture has one for all
        return model

    @cached_property
    def _layers(self) -> int:
        """How many layers of message passing the network has."""
        chain = as_chain(self.plain.net)
        if chain is not None:
            return sum(isinstance(point, int) for point in chain.points) + 1
        return len(trace(self.plain.net, self.first, self.plain.call).layers)

    @property
    def _answers(self) -> Rows:
        trunk = self.plain.trunk
        return "graph" if trunk is None else trunk.answers

    @property
    def _epochs(self) -> int:
        assert self.fit.settings.epochs is not None
        return self.fit.settings.epochs

    @property
    def _head_settings(self) -> FitSettings:
        """Heads are trained until validation rows say stop."""
        return replace(self.fit.settings, epochs=None, given_lr=None, given_batch_size=None)

    # -- judging -------------------------------------------------------------------------------

    @property
    def _trunk(self) -> Trunk:
        assert self.plain.trunk is not None
        return self.plain.trunk

    @property
    def _rows(self) -> TrunkRows:
        assert self.rows is not None
        return self.rows

    def stands(self, model: Predictor) -> bool:
        """Whether a model reads the rows that the trunk has given."""
        return self.rows is not None and model.trunk is self.plain.trunk

    @cached_property
    def views(self) -> list[Any]:
        """Validation rows and shifted copies of them."""
        return [self.val, *copies_of(self.val, self.seed)]

    @property
    def sets(self) -> int:
        """How many views there are."""
        return len(self.views) if self.rows is None else 1 + len(self.rows.copies)

    def said(self, model: Predictor, index: int) -> Judged:
        """What a model says of a view, before calibration; of the trunk's rows if it can."""
        if not self.stands(model):
            return judged(model, self.views[index], _BATCH)
        rows = self._rows
        assert rows.val is not None
        return judged_on_rows(model, (rows.val, *rows.copies)[index])

    def judged(self, name: str, budget: float, model: Predictor, seconds: float) -> Candidate:
        """Calibrate a model, and note the losses of validation rows and copies."""
        model.eval()
        self._calibrate(model)
        assert model.target is not None
        start, found = time.perf_counter(), []
        for i in range(self.sets):
            one = self.said(model, i)
            found.append(
                model.target.nll(model.calibrated(one.outputs, one.weights), one.y, one.weights)
            )
            if i == 0:
                predicting = time.perf_counter() - start
        predicting += self.pass_seconds if self.stands(model) else 0.0
        return Candidate(
            name, budget, model, seconds, torch.stack(found).double().cpu(), predicting
        )

    def _calibrate(self, model: Predictor) -> None:
        model.set_temperature(1.0, None)
        if self.stands(model):
            calibrate_on_rows(model, self._rows, "shifted")
        else:
            settle(model, lambda: self.said(model, 0))
            clean, *copies = (self.said(model, i) for i in range(self.sets))
            fit_temperature(model, clean, copies)


def _learning(net: nn.Module) -> nn.Module:
    """A copy all of which can be trained."""
    return copy.deepcopy(net).requires_grad_(True)


def _fresh(net: nn.Module, seed: int) -> nn.Module:
    """A network of the same kind with weights drawn anew."""
    copied = _learning(net)

    def reset(_: int) -> nn.Module:
        redraw(copied)
        return copied

    return seeded(reset, seed).train()
