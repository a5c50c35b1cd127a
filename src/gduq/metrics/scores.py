"""Averages over rows: accuracy, negative log-likelihood, Brier score, sharpness."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch  # noqa: F401  (for the examples)
from torch import Tensor

from gduq.errors import InputError
from gduq.metrics.bins import check_bins, class_sums
from gduq.metrics.reading import read_ranked
from gduq.metrics.rows import Rows, read
from gduq.metrics.weighted import ANY, POSITIVE, UNIT, metric

__all__ = [
    "BrierDecomposition",
    "accuracy",
    "brier",
    "brier_decomposition",
    "brier_term",
    "nll",
    "sharpness",
]


@metric(classes=UNIT, labels=UNIT)
def accuracy(p: Any, target: Tensor | None = None) -> float:
    r"""Share of rows whose answer is right: the most likely class, unless a threshold decides.

    Of labels it is the mean over labels, of the rows where each is known.

    Args:
        p: A `gduq.Prediction`, a `gduq.LabelPrediction` or logits ``[m, C]``.
        target: Labels ``[m]``, next to logits only.

    Example:
        >>> accuracy(torch.tensor([[2.0, 0.0], [0.0, 3.0]]), torch.tensor([0, 0]))
        0.5
    """
    rows = read(p, target)
    return rows.out(rows.mean(rows.right))


@metric(classes=POSITIVE, labels=POSITIVE, values=ANY)
def nll(p: Any, target: Tensor | None = None) -> float:
    r"""Negative log-likelihood :math:`-\frac1m \sum_i \log p_{i, y_i}`, in nats.

    Of labels it is the mean over labels, of the rows where each is known. Of values it is minus the
    mean log-density of the truth, which depends on the unit and may be negative; of several values
    per row their mean.

    Args:
        p: A prediction of any kind, or logits ``[m, C]``.
        target: Labels ``[m]``, next to logits only.

    Example:
        >>> round(nll(torch.tensor([[0.0, 0.0]]), torch.tensor([1])), 4)
        0.6931
    """
    rows = read_ranked(p, target)
    return rows.out(rows.mean(rows.nll))


@metric(classes=(0.0, 2.0), labels=(0.0, 2.0))
def brier(p: Any, target: Tensor | None = None) -> float:
    r"""Brier score :math:`\frac1m \sum_i \sum_c (p_{ic} - [y_i = c])^2`, from 0 to 2.

    Of labels it is the mean over labels, of the rows where each is known.

    Example:
        >>> brier(torch.tensor([[0.0, 0.0]]), torch.tensor([1]))
        0.5
    """
    rows = read(p, target)
    return rows.out(rows.mean(rows.brier))


@metric(classes=UNIT, labels=UNIT, values=POSITIVE)
def sharpness(p: Any, target: Tensor | None = None) -> float:
    r"""How far from uniform the predictions are: :math:`1 - \frac1m\sum_i H(p_i) / \log C`.

    0 for uniform rows, 1 for one-hot rows. It needs no labels and says nothing about being right:
    of two equally calibrated models the sharper one is the better one.

    Of labels it is the mean over labels. Of values it is the root of the mean variance, in their
    unit: there the smaller one is sharper.

    Example:
        >>> round(sharpness(torch.tensor([[0.0, 3.0]])), 3)
        0.725
    """
    rows = read_ranked(p, target, labelled=False)
    if isinstance(rows, Rows):
        return rows.out(rows.mean(rows.sharpness))
    return rows.out(rows.mean(rows.variance).sqrt())


class BrierDecomposition(NamedTuple):
    """``brier = reliability - resolution + uncertainty + within_bin``, exactly."""

    reliability: float
    resolution: float
    uncertainty: float
    within_bin: float


def brier_decomposition(
    p: Any, target: Tensor | None = None, *, bins: int = 15, strict: bool = True
) -> BrierDecomposition:
    r"""Murphy's decomposition of the Brier score, class by class over equal-width bins.

    With :math:`n_b` rows in bin b of class c, their mean probability :math:`\bar p_b` and share
    of class c :math:`\bar y_b`, and the class's share :math:`\bar y` of all rows, summed over c:

    .. math::
        \text{reliability} = \sum_b \tfrac{n_b}{m} (\bar p_b - \bar y_b)^2, \quad
        \text{resolution} = \sum_b \tfrac{n_b}{m} (\bar y_b - \bar y)^2, \quad
        \text{uncertainty} = \bar y (1 - \bar y)

    ``within_bin`` is what probabilities of one bin differ among themselves (Stephenson, Coelho
    and Jolliffe, 2008); it goes to 0 with finer bins. Small reliability, large resolution: good.

    Args:
        bins: Number of bins.
        strict: ``False`` allows fewer rows than bins.

    Example:
        >>> logits, y = torch.tensor([[0.0, 0.0]] * 4), torch.tensor([0, 0, 0, 1])
        >>> brier_decomposition(logits, y, bins=4)
        BrierDecomposition(reliability=0.125, resolution=0.0, uncertainty=0.375, within_bin=0.0)
    """
    found = _terms(read(p, target), bins, strict)
    return BrierDecomposition(**{name: float(value) for name, value in found.items()})


@metric(classes=(0.0, 2.0))
def brier_term(
    p: Any,
    target: Tensor | None = None,
    *,
    term: str = "reliability",
    bins: int = 15,
    strict: bool = True,
) -> float:
    """One term of `brier_decomposition`, for intervals by `bootstrap`.

    Args:
        term: ``"reliability"``, ``"resolution"``, ``"uncertainty"`` or ``"within_bin"``.
        bins, strict: As there.

    Example:
        >>> logits, y = torch.tensor([[0.0, 0.0]] * 4), torch.tensor([0, 0, 0, 1])
        >>> brier_term(logits, y, term="uncertainty", bins=4)
        0.375
    """
    if term not in BrierDecomposition._fields:
        raise InputError(f"a term from {', '.join(BrierDecomposition._fields)}", repr(term))
    rows = read(p, target)
    return rows.out(_terms(rows, bins, strict)[term])


def _terms(rows: Rows, bins: int, strict: bool) -> dict[str, Tensor]:
    """The decomposition in each resample ``[R]``."""
    check_bins(rows, bins, strict)
    (count, prob, hit), brier = class_sums(rows, bins), rows.mean(rows.brier)
    size = count.sum(dim=-1, keepdim=True)
    share, filled = count / size, count.clamp_min(1)
    rate = hit.sum(dim=-1, keepdim=True) / size
    reliability = (share * ((prob - hit) / filled).square()).sum(dim=(-2, -1))
    resolution = (share * (hit / filled - rate).square()).sum(dim=(-2, -1))
    uncertainty = (rate * (1 - rate)).sum(dim=(-2, -1))
    within = brier - (reliability - resolution + uncertainty)
    return {
        "reliability": reliability,
        "resolution": resolution,
        "uncertainty": uncertainty,
        "within_bin": within,
    }
