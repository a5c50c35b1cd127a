"""What metrics of classes read: logits and labels, checked once, and what follows per row."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from gduq.errors import InputError
from gduq.metrics.weighted import RankedRows, WeightedRows

__all__ = ["Rows", "kind_of", "read", "rows_of"]

R = TypeVar("R", bound=WeightedRows)

_ELSEWHERE = {
    "labels": "Take one label with p.column(t).",
    "values": "Values have metrics of their own: rmse, crps, coverage, ...",
}


@dataclass(eq=False)
class Rows(RankedRows):
    """m rows of logits over C classes, with labels where they are known.

    `read` makes one from a tensor or a `gduq.Prediction`; every metric takes one too, so that
    several metrics on the same rows share their softmax.

    Args:
        logits: ``[m, C]``, finite, C >= 2.
        target: Integer labels ``[m]``, or ``None``.
        decided: The class answered per row ``[m]``, where a threshold decides and not the largest
            probability.
    """

    kind: ClassVar[str] = "classes"

    logits: Tensor
    target: Tensor | None = None
    decided: Tensor | None = None

    def __len__(self) -> int:
        return self.logits.size(0)

    @property
    def device(self) -> torch.device:
        return self.logits.device

    @property
    def num_classes(self) -> int:
        """C, the number of classes."""
        return self.logits.size(1)

    @cached_property
    def _top(self) -> tuple[Tensor, Tensor]:
        values, indices = self.logits.max(dim=-1, keepdim=True)
        return values, indices.squeeze(-1)

    @cached_property
    def probs(self) -> Tensor:
        """Softmax of the logits ``[m, C]``; step by step, which is faster over short rows."""
        odds = (self.logits - self._top[0]).exp_()
        return odds.div_(odds.sum(dim=-1, keepdim=True))

    @property
    def label(self) -> Tensor:
        """The most likely class ``[m]``."""
        return self._top[1]

    @cached_property
    def confidence(self) -> Tensor:
        """Its probability ``[m]``."""
        return (self.logits - self._top[0]).exp_().sum(dim=-1).reciprocal_()

    @property
    def labels(self) -> Tensor:
        """The true labels ``[m]``, or an error that says they are missing."""
        if self.target is None:
            raise InputError(
                "predictions with targets", "none", "Pass target= or predict on labelled data."
            )
        return self.target

    @property
    def answer(self) -> Tensor:
        """The class answered ``[m]``: the most likely one unless a threshold decides."""
        return self.label if self.decided is None else self.decided

    @cached_property
    def correct(self) -> Tensor:
        """1.0 where the most likely class is the true one ``[m]``, float64: what confidence, its
        probability, is held against."""
        return (self.label == self.labels).double()

    @property
    def right(self) -> Tensor:
        """1.0 where the class answered is the true one ``[m]``, float64."""
        return self.correct if self.decided is None else (self.decided == self.labels).double()

    @property
    def loss(self) -> Tensor:
        """1.0 where the class answered is a wrong one ``[m]``."""
        return 1.0 - self.right

    @property
    def nll(self) -> Tensor:
        """Negative log-likelihood of the true class ``[m]``, float64."""
        picked = self.logits.gather(1, self.labels.unsqueeze(1)).squeeze(1)
        return (self.logits.logsumexp(dim=-1) - picked).double()

    @property
    def brier(self) -> Tensor:
        """Squared distance of the probabilities to the truth ``[m]``, float64."""
        picked = self.probs.gather(1, self.labels.unsqueeze(1)).squeeze(1).double()
        return self.probs.square().sum(dim=-1).double() - 2.0 * picked + 1.0

    @property
    def sharpness(self) -> Tensor:
        """How far from uniform the probabilities are ``[m]``, from 0 to 1, float64."""
        entropy: Tensor = torch.special.entr(self.probs).sum(dim=-1).double()
        return 1.0 - entropy / math.log(self.num_classes)

    def by_confidence(self) -> tuple[Tensor, Tensor]:
        """Confidence, ascending, and tie-averaged `correct` in each resample ``[R, m]``."""
        return self.kept("confidence", lambda: self.by(self.confidence, self.correct))

    def ranked(self) -> tuple[Tensor, Tensor]:
        if self.decided is None:
            confidence, right = self.by_confidence()
        else:
            confidence, right = self.by(self.confidence, self.right)
        return confidence.flip(-1), 1.0 - right.flip(-1)

    def take(self, index: Tensor) -> Rows:
        """Some of the rows."""
        parts = (self.logits, self.target, self.decided)
        return Rows(*(None if v is None else v[index.to(v.device)] for v in parts))  # type: ignore[arg-type]


def kind_of(p: Any) -> str:
    """What a prediction is about: ``"values"``, ``"labels"``, or else ``"classes"``."""
    return str(getattr(p, "kind", "classes"))


def rows_of(p: Any, target: Tensor | None, rows: type[R], kind: str) -> R:
    """A prediction about labels or values as rows of its kind; ``target`` may only be ``None``."""
    if kind_of(p) != kind:
        got = f"one about {kind_of(p)}" if hasattr(p, "kind") else type(p).__name__
        wanted = f"gduq.{kind.removesuffix('s').title()}Prediction"
        raise InputError(f"a prediction about {kind} ({wanted})", got)
    if target is not None:
        raise InputError(f"true {kind} in the prediction", "target=", "Leave target out.")
    found = p if isinstance(p, rows) else rows(p)  # type: ignore[call-arg]
    if len(found) == 0:
        raise InputError("at least one row", "an empty prediction", "Leave empty splits out.")
    return found


def read(p: Any, target: Tensor | None = None, *, labelled: bool = True) -> Rows:
    """Check predictions and hand them to a metric.

    Args:
        p: A `gduq.Prediction`, of which the mixture is read (anything with ``log_probs`` or
            ``logits`` ``[m, C]`` and ``target`` will do), `Rows`, or logits ``[m, C]``; ``[m]`` or
            ``[m, 1]`` is a one-logit task and becomes ``(0, z)``.
        target: Integer labels ``[m]``; only next to a tensor.
        labelled: Whether labels must be there.

    Example:
        >>> read(torch.tensor([[2.0, 0.0], [0.0, 3.0]]), torch.tensor([0, 0])).correct
        tensor([1., 0.], dtype=torch.float64)
    """
    if (kind := kind_of(p)) != "classes":
        raise InputError(
            "a prediction about classes", f"one about {kind}", _ELSEWHERE.get(kind, "")
        )
    if isinstance(p, Rows) and target is None:
        rows = p
    elif hasattr(p, "logits"):
        given = getattr(p, "target", None)
        if target is not None and given is not None:
            raise InputError("targets once", "targets in the prediction and as target=")
        logits = p.log_probs if hasattr(p, "log_probs") else p.logits
        decided = None if getattr(p, "threshold", None) is None else p.label
        rows = _checked(logits, given if target is None else target, decided)
    else:
        rows = _checked(p, target)
    if labelled:
        _ = rows.labels
    return rows


def _checked(logits: Any, target: Tensor | None, decided: Tensor | None = None) -> Rows:
    logits = _as_logits(logits)
    return Rows(logits, None if target is None else _as_target(target, *logits.shape), decided)


def _as_logits(given: Any) -> Tensor:
    try:
        logits: Tensor = torch.as_tensor(given).detach()
    except (TypeError, ValueError, RuntimeError):
        raise InputError("logits [m, C] or a Prediction", type(given).__name__) from None
    if not logits.is_floating_point():
        raise InputError("floating-point logits", logits.dtype, "Convert with .float().")
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()
    if logits.dim() == 1:
        logits = logits.unsqueeze(1)
    if logits.dim() != 2 or logits.size(1) == 0:
        raise InputError(
            "logits of shape [m, C]",
            list(logits.shape),
            "Make a gduq.Prediction of [K, m, C].",
        )
    if logits.size(0) == 0:
        raise InputError("at least one row", "an empty prediction", "Leave empty splits out.")
    # one sum instead of a mask of m x C booleans; an overflow is looked at again
    if not torch.isfinite(logits.sum()) and not torch.isfinite(logits).all():
        bad = int((~torch.isfinite(logits)).sum())
        raise InputError("finite logits", f"{bad} NaN or infinite values")
    if logits.size(1) == 1:
        logits = torch.cat([torch.zeros_like(logits), logits], dim=1)
    return logits


def _as_target(given: Any, rows: int, classes: int) -> Tensor:
    target: Tensor = torch.as_tensor(given)
    if target.dim() == 2 and target.size(1) == 1:
        target = target.squeeze(1)
    if target.shape != (rows,):
        raise InputError(f"targets of shape [{rows}], one per row", list(target.shape))
    labels = target.long()
    if target.is_floating_point() and not torch.equal(labels.to(target.dtype), target):
        raise InputError("integer class labels", f"{target.dtype} values with fractions or NaN")
    low, high = labels.aminmax()
    if int(low) < 0 or int(high) >= classes:
        raise InputError(f"labels from 0 to {classes - 1}", f"{int(low)} to {int(high)}")
    return labels
