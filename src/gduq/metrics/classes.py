"""Metrics of classes and labels: right answers, proper scores, ranking, calibration, selection.

Each takes a `gduq.Prediction` with targets and gives a number. Of labels it is the mean over
labels, of the rows where each is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor

from gduq.metrics.ranking import Curve
from gduq.metrics.resampling import check_level, wilson
from gduq.metrics.rows import (
    ANY,
    POSITIVE,
    UNIT,
    ClassRows,
    Rows,
    Task,
    check_bins,
    equal_bins,
    folded_mean,
    metric,
    read_one,
)
from gduq.prediction import ClassPrediction, Prediction

__all__ = ["Reliability", "RiskCoverage", "accuracy", "adaptive_ece", "aurc", "average_precision",
           "balanced_accuracy", "brier", "classwise_ece", "ece", "error_auroc", "gap", "majority",
           "nll", "reliability", "risk_coverage", "roc_auc", "sharpness", "trust_aurc",
           "trust_error_auroc", "trust_gap"]  # fmt: skip


@metric(classes=UNIT)
def accuracy(p: ClassRows) -> Tensor:
    """Share of rows whose answer is right.

    Example:
        >>> accuracy(ClassPrediction(torch.tensor([[2.0, 0.0], [0.0, 3.0]]), torch.tensor([0, 0])))
        0.5
    """
    return p.mean(p.held)


@metric(classes=UNIT)
def majority(p: ClassRows) -> Tensor:
    """Accuracy of always giving the most common answer of the same rows."""
    (count,) = p.sums(p.labels, p.p.num_classes)
    return count.amax(dim=1) / count.sum(dim=1)


@metric(classes=UNIT)
def balanced_accuracy(p: ClassRows) -> Tensor:
    """Share of right answers within each class that has rows, averaged over classes."""
    count, hits = p.sums(p.labels, p.p.num_classes, p.held)
    return (hits / count).nanmean(dim=1)


@metric(classes=POSITIVE, values=ANY)
def nll(p: Task) -> Tensor:
    r"""Negative log-likelihood :math:`-\frac1m \sum_i \log p_{i, y_i}`, in nats.

    Of values minus the mean log-density of the truth, which may be negative.
    """
    return p.mean(p.nll)


@metric(classes=(0.0, 2.0))
def brier(p: ClassRows) -> Tensor:
    r"""Brier score :math:`\frac1m \sum_i \sum_c (p_{ic} - [y_i = c])^2`, from 0 to 2."""
    squares = p.p.probs.double().square().sum(dim=-1)
    return p.mean(squares - 2.0 * p.of_truth(p.p.probs) + 1.0)


@metric(classes=UNIT, values=POSITIVE)
def sharpness(p: Task) -> Tensor:
    r"""How far from uniform predictions are: :math:`1 - \frac1m\sum_i H(p_i) / \log C`; no labels.

    Of values the root of the mean variance, in their unit: there the smaller one is sharper.
    """
    return p.sharpness


@metric(classes=(-1.0, 1.0), values=(-1.0, 1.0))
def gap(p: Task) -> Tensor:
    r"""What predictions promise minus what they hold.

    Of classes :math:`\frac1m \sum_i (\text{confidence}_i - [\text{label}_i = y_i])`, of labels the
    mean of that over labels, of a value 0.9 minus the share of the truth in the 90 % intervals.
    `bootstrap` gives a value, and rows that are all right or all wrong, Wilson's interval of the
    share: no resample of such rows has an error in it.
    """
    return p.mean(p.promise - p.held)


# -- ranking ---------------------------------------------------------------------------------------


@metric(classes=UNIT)
def roc_auc(p: ClassRows) -> Tensor:
    """Area under the ROC curve of the probability of "yes", the second of two classes.

    Of more classes it is the mean over classes, each against the rest. Classes and labels with one
    kind of row only are left out; if none is left, it is NaN.

    Example:
        >>> logits = torch.tensor([[0.1], [-2.0], [3.0], [-1.0]])
        >>> roc_auc(ClassPrediction(logits, torch.tensor([0, 0, 1, 1])))
        0.75
    """
    return _over_classes(p, Curve.auroc)


@metric(classes=UNIT)
def average_precision(p: ClassRows) -> Tensor:
    r"""Average precision of the probability of "yes", :math:`\sum_t (R_t - R_{t-1}) P_t`.

    A probability without information gets the share of "yes". Classes are treated as in `roc_auc`.
    """
    return _over_classes(p, Curve.average_precision)


def _over_classes(rows: ClassRows, measure: Callable[[Curve], Tensor]) -> Tensor:
    """The mean over classes, each against the rest; of two classes the second alone ``[R]``."""
    found, logs = [], rows.p.log_probs.double()
    for c in range(1 if rows.p.num_classes == 2 else 0, rows.p.num_classes):
        rest = torch.cat([logs[:, :c], logs[:, c + 1 :]], dim=1)
        odds = logs[:, c] - rest.logsumexp(dim=1)  # ranks as a probability that may round to 1
        curve = Curve(odds, rows.labels == c, rows.weights)
        none = (curve.total_n == 0) | (curve.total_k == 0)
        found.append(measure(curve).masked_fill(none[:, 0], math.nan))
    return torch.stack(found).nanmean(dim=0)


# -- calibration -----------------------------------------------------------------------------------


@metric(classes=UNIT)
def ece(p: ClassRows, *, bins: int = 15, debias: bool = False, strict: bool = True) -> Tensor:
    r"""Expected calibration error of the most likely class; of labels the mean over labels.

    With bin b, :math:`[e_b, e_{b+1})`, the last one closed, holding :math:`n_b` of m rows, their
    accuracy :math:`a_b` and mean confidence :math:`\bar p_b`, it is
    :math:`\sum_b \tfrac{n_b}{m} |a_b - \bar p_b|`. Noise makes it positive even for a calibrated
    model: by about :math:`\sqrt{B/m}`.

    Args:
        p: A `gduq.ClassPrediction` or `gduq.LabelPrediction` with targets.
        bins: Number of bins B, of equal width.
        debias: Subtract most of what noise adds: the mean of :math:`|a_b - \bar p_b|` beyond a gap
            without noise.
        strict: ``False`` allows fewer rows than bins; the result then mostly measures noise.

    Example:
        >>> ece(ClassPrediction(torch.zeros(2, 2), torch.tensor([0, 0])), bins=2)
        0.5
    """
    return _bin_error(_width_bins(p, p.p.confidence, p.held, bins, strict), debias)


@metric(classes=UNIT)
def adaptive_ece(p: ClassRows, *, bins: int = 15, strict: bool = True) -> Tensor:
    """`ece` over bins with equally many rows (Nguyen and O'Connor, 2015).

    Rows of equal confidence that fall into two bins are shared between them evenly.
    """
    return _bin_error(equal_bins(p, p.p.confidence, [p.p.confidence, p.held], bins, strict))


@metric(classes=UNIT)
def classwise_ece(p: ClassRows, *, bins: int = 15, strict: bool = True) -> Tensor:
    r"""Mean over classes :math:`\frac1C \sum_c \mathrm{ECE}(p_{\cdot c}, [y = c])` (Kull, 2019)."""
    columns = enumerate(p.p.probs.unbind(dim=1))
    each = [_bin_error(_width_bins(p, q, p.labels == c, bins, strict)) for c, q in columns]
    return torch.stack(each).mean(dim=0)


class Reliability(NamedTuple):
    """A reliability curve over B bins; empty bins hold NaN."""

    edges: Tensor  # [B + 1]
    rows: Tensor  # [B], how many
    confidence: Tensor  # [B], mean in the bin
    accuracy: Tensor  # [B]
    low: Tensor  # [B], Wilson interval of the accuracy
    high: Tensor  # [B]


def reliability(
    p: ClassPrediction, *, bins: int = 15, level: float = 0.95, strict: bool = True
) -> Reliability:
    """Accuracy against confidence, bin by bin, with Wilson intervals of that ``level``.

    Example:
        >>> p = ClassPrediction(torch.zeros(4, 2), torch.tensor([0, 0, 0, 1]))
        >>> curve = reliability(p, bins=2)
        >>> curve.rows, curve.accuracy
        (tensor([0., 4.], dtype=torch.float64), tensor([ nan, 0.7500], dtype=torch.float64))
    """
    rows = read_one(p, ClassRows)
    sums = _width_bins(rows, rows.p.confidence, rows.held, bins, strict)
    count, prob, hit = (part[0] for part in sums)
    edges = torch.arange(bins + 1, dtype=torch.float64) / bins
    ends = wilson(hit / count, count, check_level(level))
    return Reliability(edges, count, prob / count, hit / count, *ends)


def _width_bins(
    rows: ClassRows, probs: Tensor, hits: Tensor, bins: int, strict: bool
) -> list[Tensor]:
    """Count, sum of probabilities and of hits in bins of equal width, ``[R, B]`` each."""
    check_bins(rows, bins, strict)
    # edges as NumPy's linspace rounds them, so values on an edge go where other libraries put them
    edges = torch.arange(1, bins, dtype=torch.float64) * (1.0 / bins)
    index = torch.bucketize(probs.double().contiguous(), edges, right=True)
    return rows.sums(index, bins, probs, hits)


def _bin_error(sums: Sequence[Tensor], debias: bool = False) -> Tensor:
    """The calibration error ``[R]`` of count, probabilities and hits in bins."""
    count, prob, hit = sums
    filled = count.clamp_min(1.0)
    gap = (hit - prob).abs() / filled
    if debias:  # what is likely noise, given a calibrated bin's variance
        mean = (prob / filled).clamp(0.0, 1.0)
        variance = mean * (1.0 - mean) / filled
        clean = (gap.square() - variance).clamp_min(0.0).sqrt()
        gap = gap - (folded_mean(clean, variance.sqrt()) - clean)
    return (count * gap).sum(dim=1).clamp_min(0.0) / count.sum(dim=1)


# -- selection -------------------------------------------------------------------------------------


class RiskCoverage(NamedTuple):
    """A risk-coverage curve, from the most certain row to all of them."""

    coverage: Tensor  # [m], i / m
    risk: Tensor  # [m], share of errors (values: mean squared error) of the i most certain rows
    threshold: Tensor  # [m], confidence (values: std) of the i-th


def risk_coverage(p: Prediction) -> RiskCoverage:
    r"""Share of errors (of values mean squared error) among the i most certain rows, i = 1 ... m.

    Rows of equal confidence are counted as in a random order, on average. Of several labels or
    values take one, ``p.column(t)``.

    Example:
        >>> logits = torch.tensor([[0.0, 9.0], [0.0, 1.0]])
        >>> risk_coverage(ClassPrediction(logits, torch.tensor([1, 0]))).risk
        tensor([0.0000, 0.5000], dtype=torch.float64)
    """
    rows = cast(Task, read_one(p, Rows))
    count, loss = (part[0] for part in rows.by(rows.uncertainty, rows.loss))
    each = (loss / count).repeat_interleave(count.long())
    size = torch.arange(1, len(each) + 1, dtype=torch.float64)
    threshold = rows.uncertainty.sort().values.abs()
    return RiskCoverage(size / len(each), each.cumsum(dim=0) / size, threshold)


@metric(classes=UNIT)
def error_auroc(p: ClassRows) -> Tensor:
    """Area under the ROC curve of doubt (1 - confidence) for errors; NaN without either kind."""
    return _finds_errors(p, p.uncertainty)


@metric(classes=UNIT)
def trust_error_auroc(p: ClassRows) -> Tensor:
    """`error_auroc` of 1 - trust."""
    return _finds_errors(p, -p.trust)


@metric(classes=(-1.0, 1.0))
def trust_gap(p: ClassRows) -> Tensor:
    """`gap` of trust: its mean less the share of right answers."""
    return p.mean(p.trust - p.held)


@metric(classes=UNIT)
def trust_aurc(p: ClassRows) -> Tensor:
    """`aurc` where trust decides which rows are left out first."""
    return _aurc(p, -p.trust)


def _finds_errors(p: ClassRows, scores: Tensor) -> Tensor:
    return Curve(scores, p.loss > 0, p.weights).auroc()


@metric(classes=UNIT, values=POSITIVE)
def aurc(p: Task) -> Tensor:
    r"""Area under the risk-coverage curve, :math:`\frac1m \sum_i r_i` (Geifman et al., 2019).

    It mixes accuracy with how well confidence ranks the errors last; smaller is better.

    Example:
        >>> logits = torch.tensor([[0.0, 9.0], [0.0, 1.0]])
        >>> aurc(ClassPrediction(logits, torch.tensor([1, 0])))
        0.25
    """
    return _aurc(p, p.uncertainty)


def _aurc(p: Task, uncertainty: Tensor) -> Tensor:
    count, loss = p.by(uncertainty, p.loss)
    upto, lost = count.cumsum(dim=1), loss.cumsum(dim=1)
    before, rate = upto - count, loss / count.clamp_min(1.0)
    # of n tied rows with mean loss a after N rows with losses E: the sum of (E + ja) / (N + j)
    sums = torch.arange(1.0, float(upto.max()) + 1, dtype=torch.float64).reciprocal().cumsum(dim=0)
    harmonic = torch.nn.functional.pad(sums, (1, 0))
    apart = harmonic[upto.long()] - harmonic[before.long()]
    risks = loss + (lost - loss - rate * before) * apart
    return risks.sum(dim=1) / upto[:, -1]
