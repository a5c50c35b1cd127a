"""The mixture of K hypotheses: its probabilities, what they disagree about, its temperature.

Sums over hypotheses are taken one by one in float64: a row gets the same number, bit by bit, alone
and in any batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from gduq._torch import exporting
from gduq.errors import InputError

__all__ = [
    "Part", "Weights", "best_temperature", "deviation", "disagreement", "fit_temperature",
    "log_mean", "log_mixture", "weighted_mean", "weights_of",
]  # fmt: skip

Weights = Tensor | None  # of hypotheses [K], which sum to 1; None for equal ones
Part = tuple[Tensor, Tensor, float]  # samples [K, n, O], truth [n, ...], weight of the part

_COOLEST, _HOTTEST = 0.01, 100.0
_GRID = 33  # temperatures tried first, each a third above the last
_FEW = 1000  # rows that these look at


def weights_of(samples: Tensor, weights: Weights) -> Tensor:
    """The weights ``[K]`` of hypotheses ``[K, ...]`` in float64; ``None``: equal ones."""
    if weights is not None:
        return weights.to(samples.device, torch.float64)
    return samples.new_full(samples.shape[:1], 1.0 / samples.size(0), dtype=torch.float64)


def log_mixture(samples: Tensor, weights: Weights = None) -> Tensor:
    r"""Log of the mixture's probabilities, :math:`\log \sum_k w_k\,\mathrm{softmax}(s_k)`.

    Of logits ``[K, ..., C]`` this is ``[..., C]``, float64; of equal ones exactly that of one.
    """
    (whole, top), *others = _hypotheses(samples, weights)
    total = torch.full_like(top, 1.0) * whole
    for weight, log in others:
        high = torch.maximum(top, log)
        total = total * (top - high).exp_() + weight * (log - high).exp_()
        whole, top = whole + weight, high  # summed as the total: equal hypotheses give exactly 1
    return top + (total / whole).log_() if others else top


def disagreement(samples: Tensor, mixed: Tensor, weights: Weights = None) -> Tensor:
    r"""Mutual information :math:`\sum_k w_k \mathrm{KL}(p_k \| \bar p)`, ``[...]`` in float64.

    Differences of logarithms, not of entropies: exactly 0 for equal hypotheses, never below.
    ``mixed`` is what `log_mixture` made of the samples.
    """
    found = torch.zeros_like(mixed[..., 0])
    for weight, log in _hypotheses(samples, weights):
        found = found + weight * (log.exp() * (log - mixed)).sum(dim=-1)
    return found.clamp_min(0.0)


def _hypotheses(samples: Tensor, weights: Weights) -> Iterator[tuple[Tensor | float, Tensor]]:
    """The weights above 0, and the log-probabilities ``[..., C]`` that they belong to."""
    share = weights_of(samples, weights)
    for weight, logits in zip(share if exporting() else share.tolist(), samples, strict=True):
        if exporting() or weight > 0:  # in a program that is recorded, weights are no numbers yet
            yield weight, logits.log_softmax(dim=-1, dtype=torch.float64)


def weighted_mean(values: Tensor, weights: Weights = None) -> Tensor:
    """The mean over the first axis, in the dtype of the values."""
    if weights is None:
        return values.mean(dim=0)
    shape = (-1,) + (1,) * (values.dim() - 1)
    return (values * weights.to(values).view(shape)).sum(dim=0)


def log_mean(logs: Tensor, weights: Weights) -> Tensor:
    """Of likelihoods ``[..., K, m, T]``, given as logarithms, the log of their mean over K."""
    share = weights_of(logs.movedim(-3, 0), weights).to(logs)
    return (logs + share.log().view(-1, 1, 1)).logsumexp(dim=-3)


def deviation(values: Tensor, weights: Weights = None) -> Tensor:
    r"""Standard deviation over the first axis, :math:`\sum_k w_k d_k^2 / (1 - \sum_k w_k^2)`.

    For equal weights the divisor is K - 1. Exactly 0 for K = 1 and for equal values.
    """
    share = weights_of(values, weights)
    rest = 1.0 - share.square().sum()
    if values.size(0) == 1 or not (exporting() or float(rest) >= 1e-12):
        return torch.zeros_like(values[0])
    apart = values - values[:1]  # measured from the first: equal values give 0
    apart = apart - weighted_mean(apart, share)
    return (weighted_mean(apart.square_(), share) / rest).sqrt_()


def fit_temperature(
    parts: Sequence[Part],
    loss: Callable[[Tensor, Tensor, Tensor], Tensor],
    prior: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> float:
    """The temperature from 0.01 to 100 with the lowest mean loss of parts (of their samples, their
    truth and a temperature), in float64; 1 where it makes no difference.

    ``prior``, of samples and temperature, is the loss of one more row of average weight. Several
    hypotheses may have several valleys: a grid on some rows finds the deepest, SciPy its bottom.
    """
    parts = [(s.double(), y, weight) for s, y, weight in parts if weight > 0.0]
    if not parts or any(len(y) == 0 for _, y, _ in parts):
        raise InputError("parts with at least one row and a weight above 0", "none, or empty ones")
    total = sum(weight for *_, weight in parts)
    extra = 1.0 / sum(weight * len(y) / total for _, y, weight in parts)
    step = math.ceil(sum(len(y) for _, y, _ in parts) / _FEW)
    few = [(samples[:, ::step], y[::step], weight) for samples, y, weight in parts]

    def at(log: float, parts: Sequence[Part] = parts) -> float:
        value = torch.tensor(math.exp(log), dtype=torch.float64, device=parts[0][0].device)
        found = sum(weight * float(loss(samples, y, value)) for samples, y, weight in parts)
        if prior is not None:
            found += extra * sum(weight * float(prior(s, value)) for s, _, weight in parts)
        return found

    grid = np.linspace(math.log(_COOLEST), math.log(_HOTTEST), _GRID)
    tried = np.array([at(log, few) for log in grid])
    good = np.flatnonzero(tried <= tried.min() + 1e-12 * max(1.0, abs(tried.min())))
    if len(good) == _GRID:
        return 1.0
    best = good[np.abs(grid[good]).argmin()]  # of equal ones the nearest to T = 1
    ends = float(grid[max(best - 2, 0)]), float(grid[min(best + 2, _GRID - 1)])
    found = minimize_scalar(at, bounds=ends, method="bounded", options={"xatol": 1e-8})
    log = min((float(found.x), *ends), key=at)
    return min(max(math.exp(log), _COOLEST), _HOTTEST)


def best_temperature(parts: Sequence[Part], weights: Weights = None) -> float:
    r"""The temperature with the lowest NLL of a mixture over classes, from 0.01 to 100.

    .. math:: \min_T \sum_j v_j \,\frac{1}{n_j} \sum_{i} -\log \sum_k w_k\,
        \mathrm{softmax}(s_{ki} / T)_{y_i}

    Of logits ``[K, n, C]`` and labels ``[n]``. Rows that are all right say :math:`T \to 0`, and
    the first wrong row met later costs without limit. So a T below 1 is found with a row of even
    target among them, which a hypothesis by chance answers, and is at most 1.
    """

    def loss(samples: Tensor, y: Tensor, temperature: Tensor) -> Tensor:
        logs = (samples / temperature).log_softmax(dim=-1)  # [K, n, C]
        return -log_mean(logs.gather(2, y.expand(len(logs), -1).unsqueeze(2)), weights).mean()

    def even(samples: Tensor, temperature: Tensor) -> Tensor:
        logs = (samples / temperature).log_softmax(dim=-1).mean(dim=2)
        return -(weights_of(samples, weights) @ logs).mean()

    found = fit_temperature(parts, loss)
    return found if found >= 1.0 else min(1.0, fit_temperature(parts, loss, even))
