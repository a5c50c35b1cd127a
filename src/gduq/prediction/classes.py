"""Choices: the targets `Classes` and `Labels`, and what a model says of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gduq.errors import InputError, warn_user
from gduq.prediction import mixture
from gduq.prediction.base import Columns, Prediction
from gduq.prediction.mixture import Part, Weights
from gduq.prediction.target import IF_CLASSES, Target, TargetSample, columns_of

__all__ = ["ClassPrediction", "ClassWeights", "Classes", "LabelPrediction", "Labels"]

ClassWeights = Tensor | Sequence[float] | str | None


class Discrete(Prediction):
    """What classes and labels share: each is a choice, of which hypotheses have logits.

    Differences of entropies are taken in float64.
    """

    @property
    def _choices(self) -> Tensor:
        """Logits ``[K, ..., C]`` of choices between C."""
        return self.samples

    @cached_property
    def _logs(self) -> Tensor:
        return mixture.log_mixture(self._choices, self.weights)

    @cached_property
    def _entropy(self) -> Tensor:
        return -(self._logs.exp() * self._logs).sum(dim=-1)

    @cached_property
    def _parts(self) -> tuple[Tensor, ...]:
        information = mixture.disagreement(self._choices, self._logs, self.weights)
        return (self._entropy - information).clamp_min(0.0), information

    @cached_property
    def log_probs(self) -> Tensor:
        return self._out(self._logs)

    @cached_property
    def label(self) -> Tensor:
        return self.log_probs.argmax(dim=-1)  # what metrics read, so they never differ

    @cached_property
    def confidence(self) -> Tensor:
        return self._out(self._logs.exp().amax(dim=-1))

    @cached_property
    def entropy(self) -> Tensor:
        return self._out(self._entropy)

    @property
    def chance(self) -> float:  # type: ignore[override]
        return 1 / self._choices.size(-1)

    def certainty(self, tolerance: Tensor) -> Tensor:
        return self.confidence

    def is_right(self, tolerance: Tensor) -> Tensor:
        target = self.require_target()
        return (self.label == target).double().masked_fill(target.isnan(), torch.nan)


@dataclass(frozen=True, eq=False, repr=False)
class ClassPrediction(Discrete):
    r"""K hypotheses about m rows, and everything that follows from their mixture.

    With logits :math:`s_k` and weight :math:`w_k` of hypothesis k, :math:`p_k =
    \mathrm{softmax}(s_k)`:

    ============== ========= ================================================================
    ``probs``      ``[m,C]`` :math:`\bar p = \sum_k w_k p_k`, the mixture
    ``log_probs``  ``[m,C]`` its logarithm, which does not underflow
    ``confidence`` ``[m]``   largest entry of ``probs``
    ``label``      ``[m]``   its index
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
        features, weights, novelty, calibrated: As in `Prediction`.

    Example:
        >>> import torch
        >>> p = ClassPrediction(torch.tensor([[[9.0, 0.0]], [[0.0, 0.0]]]), torch.tensor([0]))
        >>> p.probs, p.label
        (tensor([[0.7499, 0.2501]]), tensor([0]))
        >>> round(p.epistemic.item(), 4), round((p.entropy - p.aleatoric).item(), 4)
        (0.2152, 0.2152)
    """

    kind = "classes"
    metrics = (
        "accuracy", "balanced_accuracy", "roc_auc", "average_precision", "ece", "ece_debiased",
        "ece100", "adaptive_ece", "classwise_ece", "nll", "brier", "aurc", "error_auroc",
        "trust_aurc", "trust_error_auroc", "trust_gap", "sharpness",
    )  # fmt: skip
    summary = ("accuracy", "balanced_accuracy", "roc_auc", "average_precision", "ece", "nll")
    calibrator = "temperature"
    ood_scores = ("msp", "entropy", "energy", "epistemic", "spread", "novelty")
    conformal = "lac"
    shift_columns = ("probs", "confidence")

    def _checked_samples(self, samples: Tensor) -> Tensor:
        return two_logits(samples) if samples.size(2) == 1 else samples

    def _checked_target(self, target: Tensor) -> Tensor:
        return _numbers(target, range(self.width), "the targets")

    num_classes = Prediction.width  # C; 2 for a one-logit task

    def parts(self) -> dict[str, Prediction]:
        return {"": self}

    @cached_property
    def probs(self) -> Tensor:
        return self._out(self._logs.exp())

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

    def mean_logits(self) -> ClassPrediction:
        r"""The paper's average :math:`\mu`: one hypothesis, for which no temperature was fitted."""
        return replace(self, samples=self.logits, weights=None, calibrated=None)

    def rescaled(self, rule: Literal["paper", "released"]) -> ClassPrediction:
        r"""`mean_logits` pulled towards zero where the hypotheses disagree.

        * ``"paper"``: :math:`\mu \odot (1 - \sigma)`, with :math:`\sigma` = ``spread``.
        * ``"released"``: :math:`\mu / (1 + e^{\bar\sigma})`, where :math:`\bar\sigma` is the mean
          over classes (the one logit of a binary task) of the deviation of element-wise sigmoids:
          at least 2 even when all hypotheses agree, but one hypothesis alone stays as it is.
        """
        if rule not in ("paper", "released"):
            raise InputError("the rule 'paper' or 'released'", repr(rule))
        alone = self.mean_logits()
        if rule == "paper":
            return alone.with_samples(self.logits * (1.0 - self.spread))
        if self.num_samples == 1:
            return alone
        one_logit = self.num_classes == 2 and not self.samples[..., 0].any()
        own = self.samples[..., 1:] if one_logit else self.samples
        deviation = mixture.deviation(own.sigmoid(), self.weights).mean(dim=-1, keepdim=True)
        return alone.with_samples(self.logits / (1.0 + deviation.exp()))

    def _answers(self) -> Columns:
        columns: Columns = {"label": self.label}
        if self.names:
            columns["class"] = np.array(self.names, dtype=object)[self.label.cpu().numpy()]
        columns |= {"confidence": self.confidence, "entropy": self.entropy}
        return columns | {"spread": self.spread.mean(dim=-1), "prob": self.probs}


