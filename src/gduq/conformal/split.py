"""Split conformal prediction: what all predictors share, and sets of classes."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from gduq.conformal.shift import Columns, ShiftTest, ShiftWarning, columns_of, compare, size_of
from gduq.errors import InputError, NotFittedError, warn_user
from gduq.metrics.rows import Rows, kind_of, known_target, read
from gduq.prediction.checks import RowChoice, row_index

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["ClassConditional", "PredictionSets", "SplitConformal", "conformal_quantile"]

_BY_KIND = {
    "classes": "SplitConformal",
    "values": "ConformalIntervals",
    "labels": "ConformalLabels",
}


class Answers(ABC):
    """Sets or intervals, and how often they hold the truth."""

    target: Tensor | None
    shift: ShiftTest | None

    @property
    @abstractmethod
    def covered(self) -> Tensor:
        """Whether each answer holds the truth; NaN where that is unknown."""

    @property
    def coverage(self) -> float:
        """Share of answers that do, of those whose truth is known."""
        return float(self.covered.double().nanmean())

    def require_target(self) -> Tensor:
        """The truth, or an error that says it is missing."""
        return known_target(self.target)


class Conformal(ABC):
    """A predictor of sets or intervals: its arguments, checks, and the alarm under shift."""

    kind: ClassVar[str]

    def __init__(self, alpha: float, *, shift_level: float = 0.01, seed: int = 0) -> None:
        if not 0 < alpha < 1:
            raise InputError("alpha between 0 and 1", alpha, "alpha=0.1 means 90 % coverage.")
        if not 0 <= shift_level < 1:
            raise InputError("shift_level from 0 to below 1", shift_level)
        self.alpha, self.shift_level, self.seed = alpha, shift_level, seed
        self._size: str | None = None  # of the predictions it was fitted on: "3 classes"
        self._seen: Columns | None = None

    def _fitted(self, p_val: Any) -> Self:
        """Keep what later rows are compared with."""
        self._size = size_of(p_val)
        self._seen = columns_of(p_val, self.seed) if self.shift_level > 0 else None
        return self

    def _shift(self, p: Any) -> ShiftTest | None:
        """Compare rows with those of fitting; warn if they differ."""
        if self._seen is None:
            return None
        shift = compare(self._seen, columns_of(p, self.seed))
        if shift.pvalue < self.shift_level:
            warn_user(
                "these rows differ from the validation rows (two-sample test, p = "
                f"{shift.pvalue:.1g}): a coverage of {1 - self.alpha:.0%} is not guaranteed here",
                ShiftWarning,
            )
        return shift

    def _check_kind(self, p: Any) -> None:
        if (given := kind_of(p)) != self.kind:
            wanted = f"predictions about {self.kind} for {type(self).__name__}"
            raise InputError(
                wanted, f"some about {given}", f"For {given} there is {_BY_KIND[given]}."
            )

    def _check_call(self, p: Any) -> None:
        if self._size is None:
            name = type(self).__name__
            raise NotFittedError(f"a fitted {name}", "one without fit", "Call fit(p_val) first.")
        self._check_kind(p)
        if size_of(p) != self._size:
            raise InputError(f"predictions of {self._size}, as fitted", size_of(p))


@dataclass(frozen=True, eq=False)
class PredictionSets(Answers):
    """One set of classes per row."""

    mask: Tensor  # [m, C], which classes are in
    target: Tensor | None = None  # [m], the true labels
    shift: ShiftTest | None = None  # against the validation data

    def __len__(self) -> int:
        return self.mask.size(0)

    @property
    def size(self) -> Tensor:
        """Classes in each set ``[m]``."""
        return self.mask.sum(dim=-1)

    @property
    def mean_size(self) -> float:
        """Their mean: smaller sets say more."""
        return float(self.size.double().mean())

    @property
    def covered(self) -> Tensor:
        """Whether each set holds the true class ``[m]``; an error without labels."""
        return self.mask.gather(1, self.require_target().unsqueeze(1)).squeeze(1)


@dataclass(frozen=True, eq=False)
class Scored:
    """Rows of a prediction, as metrics read them, with the score of every class."""

    p: Any
    rows: Rows
    scores: Tensor  # [m, C]
    numbers: Tensor  # [m], of these rows among all that were given

    @property
    def true(self) -> Tensor:
        """The scores of the true classes ``[m]``."""
        return self.rows.true(self.scores)


class SplitConformal(Conformal):
    r"""Sets from a threshold on the probability (LAC; Sadinle, Lei and Wasserman, 2019).

    The set of row i holds all classes with :math:`1 - p_{ic} \le \hat q`, the `conformal_quantile`
    of the true classes' scores of n validation rows. If validation and test rows are exchangeable,

    .. math:: 1 - \alpha \;\le\; P(y \in \text{set}) \;\le\; 1 - \alpha + \tfrac{1}{n + 1}

    (the right side without ties, and with ``nonempty=False``). Under shift nothing is guaranteed: a
    `ShiftWarning` is raised when `shift_test` against the validation rows fails.

    Args:
        alpha: Accepted share of misses, in (0, 1).
        nonempty: Put the most likely class into sets that would be empty; coverage can only grow.
        shift_level: Significance of the shift test; 0 leaves it out.
        seed: Seed of everything random.

    Example:
        >>> from gduq.prediction import Prediction
        >>> p_val = Prediction(torch.eye(4).repeat(5, 1) * 3, target=torch.arange(4).repeat(5))
        >>> sets = SplitConformal(alpha=0.2).fit(p_val)(p_val)
        >>> sets.coverage, sets.mean_size
        (1.0, 1.0)
    """

    kind: ClassVar[str] = "classes"

    def __init__(
        self, alpha: float = 0.1, *, nonempty: bool = True, shift_level: float = 0.01, seed: int = 0
    ) -> None:
        super().__init__(alpha, shift_level=shift_level, seed=seed)
        self.nonempty = nonempty
        self.quantile: float | Tensor = math.inf

    def fit(self, p_val: Any, rows: RowChoice | None = None) -> Self:
        """Find the threshold on labelled rows (or ``rows`` of them) that were not trained on."""
        self._check_kind(p_val)
        part = self.scored(p_val, rows)
        self._learn(part)
        return self._fitted(part.p)

    def __call__(self, p: Any, rows: RowChoice | None = None) -> PredictionSets:
        """The sets of other rows, or of those that ``rows`` chooses."""
        self._check_call(p)
        part = self.scored(p, rows)
        mask = part.scores <= self._threshold(part)
        if self.nonempty:
            empty = ~mask.any(dim=1)
            mask[empty, part.rows.label[empty]] = True
        return PredictionSets(mask, part.rows.target, self._shift(part.p))

    def scored(self, p: Any, rows: RowChoice | None = None) -> Scored:
        """Some rows and the scores of their classes."""
        numbers = chosen_rows(rows, len(p))
        part = p if rows is None else p[numbers]
        read_rows = read(part, labelled=False)
        return Scored(part, read_rows, self._scores(read_rows), numbers)

    def _scores(self, rows: Rows) -> Tensor:
        """How little each class fits each row ``[m, C]``; what a subclass redefines."""
        return 1.0 - rows.probs.double()

    def _learn(self, part: Scored) -> None:
        self.quantile = conformal_quantile(part.true, self.alpha)

    def _threshold(self, part: Scored) -> float | Tensor:
        """Up to which score a class is in the set: one number, one per class or ``[m, 1]``."""
        return self.quantile


class ClassConditional(SplitConformal):
    r"""Sets that hold every class as often as promised, rare ones too (Mondrian).

    The scores of `SplitConformal`, but one threshold per class, from the validation rows of that
    class alone: :math:`P(y \in \text{set} \mid y = c) \ge 1 - \alpha` for every c. A class with
    fewer than :math:`1/\alpha - 1` validation rows is in every set.

    Example:
        >>> from gduq.prediction import Prediction
        >>> p_val = Prediction(torch.eye(4).repeat(9, 1) * 3, target=torch.arange(4).repeat(9))
        >>> rare = p_val[torch.arange(36) != 3]  # 8 rows of class 3, 9 of the others
        >>> ClassConditional(alpha=0.1).fit(rare)(p_val).mask[0].tolist()
        [True, False, False, True]
    """

    def _learn(self, part: Scored) -> None:
        by_class = (part.true[part.rows.labels == c] for c in range(part.rows.num_classes))
        found = [conformal_quantile(scores, self.alpha) for scores in by_class]
        self.quantile = part.true.new_tensor(found)


def chosen_rows(rows: RowChoice | None, length: int) -> Tensor:
    """Which rows, as numbers; an error where that is none."""
    numbers = torch.arange(length)[row_index(rows, length)]
    if rows is not None and numbers.numel() == 0:
        raise InputError("at least one row", "an empty choice of rows")
    return numbers


def conformal_quantile(scores: Tensor, alpha: float) -> float:
    r"""The :math:`\lceil (n+1)(1-\alpha)\rceil`-th smallest score, or infinity.

    Example:
        >>> conformal_quantile(torch.arange(1.0, 10.0), alpha=0.1), conformal_quantile(
        ...     torch.arange(1.0, 9.0), alpha=0.1)
        (9.0, inf)
    """
    place = math.ceil((scores.numel() + 1) * (1 - alpha) - 1e-9)
    return math.inf if place > scores.numel() else float(scores.kthvalue(max(place, 1)).values)
