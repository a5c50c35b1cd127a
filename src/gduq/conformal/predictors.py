"""Conformal predictors: sets of classes and of labels, intervals of values."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor
from torch_geometric.utils import remove_self_loops, to_undirected

from gduq.conformal.shift import Columns, ShiftTest, ShiftWarning, columns_of, compare
from gduq.errors import InputError, NotFittedError, warn_user
from gduq.graphs import Graph
from gduq.prediction import ClassPrediction, Prediction, ValuePrediction
from gduq.prediction.base import RowChoice, check_nodes, row_index

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "APS", "DAPS", "ClassConditional", "ConformalIntervals",
    "ConformalPredictor", "Intervals", "PredictionSets", "SplitConformal", "conformal_quantile",
]  # fmt: skip


@dataclass(frozen=True, eq=False)
class Regions(ABC):
    """Where the truth of each row, or of each label or value of it, lies."""

    size_name: ClassVar[str]

    target: Tensor | None = field(default=None, kw_only=True)  # the truth; NaN where unknown
    shift: ShiftTest | None = field(default=None, kw_only=True)  # against the validation data

    def __len__(self) -> int:
        return len(self.size)

    @property
    @abstractmethod
    def size(self) -> Tensor:
        """How large each is."""

    @abstractmethod
    def _hold(self, target: Tensor) -> Tensor:
        """Which of them hold values of the target's shape."""

    @property
    def covered(self) -> Tensor:
        """1.0 where the truth is inside, else 0.0; NaN where it is unknown."""
        if self.target is None:
            raise InputError("predictions with targets", "none", "Predict on labelled data.")
        unknown = self.target.isnan()
        held = self._hold(self.target.masked_fill(unknown, 0))
        return held.double().masked_fill(unknown, torch.nan)

    @property
    def coverage(self) -> float:
        """Share that holds the truth, of those where it is known."""
        return float(self.covered.nanmean())


@dataclass(frozen=True, eq=False)
class PredictionSets(Regions):
    """One set per row of classes, or one per row and label of "no" and "yes"."""

    size_name: ClassVar[str] = "set_size"

    mask: Tensor  # what is in [m, C], of labels [m, T, 2]

    @property
    def size(self) -> Tensor:
        """How many each set holds; small sets say more."""
        return self.mask.sum(dim=-1)

    def _hold(self, target: Tensor) -> Tensor:
        return _of_class(self.mask, target)


@dataclass(frozen=True, eq=False)
class Intervals(Regions):
    """One interval per row and value."""

    size_name: ClassVar[str] = "width"

    low: Tensor  # [m], for several values [m, T]
    high: Tensor

    @property
    def size(self) -> Tensor:
        """Their lengths, in the units of the values; short intervals say more."""
        return self.high - self.low

    def _hold(self, target: Tensor) -> Tensor:
        return (self.low <= target) & (target <= self.high)


Answer = TypeVar("Answer", PredictionSets, Intervals)


def _of_class(values: Tensor, target: Tensor) -> Tensor:
    """The entry of its class of every row ``[...]`` of ``[..., C]``."""
    return values.gather(-1, target.long().unsqueeze(-1)).squeeze(-1)


