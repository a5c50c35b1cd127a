"""Out-of-distribution detection: scores that are larger for stranger rows, and how well they do.

A score that follows from a prediction is a property of its class, listed in `ood_scores` there;
one that compares with training rows is a class of `FITTED`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gduq.errors import InputError, NotFittedError
from gduq.metrics import ranking
from gduq.ood.nearest import nearest
from gduq.prediction.base import Prediction

__all__ = ["FITTED", "Mahalanobis", "Score", "auroc", "score"]

Score = Callable[[Prediction], Tensor]  # gives each row of a prediction a number, larger = more OOD
_WIDE = 512  # wider representations are projected to this many dimensions first


def score(p: Prediction, by: str | Score | None = None) -> Tensor:
    """The score of each row ``[m]``, larger = more OOD.

    Args:
        p: Predictions.
        by: A name of ``p.ood_scores``, by default the first; or a function of a prediction, such
            as a fitted `Mahalanobis`.

    Example:
        >>> from gduq.prediction.classes import ClassPrediction
        >>> score(ClassPrediction(torch.tensor([[0.0, 0.0]])), "msp")
        tensor([0.5000])
    """
    if callable(by):
        return by(p)
    name = p.ood_scores[0] if by is None else by
    if name not in p.ood_scores:
        raise InputError(f"a score for {p.kind} from {', '.join(p.ood_scores)}", repr(name))
    found: Tensor | None = getattr(p, name)
    if found is None:
        do = "Predict with a model that gduq.fit has trained, or choose another score."
        raise InputError(f"predictions with {name}", "none", do)
    if found.dim() > 1 and not p.mean_of_parts:
        raise InputError("one value per row", p.size, "Take p.column(t), or the score 'novelty'.")
    return found if found.dim() == 1 else found.mean(dim=1)


def auroc(p_id: Prediction, p_ood: Prediction, by: str | Score | None = None) -> float:
    """Area under the ROC curve of telling OOD rows (positive) from ID rows (negative).

    0.5 means the score has no information; it is exactly that for ``"epistemic"`` and ``"spread"``
    when there is only one sample (K = 1). `gduq.metrics.separation` of two `score` has intervals.

    Args:
        p_id: Predictions on ID rows. Take the ID test set; the paper took ID validation.
        p_ood: Predictions on OOD rows.
        by: As in `score`.

    Example:
        >>> from gduq.prediction.classes import ClassPrediction
        >>> sure, unsure = ClassPrediction(torch.eye(3) * 9), ClassPrediction(torch.eye(3))
        >>> auroc(sure, unsure, "entropy")
        1.0
    """
    return ranking.auroc(score(p_id, by), score(p_ood, by))


class Mahalanobis:
    r"""Distance of a representation to the nearest class of the training data.

    .. math:: s(h) = \min_c \sqrt{(h - \mu_c)^\top \Sigma^{-1} (h - \mu_c)}

    with class means :math:`\mu_c` and one covariance :math:`\Sigma` for all (Lee et al., 2018),
    shrunk towards a multiple of the identity (OAS; Chen et al., 2010). Without classes (no
    training labels, yes/no labels, values) there is one mean. Representations wider than 512 are
    projected to 512 dimensions first, by a fixed random matrix.

    Example:
        >>> from gduq.prediction.classes import ClassPrediction
        >>> h = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
        >>> train = ClassPrediction(torch.zeros(50, 2), features=h)
        >>> far = ClassPrediction(torch.zeros(1, 2), features=torch.full((1, 4), 9.0))
        >>> bool(Mahalanobis().fit(train)(far) > 10)
        True
    """

    _width: int | None = None

    def fit(self, p_train: Prediction) -> Mahalanobis:
        """Learn from training predictions with features."""
        from sklearn.covariance import oas

        h, target = _features(p_train), p_train.target
        grouped = target is not None and not target.is_floating_point()
        group = target.cpu() if target is not None and grouped else torch.zeros(len(h)).long()
        group = group.unique(return_inverse=True)[1]
        size = group.bincount().double().unsqueeze(1)
        means = torch.zeros(len(size), h.size(1), dtype=h.dtype).index_add_(0, group, h) / size
        covariance = torch.from_numpy(oas((h - means[group]).numpy(), assume_centered=True)[0])
        covariance.diagonal().add_(1e-6 * covariance.diagonal().mean() + 1e-12)  # constant columns
        self._factor = torch.linalg.cholesky(covariance)
        self._means = self._whiten(means)
        self._width = None if p_train.features is None else p_train.features.size(1)
        return self

    def __call__(self, p: Prediction) -> Tensor:
        """The score of each row ``[m]``."""
        if self._width is None:
            raise NotFittedError("a fitted score", "one without fit", "Call fit(p_train) first.")
        return nearest(self._whiten(_features(p, self._width)), self._means, 1)[:, 0]

    def _whiten(self, h: Tensor) -> Tensor:
        white: Tensor = torch.linalg.solve_triangular(self._factor, h.t(), upper=False).t()
        return white.contiguous()


FITTED = {"mahalanobis": Mahalanobis}  # on training predictions with features, of any kind


def _features(p: Prediction, width: int | None = None) -> Tensor:
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
        generator = torch.Generator().manual_seed(0)
        matrix = torch.randn(h.size(1), _WIDE, generator=generator, dtype=h.dtype)
        h = h @ (matrix / _WIDE**0.5)
    elif h.layout != torch.strided:
        h = h.to_dense()
    if not torch.isfinite(h).all():
        raise InputError("finite features", "NaN or infinite values")
    return h.double()
