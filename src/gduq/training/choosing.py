r"""`choose`: let validation rows and shifted copies of them decide, within a cost.

Candidates are calibrated one by one. Their mixture :math:`\sum_j w_j p_j` takes the weights that
make validation rows and their copies (half and half) most likely. Before any row is seen, a tenth
of them (50 at most) counts for an even mixture: candidates that are about as likely share the
weight, and do not lose it to chance. Two rows more count for the plain network.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor, nn

from gduq._checks import check_int
from gduq._torch import isolated
from gduq.anchoring.anchored import Anchored
from gduq.anchoring.recipe import Recipe, Scope
from gduq.errors import InputError, warn_user
from gduq.graphs import Rows, on_device
from gduq.graphs.view import View
from gduq.models.ensemble import Stack, seeded
from gduq.models.laplace import LastLayerLaplace
from gduq.models.neighbours import Neighbours
from gduq.models.network import Network
from gduq.models.predictor import Predictor
from gduq.nn.gnn import as_chain
from gduq.ood.nearest import Novelty
from gduq.prediction import Target, resolve_target
from gduq.prediction.predicting import device_of_model
from gduq.tracing.call import Call, copied, redraw
from gduq.tracing.trace import trace
from gduq.training.batches import first_graph, some, truths
from gduq.training.finishing import (
    HoldoutData,
    affordable,
    clean_and_shifted_weights,
    copies_of,
    fit_novelty_slope,
    labelled_outputs,
    warn_of_few,
)
from gduq.training.fit_settings import FitSettings
from gduq.training.fitting import Fit, infer_target_of
from gduq.training.heads import TrunkRows, fit_on_rows

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "PLANS",
    "Candidate",
    "Candidates",
    "Plan",
    "choose",
    "fit_mixture_weights",
    "mixture_weights",
    "prior_counts",
    "stack",
]

PLAIN_PRIOR = 2.0  # validation rows that count for the plain network before any is seen
EVEN, MOST_EVEN = 0.1, 50.0  # a share of the rows counts for an even mixture; so many at most
# Members of less weight are dropped, or of less than so much of an even share: an even start alone
# gives less than the first.
SMALL, OF_EVEN = 0.05, 0.6
SAME = 1e-4  # losses of two models that differ by no more on any row are those of one

_ANCHORS = 3  # as many passes as an ensemble of three; more cost time and change nothing
_BATCH = 256
_ROWS = 256  # that show what the outputs of a network mean
_HEAD = Recipe.head(mask=0.05)  # one share will do: others end up beside it in the mixture

_ALONE = (
    "only the calibrated network is left to choose from: it has no head that reads row by row, and "
    "nothing to train on with (pass epochs=, as many as it was trained for)"
)
_NO_COPIES = (
    "chosen and calibrated without shifted copies of val: a heterogeneous graph has none, and of "
    "loaders only a DataLoader of all its graphs (pass graphs or a View)"
)


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
    target: Target | str | None = None,
    seed: int = 0,
    call: Call | None = None,
    progress: bool = True,
) -> Stack:
    """The best mixture of models that a trained network allows, within a cost.

    Args:
        net: A trained network; it is copied.
        train: The data it was trained on.
        val: Labelled rows it was not trained on.
        budget: What all training may take together, in trainings of ``net``, which counts as 1.
            1.2: an anchored head and the nearest training rows (Laplace for values). From 1.5:
            also ``net`` trained on with anchors, in two ways. From 2.5: another network, with
            nearest rows of its own (Laplace for values); from 3.5 two of them.
        epochs: How long ``net`` was trained; needed from a budget of 1.5 on, and for a network
            without a head, which is trained on from 1.2.
        lr: Its learning rate, for whatever trains on or anew.
        batch_size: Graphs per step, as it was trained with.
        weight_decay: As it was trained with.
        class_names: A name per class, label or value.
        target: As in `gduq.fit`.
        seed: For everything random.
        call: As in `gduq.anchor`.
        progress: Show a bar, on a terminal.

    Returns:
        The mixture. Its ``leaderboard`` has a row per candidate: weight, score (mean loss of
        validation rows and copies, calibrated) with its standard error, seconds of training, and
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
    _check(net, val, budget, epochs)
    settings = FitSettings(epochs, lr, batch_size, weight_decay, seed=seed)
    infer = partial(resolve_target, given=target, class_names=class_names)
    work = Fit.of(train, val, settings, infer, progress)
    plain = Network(copied(net).eval(), call)
    device = device_of_model(plain)
    with isolated(device):
        plain.locate(on_device(first_graph(work.train), device))
        candidates = Candidates(plain, work, budget)
        found = list(candidates)
        if len(found) == 1 and budget > 1:
            warn_user(_ALONE)
        return stack(candidates, found)


