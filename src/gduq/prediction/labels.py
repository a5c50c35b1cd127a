"""Labels: `Labels`, the target, and `LabelPrediction`, what a model says of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from gduq.errors import InputError
from gduq.prediction.base import Discrete
from gduq.prediction.classes import ClassPrediction, two_logits
from gduq.prediction.mixture import Part, best_temperature
from gduq.prediction.target import IF_CLASSES, Target, TargetSample, log_mean

__all__ = ["LabelPrediction", "Labels"]


@dataclass(frozen=True, eq=False, repr=False)
class LabelPrediction(Discrete):
    r"""K hypotheses about T yes/no labels of m rows, and what follows from their mixture.

    With logits :math:`s_k` and weight :math:`w_k` of hypothesis k, each of these is ``[m, T]``:

    ============== ================================================================
    ``probs``      :math:`\bar p = \sum_k w_k \sigma(s_k)`, of "yes"
    ``label``      whether ``probs`` is above the label's threshold
    ``confidence`` the probability of the likelier answer
    ``entropy``    of the yes/no distribution, equal to ``aleatoric`` + ``epistemic``
    ``aleatoric``  the entropy the hypotheses agree on
    ``epistemic``  mutual information of label and hypothesis
    ============== ================================================================

    Args:
        samples: Logits ``[K, m, T]``.
        target: 0, 1 or NaN (unknown) ``[m, T]``, or ``None``.
        names: One name per label, used as column names.
        thresholds: Above which probability a label counts as "yes" ``[T]``; default one half.
            `gduq.metrics.label_thresholds` finds them.

    Example:
        >>> p = LabelPrediction(torch.tensor([[[2.0, -1.0]]]), torch.tensor([[1.0, float("nan")]]))
        >>> p.probs.round(decimals=3), p.label
        (tensor([[0.8810, 0.2690]]), tensor([[ True, False]]))
    """

    kind: ClassVar[str] = "labels"
    metrics: ClassVar[tuple[str, ...]] = (
        "accuracy", "balanced_accuracy", "roc_auc", "average_precision", "ece", "nll", "brier",
        "sharpness",
    )  # fmt: skip
    summary: ClassVar[tuple[str, ...]] = (
        "balanced_accuracy", "roc_auc", "average_precision", "ece", "nll",
    )  # fmt: skip
    calibrator: ClassVar[str] = "per_label"
    ood_scores: ClassVar[tuple[str, ...]] = ("entropy", "epistemic", "novelty")
    conformal: ClassVar[str] = "lac"
    shift_columns: ClassVar[tuple[str, ...]] = ("probs",)

    thresholds: Tensor | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.thresholds is not None:
            given = torch.as_tensor(self.thresholds).detach().to(self.samples)
            if given.shape != (self.num_labels,) or not bool(((given >= 0) & (given <= 1)).all()):
                wanted = f"{self.num_labels} thresholds from 0 to 1, one per label"
                raise InputError(wanted, given.tolist())
            self._set("thresholds", given)

    def _checked_target(self, target: Tensor) -> Tensor:
        labels = _entries(target, "the targets", self.num_labels).to(self.samples.dtype)
        if len(labels) != len(self):
            raise InputError(f"labels of {len(self)} rows", len(labels))
        return labels

    @property
    def num_labels(self) -> int:
        """T."""
        return self.width

    @property
    def known(self) -> Tensor:
        """Which labels are known ``[m, T]``; raises without targets."""
        return ~self.require_target().isnan()

    @cached_property
    def _choices(self) -> Tensor:
        """Logits of "no" and "yes" ``[K, m T, 2]``: every label as a row of two classes."""
        return two_logits(self.samples.flatten(1).unsqueeze(-1))

    def _out(self, values: Tensor) -> Tensor:
        return values.view(self.samples.shape[1:]).to(self.samples.dtype)

    @cached_property
    def probs(self) -> Tensor:
        return self._out(self._logs[:, 1].exp())

    @cached_property
    def label(self) -> Tensor:
        if self.thresholds is not None:
            return self.probs > self.thresholds
        no, yes = self._logs.to(self.samples.dtype).unbind(dim=1)  # as `column` compares them
        return (yes > no).view(len(self), self.num_labels)

    def with_thresholds(self, thresholds: Tensor | Sequence[float] | None) -> LabelPrediction:
        """The same probabilities with other thresholds ``[T]``; ``None``: one half for all."""
        return replace(self, thresholds=thresholds)  # type: ignore[arg-type]

    def column(self, t: int) -> ClassPrediction:
        """Label number ``t`` with its threshold as a task of two classes; of the rows whose label
        is known, where there are targets."""
        p = self if self.target is None else self[self.known[:, t]]
        name = self.names[t] if self.names else str(t)
        return ClassPrediction(
            p.samples[..., t : t + 1],
            None if p.target is None else p.target[:, t].long(),
            (f"no {name}", name),
            threshold=None if p.thresholds is None else float(p.thresholds[t]),
            features=p.features,
            weights=p.weights,
            novelty=p.novelty,
            calibrated=p.calibrated,
        )

    def _columns(self) -> dict[str, Any]:
        found = {"prob": self.probs, "label": self.label.long(), "aleatoric": self.aleatoric}
        ends = [f"_{name}" for name in self.names or range(self.num_labels)]
        return self._per_part(ends, found | {"epistemic": self.epistemic})


@dataclass(frozen=True)
class Labels(Target):
    r"""T independent yes/no labels per row: one logit each; NaN in ``y`` means unknown.

    A row's loss is the mean over its known labels of the cross-entropy, and a row counts by how
    many of its labels are known. A masked row is trained towards each label's share of "yes".

    Args:
        names: One name per label.
        rates: Share of "yes" among the known training entries of each label; `gduq.fit` sets it.
        thresholds: Above which probability each label counts as "yes"; ``None`` means one half.
            They are saved with the model; `with_thresholds` changes them at any time.

    Example:
        >>> y = torch.tensor([[1.0, 0.0], [0.0, float("nan")], [0.0, 1.0]])
        >>> target = Labels(("toxic", "active")).fit(TargetSample(y, torch.zeros(3, 2), y))
        >>> [round(rate, 3) for rate in target.rates]
        [0.333, 0.5]
        >>> target.losses(torch.zeros(3, 2), target.check(y, "train"))  # log 2 each
        tensor([0.6931, 0.6931, 0.6931])
    """

    kind: ClassVar[str] = "labels"
    noun: ClassVar[str] = "label"
    form: ClassVar[tuple[str, ...]] = ("num_labels",)

    names: tuple[str, ...] | None = None
    rates: tuple[float, ...] = ()
    thresholds: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        self._set_tuples("names", "rates", "thresholds")
        if not all(0 <= cut <= 1 for cut in self.thresholds or ()):
            raise InputError("thresholds from 0 to 1, one per label", list(self.thresholds or ()))
        if self.rates:
            self._check_widths(len(self.rates), "names", "thresholds")

    @property
    def num_labels(self) -> int:
        """T; 0 before training data were seen."""
        return len(self.rates)

    def with_thresholds(self, thresholds: Tensor | Sequence[float] | None) -> Labels:
        """The same with other thresholds ``[T]``: ``model.target.with_thresholds(t)``."""
        given = thresholds.tolist() if isinstance(thresholds, Tensor) else thresholds
        return replace(self, thresholds=given)  # type: ignore[arg-type]

    def fit(self, sample: TargetSample) -> Labels:
        labels = _entries(sample.y, "train")
        if sample.outputs.size(1) != labels.size(1):
            wanted = f"a network with one output per column of y: {labels.size(1)}"
            raise InputError(wanted, f"one with {sample.outputs.size(1)}", IF_CLASSES)
        self._check_widths(labels.size(1), "names", "thresholds")
        rates = labels.double().nanmean(dim=0).tolist()
        for t, rate in enumerate(rates):
            if not 0 < rate < 1:
                wanted = "training rows with yes and with no for every label"
                raise InputError(wanted, f"a share of yes of {rate:g} for {self._name(t)}")
        return replace(self, rates=tuple(rates))

    def check(self, y: Tensor, name: str) -> Tensor:
        return _entries(y, name, self.num_labels)

    def check_val(self, y: Tensor, train: Tensor) -> Tensor:
        labels = self.check(y, "val")
        if bool(labels.isnan().all()):
            raise InputError("validation rows with known labels", "none", "Pass other rows as val.")
        return labels

    def usable(self, y: Tensor) -> Tensor:
        """Which rows can be learned from ``[n]``: those with a label."""
        return ~y.isnan().reshape(y.size(0), -1).all(dim=1)

    def strata(self, y: Tensor) -> Tensor:
        """The rarest label that is yes; one more number where none is."""
        yes = torch.nan_to_num(y.reshape(y.size(0), -1)) > 0.5
        often = torch.where(yes, yes.sum(dim=0), yes.size(0) + 1)
        return torch.where(yes.any(dim=1), often.argmin(dim=1), yes.size(1))

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        truth = y.nan_to_num(0.0).to(outputs).expand_as(outputs)
        return _over_known(F.binary_cross_entropy_with_logits(outputs, truth, reduction="none"), y)

    def masked_losses(self, outputs: Tensor) -> Tensor:
        rates = outputs.new_tensor(self.rates).expand_as(outputs)
        found = F.binary_cross_entropy_with_logits(outputs, rates, reduction="none")
        return found.mean(dim=-1)

    def row_weights(self, y: Tensor, masked: Tensor | None = None) -> Tensor | None:
        share = (~y.isnan()).to(y.dtype).mean(dim=-1)
        return share if masked is None else torch.where(masked, share.mean(), share)

    def figures(
        self, samples: Tensor, y: Tensor, weights: Tensor | None = None
    ) -> dict[str, float]:
        share = (~y.isnan()).double().mean(dim=-1)
        found = self.nll(samples, y, weights).double()
        return {"val_loss": float((found * share).sum() / share.sum())}

    def nll(self, samples: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        """The mean over the known labels of a row, each by itself."""
        sign = torch.where(y.nan_to_num(0.0) > 0.5, 1.0, -1.0).to(samples)
        return _over_known(-log_mean(F.logsigmoid(sign * samples), weights), y)

    def best_temperature(self, parts: Sequence[Part], weights: Tensor | None = None) -> float:
        known = [(samples, y, ~y.isnan(), share) for samples, y, share in parts]
        flat = [(two_logits(z[:, k].unsqueeze(-1)), y[k].long(), v) for z, y, k, v in known]
        return best_temperature(flat, weights)

    def prediction(self, samples: Tensor, y: Tensor | None = None, **more: Any) -> LabelPrediction:
        return LabelPrediction(samples, y, self.names or (), self.thresholds, **more)  # type: ignore[arg-type]


def _over_known(found: Tensor, y: Tensor) -> Tensor:
    """The mean over the known labels of each row."""
    known = ~y.isnan()
    return (found * known).sum(dim=-1) / known.sum(dim=-1).clamp_min(1)


def _entries(y: Tensor, name: str, width: int | None = None) -> Tensor:
    """Labels ``[m, T]`` of 0, 1 and NaN, as floats."""
    labels = y.unsqueeze(1) if y.dim() == 1 else y
    if labels.dim() != 2 or width not in (None, labels.size(1)):
        raise InputError(f"y of shape [m, {width or 'T'}] in {name}", list(y.shape))
    labels = labels if labels.is_floating_point() else labels.to(torch.get_default_dtype())
    if not bool(((labels == 0) | (labels == 1) | labels.isnan()).all()):
        raise InputError(f"labels 0, 1 or NaN (unknown) in {name}", "other numbers")
    return labels
