"""Answering only when sure enough."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gduq.errors import InputError, NotFittedError
from gduq.metrics.rows import kind_of, known_target, read
from gduq.novelty.ood_scores import Score
from gduq.novelty.ood_scores import score as score_of

__all__ = ["Abstention", "Decision"]


@dataclass(frozen=True, eq=False)
class Decision:
    """Which rows are answered."""

    kept: Tensor  # [m], boolean
    label: Tensor  # [m], the answer, also of rows that are not answered: a class, or the mean
    target: Tensor | None = None  # [m], the truth

    @property
    def coverage(self) -> float:
        """Share of rows answered."""
        return float(self.kept.double().mean())

    @property
    def accuracy(self) -> float:
        """Accuracy of the answers; NaN when there are none, an error without labels."""
        return float((self.label == known_target(self.target))[self.kept].double().mean())

    @property
    def rmse(self) -> float:
        """Of values, the root mean square error of the answers; NaN when there are none."""
        error = self.label - known_target(self.target)
        return float(error[self.kept].double().square().mean().sqrt())


class Abstention:
    r"""A threshold :math:`\tau` on the uncertainty from validation data; rows below are answered.

    Neither wish holds on shifted data. Values, right to a degree only, take a wished ``coverage``.

    Args:
        accuracy: Wished accuracy of the answers, in (0, 1]; the largest :math:`\tau` with it.
        coverage: Wished share of answers, in (0, 1], instead; the smallest :math:`\tau` with it.
        score: Uncertainty, as in `gduq.novelty.score`; by default 1 - confidence, or the deviation.
        delta: Reach ``accuracy`` on new data of the same distribution with probability 1 -
            ``delta`` (Clopper-Pearson bounds at up to 50 scores; after Geifman and El-Yaniv, 2017).

    Example:
        >>> from gduq.prediction import Prediction
        >>> logits = torch.tensor([[3.0, 0.0], [2.0, 0.0], [0.5, 0.0], [0.1, 0.0]])
        >>> p_val = Prediction(logits, target=torch.tensor([0, 0, 1, 0]))
        >>> Abstention(accuracy=1.0).fit(p_val)(p_val).kept
        tensor([ True,  True, False, False])
    """

    def __init__(
        self,
        accuracy: float | None = None,
        coverage: float | None = None,
        *,
        score: str | Score | None = None,
        delta: float | None = None,
    ) -> None:
        if (accuracy is None) == (coverage is None):
            raise InputError("either accuracy or coverage", "both or neither")
        for name, share in (("accuracy", accuracy), ("coverage", coverage)):
            if share is not None and not 0 < share <= 1:
                raise InputError(f"{name} above 0 and at most 1", share)
        if delta is not None and (accuracy is None or not 0 < delta < 1):
            raise InputError("delta between 0 and 1, next to accuracy", delta)
        self.accuracy, self.coverage, self.score, self.delta = accuracy, coverage, score, delta
        self.threshold: float | None = None

    def fit(self, p_val: Any) -> Abstention:
        """Choose the threshold; a wished accuracy needs labels."""
        if _about_values(p_val) and self.coverage is None:
            raise InputError("a wished coverage for values", "a wished accuracy")
        scores = score_of(p_val, self.score).double()
        distinct, counts = torch.unique(scores, return_counts=True)
        answered = counts.cumsum(0)
        if self.coverage is not None:
            enough = answered >= self.coverage * len(scores) - 1e-9
            self.threshold = float(distinct[enough.int().argmax()])
            return self
        place = torch.searchsorted(distinct, scores)
        hits = torch.zeros(len(distinct), dtype=torch.float64)
        right = hits.index_add_(0, place.cpu(), read(p_val).right.cpu()).cumsum(0)
        self.threshold = self._for_accuracy(distinct.cpu(), answered.cpu(), right)
        return self

    def _for_accuracy(self, distinct: Tensor, answered: Tensor, right: Tensor) -> float:
        assert self.accuracy is not None
        if self.delta is None:
            reached = right / answered
        else:
            distinct, answered, right = _grid(distinct, answered, right)
            reached = _lower_bound(right, answered, self.delta / len(distinct))
        good = (reached >= self.accuracy - 1e-12).nonzero().flatten()
        if good.numel() == 0:
            best = int(reached.argmax())
            share = float(answered[best] / answered[-1])
            raise InputError(
                f"an accuracy that validation data can show, not {self.accuracy:g}",
                f"at most {float(reached[best]):.3f}, at {share:.0%} coverage",
                "Wish for less, or give more validation data.",
            )
        return float(distinct[good[-1]])

    def __call__(self, p: Any) -> Decision:
        """Decide for other predictions of the same model."""
        if self.threshold is None:
            raise NotFittedError("a fitted Abstention", "one without fit", "Call fit(p_val) first.")
        kept = score_of(p, self.score).double() <= self.threshold
        if _about_values(p):
            return Decision(kept, p.mean, p.target)
        rows = read(p, labelled=False)
        return Decision(kept, rows.answer, rows.target)


def _about_values(p: Any) -> bool:
    kind = kind_of(p)
    if kind == "labels" or (kind == "values" and p.num_values > 1):
        raise InputError(f"one of the {kind} at a time", p.size, "Pass p.column(t).")
    return bool(kind == "values")


def _grid(*columns: Tensor) -> tuple[Tensor, ...]:
    """At most 50 evenly spaced candidates: chosen before labels are seen, so the bound holds."""
    size = columns[0].numel()
    picks = torch.linspace(size / min(size, 50), size, min(size, 50)).round().long() - 1
    return tuple(column[picks] for column in columns)


def _lower_bound(right: Tensor, answered: Tensor, delta: float) -> Tensor:
    """Clopper-Pearson: the accuracy that is exceeded with probability 1 - delta."""
    from scipy.stats import beta

    low = beta.ppf(delta, right.numpy(), (answered - right + 1).numpy())
    return torch.from_numpy(low).nan_to_num(0.0)
