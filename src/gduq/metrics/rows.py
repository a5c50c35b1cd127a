"""What metrics read: rows of a prediction, each counted once or as often as resamples draw it."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from functools import cached_property, wraps
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    NamedTuple,
    ParamSpec,
    TypeAlias,
    TypeVar,
)

import torch
from torch import Tensor

from gduq.errors import InputError, check_int
from gduq.prediction import ClassPrediction, Prediction, ValuePrediction
from gduq.prediction.mixture import weights_of

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["METRICS", "ClassRows", "Task", "ValueRows", "metric", "over_tasks", "read",
           "read_one"]  # fmt: skip

PROMISED = 0.9  # of the truth is what intervals of values are to hold
FEWEST = 5  # rows of a class below which a ranking has no interval
P = TypeVar("P", bound=Prediction)


class Rows(Generic[P]):
    """The m rows of one task that know it, each counted once or as often as resamples draw it.

    A task is a choice of classes, one label (of two classes) or one value.

    Args:
        p: Predictions of these rows about that task alone.
        known: Which rows of all these are.
    """

    def __init__(self, p: P, known: Tensor | slice) -> None:
        self.p, self.known = p, known
        self.weights = torch.ones(1, len(p)).double()  # [R, m], how often each row counts

    def __len__(self) -> int:
        return len(self.p)

    def weighted(self, counts: Tensor) -> Self:
        """As all rows are counted ``[R, n]``; what was found per row is shared."""
        other = copy.copy(self)
        other.weights = counts[:, self.known]
        return other

    def mean(self, values: Tensor) -> Tensor:
        """Mean of one value per row ``[m]`` in each resample ``[R]``."""
        return self.weights @ values.double() / self.weights.sum(dim=1)

    def sums(self, group: Tensor, groups: int, *values: Tensor) -> list[Tensor]:
        """How many rows each group has, and sums of values over them, ``[R, groups]`` each."""
        parts = [self.weights, *(self.weights * v.double() for v in values)]
        return [part.new_zeros(len(part), groups).index_add_(1, group, part) for part in parts]

    def by(self, scores: Tensor, *values: Tensor) -> list[Tensor]:
        """The same for rows of equal score, the lowest first."""
        distinct, group = torch.unique(scores, return_inverse=True)
        return self.sums(group, len(distinct), *values)


class ClassRows(Rows[ClassPrediction]):
    """m rows of classes."""

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
        """1.0 where the most likely class is the true one ``[m]``, as confidence promises."""
        return self.p.correct.double()

    @property
    def promise(self) -> Tensor:
        """How often that is to be ``[m]``."""
        return self.p.confidence.double()

    @property
    def nll(self) -> Tensor:
        """Negative log-likelihood of the true class ``[m]``."""
        return -self.of_truth(self.p.log_probs)

    @property
    def sharpness(self) -> Tensor:
        """1 - normalised entropy, a mean over rows ``[R]``."""
        return self.mean(1.0 - self.p.entropy.double() / math.log(self.p.num_classes))

    @property
    def uncertainty(self) -> Tensor:
        """What rows are left out by: the larger, the earlier ``[m]``."""
        return -self.p.confidence.double()

    @property
    def trust(self) -> Tensor:
        """How often the answer is right, distance to the training data included ``[m]``."""
        if self.p.trust is None:
            do = "Predict with a model that gduq.fit has calibrated."
            raise InputError("predictions with trust", "none", do)
        return self.p.trust.double()

    @property
    def loss(self) -> Tensor:
        """1.0 where the answer is wrong ``[m]``."""
        return 1.0 - self.held


class ValueRows(Rows[ValuePrediction]):
    """m rows of one value; what is known per row is ``[m]`` and float64."""

    promise = torch.tensor(PROMISED, dtype=torch.float64)  # how often an interval is to hold
    has_rare_class = False

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


Task: TypeAlias = ClassRows | ValueRows
R = TypeVar("R", bound=Rows[Any])
_ROWS: dict[str, type[Task]] = {"classes": ClassRows, "values": ValueRows}


def read(p: Prediction) -> list[Task]:
    """The tasks of a prediction of any kind that some row knows (without targets: all of them)."""
    if not isinstance(p, Prediction):
        raise InputError("a Prediction", type(p).__name__, "Of logits: ClassPrediction(logits, y).")
    if len(p) == 0:
        raise InputError("at least one row", "an empty prediction", "Leave empty splits out.")
    p = p if p.samples.device.type == "cpu" else p.to("cpu")
    parts, tasks = list(p.parts().values()), []
    unknown = torch.zeros(len(p), len(parts)) if p.target is None else p.target.isnan()
    for part, gaps in zip(parts, unknown.view(len(p), -1).T, strict=True):
        known = (gaps == 0).nonzero().flatten() if gaps.any() else slice(None)
        if len(part):
            tasks.append(_ROWS[part.kind](part, known))  # type: ignore[arg-type]
    return tasks


def read_one(p: Prediction, rows: type[R]) -> R:
    """The only task of a prediction, of that kind."""
    tasks = read(p)
    if len(tasks) != 1:
        raise InputError("one label or value at a time", p.size, "Take p.column(t).")
    if not isinstance(tasks[0], rows):
        about = next(name for name, cls in _ROWS.items() if cls is rows)
        raise InputError(f"a prediction about {about}", f"one about {p.kind}")
    return tasks[0]


def check_bins(rows: Task, bins: int, strict: bool) -> None:
    """Raise for a number of bins these rows cannot fill."""
    bins = check_int("bins", bins, least=1)
    if strict and len(rows) < bins:
        do = f"Pass bins={len(rows)} or fewer."
        raise InputError(f"at least as many rows as bins ({bins})", f"{len(rows)} rows", do)


def equal_bins(
    rows: Task, scores: Tensor, values: Sequence[Tensor], bins: int, strict: bool
) -> tuple[Tensor, ...]:
    """Counts and sums of values in bins of equally many rows by score, which share ties, ``[R, B]``
    each; without ``strict`` there are fewer bins where there are fewer rows."""
    check_bins(rows, bins, strict)
    sums = torch.stack(rows.by(scores, *values)).cumsum(dim=2)
    upto = torch.nn.functional.pad(sums, (1, 0))
    total, number = upto[0, :, -1:].long(), torch.arange(min(bins, len(rows)) + 1)
    cuts = (number * (total // number[-1]) + torch.minimum(number, total % number[-1])).double()
    end = torch.searchsorted(upto[0], cuts).clamp_min(1).expand(len(upto), -1, -1)
    below, above = upto.gather(2, end - 1), upto.gather(2, end)
    share = (cuts - below[0]) / (above[0] - below[0]).clamp_min(1.0)
    return (below + share * (above - below)).diff(dim=2).unbind()


UNIT, POSITIVE, ANY = (0.0, 1.0), (0.0, math.inf), (-math.inf, math.inf)
Limits = tuple[float, float]
Options = ParamSpec("Options")
Function: TypeAlias = Callable[Concatenate[R, Options], Tensor]
Metric: TypeAlias = Callable[Concatenate[Prediction, Options], float]


class OfTasks(NamedTuple):
    """What a metric is made from: a function of one task, and what it can be, by kind."""

    function: Callable[..., Tensor]
    limits: dict[str, Limits]


METRICS: dict[Callable[..., float], OfTasks] = {}  # our own


def metric(**limits: Limits) -> Callable[[Function[R, Options]], Metric[Options]]:
    """Make a function of a task a metric of predictions, which `bootstrap` resamples all at once.

    ``limits`` says what it can be, of ``classes`` (and labels) and ``values``.
    """
    if "classes" in limits:
        limits["labels"] = limits["classes"]

    def mark(function: Function[R, Options]) -> Metric[Options]:
        @wraps(function)
        def measured(p: Prediction, /, *args: Options.args, **options: Options.kwargs) -> float:
            tasks = read(p)
            if p.kind not in limits:
                raise InputError(f"a prediction about {' or '.join(limits)}", f"one of {p.kind}")
            if p.width > 1 and not p.mean_of_parts:
                raise InputError("one value per row", p.size, "Take one of them with p.column(t).")
            return float(over_tasks(function, tasks, *args, **options))

        METRICS[measured] = OfTasks(function, limits)
        return measured

    return mark


def over_tasks(
    function: Callable[..., Tensor], tasks: Sequence[Task], *args: object, **options: object
) -> Tensor:
    """The mean over the tasks for which it is defined, in each resample ``[R]``, else NaN."""
    each = [function(rows, *args, **options) for rows in tasks]
    return torch.stack(each or [torch.full((1,), math.nan)]).double().nanmean(dim=0)
