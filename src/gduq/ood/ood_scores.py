"""Out-of-distribution detection: scores that are larger for stranger rows, and how well they do.

A score that follows from a prediction is a property of its class, listed in `ood_scores` there;
one that compares with training rows is a class of `FITTED`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gduq._checks import check_int
from gduq.errors import InputError, NotFittedError
from gduq.metrics import ranking
from gduq.ood.distances import nearest
from gduq.prediction.base import Prediction

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["FITTED", "KNN", "FittedScore", "Mahalanobis", "Score", "auroc", "detection", "score"]

Score = Callable[[Prediction], Tensor]  # gives each row of a prediction a number, larger = more OOD
Named = str | Score | None

_WIDE = 512  # wider representations are projected to this many dimensions first


def score(
    p: Prediction, score: str | Score | None = None, train: Prediction | None = None
) -> Tensor:
    """The score of each row ``[m]``, larger = more OOD.

    Args:
        p: Predictions.
        score: A name of ``p.ood_scores``, by default the first; ``"mahalanobis"``, ``"knn"``, or a
            function of a prediction.
        train: Training predictions with features; only for ``"mahalanobis"`` and ``"knn"`` by name.

    Example:
        >>> from gduq.prediction.classes import ClassPrediction
        >>> score(ClassPrediction(torch.tensor([[0.0, 0.0]])), "msp")
        tensor([0.5000])
    """
    if callable(score):
        return score(p)
    name = p.ood_scores[0] if score is None else score
    if name in FITTED:
        if train is None:
            wanted = f"training predictions for the score {name!r}"
            raise InputError(wanted, "none", "Pass train=p_train.")
        return FITTED[name]().fit(train)(p)
    if name not in p.ood_scores:
        names = ", ".join([*p.ood_scores, *FITTED])
        raise InputError(f"a score for {p.kind} from {names}", repr(name))
    found: Tensor | None = getattr(p, name)
    if found is None:
        do = "Predict with a model that gduq.fit has trained, or choose another score."
        raise InputError(f"predictions with {name}", "none", do)
    return p.row_mean(found)


def auroc(
    p_id: Prediction,
    p_ood: Prediction,
    score: Named = None,
    train: Prediction | None = None,
) -> float:
    """Area under the ROC curve of telling OOD rows (positive) from ID rows (negative).

    0.5 means the score has no information; it is exactly that for ``"epistemic"`` and ``"spread"``
    when there is only one sample (K = 1).

    Args:
        p_id: Predictions on ID rows. Take the ID test set; the paper took ID validation.
        p_ood: Predictions on OOD rows.
        score, train: As in `score`.

    Example:
        >>> from gduq.prediction.classes import ClassPrediction
        >>> sure, unsure = ClassPrediction(torch.eye(3) * 9), ClassPrediction(torch.eye(3))
        >>> auroc(sure, unsure, score="entropy")
        1.0
    """
    return ranking.auroc(*_both(p_id, p_ood, score, train))


def detection(
    p_id: Prediction,
    p_ood: Prediction,
    score: Named = None,
    train: Prediction | None = None,
    **sampling: Any,
) -> ranking.Separation:
    """AUROC, AUPR and FPR at 95 % recall, with bootstrap intervals.

    ``sampling`` is that of `gduq.metrics.ranking.separation`: ``resamples``, ``level``, ``seed``.
    """
    return ranking.separation(*_both(p_id, p_ood, score, train), **sampling)


def _both(
    p_id: Prediction, p_ood: Prediction, given: Named, train: Prediction | None
) -> tuple[Tensor, Tensor]:
    if isinstance(given, str) and given in FITTED and train is not None:
        given = FITTED[given]().fit(train)  # once for both
    return score(p_id, given, train), score(p_ood, given, train)


class FittedScore(ABC):
    """A score that compares representations with those of training rows.

    Representations wider than 512 are projected to 512 dimensions first, by a random matrix.

    Args:
        seed: Seed of that matrix.
    """

    def __init__(self, *, seed: int = 0) -> None:
        self.seed = seed
        self._width: int | None = None

    def fit(self, p_train: Prediction) -> Self:
        """Learn from training predictions with features."""
        self._learn(_features(p_train, self.seed), p_train.target)
        self._width = None if p_train.features is None else p_train.features.size(1)
        return self

    def __call__(self, p: Prediction) -> Tensor:
        if self._width is None:
            raise NotFittedError("a fitted score", "one without fit", "Call fit(p_train) first.")
        return self._distance(_features(p, self.seed, self._width)).contiguous()

    @abstractmethod
    def _learn(self, h: Tensor, target: Tensor | None) -> None:
        """Keep what is needed of training rows ``[n, d]``."""

    @abstractmethod
    def _distance(self, h: Tensor) -> Tensor:
        """Of every row ``[m]``."""


class Mahalanobis(FittedScore):
    r"""Distance of a representation to the nearest class of the training data.

    .. math:: s(h) = \min_c \sqrt{(h - \mu_c)^\top \Sigma^{-1} (h - \mu_c)}

    with class means :math:`\mu_c` and one covariance :math:`\Sigma` for all (Lee et al., 2018),
    shrunk towards a multiple of the identity (OAS; Chen et al., 2010). Without classes (no
    training labels, yes/no labels, values) there is one mean.

    Example:
        >>> from gduq.prediction.classes import ClassPrediction
        >>> h = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
        >>> train = ClassPrediction(torch.zeros(50, 2), features=h)
        >>> far = ClassPrediction(torch.zeros(1, 2), features=torch.full((1, 4), 9.0))
        >>> bool(Mahalanobis().fit(train)(far) > 10)
        True
    """

    def _learn(self, h: Tensor, target: Tensor | None) -> None:
        from sklearn.covariance import oas

        grouped = target is not None and not target.is_floating_point()
        group = target.cpu() if target is not None and grouped else torch.zeros(len(h)).long()
        group = group.unique(return_inverse=True)[1]
        size = group.bincount().double().unsqueeze(1)
        means = torch.zeros(len(size), h.size(1), dtype=h.dtype).index_add_(0, group, h) / size
        covariance = torch.from_numpy(oas((h - means[group]).numpy(), assume_centered=True)[0])
        covariance.diagonal().add_(1e-6 * covariance.diagonal().mean() + 1e-12)  # constant columns
        self._factor = torch.linalg.cholesky(covariance)
        self._means = self._whiten(means)

    def _distance(self, h: Tensor) -> Tensor:
        return nearest(self._whiten(h), self._means, 1)[:, 0]

    def _whiten(self, h: Tensor) -> Tensor:
        white: Tensor = torch.linalg.solve_triangular(self._factor, h.t(), upper=False).t()
        return white.contiguous()


class KNN(FittedScore):
    r"""Distance to the k-th nearest training representation, all scaled to length 1.

    (Sun et al., 2022.)

    Args:
        k: Which neighbour.
        seed: As for `FittedScore`.

    Example:
        >>> from gduq.prediction.classes import ClassPrediction
        >>> train = ClassPrediction(torch.zeros(2, 2), features=torch.eye(2))
        >>> KNN(k=1).fit(train)(train)
        tensor([0., 0.], dtype=torch.float64)
    """

    def __init__(self, k: int = 10, *, seed: int = 0) -> None:
        super().__init__(seed=seed)
        self.k = check_int("k", k, 1)

    def _learn(self, h: Tensor, target: Tensor | None) -> None:
        if len(h) < self.k:
            raise InputError(f"at least k = {self.k} training rows", len(h), "Pass a smaller k.")
        self._known = F.normalize(h, dim=-1)

    def _distance(self, h: Tensor) -> Tensor:
        return nearest(F.normalize(h, dim=-1), self._known, self.k)[:, -1]


FITTED: dict[str, type[FittedScore]] = {"mahalanobis": Mahalanobis, "knn": KNN}
"""Scores that are fitted on training predictions with features first, for any kind."""


def _features(p: Prediction, seed: int, width: int | None = None) -> Tensor:
    """Representations ``[m, d]`` in float64, dense and at most 512 wide."""
    if p.features is None:
        raise InputError(
            "predictions with features, the representation at the cut",
            "none",
            "Make them with gduq.predict(model, data, features=True), or score the logits.",
        )
    if width is not None and p.features.size(1) != width:
        raise InputError(f"features of width {width}, as fitted", p.features.size(1))
    h = p.features.detach().cpu()
    if h.size(0) == 0:
        raise InputError("at least one row", "none")
    if h.size(1) > _WIDE:
        generator = torch.Generator().manual_seed(seed)
        matrix = torch.randn(h.size(1), _WIDE, generator=generator, dtype=h.dtype)
        h = h @ (matrix / _WIDE**0.5)
    elif h.layout != torch.strided:
        h = h.to_dense()
    if not torch.isfinite(h).all():
        raise InputError("finite features", "NaN or infinite values")
    return h.double()