def _check(net: Any, val: Any, budget: Any, epochs: int | None) -> None:
    if not isinstance(net, nn.Module):
        raise InputError("a trained network, a torch module", type(net).__name__)
    if isinstance(net, Predictor):
        do = "Pass the network that you wrapped."
        raise InputError("a network that is not wrapped", type(net).__name__, do)
    number = isinstance(budget, Real) and not isinstance(budget, bool)
    if not number or not 1 <= budget <= 100:
        raise InputError("budget from 1 to 100, in trainings of the network", repr(budget))
    if budget >= 1.5 and epochs is None:
        raise InputError(
            f"epochs=, how long the network was trained, with budget={budget}",
            "none",
            "Pass it, or a budget of 1.2, which does without more training of the network.",
        )
    if epochs is not None and check_int("epochs", epochs) < 1:
        raise InputError("epochs of at least 1, as many as the network was trained for", epochs)
    if val is None:
        raise InputError("validation data to choose by", "none", "Pass val.")


# -- candidates ----------------------------------------------------------------------------------


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
# By what the rows are, the cheapest first; docs/choices.md has the search.
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


_Making = tuple[str, float, Callable[[], Predictor]]  # name, least budget, how to make it


class Candidates:
    """All candidates that a budget allows, the plain network (which is located) first."""

    def __init__(self, plain: Network, fit: Fit, budget: float) -> None:
        self.plain, self.fit, self.budget = plain, fit, budget
        self.seed, self.train, val = fit.settings.seed, fit.train, fit.val
        assert val is not None
        self.val = val if isinstance(val, View) else val.in_order()  # rows are compared
        device = device_of_model(plain)
        self.first = on_device(first_graph(fit.train), device)
        self.cached: list[TrunkRows] = []  # of the networks that have a head, the plain one first
        rows = self._run_trunk(plain)
        if rows is not None:
            plain.target = rows.target
        else:
            generator = torch.Generator().manual_seed(self.seed)
            graph = on_device(some(self.train, _ROWS, _BATCH, generator)[0], device)
            y = truths(self.train, "train")
            plain.target = infer_target_of(plain, [graph], y, True, fit.infer)
            plain.target.check_val(truths(self.val, "val"), y)
        start = time.perf_counter()
        labelled_outputs(plain, self.val, _BATCH)
        self.pass_seconds = time.perf_counter() - start

    def __iter__(self) -> Iterator[Candidate]:
        """Train and calibrate them; what the network does not allow is left out, with a warning."""
        for name, budget, make in self._makings():
            if budget > self.budget:
                continue
            start = time.perf_counter()
            try:
                model = make()
                found = self.calibrated(name, budget, model, time.perf_counter() - start)
            except InputError as error:
                if name == "plain":
                    raise
                warn_user(f"choose leaves out '{name}': {error}")
                continue
            yield found

    def _makings(self) -> Iterator[_Making]:
        """How to make every candidate, the cheapest first."""
        yield "plain", 1.0, lambda: self.plain
        for rows in self.cached[:1]:
            yield self.without_training(rows, 1.0)
            head = partial(Anchored, rows.trunk.net, _HEAD, seed=self.seed)
            yield "anchored head", 1.2, partial(self.on_trunk, head, rows)
        has_head = bool(self.cached)
        for i, plan in enumerate(self._plans if self.fit.settings.epochs else ()):
            # Without a head there is nothing cheaper than the first of them.
            budget = plan.budget if has_head or i else 1.2
            before = len(self.cached)
            yield str(plan), budget, partial(self.planned, plan)
            for rows in self.cached[before:]:  # of a network that was trained anew
                yield self.without_training(rows, budget, f", {plan}")
            del self.cached[before:]

    @property
    def _plans(self) -> Iterator[Plan]:
        """The plans for places that the network has, each place once."""
        known = set[tuple[object, ...]]()
        chain, trunk = as_chain(self.plain.net), self.plain.trunk
        if chain is not None:
            layers = sum(isinstance(point, int) for point in chain.points) + 1
        else:
            layers = len(trace(self.plain.net, self.first, self.plain.call).layers)
        for plan in PLANS["graph" if trunk is None else trunk.row_kind]:
            place = layers - 1 if plan.at == -1 else plan.at
            key = place, plan.scope, plan.fresh
            if key not in known and (not isinstance(place, int) or 0 <= place < layers):
                known.add(key)
                yield plan

    def without_training(self, rows: TrunkRows, budget: float, whose: str = "") -> _Making:
        """What a network with a head allows in one pass over the training rows."""
        values = rows.target.has_units
        name = "Laplace" if values else "neighbours"
        make = LastLayerLaplace if values else partial(Neighbours, seed=self.seed)
        return f"{name}{whose}", budget, partial(self.on_trunk, partial(make, None), rows)

    def on_trunk(self, make: Callable[..., Predictor], rows: TrunkRows) -> Predictor:
        """A model that stands on the trunk of these rows; heads learn until validation rows end
        it."""
        model = make(call=self.plain.call, trunk=rows.trunk)
        fit_on_rows(model, rows, replace(self.fit.settings, epochs=None, lr=None, batch_size=None))
        return model

    def planned(self, plan: Plan) -> Predictor:
        """The network trained on with anchors, or another one of its kind."""
        net, call = copied(self.plain.net).requires_grad_(True), self.plain.call
        if plan.fresh:
            net = seeded(lambda _: redraw(net), self.seed + 100 * plan.fresh).train()
        if plan.at is None:
            network = Network(net, call)
            self._trained(network, plan.share)
            self._run_trunk(network)
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

    def _run_trunk(self, network: Network) -> TrunkRows | None:
        """All rows as a network with a head gives them; they are kept for what stands on it."""
        trunk = network.trunk
        if trunk is None or not trunk.has_head:
            return None
        trunk.requires_grad_(False)
        # What trains on needs the copies later; else each is gone once the trunk saw it.
        least = min(plan.budget for plan in PLANS[trunk.row_kind])
        trains = self.fit.settings.epochs is not None and self.budget >= least
        copies = self._graphs.copies if trains else copies_of(self.val, self.seed)
        known = network.target  # what a network was trained for here
        infer = self.fit.infer if known is None else lambda _: known
        rows = TrunkRows.collect(trunk, self.train, self.val, infer, copies)  # type: ignore[arg-type]
        self.cached.append(rows)
        return rows

    @cached_property
    def _graphs(self) -> HoldoutData:
        copies = list(copies_of(self.val, self.seed))
        return HoldoutData(self.train, self.val, copies, _BATCH, self.seed)

    def holdout(self, model: Predictor) -> HoldoutData:
        """Rows and copies for a model: those that its trunk has given, if it reads them."""
        on_its_trunk = (rows for rows in self.cached if rows.trunk is model.trunk)
        return next(on_its_trunk, self._graphs)

    def calibrated(self, name: str, budget: float, model: Predictor, seconds: float) -> Candidate:
        """Calibrate a model, and note the losses of validation rows and copies."""
        holdout = self.holdout(model)
        model.eval()
        sets = holdout.calibrate(model)
        assert model.target is not None
        assert holdout.val is not None
        start = time.perf_counter()
        labelled_outputs(model, holdout.val, _BATCH)
        predicting = time.perf_counter() - start
        if isinstance(holdout, TrunkRows):
            predicting += self.pass_seconds
        found = [model.target.nll(model.calibrated(z, w), y, w) for z, y, w, _ in sets]
        losses = torch.stack(found).double().cpu()
        return Candidate(name, budget, model, seconds, losses, predicting)


