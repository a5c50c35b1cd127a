"""What metrics read: predictions of any kind, checked once, and what follows per row."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

import torch
from torch import Tensor

from gduq.errors import InputError
from gduq.metrics.crps import mixture_crps
from gduq.metrics.weighted import WeightedRows
from gduq.prediction import ClassPrediction
from gduq.prediction.classes import as_labels

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["AnyRows", "LabelRows", "Rows", "ValueRows", "read", "read_any", "read_as"]


@dataclass(eq=False)
class Rows(WeightedRows):
    """m rows of logits over C classes; metrics that are given the same ones share their softmax."""

    kind: ClassVar[str] = "classes"

    logits: Tensor  # [m, C], finite, C >= 2
    target: Tensor | None = None  # [m], labels
    decided: Tensor | None = None  # [m], the class answered where a threshold decides

    @classmethod
    def of(cls, p: Any, target: Any) -> Self:
        """From a prediction, or from logits and labels."""
        given = getattr(p, "target", None)
        if target is not None and given is not None:
            raise InputError("targets once", "targets in the prediction and as target=")
        logits = p.log_probs if hasattr(p, "log_probs") else getattr(p, "logits", p)
        if not hasattr(p, "samples"):  # the shape of a Prediction is checked already
            logits = _as_logits(logits)
        check_some(logits)
        if not torch.isfinite(logits.sum()) and not torch.isfinite(logits).all():
            raise InputError("finite logits", "NaN or infinite values")
        decided = None if getattr(p, "threshold", None) is None else p.label
        target = given if target is None else target
        if target is not None:
            target = as_labels(target, *logits.shape)
        return cls(logits, target, decided)

    def __len__(self) -> int:
        return self.logits.size(0)

    def __getitem__(self, index: Tensor) -> Rows:
        parts = (self.logits, self.target, self.decided)
        return Rows(*(None if v is None else v[index.to(v.device)] for v in parts))  # type: ignore[arg-type]

    @property
    def device(self) -> torch.device:
        return self.logits.device

    @property
    def num_classes(self) -> int:
        """C, the number of classes."""
        return self.logits.size(1)

    def require_target(self) -> Tensor:
        return known_target(self.target)

    @property
    def labels(self) -> Tensor:
        return known_target(self.target)

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
    def answer(self) -> Tensor:
        """The class answered ``[m]``: the most likely one unless a threshold decides."""
        return self.label if self.decided is None else self.decided

    @cached_property
    def correct(self) -> Tensor:
        """1.0 where the most likely class, that of `confidence`, is the true one ``[m]``."""
        return (self.label == self.labels).double()

    @property
    def right(self) -> Tensor:
        """1.0 where the class answered is the true one ``[m]``, float64."""
        return self.correct if self.decided is None else (self.decided == self.labels).double()

    @property
    def loss(self) -> Tensor:
        """1.0 where the class answered is a wrong one ``[m]``."""
        return 1.0 - self.right

    def true(self, scores: Tensor) -> Tensor:
        """Of scores of all classes ``[m, C]``, those of the true ones ``[m]``."""
        return scores.gather(1, self.labels.unsqueeze(1)).squeeze(1)

    @property
    def nll(self) -> Tensor:
        """Negative log-likelihood of the true class ``[m]``, float64."""
        return (self.logits.logsumexp(dim=-1) - self.true(self.logits)).double()

    @property
    def brier(self) -> Tensor:
        """Squared distance of the probabilities to the truth ``[m]``, float64."""
        picked = self.true(self.probs).double()
        return self.probs.square().sum(dim=-1).double() - 2.0 * picked + 1.0

    def by_confidence(self) -> tuple[Tensor, Tensor]:
        """Confidence, ascending, and tie-averaged `correct` in each resample ``[R, m]``."""
        return self.kept("confidence", lambda: self.by(self.confidence, self.correct))

    def ranked(self) -> tuple[Tensor, Tensor]:
        """Confidence and loss, from the most certain row to the least ``[R, m]``."""
        known = self.decided is None
        found = self.by_confidence() if known else self.by(self.confidence, self.right)
        return found[0].flip(-1), 1.0 - found[1].flip(-1)


def _as_logits(given: Any) -> Tensor:
    try:
        logits: Tensor = torch.as_tensor(given).detach()
    except (TypeError, ValueError, RuntimeError):
        raise InputError("logits [m, C] or a Prediction", type(given).__name__) from None
    if logits.dim() == 1:
        logits = logits.unsqueeze(1)
    if logits.dim() != 2:
        do = "Make a gduq.Prediction of [K, m, C]."
        raise InputError("logits of shape [m, C]", list(logits.shape), do)
    return ClassPrediction(logits).samples[0]


@dataclass(eq=False)
class _PredictionRows(WeightedRows):
    """Rows of a prediction that is checked already."""

    source: Any

    @classmethod
    def of(cls, p: Any, target: Any) -> Self:
        """From a prediction, which holds the truth: ``target`` may only be ``None``."""
        if target is not None:
            raise InputError(f"true {cls.kind} in the prediction", "target=", "Leave target out.")
        check_some(p)
        return cls(p)

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: Tensor) -> Self:
        return type(self)(self.source[index])

    @property
    def device(self) -> torch.device:
        return cast(torch.device, self.source.samples.device)

    def require_target(self) -> Tensor:
        return cast(Tensor, self.source.require_target())


class LabelRows(_PredictionRows):
    """m rows of a `gduq.LabelPrediction`: every label is a task of two classes."""

    kind: ClassVar[str] = "labels"

    def weighted(self, counts: Tensor) -> Self:
        parts, other = self.parts, super().weighted(counts)
        other.__dict__["parts"] = {
            t: (known, rows.weighted(counts[:, known.cpu()])) for t, (known, rows) in parts.items()
        }
        return other

    @cached_property
    def parts(self) -> dict[int, tuple[Tensor, Rows]]:
        """Per label known somewhere: the numbers of the rows that know it, and these rows."""
        p, found = self.source, {}
        everywhere = torch.arange(len(p), device=self.device)
        for t in range(p.num_labels):
            known = everywhere if p.target is None else everywhere[~p.target[:, t].isnan()]
            if known.numel():
                found[t] = known, read(p.column(t), labelled=False)
        return found


class ValueRows(_PredictionRows):
    """m rows of a `gduq.ValuePrediction`; every property is ``[m]`` and float64."""

    kind: ClassVar[str] = "values"

    def ranked(self) -> tuple[Tensor, Tensor]:
        """Deviation and loss, from the most certain row to the least ``[R, m]``."""
        return self.by(self.std, self.loss)

    @property
    def one(self) -> Any:
        """The prediction, or an error if it is about several values per row."""
        if self.source.num_values > 1:
            do = "Take one of them with p.column(t)."
            raise InputError("one value per row", self.source.size, do)
        return self.source

    @property
    def target(self) -> Tensor:
        """The true values, or an error that says they are missing."""
        return self.require_target().double()

    @cached_property
    def error(self) -> Tensor:
        """Truth minus mean."""
        return self.target - cast(Tensor, self.one.mean.double())

    @property
    def loss(self) -> Tensor:
        """Squared error."""
        return self.error.square()

    @property
    def variance(self) -> Tensor:
        return cast(Tensor, self.one.variance.double())

    @property
    def std(self) -> Tensor:
        return self.variance.sqrt()

    @cached_property
    def nll(self) -> Tensor:
        """Negative log-density of the truth; the mean over values where there are several."""
        found: Tensor = -self.source.log_prob(self.target).double()
        return found if self.source.num_values == 1 else found.mean(dim=1)

    @cached_property
    def depth(self) -> Tensor:
        """The level of the narrowest central interval that holds the truth, from 0 to 1."""
        level: Tensor = self.one.cdf(self.target).double()
        return (2 * level - 1).abs()

    @cached_property
    def crps(self) -> Tensor:
        """Continuous ranked probability score."""
        return mixture_crps(self.one, self.target)

    @cached_property
    def _widths(self) -> dict[float, Tensor]:
        return {}

    def width(self, level: float) -> Tensor:
        """Length of the central interval of that level."""
        if level not in self._widths:
            low, high = self.one.interval(level)
            self._widths[level] = (high - low).double()
        return self._widths[level]


AnyRows = Rows | LabelRows | ValueRows
R = TypeVar("R", Rows, LabelRows, ValueRows)

_ELSEWHERE = {
    "labels": "Take one label with p.column(t).",
    "values": "Values have metrics of their own: rmse, crps, coverage, ...",
}


def kind_of(p: Any) -> str:
    """What a prediction is about: ``"values"``, ``"labels"``, or else ``"classes"``."""
    return str(getattr(p, "kind", "classes"))


def known_target(target: Tensor | None) -> Tensor:
    """The truth, or an error that says it is missing."""
    if target is None:
        do = "Pass target= or predict on labelled data."
        raise InputError("predictions with targets", "none", do)
    return target


def check_some(rows: Any) -> None:
    """Raise where there are no rows."""
    if len(rows) == 0:
        raise InputError("at least one row", "an empty prediction", "Leave empty splits out.")


def read_as(rows: type[R], p: Any, target: Any = None, *, labelled: bool = True) -> R:
    """A prediction as rows of one kind: the one check of kind, emptiness and truth."""
    if kind_of(p) != rows.kind:
        got = f"one about {kind_of(p)}" if hasattr(p, "kind") else type(p).__name__
        do = _ELSEWHERE.get(kind_of(p), "") if rows is Rows else ""
        name = "" if rows is Rows else rows.kind[:-1].title()
        raise InputError(f"a prediction about {rows.kind} (gduq.{name}Prediction)", got, do)
    found = p if isinstance(p, rows) and target is None else rows.of(p, target)
    if labelled:
        found.require_target()
    return found


def read(p: Any, target: Any = None, *, labelled: bool = True) -> Rows:
    """Check predictions about classes and hand them to a metric.

    Args:
        p: A `gduq.ClassPrediction`, of which the mixture is read (or anything with ``logits`` and
            ``target``), `Rows`, or logits ``[m, C]``; ``[m]`` is a one-logit task, ``(0, z)``.
        target: Integer labels ``[m]``; only next to a tensor.
        labelled: Whether labels must be there.

    Example:
        >>> read(torch.tensor([[2.0, 0.0], [0.0, 3.0]]), torch.tensor([0, 0])).correct
        tensor([1., 0.], dtype=torch.float64)
    """
    return read_as(Rows, p, target, labelled=labelled)


def read_ranked(p: Any, target: Any = None, *, labelled: bool = True) -> Rows | ValueRows:
    """Rows of classes or of one value, which have a certainty and a loss each."""
    if kind_of(p) == "values":
        return read_as(ValueRows, p, target, labelled=labelled)
    return read(p, target, labelled=labelled)


def read_any(p: Any, target: Any = None, *, labelled: bool = True) -> AnyRows:
    """Rows of any kind."""
    if kind_of(p) == "labels":
        return read_as(LabelRows, p, target, labelled=labelled)
    return read_ranked(p, target, labelled=labelled)
