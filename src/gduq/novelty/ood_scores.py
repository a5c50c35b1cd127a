"""Out-of-distribution detection: scores that are larger for stranger rows, and how well they do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from gduq.errors import InputError, NotFittedError
from gduq.metrics import ranking
from gduq.metrics.rows import read
from gduq.prediction.mixture import weighted_mean

__all__ = [
    "KNN",
    "SCORES",
    "Mahalanobis",
    "Score",
    "aupr",
    "auroc",
    "default_score",
    "detection",
    "fpr_at",
    "score",
    "scores_for",
]

_WIDE = 512  # wider representations are projected to this many dimensions first


class Score(Protocol):
    """Anything that gives each row of a prediction a number, larger = more OOD."""

    def __call__(self, p: Any, /) -> Tensor: ...


def auroc(p_id: Any, p_ood: Any, score: str | Score | None = None, train: Any = None) -> float:
    """Area under the ROC curve of telling OOD rows (positive) from ID rows (negative).

    0.5 means the score has no information; it is exactly that for ``"epistemic"`` and ``"spread"``
    when there is only one sample (K = 1).

    Args:
        p_id: Predictions on ID rows. Take the ID test set; the paper took ID validation.
        p_ood: Predictions on OOD rows.
        score: A name of `SCORES`, ``"mahalanobis"``, ``"knn"``, or a function of a prediction; by
            default ``"msp"`` for classes, ``"entropy"`` for labels, ``"std"`` for values.
        train: Training predictions with features; only for ``"mahalanobis"`` and ``"knn"`` by name.

    Example:
        >>> from gduq.prediction import Prediction
        >>> sure, unsure = Prediction(torch.eye(3) * 9), Prediction(torch.eye(3))
        >>> auroc(sure, unsure, score="entropy")
        1.0
    """
    return ranking.auroc(*_scored(p_id, p_ood, score, train))


def aupr(p_id: Any, p_ood: Any, score: str | Score | None = None, train: Any = None) -> float:
    """Average precision with OOD rows as positives; their share is the chance level."""
    return ranking.aupr(*_scored(p_id, p_ood, score, train))


def fpr_at(
    p_id: Any,
    p_ood: Any,
    score: str | Score | None = None,
    train: Any = None,
    recall: float = 0.95,
) -> float:
    """Share of ID rows flagged when ``recall`` of the OOD rows are found."""
    return ranking.false_positive_rate(*_scored(p_id, p_ood, score, train), recall=recall)


def detection(
    p_id: Any,
    p_ood: Any,
    score: str | Score | None = None,
    train: Any = None,
    *,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> ranking.Separation:
    """AUROC, AUPR and FPR at 95 % recall, with bootstrap intervals."""
    sets = _scored(p_id, p_ood, score, train)
    return ranking.separation(*sets, resamples=resamples, level=level, seed=seed)


def score(p: Any, score: str | Score | None = None, train: Any = None) -> Tensor:
    """The score of each row ``[m]``, larger = more OOD; by default that of `default_score`.

    Example:
        >>> from gduq.prediction import Prediction
        >>> score(Prediction(torch.tensor([[0.0, 0.0]])), "msp")
        tensor([0.5000])
    """
    return _resolve(p, score, train)(p)


def scores_for(kind: str) -> tuple[str, ...]:
    """Names of `SCORES` that fit a kind of prediction: classes, labels or values.

    Example:
        >>> scores_for("values")
        ('novelty', 'std', 'epistemic')
    """
    return _BY_KIND[kind]


def default_score(p: Any) -> str:
    """The uncertainty that is asked for when none is named."""
    return _DEFAULT[_kind(p)]


def _kind(p: Any) -> str:
    """Logits and anything else that has no kind are about classes."""
    return str(getattr(p, "kind", "classes"))


def _scored(p_id: Any, p_ood: Any, score: str | Score | None, train: Any) -> tuple[Tensor, Tensor]:
    resolved = _resolve(p_id, score, train)
    return resolved(p_id), resolved(p_ood)


def _resolve(p: Any, score: str | Score | None, train: Any) -> Score:
    if score is None:
        score = default_score(p)
    if not isinstance(score, str):
        if not callable(score):
            raise InputError("the name of a score or a function", type(score).__name__)
        return score
    if score in scores_for(_kind(p)):
        return SCORES[score]
    if score in _FITTED:
        if train is None:
            raise InputError(
                f"training predictions for the score {score!r}", "none", "Pass train=p_train."
            )
        return _FITTED[score]().fit(train)
    names = ", ".join([*scores_for(_kind(p)), *_FITTED])
    about = f" for {_kind(p)}" if score in SCORES else ""
    raise InputError(f"a score{about} from {names}", repr(score))


# -- from the prediction -----------------------------------------------------------------------


def _msp(p: Any) -> Tensor:
    """1 - max softmax, from the odds against it: no ties where the softmax rounds to 1."""
    logits = read(p, labelled=False).logits
    top, label = logits.max(dim=-1, keepdim=True)
    odds = (logits - top).exp_().scatter_(1, label, 0.0).sum(dim=-1)
    return odds / (1.0 + odds)


def _entropy(p: Any) -> Tensor:
    if _kind(p) == "labels":
        return _of_rows(p, "entropy")
    probs = read(p, labelled=False).probs
    entropy: Tensor = torch.special.entr(probs).sum(dim=-1)
    return entropy


def _energy(p: Any) -> Tensor:
    """Of several hypotheses the mean of their energies: the mixture's logits carry none."""
    samples: Tensor | None = getattr(p, "samples", None)
    if samples is None or samples.size(1) == 0:
        return -read(p, labelled=False).logits.logsumexp(dim=-1)
    return -weighted_mean(samples.logsumexp(dim=-1), getattr(p, "weights", None))


