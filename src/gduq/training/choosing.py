r"""`choose`: let validation rows and shifted copies of them decide, within a cost.

Candidates are calibrated one by one. Their mixture :math:`\sum_j w_j p_j` takes the weights that
make validation rows and their copies (half and half) most likely. Before any row is seen, a tenth
of them (50 at most) speaks for an even mixture: candidates that are about as likely share the
weight, and do not lose it to chance. Two rows more speak for the plain network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gduq.baselines.network import Network
from gduq.baselines.stack import Stack
from gduq.errors import InputError, warn_user
from gduq.graph import on_device
from gduq.nn.call import Call, copied
from gduq.prediction.predictor import Predictor
from gduq.randomness import isolated
from gduq.targets import Target
from gduq.training.batches import first_graph, warn_of_overlap
from gduq.training.candidates import Candidate, Candidates
from gduq.training.fabric import checked_fabric
from gduq.training.finishing import (
    affordable,
    fit_novelty_slope,
    half_and_half,
    judged,
    warn_of_few,
)
from gduq.training.fit_settings import FitSettings
from gduq.training.fitting import Fit
from gduq.whole import whole

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["choose", "mixture_weights", "prior_rows", "stack", "weighed"]

HEAD_START = 2.0  # validation rows that speak for the plain network before any is seen
EVEN, MOST_EVEN = 0.1, 50.0  # a share of the rows speaks for an even mixture; so many at most
# Members of less weight are dropped, or of less than so much of an even share: an even start alone
# gives less than the first.
SMALL, OF_EVEN = 0.05, 0.6
SAME = 1e-4  # losses of two models that differ by no more on any row are those of one

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
    warn_of_overlap(train, val)
    settings = FitSettings(epochs, lr, batch_size, weight_decay, seed=seed)
    fit = Fit(train, val, settings, None, class_names, target, progress)
    fabric = checked_fabric(None)
    with isolated(fabric.device):
        plain = Network(copied(net).eval().to(fabric.device), call)
        plain.locate(on_device(first_graph(fit.train), fabric.device))
        candidates = Candidates(plain, fit, budget)
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
    if epochs is not None and whole("epochs", epochs) < 1:
        raise InputError("epochs of at least 1, as many as the network was trained for", epochs)
    if val is None:
        raise InputError("validation data to choose by", "none", "Pass val.")


def stack(candidates: Candidates, found: Sequence[Candidate]) -> Stack:
    """Weigh candidates, the plain network first, and mix those that count."""
    table = torch.stack([candidate.losses for candidate in found])
    warn_of_few(table.size(2), "weights from so few are mostly chance")
    if table.size(1) == 1:
        warn_user(_NO_COPIES)
    weights = weighed(table)
    members = [found[j].model for j in weights]
    mixed = Stack(members, list(weights.values()))
    # No temperature of its own: it would take back the doubt that mixing adds (docs/choices.md),
    # unless that doubt costs validation rows too much.
    clean = judged(mixed, candidates.val, 256, describe=True)
    assert mixed.target is not None
    mixed.set_temperature(affordable(mixed.target, clean, 1.0), found[0].model.calibration)
    candidates.evidence(members[0]).fit_novelty(mixed, candidates.seed)
    fit_novelty_slope(mixed, clean)
    mixed.leaderboard = _leaderboard(found, weights)
    return mixed.eval()


def weighed(losses: Tensor) -> dict[int, float]:
    """The weight of every candidate that counts, by its number.

    Losses ``[J, 1 + copies, n]`` are of validation rows and then of their copies; those of the
    plain network come first.
    """
    # What says the same as the plain network would only make it dearer.
    others = [j for j, each in enumerate(losses) if (each - losses[0]).abs().max() > SAME]
    kept, small = [0, *others], [True]
    while any(small):  # once more without the members that hardly count
        prior = prior_rows(len(kept), losses.size(2), kept[0] == 0)
        weights = mixture_weights(-losses[kept], prior)
        small = (weights < min(SMALL, OF_EVEN / len(kept))).tolist()
        kept = [j for j, little in zip(kept, small, strict=True) if not little]
    return dict(zip(kept, weights.tolist(), strict=True))


def prior_rows(models: int, rows: int, plain: bool = True) -> Tensor:
    """How many rows speak for each model ``[J]`` before any is seen; the plain one comes first."""
    found = torch.full((models,), min(EVEN * rows, MOST_EVEN) / models)
    found[0] += HEAD_START * plain
    return found


def mixture_weights(log_likelihood: Tensor, prior: Tensor) -> Tensor:
    r"""Weights of a mixture that make rows most likely, by an interior-point method.

    With odds :math:`o_{ji}` of model j for row i, shares :math:`s_i` of the rows and prior
    :math:`a_j` the weights maximise the concave :math:`\sum_i s_i \log \sum_j w_j o_{ji} + \sum_j
    (a_j + \mu) \log w_j`, where the barrier :math:`\mu` falls to a billionth of a row. EM has the
    same goal, but takes thousands of rounds where models are alike.

    Log-likelihoods ``[J, 1 + copies, n]`` are of J models for n rows: half of the weight is on
    clean rows, which come first, half on their copies. The prior ``[J]`` counts in rows.
    """
    table = log_likelihood.double()
    models, sets, rows = table.shape
    share = table.new_tensor(half_and_half(sets - 1)).repeat_interleave(rows)
    odds = (table - table.amax(dim=0)).exp().flatten(1)
    weights = table.new_full((models,), 1 / models)
    for power in range(10):
        weights = _climbed(weights, odds, share, prior.to(table) + 10.0**-power)
    return weights / weights.sum()


def _climbed(weights: Tensor, odds: Tensor, share: Tensor, pull: Tensor) -> Tensor:
    """Newton's method for one barrier; ``pull`` is the prior with it ``[J]``.

    The term ``total * sum(weights)`` makes the weights sum to 1 at the maximum by itself.
    """
    total = share.sum() + pull.sum()

    def height(at: Tensor) -> Tensor:
        return share @ (at @ odds).log() + pull @ at.log() - total * at.sum()

    for _ in range(100):
        parts = weights.unsqueeze(1) * odds / (weights @ odds)  # who explains each row
        slope = parts @ share + pull - total * weights  # by the logarithm of each weight
        curve = (parts * share) @ parts.T + pull.diag()
        step = torch.linalg.solve(curve, slope)
        gain = float(slope @ step)
        if gain < 1e-12:
            break
        size = min(1.0, 0.9 / max(1e-12, -float(step.min())))  # no weight falls to 0
        now = height(weights)
        while height(weights * (1 + size * step)) < now + 0.1 * size * gain and size > 1e-9:
            size /= 2
        weights = weights * (1 + size * step)
    return weights


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
