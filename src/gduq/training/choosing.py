r"""`choose`: let validation rows and shifted copies of them decide, within a cost.

Candidates are calibrated one by one. Their mixture :math:`\sum_j w_j p_j` then takes the weights
that make validation rows and their copies (half and half) most likely, found by EM. The plain
network has a head start worth some validation rows: without evidence against it, it keeps most of
the weight, and the choice does no harm.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from gduq.anchoring.anchored import Anchored
from gduq.anchoring.recipe import MASKS, Recipe
from gduq.baselines.ensemble import Ensemble
from gduq.baselines.heads import HeadEnsemble
from gduq.baselines.laplace import LastLayerLaplace
from gduq.baselines.network import Network
from gduq.baselines.stack import Stack
from gduq.data.view import View
from gduq.errors import InputError
from gduq.nn.call import Call
from gduq.nn.trunk import Trunk
from gduq.prediction.predicting import predict
from gduq.prediction.predictor import Predictor
from gduq.shifts.copies import shifted_copies
from gduq.training.batches import as_batches
from gduq.training.finishing import fit_novelty, fit_temperature
from gduq.training.fitting import Fit, _first
from gduq.training.randomness import isolated
from gduq.training.rows import Seen, TrunkRows, calibrate_on_rows, fit_on_rows
from gduq.training.settings import Settings
from gduq.training.step import checked_fabric

__all__ = ["choose", "mixture_weights"]

HEAD_START = 20.0  # validation rows that speak for the plain network before any is seen
SMALL = 0.02  # members of less weight are dropped
_HEADS = 10  # heads of a head ensemble


def choose(
    net: nn.Module,
    train: Any,
    val: Any,
    *,
    budget: float = 1.2,
    epochs: int | None = None,
    lr: float | None = None,
    batch_size: int | None = None,
    weight_decay: float = 0.0,
    class_names: Sequence[str] | None = None,
    seed: int = 0,
    call: Call | None = None,
    progress: bool = True,
) -> Stack:
    """The best mixture of models that a trained network allows, within a cost.

    Args:
        net: A trained network; it is copied.
        train: The data it was trained on.
        val: Labelled rows it was not trained on.
        budget: How much all training may cost, in trainings of ``net``, its own included. 1.2:
            heads on the frozen network (anchored ones with several masks, an ensemble of heads,
            Laplace). From 1.4: training goes on with anchors at the last layer. From 2: at other
            places too, and from scratch. From 3: an ensemble as well.
        epochs: How long ``net`` was trained; needed from a budget of 1.4 on.
        lr: Its learning rate, for whatever trains on or anew.
        batch_size: Graphs per step, as it was trained with.
        weight_decay: As it was trained with.
        class_names: A name per class.
        seed: For everything random.
        call: As in `gduq.anchor`.
        progress: Show a bar, on a terminal.

    Returns:
        The mixture. Its ``leaderboard`` has a row per candidate: score (mean loss of validation
        rows and copies, calibrated) with its standard error, weight, seconds of training, and
        cost of prediction relative to the plain network.

    Example:
        >>> from torch_geometric.data import Data
        >>> import gduq
        >>> def graph(y):
        ...     x = torch.full((3, 2), y) + 0.1 * torch.arange(6.0).view(3, 2)
        ...     return Data(x=x, edge_index=torch.tensor([[0, 1, 2], [1, 2, 0]]), y=int(y))
        >>> graphs = [graph(float(i % 2)) for i in range(80)]
        >>> net = gduq.nn.GNN(2, 8, 2, num_layers=2, head="mlp")
        >>> _ = gduq.fit(net, graphs[:50], graphs[50:], epochs=5)
        >>> model = gduq.choose(net, graphs[:50], graphs[50:])
        >>> round(float(model.leaderboard["weight"].sum()), 3)
        1.0
    """
    if not 1 <= budget <= 100:
        raise InputError("budget from 1 to 100, in trainings of the network", budget)
    if budget >= 1.4 and epochs is None:
        raise InputError(
            f"epochs=, how long the network was trained, with budget={budget}",
            "none",
            "Pass it, or a budget below 1.4, which needs no more training of the network.",
        )
    if val is None:
        raise InputError("validation data to choose by", "none", "Pass val.")
    if isinstance(net, Predictor):
        raise InputError("a network that is not wrapped", type(net).__name__)
    settings = Settings(
        epochs=epochs,
        given_lr=lr,
        given_batch_size=batch_size,
        weight_decay=weight_decay,
        milestones=(),
        gamma=0.1,
        select="best",
        patience=None,
        seed=seed,
    )
    fit = Fit(train, val, settings, None, class_names, progress)
    fabric = checked_fabric(None)
    with isolated(fabric.device):
        plain = Network(copy.deepcopy(net).eval().to(fabric.device), call)
        plain.locate(_first(train))
        return _Choice(plain, fit, budget).made()


@dataclass(eq=False)
class _Candidate:
    """A model with what is known of it."""

    name: str
    model: Predictor
    seconds: float
    losses: Tensor = field(default_factory=lambda: torch.empty(0))  # [1 + copies, n]
    predicting: float = 0.0


class _Choice:
    """All candidates of a call of `choose`, and the mixture of them."""

    def __init__(self, plain: Network, fit: Fit, budget: float) -> None:
        self.plain, self.fit, self.budget = plain, fit, budget
        self.val = as_batches(fit.val, "val")
        self.train = as_batches(fit.train, "train")
        seed = fit.settings.seed
        views = list(shifted_copies(self.val, seed)) if isinstance(self.val, View) else []
        self.views: list[Any] = [self.val, *views]
        trunk = plain.trunk
        self.rows: TrunkRows | None = None
        if trunk is not None and trunk.has_head:
            self.rows = TrunkRows.collect(
                trunk, self.train, self.val, fit.read_target, "shifted", 256, seed
            )

    def made(self) -> Stack:
        """Train, judge and weigh all candidates."""
        found = list(self._candidates())
        prior = torch.tensor([HEAD_START if i == 0 else 0.0 for i in range(len(found))])
        table = torch.stack([c.losses for c in found])  # [J, 1 + copies, n]
        weights = mixture_weights(-table, prior)
        kept = [j for j in range(len(found)) if weights[j] >= SMALL]
        final = mixture_weights(-table[kept], prior[kept])
        stack = Stack([found[j].model for j in kept], final)
        self._finish(stack)
        weights = torch.zeros_like(weights).index_copy_(0, torch.tensor(kept), final)
        stack.leaderboard = _leaderboard(found, weights)
        return stack.eval()

    def _candidates(self) -> Iterator[_Candidate]:
        for name, make in self._plans():
            start = time.perf_counter()
            for suffix, model in make():
                candidate = _Candidate(name + suffix, model, time.perf_counter() - start)
                self._judge(candidate)
                yield candidate
                start = time.perf_counter()

    def _plans(self) -> Iterator[tuple[str, Callable[[], Iterator[tuple[str, Predictor]]]]]:
        """What the budget allows, the plain network first."""
        yield "plain", self._plain
        if self.rows is not None:
            yield "anchored head", self._heads
            yield "head ensemble", self._head_ensemble
            yield "Laplace", self._laplace
        if self.budget >= 1.4:
            yield "thawed at the last layer", lambda: self._thawed(-1, 4)
        if self.budget >= 2:
            yield "thawed at layer 1", lambda: self._thawed(1, 2)
            yield "from scratch", self._from_scratch
        if self.budget >= 3:
            yield "ensemble of 3", self._ensemble

    # -- candidates ----------------------------------------------------------------------------

    def _plain(self) -> Iterator[tuple[str, Predictor]]:
        if self.rows is not None:
            self.plain.target = self.rows.target
            calibrate_on_rows(self.plain, self.rows, "shifted")
        else:
            p = predict(self.plain, self.val, novelty=False)
            self.plain.target = self.fit.read_target(p.require_target(), p.num_classes)
            self._calibrate(self.plain)
        yield "", self.plain

    def _heads(self) -> Iterator[tuple[str, Predictor]]:
        """One candidate per mask: all of them are trained side by side."""
        trunk, rows = self._trunk, self._rows
        settings = replace(self.fit.settings, epochs=None, given_lr=None, given_batch_size=None)
        recipe, seed = Recipe.head(), self.fit.settings.seed
        first = Anchored(trunk.net, recipe, self.plain.call, seed, trunk=trunk)
        job = first.head_job(rows.train.h)
        assert job is not None
        from gduq.training.rows import _train

        first.target = rows.target
        _train(job, rows, settings, lambda _: None)
        for mask, head in zip(MASKS, job.heads, strict=True):
            own = recipe.with_(mask=mask)
            model = Anchored(trunk.net, own, self.plain.call, seed, trunk=trunk)
            model.target = rows.target
            model.set_bank(first.bank)
            model.take_heads([head])
            calibrate_on_rows(model, rows, "shifted")
            yield f", mask {mask}", model

    def _head_ensemble(self) -> Iterator[tuple[str, Predictor]]:
        model = HeadEnsemble(None, _HEADS, seed=self.fit.settings.seed, trunk=self._trunk)
        settings = replace(self.fit.settings, epochs=None, given_lr=None, given_batch_size=None)
        fit_on_rows(model, self._rows, settings, "shifted")
        yield "", model

    def _laplace(self) -> Iterator[tuple[str, Predictor]]:
        model = LastLayerLaplace(None, seed=self.fit.settings.seed, trunk=self._trunk)
        fit_on_rows(model, self._rows, self.fit.settings, "shifted")
        yield "", model

    def _thawed(self, at: int, part: int) -> Iterator[tuple[str, Predictor]]:
        """Training goes on, with anchors, for a part of the epochs."""
        net, call = self.plain.net, self.plain.call
        recipe = Recipe.thawed(at=at, scope="row")
        first = _first(self.fit.train)
        model = Anchored(net, recipe, call, self.fit.settings.seed, like=first)
        yield "", self._trained(model, max(1, (self.fit.settings.epochs or part) // part))

    def _from_scratch(self) -> Iterator[tuple[str, Predictor]]:
        """As in the paper, from a fresh network, with a little masking."""
        rows = self.plain.trunk.answers if self.plain.trunk is not None else "graph"
        recipe = Recipe.paper(rows, mask=0.05)
        fresh = _fresh(self.plain.net, self.fit.settings.seed + 1)
        first = _first(self.fit.train)
        model = Anchored(fresh, recipe, self.plain.call, self.fit.settings.seed, like=first)
        yield "", self._trained(model, self.fit.settings.epochs or 1)

    def _ensemble(self) -> Iterator[tuple[str, Predictor]]:
        """The network and two more of its kind."""
        members: list[Predictor] = [Network(copy.deepcopy(self.plain.net), self.plain.call)]
        members[0].target = self.plain.target
        for i in (1, 2):
            net = _fresh(self.plain.net, self.fit.settings.seed + 100 + i)
            members.append(
                self._trained(Network(net, self.plain.call), self.fit.settings.epochs or 1)
            )
        model = Ensemble(members)
        model.target = self.plain.target
        yield "", model

    def _trained(self, model: Predictor, epochs: int) -> Predictor:
        settings = replace(self.fit.settings, epochs=epochs)
        replace(self.fit, settings=settings).run(model, None)
        return model

    # -- judging -------------------------------------------------------------------------------

    @property
    def _trunk(self) -> Trunk:
        trunk = self.plain.trunk
        assert trunk is not None
        return trunk.requires_grad_(False)

    @property
    def _rows(self) -> TrunkRows:
        assert self.rows is not None
        return self.rows

    def _judge(self, candidate: _Candidate) -> None:
        """Losses of validation rows and copies, ``[1 + copies, n]``, and the cost of predicting."""
        model = candidate.model
        stands = model.trunk is not None and model.trunk is self.plain.trunk
        if model.calibration is None and not stands:
            self._calibrate(model)
        assert model.target is not None
        start, found = time.perf_counter(), []
        if stands and self.rows is not None:
            assert self.rows.val is not None
            for seen in (self.rows.val, *self.rows.copies):
                found.append(model.target.nll(self._on_rows(model, seen), seen.y))
        else:
            for view in self.views:
                p = predict(model, view, novelty=False)
                found.append(model.target.nll(p.samples, p.require_target(), p.weights))
        candidate.predicting = time.perf_counter() - start
        if stands and self.rows is not None:
            candidate.predicting += self.rows.seconds
        candidate.losses = torch.stack(found).double().cpu()

    def _on_rows(self, model: Predictor, seen: Seen) -> Tensor:
        with torch.no_grad():
            return model.calibrated(model.eval().from_rows(seen.h, seen.outputs))

    def _calibrate(self, model: Predictor) -> None:
        model.set_temperature(1.0, None)
        parts = []
        for view in self.views:
            p = predict(model, view, novelty=False)
            parts.append((p.samples, p.require_target()))
        fit_temperature(model, parts[0], parts[1:])

    def _finish(self, stack: Stack) -> None:
        """One temperature for the mixture, and novelty of the first representation."""
        parts, weights = [], None
        for view in self.views:
            p = predict(stack, view, novelty=False)
            parts.append((p.samples, p.require_target()))
            weights = p.weights
        fit_temperature(stack, parts[0], parts[1:], weights)
        if self.rows is not None:
            val = self.rows.val
            fit_novelty(
                stack, self.rows.train.h, None if val is None else val.h, self.fit.settings.seed
            )
        else:
            seen = [predict(stack, d, features=True, novelty=False) for d in (self.train, self.val)]
            train, held = (p.features for p in seen)
            if train is not None:
                fit_novelty(stack, train, held, self.fit.settings.seed)


def mixture_weights(log_likelihood: Tensor, prior: Tensor, rounds: int = 200) -> Tensor:
    """Weights of a mixture that make rows most likely, by EM.

    Args:
        log_likelihood: ``[J, 1 + copies, n]``: of J models for n rows, clean first. Half of the
            weight is on clean rows, half on their copies.
        prior: Rows that speak for each model before any is seen, ``[J]``.
        rounds: At most so many.

    Example:
        >>> good, bad = torch.zeros(1, 50), torch.full((1, 50), -3.0)
        >>> mixture_weights(torch.stack([bad, good]), torch.zeros(2)).round(decimals=2)
        tensor([0., 1.], dtype=torch.float64)
    """
    table = log_likelihood.double()
    models, sets, rows = table.shape
    share = torch.full((sets, 1), 1.0 if sets == 1 else 0.5 / max(1, sets - 1)).double()
    if sets > 1:
        share[0] = 0.5
    odds = (table - table.amax(dim=0)).exp()
    weights = torch.full((models,), 1 / models, dtype=torch.float64)
    for _ in range(rounds):
        mixed = odds * weights.view(-1, 1, 1)
        counts = (mixed / mixed.sum(dim=0) * share).sum(dim=(1, 2)) + prior.double()
        new = counts / counts.sum()
        if torch.allclose(new, weights, atol=1e-6):
            return new
        weights = new
    return weights


def _leaderboard(found: Sequence[_Candidate], weights: Tensor) -> Any:
    import pandas as pd

    rows = []
    for candidate, weight in zip(found, weights.tolist(), strict=True):
        losses = candidate.losses
        each = losses[0] if losses.size(0) == 1 else 0.5 * (losses[0] + losses[1:].mean(dim=0))
        error = float(each.std() / max(1, each.numel()) ** 0.5) if each.numel() > 1 else 0.0
        rows.append(
            {
                "candidate": candidate.name,
                "score": float(each.mean()),
                "standard_error": error,
                "weight": weight,
                "training_seconds": candidate.seconds,
                "prediction_cost": candidate.predicting / found[0].predicting,
            }
        )
    return pd.DataFrame(rows).sort_values("score", ignore_index=True)


def _fresh(net: nn.Module, seed: int) -> nn.Module:
    """A network of the same kind with weights drawn anew."""
    copied = copy.deepcopy(net).requires_grad_(True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for module in copied.modules():
            reset: Any = getattr(module, "reset_parameters", None)
            if callable(reset):
                reset()
    return copied.train()
