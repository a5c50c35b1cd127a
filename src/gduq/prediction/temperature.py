"""One temperature for all hypotheses, by the likelihood of their mixture."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from scipy.optimize import minimize_scalar
from torch import Tensor

from gduq.errors import InputError
from gduq.prediction.mixture import weights_of

__all__ = ["COOLEST", "HOTTEST", "Part", "best_temperature", "extra_row", "fit_temperature"]

Part = tuple[Tensor, Tensor, float]  # samples [K, n, O], truth [n, ...], weight of the part

COOLEST, HOTTEST = 0.01, 100.0

_GRID = 33  # temperatures tried first, each a third above the last
_FEW = 1000  # rows that these look at


def fit_temperature(parts: Sequence[Part], loss: Callable[[Sequence[Part], float], float]) -> float:
    """The temperature from 0.01 to 100 with the lowest loss; 1 where it makes no difference.

    For several hypotheses there may be several valleys: a grid on some of the rows finds the
    deepest, SciPy its bottom.

    Args:
        parts: Samples, truth and weight of every set of rows.
        loss: Of such parts at a temperature.
    """
    step = math.ceil(sum(len(y) for _, y, _ in parts) / _FEW)
    few = [(samples[:, ::step], y[::step], weight) for samples, y, weight in parts]
    grid = np.linspace(math.log(COOLEST), math.log(HOTTEST), _GRID)
    tried = np.array([loss(few, math.exp(log)) for log in grid])
    good = np.flatnonzero(tried <= tried.min() + 1e-12 * max(1.0, abs(tried.min())))
    if len(good) == _GRID:
        return 1.0
    best = good[np.abs(grid[good]).argmin()]  # of equal ones the nearest to T = 1
    ends = float(grid[max(best - 2, 0)]), float(grid[min(best + 2, _GRID - 1)])

    def at(log: float) -> float:
        return loss(parts, math.exp(log))

    found = minimize_scalar(at, bounds=ends, method="bounded", options={"xatol": 1e-8})
    log = min((float(found.x), *ends), key=at)
    return min(max(math.exp(log), COOLEST), HOTTEST)


def best_temperature(parts: Sequence[Part], weights: Tensor | None = None) -> float:
    r"""The temperature with the lowest NLL of a mixture over classes, from 0.01 to 100.

    .. math:: \min_T \sum_j v_j \,\frac{1}{n_j} \sum_{i} -\log \sum_k w_k\,
        \mathrm{softmax}(s_{ki} / T)_{y_i}

    Rows that are all right say :math:`T \to 0`, and the first wrong row met later costs without
    limit. So a T below 1 is found with a row of even target among them, and is at most 1.

    Args:
        parts: Logits ``[K, n, C]``, labels ``[n]`` and weight of every set of rows.
        weights: Of the K hypotheses; ``None`` for equal ones.

    Example:
        >>> import torch
        >>> z = torch.tensor([[[4.0, 0.0]] * 4])  # sure of class 0, right three times of four
        >>> round(best_temperature([(z, torch.tensor([0, 0, 0, 1]), 1.0)]), 3)
        3.641
    """
    kept, extra = extra_row(parts)
    share, total = weights_of(kept[0][0], weights), sum(weight for *_, weight in kept)

    def loss(parts: Sequence[Part], temperature: float, even: float = 0.0) -> float:
        found = 0.0
        for samples, y, weight in parts:
            logs = (samples / temperature).log_softmax(dim=-1)  # [K, n, C]
            chosen = logs.gather(2, y.expand(len(logs), -1).unsqueeze(2)).squeeze(2)
            right = (chosen + share.log().unsqueeze(1)).logsumexp(dim=0)
            found -= weight * float(right.mean())
            if even:
                found -= even * weight / total * float((share @ logs.mean(dim=2)).mean())
        return found

    found = fit_temperature(kept, loss)
    if found >= 1.0:
        return found
    return min(1.0, fit_temperature(kept, lambda parts, t: loss(parts, t, extra)))


def extra_row(parts: Sequence[Part]) -> tuple[list[Part], float]:
    """The parts of a weight above 0 in float64, and what one more row of average weight weighs."""
    kept = [(s.double(), y, weight) for s, y, weight in parts if weight > 0.0]
    if not kept or any(len(y) == 0 for _, y, _ in kept):
        raise InputError("parts with at least one row and a weight above 0", "none, or empty ones")
    total = sum(weight for *_, weight in kept)
    return kept, total / sum(weight * len(y) / total for _, y, weight in kept)
