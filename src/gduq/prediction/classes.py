"""Classes: `Classes`, the target, and `ClassPrediction`, what a model says of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from gduq.errors import InputError, warn_user
from gduq.prediction import mixture
from gduq.prediction.base import Discrete, Prediction
from gduq.prediction.mixture import Part, best_temperature
from gduq.prediction.target import Target, TargetSample

__all__ = ["ClassPrediction", "ClassWeights", "Classes"]

ClassWeights = Tensor | Sequence[float] | str | None

_UNLABELLED = "Leave out rows without a class."


@dataclass(frozen=True, eq=False, repr=False)
class ClassPrediction(Discrete):
    r"""K hypotheses about m rows, and everything that follows from their mixture.

    With logits :math:`s_k` and weight :math:`w_k` of hypothesis k, :math:`p_k =
    \mathrm{softmax}(s_k)`:

    ============== ========= ================================================================
    ``probs``      ``[m,C]`` :math:`\bar p = \sum_k w_k p_k`, the mixture
    ``log_probs``  ``[m,C]`` its logarithm, which does not underflow
    ``confidence`` ``[m]``   largest entry of ``probs``
    ``label``      ``[m]``   its index, unless ``threshold`` decides
    ``entropy``    ``[m]``   :math:`H(\bar p)`, equal to ``aleatoric`` + ``epistemic``
    ``aleatoric``  ``[m]``   :math:`\sum_k w_k H(p_k)`, the entropy the hypotheses agree on
    ``epistemic``  ``[m]``   :math:`\sum_k w_k \mathrm{KL}(p_k \| \bar p)`, mutual information
    ``spread``     ``[m,C]`` standard deviation of :math:`p_k` over k (see `mixture.deviation`)
    ``logits``     ``[m,C]`` :math:`\mu = \sum_k w_k s_k`, which the paper's rules are about
    ============== ========= ================================================================

    A one-logit (binary) task is seen as two logits ``(0, z)``; half floats become single.

    Args:
        samples: Logits ``[K, m, C]``; ``[m, C]`` is taken as K = 1.
        target: Integer labels ``[m]``, or ``None`` when unknown.
        names: One name per class, used as column names.
        threshold: Above which probability the second of two classes is the answer; ``None``: the
            most likely class is.
        features, weights, novelty, calibrated: As in `Prediction`.

    Example:
        >>> import torch
        >>> p = ClassPrediction(torch.tensor([[[9.0, 0.0]], [[0.0, 0.0]]]), torch.tensor([0]))
        >>> p.probs, p.label
        (tensor([[0.7499, 0.2501]]), tensor([0]))
        >>> round(p.epistemic.item(), 4), round((p.entropy - p.aleatoric).item(), 4)
        (0.2152, 0.2152)
    """

    kind: ClassVar[str] = "classes"
    metrics: ClassVar[tuple[str, ...]] = (
        "accuracy", "balanced_accuracy", "roc_auc", "average_precision", "ece", "ece_debiased",
        "ece100", "adaptive_ece", "classwise_ece", "nll", "brier", "aurc", "sharpness",
    )  # fmt: skip
    summary: ClassVar[tuple[str, ...]] = (
        "accuracy", "balanced_accuracy", "roc_auc", "average_precision", "ece", "nll",
    )  # fmt: skip
    calibrator: ClassVar[str] = "temperature"
    ood_scores: ClassVar[tuple[str, ...]] = (
        "msp", "entropy", "energy", "epistemic", "spread", "novelty",
    )  # fmt: skip
    conformal: ClassVar[str] = "lac"
    shift_columns: ClassVar[tuple[str, ...]] = ("probs", "confidence")

    threshold: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.threshold is not None:
            if self.num_classes != 2 or not 0 <= float(self.threshold) <= 1:
                got = f"{float(self.threshold):g} with {self.num_classes} classes"
                raise InputError("a threshold from 0 to 1 with two classes", got)
            self._set("threshold", float(self.threshold))

    def _checked_samples(self, samples: Tensor) -> Tensor:
        return two_logits(samples) if samples.size(2) == 1 else samples

    def _checked_target(self, target: Tensor) -> Tensor:
        return _as_labels(target, len(self), self.num_classes, "the targets")

    @property
    def num_classes(self) -> int:
        """C, the number of classes (2 for a one-logit task)."""
        return self.width

    def parts(self) -> dict[str, Prediction]:
        return {"": self}

    # -- what follows from the samples ---------------------------------------------------------

    @property
    def _choices(self) -> Tensor:
        return self.samples

    def _out(self, values: Tensor) -> Tensor:
        return values.to(self.samples.dtype)

    @cached_property
    def log_probs(self) -> Tensor:
        return self._out(self._logs)

    @cached_property
    def probs(self) -> Tensor:
        return self._out(self._logs.exp())

    @cached_property
    def label(self) -> Tensor:
        if self.threshold is not None:
            return (self.probs[:, 1] > self.threshold).long()
        return self.log_probs.argmax(dim=-1)  # what metrics read, so they never differ

    @cached_property
    def msp(self) -> Tensor:
        """1 - ``confidence`` ``[m]``, from the odds against it: no ties where that rounds to 1."""
        top, label = self.log_probs.max(dim=-1, keepdim=True)
        odds = (self.log_probs - top).exp().scatter(1, label, 0.0).sum(dim=-1)
        return odds / (1.0 + odds)

    @cached_property
    def energy(self) -> Tensor:
        """Mean over hypotheses of the negative log-sum-exp of their logits ``[m]``."""
        return -mixture.weighted_mean(self.samples.logsumexp(dim=-1), self.weights)

    @cached_property
    def spread(self) -> Tensor:
        return mixture.deviation(self.samples.softmax(dim=-1), self.weights)

    @cached_property
    def logits(self) -> Tensor:
        return mixture.weighted_mean(self.samples, self.weights)

    @property
    def correct(self) -> Tensor:
        """Whether each row's label is right ``[m]``; raises without targets."""
        return self.label == self.require_target()

    # -- new predictions from this one ---------------------------------------------------------

    def mean_logits(self) -> ClassPrediction:
        r"""The paper's average: one hypothesis, :math:`\mu`.

        The temperature was fitted to the mixture, not to it: ``calibrated`` is ``None``.
        """
        return self._alone(self.logits)

    def rescaled(self, rule: Literal["paper", "released"]) -> ClassPrediction:
        r"""The mean logits pulled towards zero where the hypotheses disagree: K = 1.

        * ``"paper"``: :math:`\mu \odot (1 - \sigma)`, with :math:`\sigma` = ``spread``.
        * ``"released"``: :math:`\mu / (1 + e^{\bar\sigma})`, where :math:`\bar\sigma` is the mean
          over classes (the one logit of a binary task) of the deviation of element-wise sigmoids.
          The divisor is at least 2 even when all hypotheses agree (compare with temperature 2),
          but one hypothesis alone stays as it is.

        As of `mean_logits`, ``calibrated`` is ``None``.
        """
        if rule == "paper":
            return self._alone(self.logits * (1.0 - self.spread))
        if rule == "released":
            if self.num_samples == 1:
                return self.mean_logits()
            one_logit = self.num_classes == 2 and not self.samples[..., 0].any()
            own = self.samples[..., 1:] if one_logit else self.samples
            deviation = mixture.deviation(own.sigmoid(), self.weights).mean(dim=-1, keepdim=True)
            return self._alone(self.logits / (1.0 + deviation.exp()))
        raise InputError("the rule 'paper' or 'released'", repr(rule))

    def _alone(self, logits: Tensor) -> ClassPrediction:
        return replace(self, samples=logits.unsqueeze(0), weights=None, calibrated=None)

    def _columns(self) -> dict[str, Any]:
        names = self.names or tuple(str(c) for c in range(self.num_classes))
        columns: dict[str, Any] = {"label": self.label}
        if self.names:
            columns["class"] = np.asarray(names, dtype=object)[self.label.cpu().numpy()]
        for name in ("confidence", "entropy", "aleatoric", "epistemic", "spread", "novelty"):
            columns[name] = getattr(self, name)
        columns["spread"] = self.spread.mean(dim=-1)
        columns |= {f"prob_{name}": self.probs[:, c] for c, name in enumerate(names)}
        columns["target"] = self.target
        return {name: found for name, found in columns.items() if found is not None}


