"""What metrics read: rows of a prediction, each counted once or as often as resamples draw it."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Concatenate, Generic, ParamSpec, TypeAlias, TypeVar, cast

import torch
from torch import Tensor

from gduq._checks import check_int
from gduq.errors import InputError
from gduq.prediction import ClassPrediction, LabelPrediction, Prediction, ValuePrediction
from gduq.prediction.mixture import weights_of

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["AnyRows", "ClassRows", "LabelRows", "Predicted", "ValueRows", "metric", "read",
           "rows_of"]  # fmt: skip

PROMISED = 0.9  # of the truth is what intervals of values are to hold
FEWEST = 5  # rows of a class below which a ranking has no interval
P = TypeVar("P", bound=Prediction)


class Rows(Generic[P]):
    """m rows, each counted once, or ``counts`` ``[R, m]`` times in each of R resamples, float64."""

    def __init__(self, p: P, counts: Tensor | None = None) -> None:
        self.p, self.counts = p, counts

    def __len__(self) -> int:
        return len(self.p)

    def weighted(self, counts: Tensor) -> Self:
        """The same rows with other counts; what is known per row is shared."""
        other = copy.copy(self)
        other.counts = counts
        return other

    @property
    def weights(self) -> Tensor:
        """How often each row counts ``[R, m]``; R is 1 where each counts once."""
        return torch.ones(1, len(self)).double() if self.counts is None else self.counts

    def mean(self, values: Tensor) -> Tensor:
        """Mean of one value per row ``[m]`` in each resample ``[R]``."""
        weights = self.weights
        return weights @ values.double() / weights.sum(dim=1)

    def sums(self, group: Tensor, groups: int, *values: Tensor) -> list[Tensor]:
        """How many rows each group has, and sums of values over them, ``[R, groups]`` each."""
        weights = self.weights
        parts = [weights, *(weights * v.double() for v in values)]
        return [part.new_zeros(len(part), groups).index_add_(1, group, part) for part in parts]

    def by(self, scores: Tensor, *values: Tensor) -> list[Tensor]:
        """The same for rows of equal score, the lowest first."""
        distinct, group = torch.unique(scores, return_inverse=True)
        return self.sums(group, len(distinct), *values)


class ClassRows(Rows[ClassPrediction]):
    """m rows of classes."""

    fixed_promise = False

    @property
    def has_rare_class(self) -> bool:
        """Whether a class, or the rest of the rows, is too small for a ranking's interval."""
        size = self.labels.bincount(minlength=self.p.num_classes)
        fewest = torch.minimum(size, len(self) - size)
        return bool(((fewest > 0) & (fewest < FEWEST)).any())

    @property
    def labels(self) -> Tensor:
        """The true classes ``[m]``."""
        return self.p.require_target()

    def of_truth(self, scores: Tensor) -> Tensor:
        """Of scores of all classes ``[m, C]``, those of the true ones ``[m]``, float64."""
        return scores.gather(1, self.labels.unsqueeze(1)).squeeze(1).double()

    @property
    def held(self) -> Tensor:
        """1.0 where the answer is right ``[m]``: the most likely class, or as a threshold says."""
        return self.p.correct.double()

    @cached_property
    def top_correct(self) -> Tensor:
        """1.0 where the most likely class, that of ``confidence``, is the true one ``[m]``."""
        return (self.p.log_probs.argmax(dim=-1) == self.labels).double()

    @property
    def nll(self) -> Tensor:
        """Negative log-likelihood of the true class ``[m]``."""
        return -self.of_truth(self.p.log_probs)

    @property
    def sharpness(self) -> Tensor:
        """1 - normalised entropy, a mean over rows ``[R]``."""
        return self.mean(1.0 - self.p.entropy.double() / math.log(self.p.num_classes))

    @property
    def gap(self) -> Tensor:
        """Mean confidence minus accuracy ``[R]``."""
        return self.mean(self.p.confidence.double() - self.top_correct)

    @property
    def uncertainty(self) -> Tensor:
        """What rows are left out by: the larger, the earlier ``[m]``."""
        return -self.p.confidence.double()

    @property
    def loss(self) -> Tensor:
        """1.0 where the answer is wrong ``[m]``."""
        return 1.0 - self.held


