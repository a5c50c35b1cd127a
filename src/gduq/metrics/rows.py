"""What metrics read: rows of predictions of any kind, each counted once or as resamples say."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sized
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeAlias, TypeVar, cast

import torch
from torch import Tensor

from gduq.errors import InputError
from gduq.prediction import ClassPrediction, LabelPrediction, Prediction, ValuePrediction
from gduq.prediction.classes import as_labels
from gduq.prediction.mixture import weights_of

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["LabelRows", "Predicted", "Rows", "ValueRows", "metric", "read", "read_any", "read_as"]

Kept = TypeVar("Kept")
PROMISED = 0.9  # of the truth is what intervals of values are to hold


class Uneven(Exception):
    """Resamples of different sizes cannot be put in order side by side."""


class WeightedRows(ABC):
    """m rows, each counted once, or ``counts`` ``[R, m]`` times in each of R resamples."""

    kind: ClassVar[str]
    counts: Tensor | None = None

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    @abstractmethod
    def device(self) -> torch.device: ...

    @classmethod
    @abstractmethod
    def of(cls, p: Predicted, target: Tensor | None) -> Self:
        """From a prediction, or from logits and labels."""

    @abstractmethod
    def require_target(self) -> Tensor:
        """The truth, or an error that says it is missing."""

    @classmethod
    def apply(
        cls, function: Callable[..., float], p: Predicted, *args: Any, **options: Any
    ) -> float:
        """A metric of a prediction of this kind."""
        return function(p, *args, **options)

    def weighted(self, counts: Tensor) -> Self:
        """The same rows counted ``[R, m]`` times, float64; what is known per row is shared."""
        other = copy.copy(self)
        other.__dict__ |= {"counts": counts.to(self.device), "_drawn": {}}
        return other

    def out(self, found: Tensor) -> float:
        """What a metric gives: a number; of weighted rows one per resample, ``[R]``."""
        return float(found) if self.counts is None else cast(float, found)

    @property
    def weights(self) -> Tensor:
        """How often each row counts ``[R, m]``; R is 1 where each counts once."""
        if self.counts is None:
            return torch.ones(1, len(self), dtype=torch.float64, device=self.device)
        return self.counts

    def mean(self, values: Tensor) -> Tensor:
        """Mean of one value per row ``[m]`` in each resample ``[R]``."""
        if self.counts is None:
            return values.double().mean().unsqueeze(0)
        return self.counts @ values.double() / self.counts.sum(dim=1)

    def sums(self, group: Tensor, groups: int, values: Tensor | None = None) -> Tensor:
        """Sum of one value per row (default: 1) over the rows of each group ``[R, groups]``."""
        if self.counts is None:
            weights = None if values is None else values.double()
            return torch.bincount(group, weights, minlength=groups).double().unsqueeze(0)
        part = self.counts if values is None else self.counts * values.double()
        return part.new_zeros(len(part), groups).index_add_(1, group, part)

    def by(self, scores: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Scores, ascending, and tie-averaged values in each resample, ``[R, m]``."""
        scores, order = scores.sort()
        values = values[order]
        _, group, size = torch.unique_consecutive(scores, return_inverse=True, return_counts=True)
        if self.counts is None:
            if len(size) < len(values):
                means = torch.zeros_like(values[: len(size)]).index_add_(0, group, values) / size
                values = means[group]
            return scores.unsqueeze(0), values.unsqueeze(0)
        counts, values = self.counts[:, order], values.expand_as(self.counts)
        if bool((counts.sum(dim=1) != len(scores)).any()) and len(counts) > 1:
            raise Uneven
        if len(size) < len(scores):
            size = counts.new_zeros(len(counts), len(size)).index_add_(1, group, counts)
            sums = torch.zeros_like(size).index_add_(1, group, counts * values)
            values = (sums / size.clamp_min(1.0))[:, group]
        # row numbers repeated as often as drawn: sorted resamples without sorting any of them
        numbers = torch.arange(len(scores), device=counts.device).expand(counts.shape)
        drawn = torch.repeat_interleave(numbers.flatten(), counts.long().flatten())
        drawn = drawn.view(len(counts), -1)
        return scores[drawn], values.gather(1, drawn)

    def kept(self, name: object, make: Callable[[], Kept]) -> Kept:
        """What several metrics want of the same resamples, made once."""
        drawn: dict[object, Kept] = self.__dict__.setdefault("_drawn", {})
        if name not in drawn:
            drawn[name] = make()
        return drawn[name]


