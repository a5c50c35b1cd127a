"""How well one number tells two sets apart: AUROC, average precision, false positives."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gduq.errors import InputError
from gduq.metrics.resampling import Interval, interval, resample_counts

__all__ = ["Separation", "auroc", "average_precision", "false_positive_rate", "separation"]


def auroc(negative: Tensor, positive: Tensor) -> float:
    r"""Area under the ROC curve: :math:`P(s^+ > s^-) + \frac12 P(s^+ = s^-)`.

    Args:
        negative: Scores of the negative set ``[n]``.
        positive: Scores of the positive set ``[k]``, which should be larger.

    Example:
        >>> auroc(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 2.0]))
        0.875
    """
    return float(_auroc(*_curve(*_checked(negative, positive))))


def average_precision(negative: Tensor, positive: Tensor) -> float:
    r"""Area under the precision-recall curve, :math:`\sum_t (R_t - R_{t-1}) P_t`.

    Unlike `auroc` it depends on how many positives there are: their share is what a score without
    information gets.

    Example:
        >>> average_precision(torch.tensor([0.0, 1.0]), torch.tensor([2.0, 3.0]))
        1.0
    """
    return float(_average_precision(*_curve(*_checked(negative, positive))))


def false_positive_rate(negative: Tensor, positive: Tensor, recall: float = 0.95) -> float:
    """Share of negatives flagged by the highest threshold that finds ``recall`` of the positives.

    Example:
        >>> false_positive_rate(torch.tensor([0.0, 1.0]), torch.tensor([0.5, 2.0]))
        0.5
    """
    if not 0 < recall <= 1:
        raise InputError("recall above 0 and at most 1", recall)
    return float(_false_positive_rate(*_curve(*_checked(negative, positive)), recall))


class Separation(NamedTuple):
    """How well a score tells two sets apart."""

    auroc: Interval
    aupr: Interval
    fpr95: Interval


def separation(
    negative: Tensor,
    positive: Tensor,
    *,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Separation:
    """`auroc`, `average_precision` and `false_positive_rate` with bootstrap intervals.

    Both sets are resampled, each at its own size.

    Example:
        >>> found = separation(torch.arange(50.0), torch.arange(50.0) + 25)
        >>> found.auroc.low < found.auroc.value < found.auroc.high
        True
    """
    if resamples < 2:
        raise InputError("resamples >= 2", resamples)
    if not 0 < level < 1:
        raise InputError("level between 0 and 1", level)
    negative, positive = _checked(negative, positive)
    value = torch.cat(_all(*_curve(negative, positive)))
    blocks = zip(
        resample_counts(len(negative), resamples, seed, beside=len(positive)),
        resample_counts(len(positive), resamples, seed + 1, beside=len(negative)),
        strict=True,
    )
    draws = torch.cat([torch.stack(_all(*_curve(negative, positive, n, p))) for n, p in blocks], 1)
    found = [interval(float(v), d, level, 0.0, 1.0) for v, d in zip(value, draws, strict=True)]
    return Separation(*found)


def _checked(negative: Tensor, positive: Tensor) -> tuple[Tensor, Tensor]:
    sets = []
    for name, given in (("negative", negative), ("positive", positive)):
        scores = torch.as_tensor(given).detach().cpu()
        if scores.dim() != 1 or scores.numel() == 0:
            raise InputError(f"{name} scores of shape [m], m >= 1", list(scores.shape))
        if torch.isnan(scores).any():
            raise InputError(f"{name} scores that are numbers", "NaN")
        sets.append(scores.double())
    return sets[0], sets[1]


def _curve(
    negative: Tensor, positive: Tensor, n: Tensor | None = None, k: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Positives and negatives at or above each distinct score, from the top, ``[R, G]`` each.

    ``n`` and ``k`` say how often each row counts in each of R resamples.
    """
    n = torch.ones(1, len(negative), dtype=torch.float64) if n is None else n
    k = torch.ones(1, len(positive), dtype=torch.float64) if k is None else k
    scores, order = torch.cat([negative, positive]).sort(descending=True)
    last = torch.cat([scores[1:] != scores[:-1], torch.ones(1, dtype=torch.bool)])
    zeros = [torch.zeros(n.size(0), size, dtype=torch.float64) for size in (n.size(1), k.size(1))]
    found = torch.cat([zeros[0], k], dim=1)[:, order].cumsum(dim=1)[:, last]
    false = torch.cat([n, zeros[1]], dim=1)[:, order].cumsum(dim=1)[:, last]
    return found, false


def _all(found: Tensor, false: Tensor) -> list[Tensor]:
    return [
        _auroc(found, false),
        _average_precision(found, false),
        _false_positive_rate(found, false, 0.95),
    ]


def _auroc(found: Tensor, false: Tensor) -> Tensor:
    steps = torch.nn.functional.pad(found, (1, 0)).diff(dim=1)
    middle = (torch.nn.functional.pad(false, (1, 0))[:, :-1] + false) / 2
    beaten = (steps * (false[:, -1:] - middle)).sum(dim=1)
    return beaten / (found[:, -1] * false[:, -1])


def _average_precision(found: Tensor, false: Tensor) -> Tensor:
    steps = torch.nn.functional.pad(found, (1, 0)).diff(dim=1)
    precision = found / (found + false).clamp_min(1.0)
    return (steps * precision).sum(dim=1) / found[:, -1]


def _false_positive_rate(found: Tensor, false: Tensor, recall: float) -> Tensor:
    enough = found >= recall * found[:, -1:] - 1e-9
    first = enough.int().argmax(dim=1, keepdim=True)
    return false.gather(1, first).squeeze(1) / false[:, -1]