class LabelRows(Rows[LabelPrediction]):
    """m rows of labels, each a task of two classes on the rows where it is known."""

    @cached_property
    def _parts(self) -> list[tuple[Tensor, ClassRows]]:
        """Of every label known somewhere: which rows know it, and these rows."""
        target, found = self.p.target, []
        for t in range(self.p.num_labels):
            unknown = torch.zeros(len(self)) if target is None else target[:, t].isnan()
            known = (unknown == 0).nonzero().flatten()
            if len(known):
                found.append((known, ClassRows(self.p.column(t))))
        return found

    @property
    def parts(self) -> list[ClassRows]:
        """One after the other, counted as the rows are."""
        if self.counts is None:
            return [rows for _, rows in self._parts]
        return [rows.weighted(self.counts[:, known]) for known, rows in self._parts]

    @property
    def has_rare_class(self) -> bool:
        """Whether one of them has."""
        return any(rows.has_rare_class for rows in self.parts)


class ValueRows(Rows[ValuePrediction]):
    """m rows of one value; what is known per row is ``[m]`` and float64."""

    fixed_promise = True  # the gap is a constant minus a share of rows

    @cached_property
    def error(self) -> Tensor:
        """Truth minus mean."""
        return self.p.require_target().double() - self.p.mean.double()

    @property
    def loss(self) -> Tensor:
        """Squared error."""
        return self.error.square()

    @property
    def variance(self) -> Tensor:
        """Of the predicted distribution."""
        return self.p.variance.double()

    @property
    def uncertainty(self) -> Tensor:
        """The deviation."""
        return self.variance.sqrt()

    @property
    def sharpness(self) -> Tensor:
        """The root of the mean variance over rows ``[R]``."""
        return self.mean(self.variance).sqrt()

    @cached_property
    def nll(self) -> Tensor:
        """Negative log-density of the truth."""
        return -self.p.log_prob(self.p.require_target()).double()

    @cached_property
    def depth(self) -> Tensor:
        """The level of the narrowest central interval that holds the truth, from 0 to 1."""
        return (2 * self.p.cdf(self.p.require_target()).double() - 1).abs()

    @property
    def held(self) -> Tensor:
        """1.0 where the 90 % interval holds the truth."""
        return (self.depth <= PROMISED).double()

    @property
    def gap(self) -> Tensor:
        """0.9 minus the coverage of the 90 % intervals ``[R]``."""
        return PROMISED - self.mean(self.held)

    @cached_property
    def crps(self) -> Tensor:
        r"""Of a Gaussian mixture, :math:`E|X - y| - \frac12 E|X - X'|`; all these are Gaussian."""
        means, variances = self.p.means[..., 0].double(), self.p.variances[..., 0].double()
        share = weights_of(means, self.p.weights).unsqueeze(1)  # [K, 1]
        distance = (self.p.require_target() - means).abs()
        total = (share * folded_mean(distance, variances.sqrt())).sum(dim=0)
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
            low, high = self.p.interval(level)
            self._widths[level] = (high - low).double()
        return self._widths[level]


def folded_mean(mean: Tensor, deviation: Tensor) -> Tensor:
    """E|x| of x ~ N(mean, deviation^2), for mean >= 0."""
    ratio = mean / deviation.clamp_min(1e-300)
    density = (-0.5 * ratio.square()).exp() * math.sqrt(2.0 / math.pi)
    return deviation * density + mean * torch.erf(ratio / math.sqrt(2.0))


R = TypeVar("R", bound=ClassRows | ValueRows)
AnyRows: TypeAlias = ClassRows | LabelRows | ValueRows
Predicted: TypeAlias = Prediction | AnyRows  # what metrics take
_ROWS: dict[str, type[AnyRows]] = {
    "classes": ClassRows, "labels": LabelRows, "values": ValueRows}  # fmt: skip


