"""Split conformal prediction, and the sets that come out of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from gduq.conformal.base import Answers, Conformal
from gduq.conformal.shift import ShiftTest
from gduq.errors import InputError
from gduq.metrics.rows import Rows, read
from gduq.prediction.checks import RowChoice, row_index

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["ClassConditional", "PredictionSets", "SplitConformal", "conformal_quantile"]


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


@dataclass(frozen=True, eq=False)
class PredictionSets(Answers):
    """One set of classes per row.

    Args:
        mask: Boolean ``[m, C]``, which classes are in.
        target: True labels ``[m]``, or ``None``.
        shift: The two-sample test against the validation data, or ``None`` where none was made.
    """

    mask: Tensor
    target: Tensor | None = None
    shift: ShiftTest | None = None

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


class SplitConformal(Conformal):
    r"""Sets from a threshold on the probability (LAC; Sadinle, Lei and Wasserman, 2019).

    The score of class c for row i is :math:`s_{ic} = 1 - p_{ic}`; the set holds all classes with
    :math:`s_{ic} \le \hat q`, where :math:`\hat q` is the :math:`\lceil (n+1)(1-\alpha)\rceil`-th
    smallest score of the true classes of n validation rows (all classes if n is smaller than
    that). If validation and test rows are exchangeable,

    .. math:: 1 - \alpha \;\le\; P(y \in \text{set}) \;\le\; 1 - \alpha + \tfrac{1}{n + 1}

    (the right side without ties, and with ``nonempty=False``). LAC has the smallest sets on
    average; hard rows are covered less often than easy ones. Under shift nothing is guaranteed: a
    `ShiftWarning` is raised when a two-sample test (`shift_test`) against the validation rows
    fails.

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
        self,
        alpha: float = 0.1,
        *,
        nonempty: bool = True,
        shift_level: float = 0.01,
        seed: int = 0,
    ) -> None:
        super().__init__(alpha, shift_level=shift_level, seed=seed)
        self.nonempty = nonempty
        self.quantile: float | Tensor = math.inf

    def fit(self, p_val: Any, rows: RowChoice | None = None) -> Self:
        """Find the threshold on labelled rows that the model was not trained on.

        Args:
            p_val: Predictions with targets.
            rows: Which of them (mask, slice or numbers); default all.
        """
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
        """The threshold, from the scores of true classes."""
        self.quantile = conformal_quantile(part.true, self.alpha)

    def _threshold(self, part: Scored) -> float | Tensor:
        """Up to which score a class is in the set: one number, one per class or ``[m, 1]``."""
        return self.quantile


class ClassConditional(SplitConformal):
    r"""Sets that hold every class as often as promised, rare ones too (Mondrian).

    The scores of `SplitConformal`, but one threshold per class, from the validation rows of that
    class alone, so that :math:`P(y \in \text{set} \mid y = c) \ge 1 - \alpha` for every c (Sadinle,
    Lei and Wasserman, 2019). A class with fewer than :math:`1/\alpha - 1` validation rows is in
    every set: nothing less can be promised for it.

    Args:
        alpha, nonempty, shift_level, seed: As in `SplitConformal`.

    Example:
        >>> from gduq.prediction import Prediction
        >>> p_val = Prediction(torch.eye(4).repeat(9, 1) * 3, target=torch.arange(4).repeat(9))
        >>> rare = p_val[torch.arange(36) != 3]  # 8 rows of class 3, 9 of the others
        >>> ClassConditional(alpha=0.1).fit(rare)(p_val).mask[0].tolist()
        [True, False, False, True]
    """

    def _learn(self, part: Scored) -> None:
        classes = range(part.rows.num_classes)
        by_class = (part.true[part.rows.labels == c] for c in classes)
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


def hashed_uniform(logits: Tensor, seed: int) -> Tensor:
    """A number from [0, 1) for each row of logits ``[m, 1]``, by a hash of the row and the seed.

    Draws from a stream would give the k-th row of every call the same number: served one at a
    time, all rows would share one. A hash depends on the row alone, so fitting, applying, batches
    and single rows agree; and as a fixed function of a row it keeps rows exchangeable.

    Example:
        >>> z = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        >>> torch.equal(hashed_uniform(z, 0)[1:], hashed_uniform(z[1:], 0))
        True
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