@dataclass(frozen=True)
class Classes(Target):
    r"""One of C classes per row: softmax over C logits, or one logit for two classes.

    A row's loss is :math:`-\log p_y`, that of a masked row :math:`-\frac1C \sum_c \log p_c`.

    Args:
        num_classes: C.
        names: One name per class, or ``None``.
        one_logit: Whether the network gives one logit, that of class 1 of two.
        weights: One weight per class for training, or ``None``.
        codes: The whole number that stands for each class in ``y``, ascending; ``None``: 0, 1, ...

    Example:
        >>> Classes(4).masked_losses(torch.zeros(1, 4))  # log 4
        tensor([1.3863])
    """

    kind: ClassVar[str] = "classes"
    noun: ClassVar[str] = "class"
    form: ClassVar[tuple[str, ...]] = ("num_classes", "one_logit")

    num_classes: int
    names: tuple[str, ...] | None = None
    one_logit: bool = False
    weights: tuple[float, ...] | None = None
    codes: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        self._set_tuples("names", "weights", "codes")
        if self.codes is not None:
            codes = self.codes
            if any(type(c) is not int for c in codes) or [*codes] != sorted({*codes}):
                raise InputError("codes of classes, ascending whole numbers", list(codes))
            if self.names is None:
                object.__setattr__(self, "names", tuple(str(code) for code in codes))
        self._check_widths(self.num_classes, "names", "weights", "codes")
        if self.one_logit and self.num_classes != 2:
            raise InputError("two classes for one logit", self.num_classes)

    @classmethod
    def of_outputs(cls, count: int) -> Classes:
        """As many classes as outputs; one output is the logit of two."""
        return cls(max(2, count), one_logit=count == 1)

    def fit(self, sample: TargetSample, weights: ClassWeights = None) -> Classes:
        """With these weights of the classes, or those that were given."""
        width = sample.outputs.size(1)
        if width != (1 if self.one_logit else self.num_classes):
            wanted = f"a network with {self.num_classes} outputs, one per class"
            raise InputError(wanted, f"{width} outputs")
        labels = self.check(sample.y, "train")
        if labels.numel() and bool((labels == labels[0]).all()):
            got = f"only class {int(labels[0])} in {labels.numel()} row(s)"
            raise InputError("training labels of at least two classes", got)
        counts = torch.bincount(labels, minlength=self.num_classes)
        return replace(self, weights=_weights(self.weights if weights is None else weights, counts))

    def encode(self, y: Tensor, name: str = "y") -> Tensor:
        if self.codes is None:
            return y
        labels, codes = _integers(y, name), torch.tensor(self.codes, device=y.device)
        places = torch.searchsorted(codes, labels).clamp(max=self.num_classes - 1)
        strange = labels[codes[places] != labels]
        if strange.numel():
            wanted = f"the classes {', '.join(map(str, self.codes))} in {name}"
            raise InputError(wanted, int(strange[0]), _UNLABELLED)
        return places

    def check(self, y: Tensor, name: str) -> Tensor:
        return _as_labels(self.encode(y, name), len(y), self.num_classes, name)

    def check_val(self, y: Tensor, train: Tensor) -> Tensor:
        labels, known = self.check(y, "val"), self.check(train, "train")
        unseen = labels[~torch.isin(labels, known.to(labels.device))]
        if unseen.numel():
            number = int(unseen[0])
            name = f"class {number}" if self.names is None else f"'{self.names[number]}'"
            share = f"{unseen.numel()} of {labels.numel()} validation rows"
            warn_user(f"{share} are of classes that no training row has, such as {name}")
        return labels

    def strata(self, y: Tensor) -> Tensor:
        return y.long()

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        return -_of_class(self._logits(outputs).log_softmax(dim=-1), y)

    def masked_losses(self, outputs: Tensor) -> Tensor:
        return -self._logits(outputs).log_softmax(dim=-1).mean(dim=-1)

    def row_weights(self, y: Tensor, masked: Tensor | None = None) -> Tensor | None:
        if self.weights is None:
            return None
        found = torch.tensor(self.weights, device=y.device)[y]
        return found if masked is None else torch.where(masked, 1.0, found)

    def figures(
        self, samples: Tensor, y: Tensor, weights: Tensor | None = None
    ) -> dict[str, float]:
        p = ClassPrediction(samples, y, weights=weights)
        loss = -_of_class(p.log_probs, y).double().mean()
        return {"val_loss": float(loss), "val_accuracy": float(p.correct.double().mean())}

    def best_temperature(self, parts: Sequence[Part], weights: Tensor | None = None) -> float:
        wide = [(self._logits(samples), y, weight) for samples, y, weight in parts]
        return best_temperature(wide, weights)

    def prediction(self, samples: Tensor, y: Tensor | None = None, **more: Any) -> ClassPrediction:
        return ClassPrediction(samples, y, self.names or (), **more)

    def _logits(self, outputs: Tensor) -> Tensor:
        return two_logits(outputs) if self.one_logit else outputs