@dataclass(eq=False)
class Rows(WeightedRows):
    """m rows of logits over C classes; metrics that are given the same ones share their softmax."""

    kind: ClassVar[str] = "classes"

    logits: Tensor  # [m, C], finite, C >= 2
    target: Tensor | None = None  # [m], labels
    decided: Tensor | None = None  # [m], the class answered where a threshold decides

    @classmethod
    def of(cls, p: Predicted, target: Tensor | None) -> Rows:
        decided = None
        if isinstance(p, ClassPrediction):  # its shape is checked already
            if target is not None and p.target is not None:
                raise InputError("targets once", "targets in the prediction and as target=")
            logits, target = p.log_probs, p.target if target is None else target
            decided = None if p.threshold is None else p.label
        else:
            logits = _as_logits(p)
        _check_some(logits)
        if not torch.isfinite(logits.sum()) and not torch.isfinite(logits).all():
            raise InputError("finite logits", "NaN or infinite values")
        if target is not None:
            target = as_labels(target, *logits.shape)
        return cls(logits, target, decided)

    def __len__(self) -> int:
        return self.logits.size(0)

    def __getitem__(self, index: Tensor) -> Rows:
        target, decided = (None if v is None else v[index] for v in (self.target, self.decided))
        return Rows(self.logits[index], target, decided)

    @property
    def device(self) -> torch.device:
        return self.logits.device

    @property
    def num_classes(self) -> int:
        """C, the number of classes."""
        return self.logits.size(1)

    def require_target(self) -> Tensor:
        if self.target is None:
            do = "Pass target= or predict on labelled data."
            raise InputError("predictions with targets", "none", do)
        return self.target

    @property
    def labels(self) -> Tensor:
        """The true classes ``[m]``."""
        return self.require_target()

    @cached_property
    def _top(self) -> tuple[Tensor, Tensor]:
        values, indices = self.logits.max(dim=-1, keepdim=True)
        return values, indices.squeeze(-1)

    @cached_property
    def probs(self) -> Tensor:
        """Softmax of the logits ``[m, C]``; step by step, which is faster over short rows."""
        odds = (self.logits - self._top[0]).exp_()
        return odds.div_(odds.sum(dim=-1, keepdim=True))

    @property
    def label(self) -> Tensor:
        """The most likely class ``[m]``."""
        return self._top[1]

    @cached_property
    def confidence(self) -> Tensor:
        """Its probability ``[m]``."""
        return (self.logits - self._top[0]).exp_().sum(dim=-1).reciprocal_()

    @property
    def answer(self) -> Tensor:
        """The class answered ``[m]``: the most likely one unless a threshold decides."""
        return self.label if self.decided is None else self.decided

    @cached_property
    def correct(self) -> Tensor:
        """1.0 where the most likely class, that of `confidence`, is the true one ``[m]``."""
        return (self.label == self.labels).double()

    @property
    def right(self) -> Tensor:
        """1.0 where the class answered is the true one ``[m]``, float64."""
        return (self.answer == self.labels).double()

    def true(self, scores: Tensor) -> Tensor:
        """Of scores of all classes ``[m, C]``, those of the true ones ``[m]``."""
        return scores.gather(1, self.labels.unsqueeze(1)).squeeze(1)

    @property
    def nll(self) -> Tensor:
        """Negative log-likelihood of the true class ``[m]``, float64."""
        return (self.logits.logsumexp(dim=-1) - self.true(self.logits)).double()

    @property
    def sharpness(self) -> Tensor:
        """1 - normalised entropy, a mean over rows ``[R]``."""
        entropy = torch.special.entr(self.probs).sum(dim=-1).double()
        return self.mean(1.0 - entropy / math.log(self.num_classes))

    @property
    def gap(self) -> Tensor:
        """Mean confidence minus accuracy ``[R]``."""
        return self.mean(self.confidence.double() - self.correct)

    def by_confidence(self) -> tuple[Tensor, Tensor]:
        """Confidence, ascending, and tie-averaged `correct` in each resample ``[R, m]``."""
        return self.kept("confidence", lambda: self.by(self.confidence, self.correct))

    def ranked(self) -> tuple[Tensor, Tensor]:
        """Confidence and loss, from the most certain row to the least ``[R, m]``."""
        known = self.decided is None
        found = self.by_confidence() if known else self.by(self.confidence, self.right)
        return found[0].flip(-1), 1.0 - found[1].flip(-1)


def _as_logits(given: object) -> Tensor:
    try:
        logits: Tensor = torch.as_tensor(given).detach()
    except (TypeError, ValueError, RuntimeError):
        raise InputError("logits [m, C] or a Prediction", type(given).__name__) from None
    if logits.dim() == 1:
        logits = logits.unsqueeze(1)
    if logits.dim() != 2:
        do = "Make a gduq.Prediction of [K, m, C]."
        raise InputError("logits of shape [m, C]", list(logits.shape), do)
    return ClassPrediction(logits).samples[0]


P = TypeVar("P", bound=Prediction)


