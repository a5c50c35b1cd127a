"""Distances of a representation to training rows: scores that are fitted before they are used."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gduq.errors import InputError, NotFittedError
from gduq.metrics.rows import kind_of
from gduq.whole import whole

__all__ = ["KNN", "Mahalanobis", "shrunk_covariance"]

_WIDE = 512  # wider representations are projected to this many dimensions first


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
        >>> from gduq.prediction import Prediction
        >>> h = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
        >>> train = Prediction(torch.zeros(50, 2), features=h)
        >>> far = Prediction(torch.zeros(1, 2), features=torch.full((1, 4), 9.0))
        >>> bool(Mahalanobis().fit(train)(far) > 10)
        True
    """

    def __init__(self, *, seed: int = 0) -> None:
        self.seed = seed
        self._means: Tensor | None = None

    def fit(self, p_train: Any) -> Mahalanobis:
        """Estimate means and covariance from training predictions with features."""
        h = _features(p_train, self.seed)
        self._width = p_train.features.size(1)
        target = getattr(p_train, "target", None) if kind_of(p_train) == "classes" else None
        group = torch.zeros(len(h)).long() if target is None else target.cpu()
        group = torch.unique(group, return_inverse=True)[1]
        size = group.bincount().double().unsqueeze(1)
        means = torch.zeros(len(size), h.size(1), dtype=h.dtype).index_add_(0, group, h) / size
        self._factor = torch.linalg.cholesky(shrunk_covariance(h - means[group]))
        self._means = self._whiten(means)
        return self

    def __call__(self, p: Any) -> Tensor:
        if self._means is None:
            raise NotFittedError("a fitted score", "one without fit", "Call fit(p_train) first.")
        whitened = self._whiten(_features(p, self.seed, self._width))
        return _nearest(whitened, self._means, 1)

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
        >>> from gduq.prediction import Prediction
        >>> train = Prediction(torch.zeros(2, 2), features=torch.eye(2))
        >>> KNN(k=1).fit(train)(train)
        tensor([0., 0.], dtype=torch.float64)
    """

    def __init__(self, k: int = 10, *, seed: int = 0) -> None:
        self.k, self.seed = whole("k", k, 1), seed
        self._known: Tensor | None = None

    def fit(self, p_train: Any) -> KNN:
        """Keep the representations of training predictions."""
        h = _features(p_train, self.seed)
        if len(h) < self.k:
            raise InputError(f"at least k = {self.k} training rows", len(h), "Pass a smaller k.")
        self._width = p_train.features.size(1)
        self._known = F.normalize(h, dim=-1)
        return self

    def __call__(self, p: Any) -> Tensor:
        if self._known is None:
            raise NotFittedError("a fitted score", "one without fit", "Call fit(p_train) first.")
        h = F.normalize(_features(p, self.seed, self._width), dim=-1)
        return _nearest(h, self._known, self.k)


def _features(p: Any, seed: int, width: int | None = None) -> Tensor:
    """Representations ``[m, d]`` in float64, dense and at most 512 wide."""
    features: Tensor | None = getattr(p, "features", None)
    if features is None:
        raise InputError(
            "predictions with features, the representation at the cut",
            "none",
            "Make them with gduq.predict(model, data, features=True), or score the logits.",
        )
    if width is not None and features.size(1) != width:
        raise InputError(f"features of width {width}, as fitted", features.size(1))
    h = features.detach().cpu()
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


def shrunk_covariance(residuals: Tensor) -> Tensor:
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


def _nearest(rows: Tensor, known: Tensor, k: int) -> Tensor:
    """Distance to the k-th nearest of ``known``, block by block: no m x n matrix in memory."""
    blocks = rows.split(max(1, 4_000_000 // len(known)))
    near = (torch.cdist(part, known).topk(k, dim=1, largest=False).values for part in blocks)
    return torch.cat([values[:, -1] for values in near])