@dataclass(frozen=True, eq=False, repr=False)
class LabelPrediction(Discrete):
    r"""K hypotheses about T yes/no labels of m rows, and what follows from their mixture.

    ``probs`` are :math:`\bar p = \sum_k w_k \sigma(s_k)` of "yes", with logits :math:`s_k` and
    weight :math:`w_k` of hypothesis k, and ``label`` says whether they are above one half.
    ``confidence``, ``entropy``, ``aleatoric`` and ``epistemic`` are those of `ClassPrediction`, of
    every label as two classes. Each is ``[m, T]``.

    Args:
        samples: Logits ``[K, m, T]``.
        target: 0, 1 or NaN (unknown) ``[m, T]``, or ``None``.
        names: One name per label, used as column names.

    Example:
        >>> p = LabelPrediction(torch.tensor([[[2.0, -1.0]]]), torch.tensor([[1.0, float("nan")]]))
        >>> p.probs.round(decimals=3), p.label
        (tensor([[0.8810, 0.2690]]), tensor([[1, 0]]))
    """

    kind = "labels"
    metrics = (
        "accuracy", "balanced_accuracy", "roc_auc", "average_precision", "ece", "nll", "brier",
        "error_auroc", "trust_aurc", "trust_error_auroc", "trust_gap", "sharpness",
    )  # fmt: skip
    summary = ("balanced_accuracy", "roc_auc", "average_precision", "ece", "nll")
    calibrator = "per_label"
    ood_scores = ("entropy", "epistemic", "novelty")
    conformal = "lac"
    shift_columns = ("probs",)

    def _checked_target(self, target: Tensor) -> Tensor:
        return _entries(target, "the targets", self.width).to(self.samples.dtype)

    @cached_property
    def _choices(self) -> Tensor:
        """Logits of "no" and "yes" ``[K, m, T, 2]``."""
        return two_logits(self.samples.unsqueeze(-1))

    @cached_property
    def probs(self) -> Tensor:
        return self._out(self._logs[..., 1].exp())

    def column(self, t: int) -> ClassPrediction:
        name = self.names[t] if self.names else str(t)
        return ClassPrediction(**self._fields_of(t, [t]) | {"names": (f"no {name}", name)})

    def _answers(self) -> Columns:
        return {"prob": self.probs, "label": self.label}


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
        super().__post_init__()
        if self.codes is not None:
            codes = self.codes
            if any(type(c) is not int for c in codes) or [*codes] != sorted({*codes}):
                raise InputError("codes of classes, ascending whole numbers", list(codes))
            if self.names is None:
                object.__setattr__(self, "names", tuple(map(str, codes)))
        if self.one_logit and self.num_classes != 2:
            raise InputError("two classes for one logit", self.num_classes)

    @property
    def width(self) -> int:
        return self.num_classes

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
        return _numbers(y, self.codes or range(self.num_classes), name)

    def check_val(self, y: Tensor, train: Tensor) -> Tensor:
        labels, known = self.check(y, "val"), self.check(train, "train")
        unseen = labels[~torch.isin(labels, known.to(labels.device))]
        if unseen.numel():
            share = f"{unseen.numel()} of {labels.numel()} validation rows"
            such = self._name(int(unseen[0]))
            warn_user(f"{share} are of classes that no training row has, such as {such}")
        return labels

    def strata(self, y: Tensor) -> Tensor:
        return y.long()

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        logs = self._logits(outputs).log_softmax(dim=-1)
        return -logs.gather(-1, y.expand(logs.shape[:-1]).unsqueeze(-1))

    def masked_losses(self, outputs: Tensor) -> Tensor:
        return -self._logits(outputs).log_softmax(dim=-1)

    def row_weights(self, y: Tensor, masked: Tensor | None = None) -> Tensor:
        if self.weights is None:
            return super().row_weights(y, masked)
        found = torch.tensor(self.weights, device=y.device)[y]
        return found if masked is None else torch.where(masked, 1.0, found)

    def figures(self, samples: Tensor, y: Tensor, weights: Weights = None) -> dict[str, float]:
        right = ClassPrediction(samples, y, weights=weights).correct.double()
        return super().figures(samples, y, weights) | {"val_accuracy": float(right.mean())}

    def best_temperature(self, parts: Sequence[Part], weights: Weights = None) -> float:
        wide = [(self._logits(samples), y, share) for samples, y, share in parts]
        return mixture.best_temperature(wide, weights)

    def _logits(self, outputs: Tensor) -> Tensor:
        return two_logits(outputs) if self.one_logit else outputs


