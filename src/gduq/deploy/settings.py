"""`Settings`: how predictions become decisions. Torch is not imported here."""

from __future__ import annotations

from dataclasses import dataclass

from gduq.errors import InputError

__all__ = ["Settings"]


@dataclass(frozen=True)
class Settings:
    """How predictions become decisions.

    Attributes:
        alpha: Accepted share of misses of conformal sets and intervals.
        coverage: Share of rows like the reference that should be answered, all reasons to abstain
            taken together; or
        accuracy: the accuracy that answers should have; then ``coverage`` is not used.
        ood_score: A name of `gduq.novelty.SCORES`, ``"mahalanobis"`` or ``"knn"``. ``None``:
            ``"novelty"`` where the model knows its training data, else ``"energy"`` for classes,
            ``"entropy"`` for labels, ``"std"`` for values.
        per_class: Whether sets hold every class, and yes and no of every label, as often as that:
            over all rows, sets may miss a rare class altogether. It makes no difference to values.
        max_novelty: A row with a larger novelty is unlike the training data; 1 for no limit.
        max_epistemic: Where the epistemic uncertainty is above this quantile of the reference,
            the hypotheses disagree; 1 for no limit.
    """

    alpha: float = 0.1
    coverage: float = 0.9
    accuracy: float | None = None
    ood_score: str | None = None
    per_class: bool = False
    max_novelty: float = 0.99
    max_epistemic: float = 0.99

    def __post_init__(self) -> None:
        if not 0 < self.alpha < 1:
            raise InputError("alpha between 0 and 1", self.alpha)
        for name in ("coverage", "accuracy"):
            share = getattr(self, name)
            if share is not None and not 0 < share <= 1:
                raise InputError(f"{name} above 0 and at most 1", share)
        for name in ("max_novelty", "max_epistemic"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"{name} from 0 to 1", getattr(self, name))