@dataclass(eq=False)
class ConformalPredictor(ABC, Generic[Answer]):
    """A predictor of sets or intervals, fitted on labelled rows that were not trained on.

    Args:
        alpha: Accepted share of misses, in (0, 1).
        shift_level: Significance of the `shift_test` of other rows against those of fitting, which
            raises a `ShiftWarning`; 0 leaves it out.
        seed: Seed of everything random.
    """

    kinds: ClassVar[tuple[str, ...]]  # of its predictions

    alpha: float = 0.1
    _: KW_ONLY
    shift_level: float = 0.01
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.alpha < 1:
            raise InputError("alpha between 0 and 1", self.alpha, "alpha=0.1 means 90 % coverage.")
        if not 0 <= self.shift_level < 1:
            raise InputError("shift_level from 0 to below 1", self.shift_level)
        self._size: str | None = None  # of the predictions it was fitted on: "3 classes"
        self._columns: Columns | None = None

    def fit(self, p_val: Prediction, rows: RowChoice | None = None) -> Self:
        """Find the thresholds on labelled rows, or on those that ``rows`` chooses."""
        if p_val.kind not in self.kinds:
            wanted = f"predictions about {' or '.join(self.kinds)} for {type(self).__name__}"
            raise InputError(wanted, f"some about {p_val.kind}", "Take gduq.conformal.make(p_val).")
        index, part = _chosen(p_val, rows)
        if part.require_target().isnan().all():
            raise InputError("at least one row with a known truth", "none")
        self._learn(p_val, index)
        self._size = p_val.size
        self._columns = columns_of(part, self.seed) if self.shift_level > 0 else None
        return self

    def __call__(self, p: Prediction, rows: RowChoice | None = None) -> Answer:
        """The sets or intervals of other rows, or of those that ``rows`` chooses."""
        if self._size is None:
            name = type(self).__name__
            raise NotFittedError(f"a fitted {name}", "one without fit", "Call fit(p_val) first.")
        if p.size != self._size:
            raise InputError(f"predictions of {self._size}, as fitted", p.size)
        index, part = _chosen(p, rows)
        shift = None
        if self._columns is not None:
            shift = compare(self._columns, columns_of(part, self.seed))
            if shift.pvalue < self.shift_level:
                warn_user(
                    "these rows differ from the validation rows (two-sample test, p = "
                    f"{shift.pvalue:.1g}): a coverage of {1 - self.alpha:.0%} is not guaranteed",
                    ShiftWarning,
                )
        return replace(self._predict(p, index), shift=shift)

    @abstractmethod
    def _learn(self, p: Any, rows: Tensor) -> None:
        """Find the thresholds on rows of these numbers."""

    @abstractmethod
    def _predict(self, p: Any, rows: Tensor) -> Answer:
        """The sets or intervals of rows of these numbers."""


def _chosen(p: Prediction, rows: RowChoice | None) -> tuple[Tensor, Prediction]:
    """Which rows, as numbers, and these rows; an error where that is none."""
    device = p.samples.device
    numbers = torch.arange(len(p))[row_index(rows, len(p))].to(device)
    if not len(numbers):
        raise InputError("at least one row", "none", "Leave empty splits out.")
    return numbers, p if rows is None else p[numbers]


def conformal_quantile(scores: Tensor, alpha: float) -> float:
    r"""The :math:`\lceil (n+1)(1-\alpha)\rceil`-th smallest of n known scores, or infinity.

    Example:
        >>> conformal_quantile(torch.arange(1.0, 10.0), alpha=0.1), conformal_quantile(
        ...     torch.arange(1.0, 9.0), alpha=0.1)
        (9.0, inf)
    """
    known = scores[~scores.isnan()]
    place = math.ceil((known.numel() + 1) * (1 - alpha) - 1e-9)
    return math.inf if place > known.numel() else float(known.kthvalue(max(place, 1)).values)


def _thresholds(scores: Tensor, alpha: float) -> Tensor:
    """The quantile of every column of ``[m]`` or ``[m, T]``, each of its known scores."""
    columns = scores.view(len(scores), -1).T
    return scores.new_tensor([conformal_quantile(column, alpha) for column in columns])


