"""`Labels`: T yes/no labels per row, of which some may be unknown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from gduq.errors import InputError
from gduq.prediction.labels import LabelPrediction
from gduq.prediction.temperature import best_temperature
from gduq.targets.base import FirstLook, Part, Target, log_mean

__all__ = ["Labels"]


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
        >>> target = Labels(("toxic", "active")).told(FirstLook(y, torch.zeros(3, 2), y))
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
        """The same labels with other thresholds ``[T]``; ``None`` means one half for all.

        ``model.target = model.target.with_thresholds(t)`` makes a model answer by them.

        Example:
            >>> target = Labels(rates=(0.1,)).with_thresholds([0.2])
            >>> target.prediction(torch.tensor([[[-1.0]], [[-1.2]]])).label
            tensor([[True]])
        """
        given = thresholds.tolist() if isinstance(thresholds, Tensor) else thresholds
        return replace(self, thresholds=None if given is None else tuple(given))

    def told(self, look: FirstLook) -> Labels:
        labels = _entries(look.y, "train")
        if look.outputs.size(1) != labels.size(1):
            raise InputError(
                f"a network with one output per column of y: {labels.size(1)}",
                f"one with {look.outputs.size(1)}",
                "If y should be classes: whole numbers from 0 up, one per row.",
            )
        self._check_widths(labels.size(1), "names", "thresholds")
        rates = labels.double().nanmean(dim=0)
        for t, rate in enumerate(rates.tolist()):
            if not 0 < rate < 1:
                missing = "any known entry" if rate != rate else '"yes"' if rate == 0 else '"no"'
                raise InputError(
                    "training rows with yes and with no for every label",
                    f"{self._name(t)} without {missing}",
                    "Leave that column out.",
                )
        return replace(self, rates=tuple(rates.tolist()))

    def check(self, y: Tensor, name: str) -> Tensor:
        labels = _entries(y, name)
        if labels.size(1) != self.num_labels:
            raise InputError(
                f"{self.num_labels} labels per row in {name}, as the model was trained with",
                labels.size(1),
            )
        return labels

    def check_val(self, y: Tensor, train: Tensor) -> Tensor:
        labels = self.check(y, "val")
        if bool(labels.isnan().all()):
            raise InputError("validation rows with known labels", "none", "Pass other rows as val.")
        return labels

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        truth = y.nan_to_num(0.0).to(outputs).expand_as(outputs)
        return _over_known(F.binary_cross_entropy_with_logits(outputs, truth, reduction="none"), y)

    def masked_losses(self, outputs: Tensor) -> Tensor:
        rates = outputs.new_tensor(self.rates).expand_as(outputs)
        found = F.binary_cross_entropy_with_logits(outputs, rates, reduction="none")
        return found.mean(dim=-1)

    def row_weights(self, y: Tensor) -> Tensor | None:
        return (~y.isnan()).to(y.dtype).mean(dim=-1)

    def masked_weight(self, y: Tensor) -> float:
        return float((~y.isnan()).double().mean())  # as much as the mean row

    def figures(
        self, samples: Tensor, y: Tensor, weights: Tensor | None = None
    ) -> dict[str, float]:
        """The mean over all known entries."""
        share = (~y.isnan()).double().mean(dim=-1)
        found = self.nll(samples, y, weights).double()
        return {"val_loss": float((found * share).sum() / share.sum())}

    def nll(self, samples: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        """The mean over the known labels of a row, each by itself."""
        sign = torch.where(y.nan_to_num(0.0) > 0.5, 1.0, -1.0).to(samples)
        return _over_known(-log_mean(F.logsigmoid(sign * samples), weights), y)

    def best_temperature(self, parts: Sequence[Part], weights: Tensor | None = None) -> float:
        flat = []
        for samples, y, share in parts:
            known = ~y.isnan()
            chosen = samples[:, known]  # [K, entries]
            pairs = torch.stack([torch.zeros_like(chosen), chosen], dim=-1)
            flat.append((pairs, y[known].long(), share))
        return best_temperature(flat, weights)

    def prediction(self, samples: Tensor, y: Tensor | None = None, **more: Any) -> LabelPrediction:
        cuts = None if self.thresholds is None else torch.tensor(self.thresholds)
        return LabelPrediction(samples, y, self.names, cuts, **more)


def _over_known(found: Tensor, y: Tensor) -> Tensor:
    """The mean over the known labels of each row."""
    known = ~y.isnan()
    return (found * known).sum(dim=-1) / known.sum(dim=-1).clamp_min(1)


def _entries(y: Tensor, name: str) -> Tensor:
    """Labels ``[m, T]`` of 0, 1 and NaN, as floats."""
    labels = y.unsqueeze(1) if y.dim() == 1 else y
    if labels.dim() != 2:
        raise InputError(f"y of shape [m, T] in {name}", list(y.shape))
    labels = labels if labels.is_floating_point() else labels.to(torch.get_default_dtype())
    if not bool(((labels == 0) | (labels == 1) | labels.isnan()).all()):
        raise InputError(f"labels 0, 1 or NaN (unknown) in {name}", "other numbers")
    return labels
