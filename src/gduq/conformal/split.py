"""Split conformal prediction, and the sets that come out of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gduq.conformal.base import Conformal
from gduq.conformal.shift import ShiftTest
from gduq.errors import InputError
from gduq.metrics.rows import Rows, read

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["ClassConditional", "PredictionSets", "SplitConformal", "conformal_quantile"]


@dataclass(frozen=True, eq=False)
class PredictionSets:
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

    def require_target(self) -> Tensor:
        """The truth, or an error that says it is missing."""
        if self.target is None:
            raise InputError(
                "predictions with targets", "none", "Pass target= or predict on labelled data."
            )
        return self.target

    @property
    def coverage(self) -> float:
        """Share of sets that do."""
        return float(self.covered.double().mean())


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
        self.quantile: float | Tensor | None = None
        self._classes = 0

    def fit(self, p_val: Any) -> Self:
        """Find the threshold on labelled rows that the model was not trained on."""
        self._check_classes(p_val)
        rows = read(p_val)
        return self._fit(p_val, rows, self._scores(rows, self._uniform(rows)))

    def __call__(self, p: Any) -> PredictionSets:
        """The sets of other rows."""
        self._check_fitted(p)
        rows = read(p, labelled=False)
        return self._sets(p, rows, self._scores(rows, self._uniform(rows)))

    def _scores(self, rows: Rows, uniform: Tensor) -> Tensor:
        """How little each class fits each row ``[m, C]``; what a subclass redefines."""
        return 1.0 - rows.probs.double()

    def _uniform(self, rows: Rows) -> Tensor:
        """One number from [0, 1) per row ``[m, 1]``, the same for it in whatever batch it comes."""
        return hashed_uniform(rows.logits, self.seed)

    def _fit(self, p_val: Any, rows: Rows, scores: Tensor) -> Self:
        true = scores.gather(1, rows.labels.unsqueeze(1)).squeeze(1)
        self.quantile = self._threshold(true, rows)
        self._classes = rows.num_classes
        self._note(p_val)
        return self

    def _threshold(self, true: Tensor, rows: Rows) -> float | Tensor:
        """What scores of true classes ``[m]`` make of the threshold: one, or one per class."""
        return conformal_quantile(true, self.alpha)

    def _check_classes(self, p: Any) -> None:
        instead = "For values there is ConformalIntervals, for labels ConformalLabels."
        self._check_kind(p, "classes", instead)

    def _check_fitted(self, p: Any) -> None:
        self._check(self._classes > 0)
        self._check_classes(p)
        classes = read(p, labelled=False).num_classes
        if classes != self._classes:
            raise InputError(f"predictions of {self._classes} classes, as fitted", classes)

    def _sets(self, p: Any, rows: Rows, scores: Tensor) -> PredictionSets:
        assert self.quantile is not None
        return self._within(p, rows, scores <= self.quantile)

    def _within(self, p: Any, rows: Rows, mask: Tensor) -> PredictionSets:
        if self.nonempty:
            empty = ~mask.any(dim=1)
            mask[empty, rows.label[empty]] = True
        return PredictionSets(mask, rows.target, self._shift(p))


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

    def _threshold(self, true: Tensor, rows: Rows) -> Tensor:
        found = [
            conformal_quantile(true[rows.labels == c], self.alpha) for c in range(rows.num_classes)
        ]
        return true.new_tensor(found)


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