@dataclass(eq=False)
class _PredictionRows(WeightedRows, Generic[P]):
    """Rows of a prediction that is checked already."""

    source: P

    @classmethod
    def of(cls, p: Predicted, target: Tensor | None) -> Self:
        if target is not None:
            raise InputError(f"true {cls.kind} in the prediction", "target=", "Leave target out.")
        found = cast(P, p)
        _check_some(found)
        return cls(found)

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: Tensor) -> Self:
        return type(self)(self.source[index])

    @property
    def device(self) -> torch.device:
        return self.source.samples.device

    def require_target(self) -> Tensor:
        return self.source.require_target()


class LabelRows(_PredictionRows[LabelPrediction]):
    """m rows of a `gduq.LabelPrediction`: every label is a task of two classes."""

    kind: ClassVar[str] = "labels"

    @classmethod
    def apply(
        cls, function: Callable[..., float], p: Predicted, *args: Any, **options: Any
    ) -> float:
        """The mean over the labels for which the metric is defined; NaN if that is none."""
        rows = read_as(cls, p, *args, labelled=False)
        found = [_each(function, part, options) for _, part in rows.parts.values()]
        if rows.counts is None:
            defined = [value for value in found if not math.isnan(value)]
            return sum(defined) / len(defined) if defined else math.nan
        return rows.out(torch.stack(cast("list[Tensor]", found)).nanmean(dim=0))

    def weighted(self, counts: Tensor) -> Self:
        parts, other = self.parts, super().weighted(counts)
        other.__dict__["parts"] = {
            t: (known, rows.weighted(counts[:, known.cpu()])) for t, (known, rows) in parts.items()
        }
        return other

    @cached_property
    def parts(self) -> dict[int, tuple[Tensor, Rows]]:
        """Per label known somewhere: the numbers of the rows that know it, and these rows."""
        p, found = self.source, {}
        everywhere = torch.arange(len(p), device=self.device)
        for t in range(p.num_labels):
            known = everywhere if p.target is None else everywhere[~p.target[:, t].isnan()]
            if known.numel():
                found[t] = known, read(p.column(t), labelled=False)
        return found


def _each(function: Callable[..., float], rows: Rows, options: dict[str, Any]) -> float:
    """The metric of one label; resamples that differ in size go one by one, where order counts."""
    try:
        return function(rows, **options)
    except Uneven:
        alone = [rows.weighted(count.unsqueeze(0)) for count in rows.weights]
        return cast(float, torch.cat([cast(Tensor, function(r, **options)) for r in alone]))


class ValueRows(_PredictionRows[ValuePrediction]):
    """m rows of a `gduq.ValuePrediction`; every property is ``[m]`` and float64."""

    kind: ClassVar[str] = "values"

    def ranked(self) -> tuple[Tensor, Tensor]:
        """Deviation and loss, from the most certain row to the least ``[R, m]``."""
        return self.by(self.variance.sqrt(), self.loss)

    @property
    def one(self) -> ValuePrediction:
        """The prediction, or an error if it is about several values per row."""
        if self.source.num_values > 1:
            do = "Take one of them with p.column(t)."
            raise InputError("one value per row", self.source.size, do)
        return self.source

    @property
    def target(self) -> Tensor:
        """The true values, or an error that says they are missing."""
        return self.require_target().double()

    @cached_property
    def error(self) -> Tensor:
        """Truth minus mean."""
        return self.target - self.one.mean.double()

    @property
    def loss(self) -> Tensor:
        """Squared error."""
        return self.error.square()

    @property
    def variance(self) -> Tensor:
        """Of the predicted distribution."""
        return self.one.variance.double()

    @property
    def sharpness(self) -> Tensor:
        """The root of the mean variance over rows ``[R]``."""
        return self.mean(self.variance).sqrt()

    @property
    def gap(self) -> Tensor:
        """0.9 minus the coverage of the 90 % intervals ``[R]``."""
        return PROMISED - self.mean(self.depth <= PROMISED)

    @cached_property
    def nll(self) -> Tensor:
        """Negative log-density of the truth; the mean over values where there are several."""
        found = -self.source.log_prob(self.target).double()
        return found if self.source.num_values == 1 else found.mean(dim=1)

    @cached_property
    def depth(self) -> Tensor:
        """The level of the narrowest central interval that holds the truth, from 0 to 1."""
        return (2 * self.one.cdf(self.target).double() - 1).abs()

    @cached_property
    def crps(self) -> Tensor:
        r"""Of a Gaussian mixture, :math:`E|X - y| - \frac12 E|X - X'|`; all these are Gaussian."""
        means, variances = self.one.means[..., 0].double(), self.one.variances[..., 0].double()
        share = weights_of(means, self.one.weights).unsqueeze(1)  # [K, 1]
        total = (share * folded_mean((self.target - means).abs(), variances.sqrt())).sum(dim=0)
        for k in range(len(means)):  # pairs (k, l) with l > k count twice, and once each for l = k
            apart = (means[k] - means[k:]).abs()
            spread = folded_mean(apart, (variances[k] + variances[k:]).sqrt())
            pairs = share[k] * share[k:]
            total -= (pairs * spread).sum(dim=0) - 0.5 * pairs[0] * spread[0]
        return total.clamp_min(0.0)  # rounding, where hypotheses are almost certain

    @cached_property
    def _widths(self) -> dict[float, Tensor]:
        return {}

    def width(self, level: float) -> Tensor:
        """Length of the central interval of that level."""
        if level not in self._widths:
            low, high = self.one.interval(level)
            self._widths[level] = (high - low).double()
        return self._widths[level]


