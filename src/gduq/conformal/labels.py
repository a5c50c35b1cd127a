"""Sets of answers, no and yes, per label."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor

from gduq.conformal.adaptive import APS
from gduq.conformal.split import ClassConditional, Conformal, PredictionSets, SplitConformal
from gduq.errors import InputError
from gduq.prediction import LabelPrediction

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["ConformalLabels", "LabelSets"]

Method = Literal["lac", "aps", "class_conditional"]

_METHODS: dict[str, type[SplitConformal]] = {
    "lac": SplitConformal,
    "aps": APS,
    "class_conditional": ClassConditional,
}


@dataclass(frozen=True, eq=False)
class LabelSets(PredictionSets):
    """One set of answers per row and label: ``mask`` ``[m, T, 2]`` of "no" and "yes"."""

    @property
    def covered(self) -> Tensor:
        """1.0 where a set holds the true answer, else 0.0; NaN where that is unknown ``[m, T]``."""
        target = self.require_target()
        held = self.mask.gather(2, (target == 1).long().unsqueeze(2)).squeeze(2)
        return held.double().masked_fill(target.isnan(), torch.nan)

    def column(self, t: int) -> PredictionSets:
        """The sets of label number ``t``; with targets, of the rows that know it."""
        if self.target is None:
            return PredictionSets(self.mask[:, t], None, self.shift)
        known = ~self.target[:, t].isnan()
        return PredictionSets(self.mask[known, t], self.target[known, t].long(), self.shift)


class ConformalLabels(Conformal):
    r"""Conformal sets {no}, {yes} or both, for every label by itself.

    Each label is a task of two classes with a threshold of its own, from the validation rows that
    know it. A label that no validation row knows gets both answers.

    Args:
        alpha: Accepted share of misses, in (0, 1), per label.
        method: ``"lac"`` (`SplitConformal`), ``"aps"`` (`APS`) or, for rare labels,
            ``"class_conditional"`` (`ClassConditional`).
        nonempty, shift_level, seed: As in `SplitConformal`.

    Example:
        >>> y = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).repeat(10, 1)
        >>> p_val = LabelPrediction(y * 6 - 3, target=y)
        >>> sets = ConformalLabels(alpha=0.2).fit(p_val)(p_val)
        >>> sets.coverage, sets.mean_size
        (1.0, 1.0)
    """

    kind: ClassVar[str] = "labels"

    def __init__(
        self,
        alpha: float = 0.1,
        method: Method = "lac",
        *,
        nonempty: bool = True,
        shift_level: float = 0.01,
        seed: int = 0,
    ) -> None:
        super().__init__(alpha, shift_level=shift_level, seed=seed)
        if method not in _METHODS:
            raise InputError(f"a method from {', '.join(_METHODS)}", repr(method))
        self.method, self.nonempty = method, nonempty
        self._columns: list[SplitConformal | None] = []

    def fit(self, p_val: LabelPrediction) -> Self:
        """Find the thresholds on labelled rows that the model was not trained on."""
        self._check_kind(p_val)
        if len(p_val) == 0 or not bool(p_val.known.any()):
            raise InputError("at least one row with a known label", "none")
        self._columns = [
            self._make().fit(p_val.column(t)) if bool(p_val.known[:, t].any()) else None
            for t in range(p_val.num_labels)
        ]
        return self._fitted(p_val)

    def __call__(self, p: LabelPrediction) -> LabelSets:
        """The sets of other rows."""
        self._check_call(p)
        every, found = replace(p, target=None), []
        for t, fitted in enumerate(self._columns):
            both = torch.ones(len(p), 2, dtype=torch.bool, device=p.samples.device)
            found.append(both if fitted is None else fitted(every.column(t)).mask)
        return LabelSets(torch.stack(found, dim=1), p.target, self._shift(p))

    def _make(self) -> SplitConformal:
        """One for a label; the shift is looked at once, for all labels."""
        options: dict[str, Any] = {"nonempty": self.nonempty, "seed": self.seed}
        return _METHODS[self.method](self.alpha, shift_level=0, **options)
