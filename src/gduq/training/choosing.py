r"""`choose`: let validation rows and shifted copies of them decide, within a cost.

Candidates are calibrated one by one. Their mixture :math:`\sum_j w_j p_j` takes the weights that
make validation rows and their copies (half and half) most likely. Before any row is seen, a tenth
of them (50 at most) counts for an even mixture: candidates that are about as likely share the
weight, and do not lose it to chance. Two rows more count for the plain network.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, cast

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor, nn

from gduq._torch import device_of_model, isolated
from gduq.anchoring.anchored import Anchored
from gduq.anchoring.recipe import Recipe
from gduq.errors import InputError, check_int, warn_user
from gduq.graphs import Batches, Graph, Graphs, Loader
from gduq.models.ensemble import Stack, mixture
from gduq.models.laplace import LastLayerLaplace
from gduq.models.network import Network
from gduq.models.on_trunk import Neighbours
from gduq.models.predictor import ModelOutput, Predictor
from gduq.nn.gnn import as_chain
from gduq.ood.nearest import Novelty
from gduq.ood.trust import Trust
from gduq.prediction import Target, resolve_target
from gduq.tracing.call import Call, copied, redraw
from gduq.tracing.trace import trace
from gduq.training.fitting import Fit, affordable, fit_with_novelty, warn_of_doubts
from gduq.training.loop import FitSettings
from gduq.training.rows import LabelledOutputs, clean_and_shifted_weights, labelled_outputs

__all__ = ["choose", "fit_mixture_weights", "mixture_weights"]

PLAIN_PRIOR = 2.0  # validation rows that count for the plain network before any is seen
EVEN, MOST_EVEN = 0.1, 50.0  # a share of the rows counts for an even mixture; so many at most
# Members of less weight are dropped, or of less than so much of an even share: an even start alone
# gives less than the first.
SMALL, OF_EVEN = 0.05, 0.6
SAME = 1e-4  # losses of two models that differ by no more on any row are those of one

# One share of masked rows will do: others end up beside it in the mixture. As many passes as an
# ensemble of three: more anchors cost time and change nothing.
_MASK = 0.05
_THAWED = partial(Recipe.thawed, num_anchors=3, mask=_MASK, draws=1)
# How a trained network trains on with anchors: where, for which share of the epochs that it was
# trained for, and how; docs/choices.md has the search.
_OF_GRAPHS = [
    ("input, one anchor per graph", 0.08, _THAWED(at="input", scope="graph")),
    ("input", 0.1, _THAWED(at="input")),
]
_OF_ROWS = [("the last layer", 0.03, _THAWED(at=-1)), ("layer 1", 0.125, _THAWED(at=1))]


def choose(
    net: nn.Module,
    train: Graphs,
    val: Graphs,
    *,
    budget: float = 1.2,
    epochs: int | None = None,
    lr: float | None = None,
    batch_size: int = 32,
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
            nearest rows of its own (Laplace for values).
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
    if not isinstance(net, nn.Module) or isinstance(net, Predictor):
        do = "Pass the network that you wrapped."
        raise InputError("a trained network, a torch module", type(net).__name__, do)
    if not (isinstance(budget, (int, float)) and 1 <= budget <= 100):
        raise InputError("budget from 1 to 100, in trainings of the network", repr(budget))
    if epochs is not None:
        check_int("epochs, as many as the network was trained for,", epochs, 1)
    elif budget >= 1.5:
        do = "Pass it, or a budget of 1.2, which does without more training of the network."
        raise InputError(f"epochs=, how long it was trained, with budget={budget}", "none", do)
    if val is None:
        raise InputError("validation data to choose by", "none", "Pass val.")
    settings = FitSettings(epochs, lr, batch_size, weight_decay, calibrate="shifted", seed=seed)
    infer = partial(resolve_target, given=target, class_names=class_names)
    work = Fit.of(train, val, settings, infer, progress)
    if isinstance(work.val, Loader):  # rows are compared: the same ones in the same order each time
        work = replace(work, val=Loader([graph.clone() for graph in work.val.batches()]))
    work = replace(work, copies=list(work.shifted_copies()))
    plain = Network(copied(net).eval().requires_grad_(True), call)
    with isolated(device_of_model(plain)):
        return _mixed(_candidates(plain, work, budget))


# -- candidates ----------------------------------------------------------------------------------


class _Candidate(NamedTuple):
    """A calibrated model with what is known of it."""

    model: Predictor
    sets: list[LabelledOutputs]  # of validation rows, then of each copy of them
    seconds: float  # that it took to train
    predicting: float  # seconds it takes to predict the validation rows

    def losses(self) -> Tensor:
        """Of validation rows, then of each copy of them ``[1 + copies, n]``."""
        model, target = self.model, cast(Target, self.model.target)
        found = [target.nll(model.calibrated(z, w), y, w) for z, y, w, *_ in self.sets]
        return torch.stack(found).double().cpu()


_Way = tuple[str, Callable[[], Predictor], Fit]  # a name, what makes the model, how it is fitted


def _candidates(plain: Network, work: Fit, budget: float) -> dict[str, _Candidate]:
    """All that a budget allows, trained and calibrated, by name, the plain network first."""
    found: dict[str, _Candidate] = {}
    for name, make, fit in _ways(plain, work, budget, found):
        start = time.perf_counter()
        try:
            _, sets = fit.run(model := make())
        except InputError as error:  # what the network does not allow is left out
            if name == "plain":
                raise
            warn_user(f"choose leaves out '{name}': {error}")
            continue
        trained = time.perf_counter()
        labelled_outputs(model, cast(Batches, fit.val), fit.settings.most)
        seconds, predicting = trained - start, time.perf_counter() - trained
        found[name] = _Candidate(model, sets, seconds, predicting)
    if len(found) == 1 and budget > 1:
        warn_user(
            "only the calibrated network is left to choose from: it has no head that reads row by "
            "row, and nothing to train on with (pass epochs=, as many as it was trained for)"
        )
    return found


def _ways(
    plain: Network, work: Fit, budget: float, found: Mapping[str, _Candidate]
) -> Iterator[_Way]:
    """All that may compete; ``found`` are those before, as far as they could be trained."""

    def on_trunk(network: Network, whose: str = "") -> Iterator[_Way]:
        """What a trained network with a head allows in one pass over the rows."""
        trunk, target = network.trunk, cast(Target, network.target)
        if trunk is None or not trunk.has_head:
            return
        trunk.requires_grad_(False)
        fit = replace(work.with_(epochs=None, lr=None, batch_size=32), infer=lambda _: target)
        if target.has_units:
            yield f"Laplace{whose}", partial(LastLayerLaplace, trunk), fit
        else:
            yield f"neighbours{whose}", partial(Neighbours, trunk, seed=seed), fit
        if network is plain and budget >= 1.2:
            recipe = Recipe.head(mask=_MASK)
            yield "anchored head", partial(Anchored, trunk, recipe, seed=seed), fit

    def another() -> Network:
        """A network of the same kind, with weights drawn anew."""
        torch.manual_seed(seed + 100)
        return Network(redraw(copied(plain.net).requires_grad_(True)), plain.call)

    seed, epochs = work.settings.seed, work.settings.epochs
    yield "plain", lambda: plain, work.with_(epochs=0)
    yield from on_trunk(plain)
    # Without a head there is nothing cheaper than the first of these.
    headless = plain.trunk is None or not plain.trunk.has_head
    most = 2 if budget >= 1.5 else int(budget >= 1.2 and headless)
    if epochs is not None and most:
        first = work.first_graph(device_of_model(plain))
        for place, share, recipe in _plans(plain, first)[:most]:
            net, fit = copied(plain.net), work.with_(epochs=max(1, round(epochs * share)))
            make = partial(Anchored, net.requires_grad_(True), recipe, plain.call, seed)
            yield f"trained on, anchors at {place}", make, fit
    if budget >= 2.5:
        yield "network 2", another, work
        if "network 2" in found:
            yield from on_trunk(cast(Network, found["network 2"].model), ", network 2")


def _plans(plain: Network, graph: Graph) -> list[tuple[str, float, Recipe]]:
    """How to train on, by what the rows are, with anchors at places that the network has."""
    trunk, chain, plans = plain.trunk, as_chain(plain.net), _OF_GRAPHS
    if trunk is not None and trunk.row_kind != "graph":
        layers = len(trace(plain.net, graph, plain.call).layers if chain is None else chain.layers)
        plans = _OF_ROWS[: 2 if layers > 2 else min(layers, 1)]
    elif chain is None:
        # What a network of one's own makes of its input first may be an embedding of categories.
        own = partial(replace, at=0, anchors="gaussian")
        plans = [(place, share, own(recipe)) for place, share, recipe in plans]
    return plans


# -- weights -------------------------------------------------------------------------------------


def _mixed(found: Mapping[str, _Candidate]) -> Stack:
    """Weigh candidates, the plain network first, and mix those that count."""
    import pandas as pd

    candidates = list(found.values())
    table = torch.stack([each.losses() for each in candidates])
    if table.size(1) == 1:
        warn_user(
            "chosen and calibrated without shifted copies of val: a heterogeneous graph has none, "
            "and of loaders only a DataLoader of all its graphs (pass graphs or a View)"
        )
    weights = fit_mixture_weights(table)
    members = [candidates[j].model for j in weights]
    mixed, sets = Stack(members, list(weights.values())), list[LabelledOutputs]()
    for each in zip(*(candidates[j].sets for j in weights), strict=True):
        answers = [ModelOutput(z, h, w) for z, _, w, h, _ in each]
        z, h, w = mixture(members, answers, mixed.shares)
        sets.append(each[0]._replace(outputs=z, features=h, weights=w))
    # No temperature of its own: it would take back the doubt that mixing adds (docs/choices.md),
    # unless that doubt costs validation rows too much.
    assert mixed.target is not None
    mixed.set_temperature(affordable(mixed.target, sets[0], 1.0), candidates[0].model.calibration)
    mixed.novelty = next((m.novelty for m in members if m.novelty.fitted), mixed.novelty)
    for member in members:
        member.novelty, member.trust = Novelty(), Trust()  # the mixture has one for all
    fit_with_novelty(mixed, sets)
    warn_of_doubts(mixed, sets)
    shares = torch.tensor(clean_and_shifted_weights(table.size(1) - 1)).double()
    losses = torch.einsum("s,jsn->jn", shares, table)
    error = losses.std(dim=1).nan_to_num() / losses.size(1) ** 0.5  # of one row: 0
    columns = {
        "candidate": list(found),
        "weight": [weights.get(j, 0.0) for j in range(len(found))],
        "score": losses.mean(dim=1).tolist(),
        "standard_error": error.tolist(),
        "training_seconds": [each.seconds for each in candidates],
        "prediction_cost": [each.predicting / candidates[0].predicting for each in candidates],
    }
    board = pd.DataFrame(columns).round({"training_seconds": 3, "prediction_cost": 2})
    mixed.leaderboard = board.sort_values("score", ignore_index=True)
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
        prior = np.full(len(kept), min(EVEN * losses.size(2), MOST_EVEN) / len(kept))
        prior[0] += PLAIN_PRIOR * (kept[0] == 0)
        weights = mixture_weights(-losses[kept], prior)
        small = (weights < min(SMALL, OF_EVEN / len(kept))).tolist()
        kept = [j for j, little in zip(kept, small, strict=True) if not little]
    return dict(zip(kept, weights.tolist(), strict=True))


def mixture_weights(log_likelihood: Tensor, prior: np.ndarray) -> np.ndarray:
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
    total = share.sum() + prior.sum()

    def loss(w: np.ndarray) -> tuple[float, np.ndarray]:
        mixed = w @ likelihood
        value = share @ np.log(mixed) + prior @ np.log(w)
        return -value / total, -(likelihood @ (share / mixed) + prior / w) / total

    found = minimize(
        loss,
        np.full(models, 1 / models),
        jac=True,
        method="SLSQP",
        bounds=[(1e-12, 1.0)] * models,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1, "jac": np.ones_like},
        options={"ftol": 1e-14, "maxiter": 1000},
    )
    weights: np.ndarray = found.x / found.x.sum()
    return weights