@dataclass(eq=False)
class SplitConformal(ConformalPredictor[PredictionSets]):
    r"""Sets from a threshold on the probability (LAC; Sadinle, Lei and Wasserman, 2019).

    The set of row i holds all classes with :math:`1 - p_{ic} \le \hat q`, the `conformal_quantile`
    of the true classes' scores of n validation rows. If validation and test rows are exchangeable,

    .. math:: 1 - \alpha \;\le\; P(y \in \text{set}) \;\le\; 1 - \alpha + \tfrac{1}{n + 1}

    (the right side without ties, and with ``nonempty=False``). Under shift nothing is guaranteed: a
    `ShiftWarning` is raised when `shift_test` against the validation rows fails.

    Of labels each is a task of two classes by itself, {no}, {yes} or both, with a threshold from
    the rows that know it; a label that no validation row knows gets both.

    Args:
        alpha: Accepted share of misses, in (0, 1); of labels per label.
        nonempty: Put the class that fits best into sets that would be empty; coverage only grows.
        shift_level, seed: As in `ConformalPredictor`.

    Example:
        >>> p_val = ClassPrediction(torch.eye(4).repeat(5, 1) * 3, target=torch.arange(4).repeat(5))
        >>> sets = SplitConformal(alpha=0.2).fit(p_val)(p_val)
        >>> sets.coverage, sets.size[0]
        (1.0, tensor(1))
    """

    kinds: ClassVar[tuple[str, ...]] = ("classes", "labels")
    by_class: ClassVar[bool] = False  # whether every class has a threshold of its own
    quantile: Tensor = field(init=False, repr=False)  # [1, 1] or [1, C]; of labels [T, 1] or [T, 2]

    _: KW_ONLY
    nonempty: bool = True

    def _scores(self, p: ClassPrediction) -> Tensor:
        """How little each class fits each row ``[m, C]``; what a subclass redefines."""
        return 1.0 - p.probs.double()

    def _all_scores(self, p: Any) -> Tensor:
        """The same, and of labels, each a task of two classes, ``[m, T, 2]``."""
        if p.confidence.dim() == 1:
            return self._scores(p)
        tasks = replace(p, target=None).parts().values()  # also of rows that do not know it
        return torch.stack([self._scores(task) for task in tasks], dim=1)

    def _learn(self, p: Prediction, rows: Tensor) -> None:
        target, scores = p.require_target()[rows], self._all_scores(p)[rows]
        own = _of_class(scores, target.nan_to_num(0))
        classes = range(scores.size(-1))
        groups = [target == c for c in classes] if self.by_class else [~target.isnan()]
        found = [_thresholds(own.masked_fill(~group, torch.nan), self.alpha) for group in groups]
        self.quantile = torch.stack(found, dim=-1)

    def _predict(self, p: Prediction, rows: Tensor) -> PredictionSets:
        scores = self._all_scores(p)[rows]
        mask = scores <= self.quantile.to(scores.device)
        if self.nonempty:
            empty = ~mask.any(dim=-1)
            mask[empty, scores.argmin(dim=-1)[empty]] = True
        return PredictionSets(mask, target=None if p.target is None else p.target[rows])


class ClassConditional(SplitConformal):
    r"""Sets that hold every class as often as promised, rare ones too (Mondrian).

    The scores of `SplitConformal`, but one threshold per class, from the validation rows of that
    class alone: :math:`P(y \in \text{set} \mid y = c) \ge 1 - \alpha` for every c. A class with
    fewer than :math:`1/\alpha - 1` validation rows is in every set.

    Example:
        >>> p_val = ClassPrediction(torch.eye(4).repeat(9, 1) * 3, target=torch.arange(4).repeat(9))
        >>> rare = p_val[torch.arange(36) != 3]  # 8 rows of class 3, 9 of the others
        >>> ClassConditional(alpha=0.1).fit(rare)(p_val).mask[0].tolist()
        [True, False, False, True]
    """

    by_class = True