# -- weights -------------------------------------------------------------------------------------


def stack(candidates: Candidates, found: Sequence[Candidate]) -> Stack:
    """Weigh candidates, the plain network first, and mix those that count."""
    table = torch.stack([candidate.losses for candidate in found])
    warn_of_few(table.size(2), "weights from so few are mostly chance")
    if table.size(1) == 1:
        warn_user(_NO_COPIES)
    weights = fit_mixture_weights(table)
    members = [found[j].model for j in weights]
    mixed = Stack(members, list(weights.values()))
    # No temperature of its own: it would take back the doubt that mixing adds (docs/choices.md),
    # unless that doubt costs validation rows too much.
    clean = labelled_outputs(mixed, candidates.val, _BATCH, describe=True)
    assert mixed.target is not None
    mixed.set_temperature(affordable(mixed.target, clean, 1.0), found[0].model.calibration)
    candidates.holdout(members[0]).fit_novelty(mixed, candidates.seed)
    fit_novelty_slope(mixed, clean)
    mixed.leaderboard = _leaderboard(found, weights)
    return mixed.eval()


def fit_mixture_weights(losses: Tensor) -> dict[int, float]:
    """The weight of every candidate that counts, by its number.

    Losses ``[J, 1 + copies, n]`` are of validation rows and then of their copies; those of the
    plain network come first.
    """
    # What gives the same as the plain network would only make it dearer.
    others = [j for j, each in enumerate(losses) if (each - losses[0]).abs().max() > SAME]
    kept, small = [0, *others], [True]
    while any(small):  # once more without the members that hardly count
        prior = prior_counts(len(kept), losses.size(2), kept[0] == 0)
        weights = mixture_weights(-losses[kept], prior)
        small = (weights < min(SMALL, OF_EVEN / len(kept))).tolist()
        kept = [j for j, little in zip(kept, small, strict=True) if not little]
    return dict(zip(kept, weights.tolist(), strict=True))


