"""Conformal predictors: sets of classes and of labels, intervals of values."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor
from torch_geometric.utils import remove_self_loops, to_undirected

from gduq.conformal.shift import Columns, ShiftTest, ShiftWarning, columns_of, compare
from gduq.errors import InputError, NotFittedError, warn_user
from gduq.graphs import Graph
from gduq.prediction import ClassPrediction, LabelPrediction, Prediction, ValuePrediction
from gduq.prediction.base import RowChoice, check_nodes, row_index

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "APS", "DAPS", "ClassConditional", "ConformalIntervals", "ConformalLabels",
    "ConformalPredictor", "Intervals", "PredictionSets", "SplitConformal", "conformal_quantile",
]  # fmt: skip


@dataclass(frozen=True, eq=False)
class PredictionSets:
    """One set per row of classes, or one per row and label of "no" and "yes"."""

    size_name: ClassVar[str] = "set_size"

    mask: Tensor  # what is in [m, C], of labels [m, T, 2]
    target: Tensor | None = None  # the truth [m] or, NaN where unknown, [m, T]
    shift: ShiftTest | None = None  # against the validation data

    def __len__(self) -> int:
        return self.mask.size(0)

    @property
    def size(self) -> Tensor:
        """How many each set holds; small sets say more."""
        return self.mask.sum(dim=-1)

    @property
    def covered(self) -> Tensor:
        """1.0 where a set holds the truth, else 0.0; NaN where that is unknown."""
        target = _known(self.target)
        unknown = target.isnan()
        place = target.masked_fill(unknown, 0).long().unsqueeze(-1)
        return self.mask.gather(-1, place).squeeze(-1).double().masked_fill(unknown, torch.nan)

    @property
    def coverage(self) -> float:
        """Share of sets that hold the truth, of those whose truth is known."""
        return float(self.covered.nanmean())

    def column(self, t: int) -> PredictionSets:
        """The sets of label number ``t``; with targets, of the rows that know it."""
        if self.target is None:
            return PredictionSets(self.mask[:, t], None, self.shift)
        known = ~self.target[:, t].isnan()
        return PredictionSets(self.mask[known, t], self.target[known, t].long(), self.shift)


@dataclass(frozen=True, eq=False)
class Intervals:
    """One interval per row and value."""

    size_name: ClassVar[str] = "width"

    low: Tensor  # [m], for several values [m, T]
    high: Tensor
    target: Tensor | None = None  # the true values
    shift: ShiftTest | None = None  # against the validation data

    def __len__(self) -> int:
        return self.low.size(0)

    @property
    def size(self) -> Tensor:
        """Their lengths, in the units of the values; short intervals say more."""
        return self.high - self.low

    @property
    def covered(self) -> Tensor:
        """1.0 where an interval holds the true value, else 0.0."""
        target = _known(self.target)
        return ((self.low <= target) & (target <= self.high)).double()

    @property
    def coverage(self) -> float:
        """Share of intervals that do."""
        return float(self.covered.mean())

    def column(self, t: int) -> Intervals:
        """The intervals of value number ``t`` alone."""
        if self.low.dim() == 1:
            return self
        target = None if self.target is None else self.target[:, t]
        return Intervals(self.low[:, t], self.high[:, t], target, self.shift)


Answer = TypeVar("Answer", PredictionSets, Intervals)


def _known(target: Tensor | None) -> Tensor:
    if target is None:
        raise InputError("predictions with targets", "none", "Predict on labelled data.")
    return target


class ConformalPredictor(ABC, Generic[Answer]):
    """A predictor of sets or intervals, fitted on labelled rows that were not trained on.

    Args:
        alpha: Accepted share of misses, in (0, 1).
        shift_level: Significance of the `shift_test` of other rows against those of fitting, which
            raises a `ShiftWarning`; 0 leaves it out.
        seed: Seed of everything random.
    """

    kind: ClassVar[str]  # of its predictions

    def __init__(self, alpha: float = 0.1, *, shift_level: float = 0.01, seed: int = 0) -> None:
        if not 0 < alpha < 1:
            raise InputError("alpha between 0 and 1", alpha, "alpha=0.1 means 90 % coverage.")
        if not 0 <= shift_level < 1:
            raise InputError("shift_level from 0 to below 1", shift_level)
        self.alpha, self.shift_level, self.seed = alpha, shift_level, seed
        self._size: str | None = None  # of the predictions it was fitted on: "3 classes"
        self._columns: Columns | None = None

    def fit(self, p_val: Prediction, rows: RowChoice | None = None) -> Self:
        """Find the thresholds on labelled rows, or on those that ``rows`` chooses."""
        self._check_kind(p_val)
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
        self._check_kind(p)
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

    def _check_kind(self, p: Prediction) -> None:
        if p.kind != self.kind:
            wanted = f"predictions about {self.kind} for {type(self).__name__}"
            raise InputError(wanted, f"some about {p.kind}", "gduq.conformal.make(p) fits them.")


def _chosen(p: Prediction, rows: RowChoice | None) -> tuple[Tensor, Prediction]:
    """Which rows, as numbers, and these rows; an error where that is none."""
    device = p.samples.device
    numbers = torch.arange(len(p))[row_index(rows, len(p))].to(device)
    if not len(numbers):
        raise InputError("at least one row", "none", "Leave empty splits out.")
    return numbers, p if rows is None else p[numbers]


def conformal_quantile(scores: Tensor, alpha: float) -> float:
    r"""The :math:`\lceil (n+1)(1-\alpha)\rceil`-th smallest score, or infinity.

    Example:
        >>> conformal_quantile(torch.arange(1.0, 10.0), alpha=0.1), conformal_quantile(
        ...     torch.arange(1.0, 9.0), alpha=0.1)
        (9.0, inf)
    """
    place = math.ceil((scores.numel() + 1) * (1 - alpha) - 1e-9)
    return math.inf if place > scores.numel() else float(scores.kthvalue(max(place, 1)).values)


class SplitConformal(ConformalPredictor[PredictionSets]):
    r"""Sets from a threshold on the probability (LAC; Sadinle, Lei and Wasserman, 2019).

    The set of row i holds all classes with :math:`1 - p_{ic} \le \hat q`, the `conformal_quantile`
    of the true classes' scores of n validation rows. If validation and test rows are exchangeable,

    .. math:: 1 - \alpha \;\le\; P(y \in \text{set}) \;\le\; 1 - \alpha + \tfrac{1}{n + 1}

    (the right side without ties, and with ``nonempty=False``). Under shift nothing is guaranteed: a
    `ShiftWarning` is raised when `shift_test` against the validation rows fails.

    Args:
        alpha: Accepted share of misses, in (0, 1).
        nonempty: Put the most likely class into sets that would be empty; coverage can only grow.
        shift_level, seed: As in `ConformalPredictor`.

    Example:
        >>> p_val = ClassPrediction(torch.eye(4).repeat(5, 1) * 3, target=torch.arange(4).repeat(5))
        >>> sets = SplitConformal(alpha=0.2).fit(p_val)(p_val)
        >>> sets.coverage, sets.size[0]
        (1.0, tensor(1))
    """

    kind: ClassVar[str] = "classes"

    def __init__(self, alpha: float = 0.1, *, nonempty: bool = True, **options: Any) -> None:
        super().__init__(alpha, **options)
        self.nonempty = nonempty
        self.quantile: float | Tensor = math.inf

    def _scores(self, p: ClassPrediction) -> Tensor:
        """How little each class fits each row ``[m, C]``; what a subclass redefines."""
        return 1.0 - p.probs.double()

    def _learn(self, p: ClassPrediction, rows: Tensor) -> None:
        target = p.require_target()[rows]
        scores = self._scores(p)[rows].gather(1, target.unsqueeze(1)).squeeze(1)
        self.quantile = self._quantile(scores, target, p.num_classes)

    def _quantile(self, scores: Tensor, target: Tensor, num_classes: int) -> float | Tensor:
        """The threshold, or one per class, from the scores of true classes."""
        return conformal_quantile(scores, self.alpha)

    def _predict(self, p: ClassPrediction, rows: Tensor) -> PredictionSets:
        mask = self._scores(p)[rows] <= self.quantile
        if self.nonempty:
            empty = ~mask.any(dim=1)
            mask[empty, p.log_probs[rows].argmax(dim=1)[empty]] = True
        return PredictionSets(mask, None if p.target is None else p.target[rows])


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

    def _quantile(self, scores: Tensor, target: Tensor, num_classes: int) -> Tensor:
        by_class = (scores[target == c] for c in range(num_classes))
        return scores.new_tensor([conformal_quantile(own, self.alpha) for own in by_class])


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

    def __init__(self, alpha: float = 0.1, *, randomized: bool = True, **options: Any) -> None:
        super().__init__(alpha, **options)
        self.randomized = randomized

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


class ConformalLabels(ConformalPredictor[PredictionSets]):
    r"""Conformal sets {no}, {yes} or both, for every label by itself.

    Each label is a task of two classes with a threshold of its own, from the validation rows that
    know it. A label that no validation row knows gets both answers.

    Args:
        alpha: Accepted share of misses, in (0, 1), per label.
        method: ``"lac"`` (`SplitConformal`) or, for rare labels, ``"class_conditional"``
            (`ClassConditional`).
        nonempty, shift_level, seed: As in `SplitConformal`.

    Example:
        >>> y = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).repeat(10, 1)
        >>> p_val = LabelPrediction(y * 6 - 3, target=y)
        >>> sets = ConformalLabels(alpha=0.2).fit(p_val)(p_val)
        >>> sets.coverage, sets.size[0]
        (1.0, tensor([1, 1]))
    """

    kind: ClassVar[str] = "labels"
    methods: ClassVar[dict[str, type[SplitConformal]]] = {
        "lac": SplitConformal,
        "class_conditional": ClassConditional,
    }

    def __init__(
        self, alpha: float = 0.1, method: str = "lac", *, nonempty: bool = True, **options: Any
    ) -> None:
        super().__init__(alpha, **options)
        if method not in self.methods:
            raise InputError(f"a method from {', '.join(self.methods)}", repr(method))
        self.method, self.nonempty = method, nonempty
        self._fitted: list[SplitConformal | None] = []

    def _learn(self, p: LabelPrediction, rows: Tensor) -> None:
        p, cls = p[rows], self.methods[self.method]
        # the shift is tested once, for all labels
        options: Any = {"nonempty": self.nonempty, "shift_level": 0, "seed": self.seed}
        self._fitted = [
            cls(self.alpha, **options).fit(p.column(t)) if bool(p.known[:, t].any()) else None
            for t in range(p.num_labels)
        ]

    def _predict(self, p: LabelPrediction, rows: Tensor) -> PredictionSets:
        p = p[rows]
        every, found = replace(p, target=None), []
        for t, fitted in enumerate(self._fitted):
            both = torch.ones(len(p), 2, dtype=torch.bool, device=p.samples.device)
            found.append(both if fitted is None else fitted(every.column(t)).mask)
        return PredictionSets(torch.stack(found, dim=1), p.target)


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

    kind: ClassVar[str] = "values"
    scores: ClassVar[tuple[str, ...]] = ("absolute", "normalised", "cqr")

    def __init__(self, alpha: float = 0.1, score: str = "normalised", **options: Any) -> None:
        super().__init__(alpha, **options)
        if score not in self.scores:
            raise InputError(f"a score from {', '.join(self.scores)}", repr(score))
        self.score = score
        self.quantile = torch.empty(0)  # one per value

    def _learn(self, p: ValuePrediction, rows: Tensor) -> None:
        p = p[rows]
        truth = p.require_target().double().view(len(p), -1)
        low, high, unit = self._parts(p)
        scores = torch.maximum(low - truth, truth - high) / unit
        found = [conformal_quantile(column, self.alpha) for column in scores.T]
        self.quantile = scores.new_tensor(found)

    def _predict(self, p: ValuePrediction, rows: Tensor) -> Intervals:
        p = p[rows]
        low, high, unit = self._parts(p)
        reach = self.quantile.to(unit.device) * unit
        middle = (low + high) / 2  # what a negative reach leaves at least
        ends = torch.minimum(low - reach, middle), torch.maximum(high + reach, middle)
        target = None if p.target is None else p.target.double()
        shaped = [end.squeeze(1) if p.num_values == 1 else end for end in ends]
        return Intervals(shaped[0], shaped[1], target)

    def _parts(self, p: ValuePrediction) -> tuple[Tensor, Tensor, Tensor]:
        """The interval that is widened or narrowed, and the unit of that, ``[m, T]`` float64."""
        if self.score == "cqr":
            ends = p.quantile(self.alpha / 2), p.quantile(1 - self.alpha / 2)
        else:
            ends = p.mean, p.mean
        low, high = (end.double().view(len(p), -1) for end in ends)
        if self.score == "normalised":
            return low, high, p.std.double().view(len(p), -1).clamp_min(1e-300)
        return low, high, torch.ones_like(low)
