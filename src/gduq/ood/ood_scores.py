"""Out-of-distribution detection: scores that are larger for stranger rows, and how well they do.

A score that follows from a prediction is a property of its class, listed in `ood_scores` there;
one that compares with training rows is a class of `FITTED`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gduq._checks import check_int
from gduq.errors import InputError, NotFittedError
from gduq.metrics import ranking
from gduq.ood.distances import nearest
from gduq.prediction.base import Prediction

__all__ = ["FITTED", "KNN", "Mahalanobis", "Score", "auroc", "detection", "score"]

Score = Callable[[Any], Tensor]  # gives each row of a prediction a number, larger = more OOD

_WIDE = 512  # wider representations are projected to this many dimensions first


def score(p: Prediction, score: str | Score | None = None, train: Any = None) -> Tensor:
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
    p_id: Prediction, p_ood: Prediction, score: str | Score | None = None, train: Any = None
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
    score: str | Score | None = None,
    train: Any = None,
    **sampling: Any,
) -> ranking.Separation:
    """AUROC, AUPR and FPR at 95 % recall, with bootstrap intervals.

    ``sampling`` is that of `gduq.metrics.ranking.separation`: ``resamples``, ``level``, ``seed``.
    """
    return ranking.separation(*_both(p_id, p_ood, score, train), **sampling)


def _both(
    p_id: Prediction, p_ood: Prediction, given: str | Score | None, train: Any
) -> tuple[Tensor, Tensor]:
    if isinstance(given, str) and given in FITTED and train is not None:
        given = FITTED[given]().fit(train)  # once for both
    return score(p_id, given, train), score(p_ood, given, train)


class Mahalanobis:
    r"""Distance of a representation to the nearest class of the training data.

    .. math:: s(h) = \min_c \sqrt{(h - \mu_c)^\top \Sigma^{-1} (h - \mu_c)}

    with class means :math:`\mu_c` and one covariance :math:`\Sigma` for all (Lee et al., 2018),
    shrunk towards a multiple of the identity (OAS; Chen et al., 2010). Without classes (no
    training labels, yes/no labels, values) there is one mean. Representations wider than 512 are
    projected to 512 dimensions first, by a random matrix.

    Args:
        seed: Seed of that matrix.

    Example:
        >>> from gduq.prediction.classes import ClassPrediction
        >>> h = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
        >>> train = ClassPrediction(torch.zeros(50, 2), features=h)
        >>> far = ClassPrediction(torch.zeros(1, 2), features=torch.full((1, 4), 9.0))
        >>> bool(Mahalanobis().fit(train)(far) > 10)
        True
    """

    def __init__(self, *, seed: int = 0) -> None:
        self.seed = seed
        self._means: Tensor | None = None
        self._width = 0

    def fit(self, p_train: Prediction) -> Mahalanobis:
        """Estimate means and covariance from training predictions with features."""
        h = _features(p_train, self.seed)
        self._width = _width(p_train)
        target = p_train.target
        grouped = target is not None and not target.is_floating_point()
        group = target.cpu() if target is not None and grouped else torch.zeros(len(h)).long()
        group = group.unique(return_inverse=True)[1]
        size = group.bincount().double().unsqueeze(1)
        means = torch.zeros(len(size), h.size(1), dtype=h.dtype).index_add_(0, group, h) / size
        self._factor = torch.linalg.cholesky(_shrunk_covariance(h - means[group]))
        self._means = self._whiten(means)
        return self

    def __call__(self, p: Prediction) -> Tensor:
        if self._means is None:
            raise NotFittedError("a fitted score", "one without fit", "Call fit(p_train) first.")
        whitened = self._whiten(_features(p, self.seed, self._width))
        return nearest(whitened, self._means, 1)[:, 0].contiguous()

    def _whiten(self, h: Tensor) -> Tensor:
        white: Tensor = torch.linalg.solve_triangular(self._factor, h.t(), upper=False).t()
        return white.contiguous()


class KNN:
    r"""Distance to the k-th nearest training representation, all scaled to length 1.

    (Sun et al., 2022.) Wide representations are projected as in `Mahalanobis`.

    Args:
        k: Which neighbour.
        seed: Seed of the projection.

    Example:
        >>> from gduq.prediction.classes import ClassPrediction
        >>> train = ClassPrediction(torch.zeros(2, 2), features=torch.eye(2))
        >>> KNN(k=1).fit(train)(train)
        tensor([0., 0.], dtype=torch.float64)
    """

    def __init__(self, k: int = 10, *, seed: int = 0) -> None:
        self.k, self.seed = check_int("k", k, 1), seed
        self._known: Tensor | None = None
        self._width = 0

    def fit(self, p_train: Prediction) -> KNN:
        """Keep the representations of training predictions."""
        h = _features(p_train, self.seed)
        if len(h) < self.k:
            raise InputError(f"at least k = {self.k} training rows", len(h), "Pass a smaller k.")
        self._width, self._known = _width(p_train), F.normalize(h, dim=-1)
        return self

    def __call__(self, p: Prediction) -> Tensor:
        if self._known is None:
            raise NotFittedError("a fitted score", "one without fit", "Call fit(p_train) first.")
        h = F.normalize(_features(p, self.seed, self._width), dim=-1)
        return nearest(h, self._known, self.k)[:, -1].contiguous()


def _shrunk_covariance(residuals: Tensor) -> Tensor:
    """The covariance of rows with mean 0, shrunk by OAS."""
    n, d = residuals.shape
    sample = residuals.t() @ residuals / n
    trace, squares = float(sample.trace()), float(sample.square().sum())
    scatter = (n + 1 - 2 / d) * (squares - trace**2 / d)
    wished = (1 - 2 / d) * squares + trace**2
    weight = 1.0 if scatter <= 0 or wished >= scatter else wished / scatter
    floor = 1e-6 * trace / d + 1e-12  # constant representations have no covariance at all
    identity = torch.eye(d, dtype=sample.dtype)
    return (1 - weight) * sample + (weight * trace / d + floor) * identity


FITTED: dict[str, type[Mahalanobis] | type[KNN]] = {"mahalanobis": Mahalanobis, "knn": KNN}
"""Scores that are fitted on training predictions with features first, for any kind."""


def _width(p: Prediction) -> int:
    return 0 if p.features is None else p.features.size(1)


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