def two_logits(one: Tensor) -> Tensor:
    """Logits ``[..., 2]`` of no and yes, from that of yes ``[..., 1]``: ``(0, z)``."""
    return torch.cat([torch.zeros_like(one), one], dim=-1)


def _numbers(y: Tensor, codes: Sequence[int], name: str) -> Tensor:
    """The numbers ``[m]`` of classes, from their codes ``[m]`` or ``[m, 1]`` of any dtype."""
    if y.dim() > 1 and y.numel() != y.size(0):
        one_hot = y.dim() == 2 and bool(((y == 0) | (y == 1)).all() and (y.sum(dim=1) == 1).all())
        do = "It is one-hot: pass y.argmax(dim=1)." if one_hot else "Train one task at a time."
        raise InputError(f"one class per row in {name}", f"shape {list(y.shape)}", do)
    flat = y.reshape(-1).contiguous()
    labels = flat.long()
    if not torch.equal(labels.to(y.dtype), flat):
        do = 'Leave rows without a class out, or pass target="labels" or "values".'
        raise InputError(f"whole numbers in {name}", f"{y.dtype} with fractions or NaN", do)
    known = torch.tensor([*codes], device=y.device)
    numbers = torch.searchsorted(known, labels).clamp(max=len(known) - 1)
    strange = labels[known[numbers] != labels]
    if strange.numel():
        wanted = f"the classes {', '.join(map(str, codes))} in {name}"
        raise InputError(wanted, int(strange[0]), "Leave out rows without a class.")
    return numbers