def _novelty(p: Any) -> Tensor:
    novelty: Tensor | None = getattr(p, "novelty", None)
    if novelty is None:
        raise InputError(
            "predictions with novelty, which compares rows with the training data",
            "none",
            "Predict with a model that gduq.fit has trained, or choose another score.",
        )
    return novelty


def _epistemic(p: Any) -> Tensor:
    return _of_rows(p, "epistemic")


def _std(p: Any) -> Tensor:
    return _of_rows(p, "std")


def _spread(p: Any) -> Tensor:
    return _of_samples(p, "spread").mean(dim=-1)


def _of_rows(p: Any, name: str) -> Tensor:
    """One number per row: of labels their mean; several values have units of their own."""
    found = _of_samples(p, name)
    if found.dim() == 1:
        return found
    if _kind(p) == "values":
        raise InputError(
            f"one value per row for {name!r}", p.size, "Take p.column(t), or the score 'novelty'."
        )
    return found.mean(dim=1)


def _of_samples(p: Any, name: str) -> Tensor:
    if not hasattr(p, name):
        raise InputError(f"a Prediction with {name!r}", type(p).__name__)
    values: Tensor = getattr(p, name)
    return values


SCORES: dict[str, Score] = {
    "novelty": _novelty,
    "msp": _msp,
    "entropy": _entropy,
    "energy": _energy,
    "epistemic": _epistemic,
    "spread": _spread,
    "std": _std,
}
_BY_KIND = {
    "classes": ("novelty", "msp", "entropy", "energy", "epistemic", "spread"),
    "labels": ("novelty", "entropy", "epistemic"),
    "values": ("novelty", "std", "epistemic"),
}
_DEFAULT = {"classes": "msp", "labels": "entropy", "values": "std"}


# -- from the representation at the cut ---------------------------------------------------------


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
        target = getattr(p_train, "target", None)
        if _kind(p_train) != "classes":
            target = None
        group = torch.zeros(len(h)).long() if target is None else target.cpu()
        group = torch.unique(group, return_inverse=True)[1]
        size = group.bincount().double().unsqueeze(1)
        means = torch.zeros(len(size), h.size(1), dtype=h.dtype).index_add_(0, group, h) / size
        self._factor = torch.linalg.cholesky(_shrunk_covariance(h - means[group]))
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
        normalize: ``False`` keeps the lengths.
        seed: Seed of the projection.

    Example:
        >>> from gduq.prediction import Prediction
        >>> train = Prediction(torch.zeros(2, 2), features=torch.eye(2))
        >>> KNN(k=1).fit(train)(train)
        tensor([0., 0.], dtype=torch.float64)
    """

    def __init__(self, k: int = 10, *, normalize: bool = True, seed: int = 0) -> None:
        if k < 1:
            raise InputError("k >= 1", k)
        self.k, self.normalize, self.seed = k, normalize, seed
        self._known: Tensor | None = None

    def fit(self, p_train: Any) -> KNN:
        """Keep the representations of training predictions."""
        h = _features(p_train, self.seed)
        if len(h) < self.k:
            raise InputError(f"at least k = {self.k} training rows", len(h), "Pass a smaller k.")
        self._width = p_train.features.size(1)
        self._known = self._scaled(h)
        return self

    def __call__(self, p: Any) -> Tensor:
        if self._known is None:
            raise NotFittedError("a fitted score", "one without fit", "Call fit(p_train) first.")
        return _nearest(self._scaled(_features(p, self.seed, self._width)), self._known, self.k)

    def _scaled(self, h: Tensor) -> Tensor:
        return torch.nn.functional.normalize(h, dim=-1) if self.normalize else h


_FITTED: dict[str, Callable[[], Mahalanobis | KNN]] = {"mahalanobis": Mahalanobis, "knn": KNN}


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


def _shrunk_covariance(residuals: Tensor) -> Tensor:
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
    block = max(1, 4_000_000 // len(known))
    return torch.cat(
        [
            torch.cdist(part, known).topk(k, dim=1, largest=False).values[:, -1]
            for part in rows.split(block)
        ]
    )