def read(p: Predicted) -> AnyRows:
    """The rows of a prediction of any kind."""
    if isinstance(p, Rows):
        return p
    if not isinstance(p, Prediction):
        raise InputError("a Prediction", type(p).__name__, "Of logits: ClassPrediction(logits, y).")
    if len(p) == 0:
        raise InputError("at least one row", "an empty prediction", "Leave empty splits out.")
    return _ROWS[p.kind](p if p.samples.device.type == "cpu" else p.to("cpu"))  # type: ignore[arg-type]


def rows_of(p: Predicted, *kinds: type[R], labelled: bool = True) -> R:
    """`read`, of classes or of one value per row."""
    rows = read(p)
    if isinstance(rows, LabelRows):
        raise InputError("one label at a time", rows.p.size, "Take p.column(t).")
    if not isinstance(rows, kinds):
        about = " or ".join(name for name, cls in _ROWS.items() if cls in kinds)
        raise InputError(f"a prediction about {about}", f"one about {rows.p.kind}")
    if rows.p.width > 1 and not rows.p.mean_of_parts:
        raise InputError("one value per row", rows.p.size, "Take one of them with p.column(t).")
    if labelled:
        rows.p.require_target()
    return rows


def check_bins(rows: AnyRows, bins: int, strict: bool = True) -> None:
    """Raise for a number of bins these rows cannot fill."""
    bins = check_int("bins", bins, least=1)
    if strict and len(rows) < bins:
        do = f"Pass bins={len(rows)} or fewer."
        raise InputError(f"at least as many rows as bins ({bins})", f"{len(rows)} rows", do)


def equal_bins(sums: list[Tensor], bins: int) -> list[Tensor]:
    """Counts and sums of `Rows.by` in bins of equally many rows, which share ties ``[R, B]``."""
    upto = [torch.nn.functional.pad(part.cumsum(dim=1), (1, 0)) for part in sums]
    total, number = upto[0][:, -1:].long(), torch.arange(bins + 1)
    cuts = (number * (total // bins) + torch.minimum(number, total % bins)).double()
    end = torch.searchsorted(upto[0], cuts).clamp_min(1)
    below, above = upto[0].gather(1, end - 1), upto[0].gather(1, end)
    share = (cuts - below) / (above - below).clamp_min(1.0)
    found = []
    for part in upto:
        below, above = part.gather(1, end - 1), part.gather(1, end)
        found.append((below + share * (above - below)).diff(dim=1))
    return found


Limits = tuple[float, float]
UNIT, POSITIVE, ANY = (0.0, 1.0), (0.0, math.inf), (-math.inf, math.inf)
METRICS: dict[Callable[..., float], dict[str, Limits]] = {}  # our own, with their limits by kind
Options = ParamSpec("Options")


def metric(
    labelled: bool = True, **limits: Limits
) -> Callable[
    [Callable[Concatenate[R, Options], Tensor]], Callable[Concatenate[Predicted, Options], float]
]:
    """Make a function of rows a metric of predictions, which `bootstrap` resamples all at once.

    ``limits`` says what it can be, of ``classes`` (and labels) and ``values``; ``labelled`` whether
    it needs the truth. Of labels it is the mean over those for which it is defined; NaN if that is
    none. Of weighted rows it gives one number per resample, ``[R]``.
    """

    def mark(
        function: Callable[Concatenate[R, Options], Tensor],
    ) -> Callable[Concatenate[Predicted, Options], float]:
        kinds = cast(list[type[R]], [_ROWS[name] for name in limits])

        @wraps(function)
        def measured(p: Predicted, /, *args: Options.args, **options: Options.kwargs) -> float:
            rows = read(p)
            parts = rows.parts if isinstance(rows, LabelRows) else [rows]
            read_parts = (rows_of(part, *kinds, labelled=labelled) for part in parts)
            each = [function(part, *args, **options) for part in read_parts]
            none = torch.full((len(rows.weights),), math.nan)
            found = torch.stack(each or [none]).double().nanmean(dim=0)
            return float(found) if rows.counts is None else cast(float, found)

        if "classes" in limits:
            limits["labels"] = limits["classes"]
        METRICS[measured] = limits
        return measured

    return mark