@dataclass(eq=False)
class APS(SplitConformal):
    r"""Adaptive prediction sets (Romano, Sesia and Candès, 2020).

    With the classes of a row in descending order of probability and :math:`u \sim U[0, 1)`:

    .. math:: s_{ic} = \sum_{c':\, p_{ic'} > p_{ic}} p_{ic'} + u_i\, p_{ic}

    :math:`u_i` comes from a hash of the seed and the row: the same set alone and in any batch. Sets
    grow for hard rows, so coverage is more even than LAC's, at larger sets.

    Args:
        randomized: ``False`` takes u = 1: no randomness, but coverage above :math:`1 - \alpha`.
        alpha, nonempty, shift_level, seed: As in `SplitConformal`.

    Example:
        >>> p_val = ClassPrediction(torch.eye(4).repeat(5, 1) * 3, target=torch.arange(4).repeat(5))
        >>> APS(alpha=0.2, randomized=False).fit(p_val)(p_val).coverage
        1.0
    """

    _: KW_ONLY
    randomized: bool = True

    def _scores(self, p: ClassPrediction) -> Tensor:
        uniform = hashed_uniform(p.log_probs, self.seed) if self.randomized else 1.0
        probs, order = p.probs.double().sort(dim=1, descending=True, stable=True)
        scores = probs.cumsum(dim=1) - probs + uniform * probs
        return torch.empty_like(scores).scatter_(1, order, scores)


class DAPS(APS):
    r"""Diffusion-adaptive prediction sets for nodes (Zargarbashi, Antonelli and Bojchevski, 2023).

    The scores of `APS` are mixed with those of the neighbours :math:`N(i)`,

    .. math:: s'_{ic} = (1 - \delta)\, s_{ic} + \frac{\delta}{|N(i)|} \sum_{j \in N(i)} s_{jc}

    which makes sets smaller in homophilous graphs and keeps coverage. Predictions cover **all**
    nodes of the graph; ``rows`` chooses some.

    Args:
        graph: The graph whose nodes the predictions are about (PyG ``Data``).
        weight: :math:`\delta`, in [0, 1]; 0 is `APS`.
        alpha, randomized, nonempty, shift_level, seed: As in `APS`.

    Example:
        >>> from torch_geometric.data import Data
        >>> ring = torch.arange(40)
        >>> data = Data(edge_index=torch.stack([ring, ring.roll(1)]), num_nodes=40)
        >>> p = ClassPrediction(torch.tensor([[2.0, 0.0]] * 40), target=torch.zeros(40).long())
        >>> sets = DAPS(data, alpha=0.2).fit(p, rows=ring < 20)(p, rows=ring >= 20)
        >>> len(sets), sets.coverage > 0.5
        (20, True)
    """

    def __init__(
        self, graph: Graph | None = None, alpha: float = 0.1, *, weight: float = 0.5, **options: Any
    ) -> None:
        super().__init__(alpha, **options)
        if not 0 <= weight <= 1:
            raise InputError("weight from 0 to 1", weight)
        self.graph, self.weight = graph, weight

    def _scores(self, p: ClassPrediction) -> Tensor:
        graph, scores = check_nodes(self.graph, p, "DAPS"), super()._scores(p)
        edges = remove_self_loops(graph.edge_index.to(scores.device))[0]
        here, there = to_undirected(edges, num_nodes=len(scores))
        sums = torch.zeros_like(scores).index_add_(0, here, scores[there])
        count = here.bincount(minlength=len(scores)).unsqueeze(1)
        around = torch.where(count > 0, sums / count.clamp_min(1), scores)
        return (1 - self.weight) * scores + self.weight * around


def hashed_uniform(logits: Tensor, seed: int) -> Tensor:
    """A number from [0, 1) for each row of logits ``[m, 1]``, by a hash of the row and the seed.

    Draws from a stream would give the k-th row of every call the same number. A hash depends on the
    row alone, so batches and single rows agree; as a fixed function it keeps rows exchangeable.
    """
    bits = (logits.double() + 0.0).contiguous().view(torch.int64)  # + 0.0: of -0 and 0 one number
    place = _mixed(torch.arange(1, logits.size(1) + 1, device=logits.device) + (seed << 20))
    mixed = _mixed(_mixed(bits ^ place).sum(dim=1, keepdim=True) + seed)
    return ((mixed >> 11) & (2**53 - 1)).double() / 2**53


