"""Answering only when sure enough."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gduq import metrics
from gduq.errors import InputError, NotFittedError
from gduq.ood.ood_scores import Score
from gduq.ood.ood_scores import score as score_of
from gduq.prediction.base import Prediction

__all__ = ["Abstention", "Decision"]


@dataclass(frozen=True, eq=False)
class Decision:
    """Which rows are answered."""

    kept: Tensor  # [m], boolean
    p: Prediction  # all rows

    @property
    def coverage(self) -> float:
        """Share of rows answered."""
        return float(self.kept.double().mean())

    @property
    def accuracy(self) -> float:
        """Accuracy of the answers; NaN when there are none, an error without labels."""
        return metrics.accuracy(self.p[self.kept]) if self.kept.any() else torch.nan


class Abstention:
    r"""A threshold :math:`\tau` on the uncertainty from validation data; rows below are answered.

    Neither wish holds on shifted data. Values, right to a degree only, take a wished ``coverage``.

    Args:
        accuracy: Wished accuracy of the answers, in (0, 1]; the largest :math:`\tau` with it.
        coverage: Wished share of answers, in (0, 1], instead; the smallest :math:`\tau` with it.
        score: Uncertainty, as in `gduq.ood.score`; by default 1 - trust of predictions that have
            it, else 1 - confidence, or the deviation.

    Example:
        >>> from gduq.prediction.classes import ClassPrediction
        >>> logits = torch.tensor([[3.0, 0.0], [2.0, 0.0], [0.5, 0.0], [0.1, 0.0]])
        >>> p_val = ClassPrediction(logits, target=torch.tensor([0, 0, 1, 0]))
        >>> Abstention(accuracy=1.0).fit(p_val)(p_val).kept
        tensor([ True,  True, False, False])
    """

    def __init__(
        self,
        accuracy: float | None = None,
        coverage: float | None = None,
        *,
        score: str | Score | None = None,
    ) -> None:
        if (accuracy is None) == (coverage is None):
            raise InputError("either accuracy or coverage", "both or neither")
        for name, share in (("accuracy", accuracy), ("coverage", coverage)):
            if share is not None and not 0 < share <= 1:
                raise InputError(f"{name} above 0 and at most 1", share)
        self.accuracy, self.coverage, self.score = accuracy, coverage, score
        self.threshold: float | None = None
        self.by_trust = False

    def fit(self, p_val: Prediction) -> Abstention:
        """Choose the threshold; a wished accuracy needs labels."""
        self.by_trust = self.score is None and p_val.trust is not None
        scores = self._scores(p_val)
        distinct, place, counts = torch.unique(scores, return_inverse=True, return_counts=True)
        answered = counts.cumsum(0)
        if self.coverage is not None:
            enough = answered >= self.coverage * len(scores) - 1e-9
            self.threshold = float(distinct[enough.int().argmax()])
            return self
        correct: Tensor | None = getattr(p_val, "correct", None)  # of classes
        if correct is None or self.accuracy is None:
            raise InputError(f"a wished coverage for {p_val.kind}", "a wished accuracy")
        hits = torch.zeros(len(distinct), dtype=torch.float64)
        reached = hits.index_add_(0, place, correct.double().cpu()).cumsum(0) / answered
        good = (reached >= self.accuracy - 1e-12).nonzero().flatten()
        if good.numel() == 0:
            best = int(reached.argmax())
            share = float(answered[best] / answered[-1])
            raise InputError(
                f"an accuracy that validation data can show, not {self.accuracy:g}",
                f"at most {float(reached[best]):.3f}, at {share:.0%} coverage",
                "Wish for less, or give more validation data.",
            )
        self.threshold = float(distinct[good[-1]])
        return self

    def __call__(self, p: Prediction) -> Decision:
        """Decide for other predictions of the same model."""
        if self.threshold is None:
            raise NotFittedError("a fitted Abstention", "one without fit", "Call fit(p_val) first.")
        return Decision((self._scores(p) <= self.threshold).to(p.samples.device), p)

    def _scores(self, p: Prediction) -> Tensor:
        if len(p.parts()) > 1:
            raise InputError(f"one of the {p.kind} at a time", p.size, "Pass p.column(t).")
        if not len(p):
            raise InputError("at least one row", "none", "Leave empty splits out.")
        if self.by_trust:
            if p.trust is None:
                do = "Predict with the model that the threshold was chosen for."
                raise InputError("predictions with trust, as those of fit", "none", do)
            return 1 - p.trust.double().cpu()
        return score_of(p, self.score).double().cpu()