def _weights(choice: ClassWeights, counts: Tensor) -> tuple[float, ...] | None:
    r"""The weight of each class; ``"balanced"`` is :math:`m / (C\, m_c)`."""
    if choice is None:
        return None
    if isinstance(choice, str):
        if choice != "balanced":
            raise InputError("class_weights 'balanced' or one number per class", repr(choice))
        choice = counts.sum() / (len(counts) * counts.clamp_min(1))
    weights = torch.as_tensor(choice, dtype=torch.get_default_dtype())
    if weights.shape != counts.shape or not bool(((weights > 0) & weights.isfinite()).all()):
        raise InputError(f"{len(counts)} class_weights above 0, one per class", weights.tolist())
    return tuple(weights.tolist())


@dataclass(frozen=True)
class Labels(Target):
    r"""T independent yes/no labels per row: one logit each; NaN in ``y`` means unknown.

    A row's loss is the mean over its known labels of the cross-entropy, and a row counts by how
    many of its labels are known. A masked row is trained towards each label's share of "yes".

    Args:
        names: One name per label.
        rates: Share of "yes" among the known training entries of each label; `gduq.fit` sets it.

    Example:
        >>> y = torch.tensor([[1.0, 0.0], [0.0, float("nan")], [0.0, 1.0]])
        >>> target = Labels(("toxic", "active")).fit(TargetSample(y, torch.zeros(3, 2), y))
        >>> [round(rate, 3) for rate in target.rates]
        [0.333, 0.5]
    """

    kind: ClassVar[str] = "labels"
    noun: ClassVar[str] = "label"
    form: ClassVar[tuple[str, ...]] = ("width",)

    names: tuple[str, ...] | None = None
    rates: tuple[float, ...] = ()

    @property
    def width(self) -> int:
        return len(self.rates)

    def fit(self, sample: TargetSample) -> Labels:
        labels = _entries(sample.y, "train")
        if sample.outputs.size(1) != labels.size(1):
            wanted = f"a network with one output per column of y: {labels.size(1)}"
            raise InputError(wanted, f"one with {sample.outputs.size(1)}", IF_CLASSES)
        found = replace(self, rates=tuple(labels.double().nanmean(dim=0).tolist()))
        for t, rate in enumerate(found.rates):
            if not 0 < rate < 1:
                wanted = "training rows with yes and with no for every label"
                raise InputError(wanted, f"a share of yes of {rate:g} for {self._name(t)}")
        return found

    def check(self, y: Tensor, name: str) -> Tensor:
        return _entries(y, name, self.width)

    def strata(self, y: Tensor) -> Tensor:
        """The rarest label that is yes; one more number where none is."""
        yes = torch.nan_to_num(y.reshape(y.size(0), -1)) > 0.5
        often = torch.where(yes, yes.sum(dim=0), yes.size(0) + 1)
        return torch.where(yes.any(dim=1), often.argmin(dim=1), yes.size(1))

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        truth = y.nan_to_num(0.0).to(outputs).expand_as(outputs)
        return F.binary_cross_entropy_with_logits(outputs, truth, reduction="none")

    def masked_losses(self, outputs: Tensor) -> Tensor:
        rates = outputs.new_tensor(self.rates).expand_as(outputs)
        return F.binary_cross_entropy_with_logits(outputs, rates, reduction="none")

    def best_temperature(self, parts: Sequence[Part], weights: Weights = None) -> float:
        known = [(samples, y, ~y.isnan(), share) for samples, y, share in parts]
        flat = [(two_logits(z[:, k].unsqueeze(-1)), y[k].long(), v) for z, y, k, v in known]
        return mixture.best_temperature(flat, weights)


def _entries(y: Tensor, name: str, width: int | None = None) -> Tensor:
    """Labels ``[m, T]`` of 0, 1 and NaN, as floats."""
    labels = columns_of(y, name, width)
    if not bool(((labels == 0) | (labels == 1) | labels.isnan()).all()):
        raise InputError(f"labels 0, 1 or NaN (unknown) in {name}", "other numbers")
    return labels