def _mixed(x: Tensor) -> Tensor:
    """SplitMix64's step: int64 to int64, every bit of the result depending on all (wraps)."""
    x = x + (0x9E3779B97F4A7C15 - 2**64)
    x = (x ^ ((x >> 30) & (2**34 - 1))) * (0xBF58476D1CE4E5B9 - 2**64)
    x = (x ^ ((x >> 27) & (2**37 - 1))) * (0x94D049BB133111EB - 2**64)
    return x ^ ((x >> 31) & (2**33 - 1))


@dataclass(eq=False)
class ConformalIntervals(ConformalPredictor[Intervals]):
    r"""Split conformal intervals around what is predicted; every value by itself.

    With the score of a row and :math:`\hat q` the `conformal_quantile` of n validation rows:

    ================ ============================= ==================================
    ``score``        of a row                      interval
    ================ ============================= ==================================
    ``"absolute"``   :math:`|y - \mu|`             :math:`\mu \pm \hat q`
    ``"normalised"`` :math:`|y - \mu| / \sigma`    :math:`\mu \pm \hat q\sigma`
    ``"cqr"``        :math:`\max(l - y,\, y - h)`  :math:`[l - \hat q, h + \hat q]`
    ================ ============================= ==================================

    where :math:`\mu, \sigma` are ``mean`` and ``std``, and l, h the quantiles of the prediction at
    :math:`\alpha/2` and :math:`1 - \alpha/2` (Romano, Patterson and Candès, 2019). What is
    guaranteed, and the `ShiftWarning`, are as for `SplitConformal`.

    Args:
        alpha: Accepted share of misses, in (0, 1), per value.
        score: ``"absolute"``, ``"normalised"`` or ``"cqr"``.
        shift_level, seed: As in `ConformalPredictor`.

    Example:
        >>> p_val = ValuePrediction(torch.zeros(1, 9, 2), target=torch.arange(9.0) - 4)
        >>> found = ConformalIntervals(alpha=0.2).fit(p_val)(p_val)
        >>> found.low[0], found.high[0], found.coverage
        (tensor(-4., dtype=torch.float64), tensor(4., dtype=torch.float64), 1.0)
    """

    kinds: ClassVar[tuple[str, ...]] = ("values",)
    scores: ClassVar[tuple[str, ...]] = ("absolute", "normalised", "cqr")

    score: str = "normalised"
    quantile: Tensor = field(init=False, repr=False)  # one per value

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.score not in self.scores:
            raise InputError(f"a score from {', '.join(self.scores)}", repr(self.score))

    def _learn(self, p: ValuePrediction, rows: Tensor) -> None:
        truth, (low, high, unit) = p.require_target()[rows].double(), self._parts(p[rows])
        self.quantile = _thresholds(torch.maximum(low - truth, truth - high) / unit, self.alpha)

    def _predict(self, p: ValuePrediction, rows: Tensor) -> Intervals:
        low, high, unit = self._parts(p[rows])
        reach = self.quantile.to(unit.device) * unit
        middle = (low + high) / 2  # what a negative reach leaves at least
        ends = torch.minimum(low - reach, middle), torch.maximum(high + reach, middle)
        return Intervals(*ends, target=None if p.target is None else p.target[rows].double())

    def _parts(self, p: ValuePrediction) -> tuple[Tensor, Tensor, Tensor]:
        """The interval that is widened or narrowed, and the unit of that, in float64."""
        low = high = p.mean.double()
        if self.score == "cqr":
            low, high = (p.quantile(q).double() for q in (self.alpha / 2, 1 - self.alpha / 2))
        if self.score == "normalised":
            return low, high, p.std.double().clamp_min(1e-300)
        return low, high, torch.ones_like(low)
