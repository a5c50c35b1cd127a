"""`Classes`: one of C classes per row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from gduq import metrics
from gduq.errors import InputError, warn_user
from gduq.prediction.result import Prediction
from gduq.prediction.temperature import best_temperature
from gduq.targets.base import FirstLook, Part, Target

__all__ = ["ClassWeights", "Classes"]

_UNLABELLED = "Leave unlabelled nodes out with gduq.data.View(data, rows)."

ClassWeights = Tensor | Sequence[float] | str | None


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

    def told(self, look: FirstLook, weights: ClassWeights = None) -> Classes:
        """With these weights of the classes, or those that were given."""
        width = look.outputs.size(1)
        if width != (1 if self.one_logit else self.num_classes):
            raise InputError(
                f"a network with {self.num_classes} outputs, one per class", f"{width} outputs"
            )
        labels = self.check(look.y, "train")
        if labels.numel() and bool((labels == labels[0]).all()):
            raise InputError(
                "training labels of at least two classes",
                f"only class {int(labels[0])} in {labels.numel()} row(s)",
            )
        counts = torch.bincount(labels, minlength=self.num_classes)
        return replace(self, weights=_weights(self.weights if weights is None else weights, counts))

    def encode(self, y: Tensor) -> Tensor:
        if self.codes is None:
            return y
        labels, codes = _whole_numbers(y), torch.tensor(self.codes, device=y.device)
        places = torch.searchsorted(codes, labels).clamp(max=self.num_classes - 1)
        strange = labels[codes[places] != labels]
        if strange.numel():
            wanted = f"the classes {', '.join(map(str, self.codes))} in y"
            raise InputError(wanted, int(strange[0]), _UNLABELLED)
        return places

    def check(self, y: Tensor, name: str) -> Tensor:
        labels = _class_numbers(self.encode(y))
        if labels.numel() and int(labels.max()) >= self.num_classes:
            raise InputError(
                f"labels from 0 to {self.num_classes - 1} in {name}, one per class of the model",
                f"labels up to {int(labels.max())}",
                "Build the model with more out_channels, or renumber the classes.",
            )
        return labels

    def check_val(self, y: Tensor, train: Tensor) -> Tensor:
        labels, known = self.check(y, "val"), self.check(train, "train")
        unseen = labels[~torch.isin(labels, known.to(labels.device))]
        if unseen.numel():
            number = int(unseen[0])
            name = f"class {number}" if self.names is None else f"'{self.names[number]}'"
            warn_user(
                f"{unseen.numel()} of {labels.numel()} validation rows are of classes that no "
                f"training row has, such as {name}: the model cannot learn them"
            )
        return labels

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        return -_of_class(self._log_probs(outputs), y)

    def masked_losses(self, outputs: Tensor) -> Tensor:
        return -self._log_probs(outputs).mean(dim=-1)

    def losses_where(self, masked: Tensor, outputs: Tensor, y: Tensor) -> Tensor:
        found = self._log_probs(outputs)  # once for both kinds of rows
        return -torch.where(masked, found.mean(dim=-1), _of_class(found, y))

    def row_weights(self, y: Tensor) -> Tensor | None:
        if self.weights is None:
            return None
        return torch.tensor(self.weights, device=y.device)[y]

    def figures(
        self, samples: Tensor, y: Tensor, weights: Tensor | None = None
    ) -> dict[str, float]:
        p = Prediction(samples, y, weights=weights)
        return {
            "val_loss": metrics.nll(p),
            "val_accuracy": metrics.accuracy(p),
            "val_ece": metrics.ece(p, strict=False),
        }

    def best_temperature(self, parts: Sequence[Part], weights: Tensor | None = None) -> float:
        wide = [(self._logits(samples), y, weight) for samples, y, weight in parts]
        return best_temperature(wide, weights)

    def prediction(self, samples: Tensor, y: Tensor | None = None, **more: Any) -> Prediction:
        return Prediction(samples, y, class_names=self.names, **more)

    def _log_probs(self, outputs: Tensor) -> Tensor:
        return self._logits(outputs).log_softmax(dim=-1)

    def _logits(self, outputs: Tensor) -> Tensor:
        """Logits ``[..., C]``; a single one stands for ``(0, z)``."""
        return torch.cat([torch.zeros_like(outputs), outputs], -1) if self.one_logit else outputs


def _of_class(values: Tensor, y: Tensor) -> Tensor:
    """The entry of its class ``[..., m]`` of every row of ``[..., m, C]``."""
    return values.gather(-1, y.expand(values.shape[:-1]).unsqueeze(-1)).squeeze(-1)


def _whole_numbers(y: Tensor) -> Tensor:
    """Labels ``[m]`` or ``[m, 1]`` of any dtype as whole numbers ``[m]``."""
    if y.dim() > 1 and y.numel() != y.size(0):
        one_hot = y.dim() == 2 and bool(((y == 0) | (y == 1)).all() and (y.sum(dim=1) == 1).all())
        raise InputError(
            "one class label per row",
            f"y of shape {list(y.shape)}",
            "It is one-hot: pass y.argmax(dim=1)." if one_hot else "Train one task at a time.",
        )
    flat = y.reshape(-1)
    labels = flat.long()
    if not torch.equal(labels.to(y.dtype), flat):
        raise InputError(
            "whole class numbers in y",
            f"{y.dtype} values with fractions or NaN",
            'Leave rows without a class out, or pass target="labels" or "values".',
        )
    return labels


def _class_numbers(y: Tensor) -> Tensor:
    """The same from 0 up."""
    labels = _whole_numbers(y)
    if labels.numel() and int(labels.min()) < 0:
        raise InputError(
            "class numbers from 0 up in y",
            int(labels.min()),
            _UNLABELLED,
        )
    return labels


def _weights(choice: ClassWeights, counts: Tensor) -> tuple[float, ...] | None:
    r"""The weight of each class; ``"balanced"`` is :math:`m / (C\, m_c)`.

    Example:
        >>> _weights("balanced", torch.tensor([3, 1]))
        (0.6666666865348816, 2.0)
    """
    classes = len(counts)
    if choice is None:
        return None
    if isinstance(choice, str):
        if choice != "balanced":
            raise InputError("class_weights 'balanced' or one number per class", repr(choice))
        return tuple((counts.sum() / (classes * counts.clamp_min(1))).tolist())
    weights = torch.as_tensor(choice, dtype=torch.get_default_dtype())
    if weights.shape != (classes,):
        raise InputError(f"{classes} class_weights, one per class", list(weights.shape))
    if not bool(torch.isfinite(weights).all()) or bool((weights <= 0).any()):
        raise InputError("class_weights above 0", weights.tolist())
    return tuple(weights.tolist())