def prior_counts(models: int, rows: int, plain: bool = True) -> Tensor:
    """How many rows count for each model ``[J]`` before any is seen; the plain one comes first."""
    found = torch.full((models,), min(EVEN * rows, MOST_EVEN) / models)
    found[0] += PLAIN_PRIOR * plain
    return found


def mixture_weights(log_likelihood: Tensor, prior: Tensor) -> Tensor:
    r"""Weights of a mixture that make rows most likely.

    With likelihoods :math:`l_{ji}` of model j for row i, shares :math:`s_i` of the rows and prior
    counts :math:`a_j` the weights maximise the concave :math:`\sum_i s_i \log \sum_j w_j l_{ji} +
    \sum_j a_j \log w_j`.

    Log-likelihoods ``[J, 1 + copies, n]`` are of J models for n rows: half of the weight is on
    clean rows, which come first, half on their copies. The prior ``[J]`` counts in rows.
    """
    table = log_likelihood.double().cpu()
    models, sets, rows = table.shape
    share = np.repeat(clean_and_shifted_weights(sets - 1), rows)
    likelihood = (table - table.amax(dim=0)).exp().flatten(1).numpy()
    counts = prior.double().numpy()
    total = share.sum() + counts.sum()

    def loss(w: Any) -> tuple[float, Any]:
        mixed = w @ likelihood
        value = share @ np.log(mixed) + counts @ np.log(w)
        return -value / total, -(likelihood @ (share / mixed) + counts / w) / total

    found = minimize(
        loss,
        np.full(models, 1 / models),
        jac=True,
        method="SLSQP",
        bounds=[(1e-12, 1.0)] * models,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1, "jac": np.ones_like},
        options={"ftol": 1e-14, "maxiter": 1000},
    )
    weights = torch.from_numpy(found.x).clamp_min(0.0)
    return (weights / weights.sum()).to(log_likelihood.device)


def _leaderboard(found: Sequence[Candidate], shares: Mapping[int, float]) -> pd.DataFrame:
    import pandas as pd

    rows = []
    for j, candidate in enumerate(found):
        losses = candidate.losses
        each = losses[0] if losses.size(0) == 1 else 0.5 * (losses[0] + losses[1:].mean(dim=0))
        error = float(each.std() / each.numel() ** 0.5) if each.numel() > 1 else 0.0
        rows.append(
            {
                "candidate": candidate.name,
                "weight": shares.get(j, 0.0),
                "score": float(each.mean()),
                "standard_error": error,
                "training_seconds": round(candidate.seconds, 3),
                "prediction_cost": round(candidate.predicting / found[0].predicting, 2),
            }
        )
    return pd.DataFrame(rows).sort_values("score", ignore_index=True)