def two_logits(one: Tensor) -> Tensor:
    """Logits ``[..., 2]`` of no and yes, from that of yes ``[..., 1]``: ``(0, z)``."""
    return torch.cat([torch.zeros_like(one), one], dim=-1)


def _as_labels(target: Tensor, rows: int, classes: int, name: str) -> Tensor:
    """Integer labels ``[m]``."""
    labels = _integers(torch.as_tensor(target), name)
    if len(labels) != rows:
        raise InputError(f"targets of shape [{rows}], one per row", list(target.shape))
    if rows and (int(labels.min()) < 0 or int(labels.max()) >= classes):
        got = f"{int(labels.min())} to {int(labels.max())}"
        raise InputError(f"classes from 0 to {classes - 1} in {name}", got, _UNLABELLED)
    return labels


def _of_class(values: Tensor, y: Tensor) -> Tensor:
    """The entry of its class ``[..., m]`` of every row of ``[..., m, C]``."""
    return values.gather(-1, y.expand(values.shape[:-1]).unsqueeze(-1)).squeeze(-1)


def _integers(y: Tensor, name: str) -> Tensor:
    """Labels ``[m]`` or ``[m, 1]`` of any dtype as whole numbers ``[m]``."""
    if y.dim() > 1 and y.numel() != y.size(0):
        one_hot = y.dim() == 2 and bool(((y == 0) | (y == 1)).all() and (y.sum(dim=1) == 1).all())
        do = "It is one-hot: pass y.argmax(dim=1)." if one_hot else "Train one task at a time."
        raise InputError(f"one class per row in {name}", f"shape {list(y.shape)}", do)
    flat = y.reshape(-1)
    labels = flat.long()
    if not torch.equal(labels.to(y.dtype), flat):
        do = 'Leave rows without a class out, or pass target="labels" or "values".'
        raise InputError(f"whole numbers in {name}", f"{y.dtype} with fractions or NaN", do)
    return labels


def _weights(choice: ClassWeights, counts: Tensor) -> tuple[float, ...] | None:
    r"""The weight of each class; ``"balanced"`` is :math:`m / (C\, m_c)`."""
    classes = len(counts)
    if choice is None:
        return None
    if isinstance(choice, str):
        if choice != "balanced":
            raise InputError("class_weights 'balanced' or one number per class", repr(choice))
        return tuple((counts.sum() / (classes * counts.clamp_min(1))).tolist())
    weights = torch.as_tensor(choice, dtype=torch.get_default_dtype())
    if weights.shape != (classes,) or not bool(((weights > 0) & weights.isfinite()).all()):
        raise InputError(f"{classes} class_weights above 0, one per class", weights.tolist())
    return tuple(weights.tolist())