def folded_mean(mean: Tensor, deviation: Tensor) -> Tensor:
    """E|x| of x ~ N(mean, deviation^2), for mean >= 0."""
    ratio = mean / deviation.clamp_min(1e-300)
    density = (-0.5 * ratio.square()).exp() * math.sqrt(2.0 / math.pi)
    return deviation * density + mean * torch.erf(ratio / math.sqrt(2.0))


AnyRows = Rows | LabelRows | ValueRows
Predicted: TypeAlias = Prediction | Tensor | WeightedRows  # what metrics take
R = TypeVar("R", Rows, LabelRows, ValueRows)

_ROWS: dict[str, type[AnyRows]] = {rows.kind: rows for rows in (Rows, LabelRows, ValueRows)}


def kind_of(p: Predicted) -> str:
    """What a prediction is about; logits are about classes."""
    return str(getattr(p, "kind", Rows.kind))


def _check_some(rows: Sized) -> None:
    if len(rows) == 0:
        raise InputError("at least one row", "an empty prediction", "Leave empty splits out.")


def read_as(
    rows: type[R], p: Predicted, target: Tensor | None = None, *, labelled: bool = True
) -> R:
    """A prediction as rows of one kind: the one check of kind, emptiness and truth."""
    if kind_of(p) != rows.kind:
        got = f"one about {kind_of(p)}" if hasattr(p, "kind") else type(p).__name__
        do = "Take one of them with p.column(t)." if kind_of(p) == LabelRows.kind else ""
        raise InputError(f"a prediction about {rows.kind}", got, do)
    found = p if isinstance(p, rows) and target is None else rows.of(p, target)
    if labelled:
        found.require_target()
    return found


def read(p: Predicted, target: Tensor | None = None, *, labelled: bool = True) -> Rows:
    """Check predictions about classes and hand them to a metric.

    Args:
        p: A `gduq.ClassPrediction`, of which the mixture is read, `Rows`, or logits ``[m, C]``;
            ``[m]`` is a one-logit task, ``(0, z)``.
        target: Integer labels ``[m]``; only next to a tensor.
        labelled: Whether labels must be there.

    Example:
        >>> read(torch.tensor([[2.0, 0.0], [0.0, 3.0]]), torch.tensor([0, 0])).correct
        tensor([1., 0.], dtype=torch.float64)
    """
    return read_as(Rows, p, target, labelled=labelled)


def read_any(p: Predicted, target: Tensor | None = None, *, labelled: bool = True) -> AnyRows:
    """Rows of any kind."""
    return read_as(_ROWS[kind_of(p)], p, target, labelled=labelled)  # type: ignore[type-var]


def read_ranked(
    p: Predicted, target: Tensor | None = None, *, labelled: bool = True
) -> Rows | ValueRows:
    """Rows of classes or of one value, which have a certainty and a loss each."""
    found = read_any(p, target, labelled=labelled)
    if isinstance(found, LabelRows):
        raise InputError("one label at a time", found.source.size, "Take p.column(t).")
    return found


Limits = tuple[float, float]
UNIT, POSITIVE, ANY = (0.0, 1.0), (0.0, math.inf), (-math.inf, math.inf)
ABOUT: dict[Callable[..., float], dict[str, Limits]] = {}  # metrics on weighted rows, by kind

Metric = TypeVar("Metric", bound=Callable[..., float])


def metric(**limits: Limits) -> Callable[[Metric], Metric]:
    """Mark a function as a metric that `bootstrap` computes on all resamples at once.

    ``limits`` says what it can be, of ``classes`` (and labels) and ``values``. Of labels it is the
    mean over those for which it is defined.
    """

    def mark(function: Metric) -> Metric:
        @wraps(function)
        def measured(p: Predicted, *args: Any, **options: Any) -> float:
            return _ROWS[kind_of(p)].apply(function, p, *args, **options)

        of_labels = {LabelRows.kind: limits[Rows.kind]} if Rows.kind in limits else {}
        ABOUT[measured] = limits | of_labels
        return cast(Metric, measured)

    return mark
