r"""`choose`: let validation rows and shifted copies of them decide, within a cost.

Candidates are calibrated one by one. Their mixture :math:`\sum_j w_j p_j` takes the weights that
make validation rows and their copies (half and half) most likely. Before any row is seen, a tenth
of them (50 at most) counts for an even mixture: candidates that are about as likely share the
weight, and do not lose it to chance. Two rows more count for the plain network.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor, nn

from gduq._checks import check_int
from gduq._torch import isolated
from gduq.anchoring.anchored import Anchored
from gduq.anchoring.recipe import Recipe, Scope
from gduq.errors import InputError, warn_user
from gduq.graphs import Graph, View, on_device
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
from gduq.training.batches import Batches, first_graph
from gduq.training.finishing import (
    affordable,
    clean_and_shifted_weights,
    copies_of,
    fit_novelty_slope,
    labelled_outputs,
    warn_of_few,
)
from gduq.training.fitting import Fit
from gduq.training.loop import FitSettings

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

__all__ = ["Candidate", "choose", "fit_mixture_weights", "mixture_weights", "stack"]

PLAIN_PRIOR = 2.0  # validation rows that count for the plain network before any is seen
EVEN, MOST_EVEN = 0.1, 50.0  # a share of the rows counts for an even mixture; so many at most
# Members of less weight are dropped, or of less than so much of an even share: an even start alone
# gives less than the first.
SMALL, OF_EVEN = 0.05, 0.6
SAME = 1e-4  # losses of two models that differ by no more on any row are those of one

_ANCHORS = 3  # as many passes as an ensemble of three; more cost time and change nothing
_BATCH = 256
_MASK = 0.05  # one share will do: others end up beside it in the mixture

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
    assert work.val is not None
    held = work.val if isinstance(work.val, View) else work.val.in_order()  # rows are compared
    work = replace(work, val=held, copies=list(copies_of(held, seed)), seen={})
    plain = Network(copied(net).eval().requires_grad_(True), call)
    with isolated(device_of_model(plain)):
        found = _candidates(plain, work, budget)
        if len(found) == 1 and budget > 1:
            warn_user(_ALONE)
        return stack(found, held)


def _check(net: Any, val: Any, budget: Any, epochs: int | None) -> None:
    if not isinstance(net, nn.Module) or isinstance(net, Predictor):
        do = "Pass the network that you wrapped."
        raise InputError("a trained network, a torch module", type(net).__name__, do)
    number = isinstance(budget, Real) and not isinstance(budget, bool)
    if not number or not 1 <= budget <= 100:
        raise InputError("budget from 1 to 100, in trainings of the network", repr(budget))
    if epochs is not None:
        check_int("epochs, as many as the network was trained for,", epochs, 1)
    elif budget >= 1.5:
        do = "Pass it, or a budget of 1.2, which does without more training of the network."
        raise InputError(f"epochs=, how long it was trained, with budget={budget}", "none", do)
    if val is None:
        raise InputError("validation data to choose by", "none", "Pass val.")


# -- candidates ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Candidate:
    """A calibrated model with what is known of it."""

    name: str
    model: Predictor
    losses: Tensor  # of validation rows, then of each copy of them [1 + copies, n]
    seconds: float = 0.0  # that it took to train
    predicting: float = 1.0  # seconds it takes to predict the validation rows


class Plan(NamedTuple):
    """How a trained network trains on with anchors; docs/choices.md has the search."""

    name: str
    at: int | str  # where the anchors are, as in `Recipe`
    share: float  # of the epochs that the network was trained for
    scope: Scope = "row"  # who shares an anchor


_LAST = Plan("the last layer", -1, 0.03)
_INNER = Plan("layer 1", 1, 0.125)
_GRAPHS = (Plan("input, one anchor per graph", "input", 0.08, "graph"), Plan("input", "input", 0.1))


def _candidates(plain: Network, work: Fit, budget: float) -> list[Candidate]:
    """All that a budget allows, trained and calibrated, the plain network first."""
    seed, epochs = work.settings.seed, work.settings.epochs
    found = [_candidate("plain", _epochs(work, 0), plain.eval)]
    found += _on_trunk(plain, work, budget >= 1.2)
    if epochs is None:
        return found
    # Without a head there is nothing cheaper than the first of them.
    headless = plain.trunk is None or not plain.trunk.has_head
    most = 2 if budget >= 1.5 else int(budget >= 1.2 and headless)
    first = on_device(first_graph(work.train), device_of_model(plain))
    for plan in _plans(plain, first)[:most]:
        fit = _epochs(work, max(1, round(epochs * plan.share)))
        make = partial(_trained_on, plain, plan, seed, first)
        found += _tried(f"trained on, anchors at {plan.name}", fit, make)
    for number, least in ((2, 2.5), (3, 3.5)):
        if budget >= least:
            make_another = partial(_another, plain, seed + 100 * (number - 1))
            for made in _tried(f"network {number}", work, make_another):
                network = cast(Network, made.model)
                found += [made, *_on_trunk(network, work, False, f", network {number}")]
    return found


def _tried(name: str, fit: Fit, make: Callable[[], Predictor]) -> list[Candidate]:
    """What the network does not allow is left out, with a warning."""
    try:
        return [_candidate(name, fit, make)]
    except InputError as error:
        warn_user(f"choose leaves out '{name}': {error}")
        return []


def _candidate(name: str, fit: Fit, make: Callable[[], Predictor]) -> Candidate:
    """Train and calibrate a model, and note the losses of validation rows and copies."""
    assert fit.val is not None
    start, model = time.perf_counter(), make()
    _, sets = fit.run(model, "shifted")
    seconds, start = time.perf_counter() - start, time.perf_counter()
    labelled_outputs(model, fit.val, _BATCH)
    predicting = time.perf_counter() - start
    assert model.target is not None
    found = [model.target.nll(model.calibrated(z, w), y, w) for z, y, w, *_ in sets]
    return Candidate(name, model, torch.stack(found).double().cpu(), seconds, predicting)


def _another(plain: Network, seed: int) -> Network:
    """A network of the same kind with weights drawn anew."""
    net = copied(plain.net).requires_grad_(True)
    return Network(seeded(lambda _: redraw(net), seed), plain.call)


def _epochs(work: Fit, epochs: int) -> Fit:
    return replace(work, settings=replace(work.settings, epochs=epochs))


def _on_trunk(network: Network, work: Fit, anchored: bool, whose: str = "") -> list[Candidate]:
    """What a trained network with a head allows in one pass over the rows."""
    trunk, target = network.trunk, network.target
    if trunk is None or not trunk.has_head or target is None:
        return []
    trunk.requires_grad_(False)
    quick = replace(work.settings, epochs=None, lr=None, batch_size=None)
    fit = replace(work, settings=quick, infer=lambda _: target)
    more: dict[str, Any] = {"call": network.call, "trunk": trunk}
    seeds: dict[str, Any] = {"seed": work.settings.seed, **more}
    if target.has_units:
        found = _tried(f"Laplace{whose}", fit, partial(LastLayerLaplace, None, **more))
    else:
        found = _tried(f"neighbours{whose}", fit, partial(Neighbours, None, **seeds))
    if anchored:
        head = partial(Anchored, trunk.net, Recipe.head(mask=_MASK), **seeds)
        found += _tried("anchored head", fit, head)
    return found


def _plans(plain: Network, graph: Graph) -> Sequence[Plan]:
    """By what the rows are, at places that the network has."""
    trunk, chain = plain.trunk, as_chain(plain.net)
    if trunk is None or trunk.row_kind == "graph":
        return _GRAPHS
    if chain is not None:
        layers = sum(isinstance(point, int) for point in chain.points) + 1
    else:
        layers = len(trace(plain.net, graph, plain.call).layers)
    return (_LAST, _INNER) if layers > 2 else (_LAST,) * (layers > 0)


def _trained_on(plain: Network, plan: Plan, seed: int, like: Graph) -> Anchored:
    net = copied(plain.net).requires_grad_(True)
    # What a network of one's own makes of its input first may be an embedding of categories.
    embeds = plan.at == "input" and as_chain(net) is None
    recipe = Recipe.thawed(
        at=0 if embeds else plan.at,
        anchors="gaussian" if embeds else None,
        scope=plan.scope,
        num_anchors=_ANCHORS,
        mask=_MASK,
        draws=1,
    )
    return Anchored(net, recipe, plain.call, seed, like)


# -- weights -------------------------------------------------------------------------------------


def stack(found: Sequence[Candidate], val: Batches) -> Stack:
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
    clean = labelled_outputs(mixed, val, _BATCH, features=True)
    assert mixed.target is not None
    mixed.set_temperature(affordable(mixed.target, clean, 1.0), found[0].model.calibration)
    mixed.novelty = next((m.novelty for m in members if m.novelty.fitted), mixed.novelty)
    for member in members:
        member.novelty = Novelty()  # the mixture has one for all
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
        prior = np.full(len(kept), min(EVEN * losses.size(2), MOST_EVEN) / len(kept))
        prior[0] += PLAIN_PRIOR * (kept[0] == 0)
        weights = mixture_weights(-losses[kept], prior)
        small = (weights < min(SMALL, OF_EVEN / len(kept))).tolist()
        kept = [j for j, little in zip(kept, small, strict=True) if not little]
    return dict(zip(kept, weights.tolist(), strict=True))


def mixture_weights(log_likelihood: Tensor, prior: NDArray[np.float64]) -> NDArray[np.float64]:
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

    def loss(w: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        mixed = w @ likelihood
        value = share @ np.log(mixed) + prior @ np.log(w)
        return -value / total, -(likelihood @ (share / mixed) + prior / w) / total

    simplex = {"type": "eq", "fun": lambda w: w.sum() - 1, "jac": np.ones_like}
    start, bounds, options = (
        np.full(models, 1 / models),
        [(1e-12, 1.0)] * models,
        {"ftol": 1e-14, "maxiter": 1000},
    )
    found = minimize(
        loss, start, jac=True, method="SLSQP", bounds=bounds, constraints=simplex, options=options
    )
    weights: NDArray[np.float64] = found.x / found.x.sum()
    return weights


def _leaderboard(found: Sequence[Candidate], weights: Mapping[int, float]) -> pd.DataFrame:
    import pandas as pd

    rows = []
    for j, candidate in enumerate(found):
        shares = torch.tensor(clean_and_shifted_weights(len(candidate.losses) - 1)).double()
        each = shares @ candidate.losses
        error = float(each.std() / each.numel() ** 0.5) if each.numel() > 1 else 0.0
        rows.append(
            {
                "candidate": candidate.name,
                "weight": weights.get(j, 0.0),
                "score": float(each.mean()),
                "standard_error": error,
                "training_seconds": round(candidate.seconds, 3),
                "prediction_cost": round(candidate.predicting / found[0].predicting, 2),
            }
        )
    return pd.DataFrame(rows).sort_values("score", ignore_index=True)
