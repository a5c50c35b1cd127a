"""What every calibrator is: fitted on a prediction, called on one, saved as tensors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor

from gduq.calibration.lesson import Lesson, samples_of
from gduq.errors import InputError, NotFittedError
from gduq.export_mode import exporting
from gduq.prediction import Hypotheses, Prediction
from gduq.prediction.checks import RowChoice, row_index
from gduq.prediction.mixture import match

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Calibrator", "RowTemperature", "check_classes", "check_missing"]

Kind = TypeVar("Kind", bound=Hypotheses)


@dataclass(eq=False)
class Calibrator(ABC):
    r"""A map of predictions learnt on held-out ones, by the likelihood of their mixture.

    Shape ``[K, m, C]``, dtype and device are kept. It is applied to predictions with as many
    classes and hypotheses as at fitting.

    Attributes:
        kind: What its predictions are about: ``"classes"``, ``"values"`` or ``"labels"``.
        acts_on: ``"samples"``: every hypothesis is mapped by itself. ``"mixture"``: the map says
            what the mixture's probabilities become; all hypotheses are moved by the same class
            offsets (`gduq.prediction.mixture.match`), so their disagreement stays. ``"levels"``:
            the map says what levels of the mixture's distribution function become (values only).
        needs_graph: Needs the graph around the rows (`CaGCN`, `GATS`).
        needs_features: Needs ``Prediction.features`` (`DensityAwareCalibration`).
        takes_copies: Can also learn from corrupted copies of the rows.
        keeps_accuracy: Never changes the label of a row, which is the mixture's.
        keeps_order: Never changes the order of classes of a single hypothesis; a mixture of several
            may still change sides.
        defines_logits: Its map gives logits, not only probabilities. Else the free constant per
            row and hypothesis keeps :math:`\log\sum_c e^{s_{kc}}`, the energy score, as it was.
        state_names: The tensors that make up a fitted calibrator.
    """

    kind: ClassVar[Literal["classes", "values", "labels"]] = "classes"
    acts_on: ClassVar[Literal["samples", "mixture", "levels"]] = "samples"
    needs_graph: ClassVar[bool] = False
    needs_features: ClassVar[bool] = False
    takes_copies: ClassVar[bool] = False
    keeps_accuracy: ClassVar[bool] = False
    keeps_order: ClassVar[bool] = False
    defines_logits: ClassVar[bool] = True
    state_names: ClassVar[tuple[str, ...]] = ()

    _state: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False)

    def fit(
        self, p: Hypotheses, rows: RowChoice | None = None, corrupted: Sequence[Hypotheses] = ()
    ) -> Self:
        """Learn the map from labelled predictions, best those of a validation split.

        Args:
            p: Predictions with targets.
            rows: Fit on these rows of ``p`` only (mask, slice or indices).
            corrupted: Predictions, with targets, of corrupted copies of the rows by the same model:
                half of the loss is theirs. Only where ``takes_copies`` is true.
        """
        self._check_kind(p)
        index = row_index(rows, len(p))
        if len(p.require_target()[index]) == 0:
            raise InputError("at least one row to fit on", "none", "Is the split empty?")
        if corrupted and not self.takes_copies:
            raise InputError("no corrupted copies", "some", f"{type(self).__name__} takes none.")
        for copy in corrupted:
            self._check_copy(p, copy)
        copies = [copy.to("cpu") for copy in corrupted]
        sizes = {name: torch.tensor(size) for name, size in self._sizes(p).items()}
        self._state = sizes | self._fit(Lesson(p.to("cpu"), index, copies))
        return self

    def __call__(self, p: Kind, rows: RowChoice | None = None) -> Kind:
        """Calibrated predictions.

        Args:
            p: Predictions of the same model and bank as at fitting.
            rows: Answer for these rows of ``p`` only (mask, slice or indices).
        """
        if exporting():  # the numbers of rows, classes and hypotheses are symbols, and were checked
            return self._mapped(p)  # type: ignore[no-any-return]
        self._check_call(p)
        index = row_index(rows, len(p))
        # rows of a graph look at their neighbours: choose them after the map
        late = self.needs_graph or rows is None
        mapped: Kind = self._mapped(p if late else p[index])
        return mapped[index] if self.needs_graph else mapped

    def neutral(self, size: int, num_samples: int = 1) -> Self:
        """Set the parameters that change nothing: a fitted calibrator that is the identity.

        Args:
            size: Number of classes, values or labels.
            num_samples: K, the number of hypotheses.
        """
        first, second = self._size_names()
        sizes = {first: torch.tensor(size), second: torch.tensor(num_samples)}
        self._state = sizes | self._neutral(size)
        return self

    @property
    def fitted(self) -> bool:
        """Whether `fit` (or `neutral`, or `restore`) has been called."""
        return bool(self._state)

    def config(self) -> dict[str, Any]:
        """The constructor's arguments that JSON can hold."""
        kept = (f for f in fields(self) if f.init and f.metadata.get("saved", True))
        return {f.name: getattr(self, f.name) for f in kept}

    def state(self) -> dict[str, Tensor]:
        """Everything learnt, as tensors; `restore` takes it back bit by bit."""
        self._check_fitted()
        return {name: value.clone().contiguous() for name, value in self._state.items()}

    @classmethod
    def restore(cls, config: Mapping[str, Any], state: Mapping[str, Tensor]) -> Self:
        """A fitted calibrator from what `config` and `state` gave."""
        names = {f.name for f in fields(cls) if f.init}
        if not set(config) <= names:
            raise InputError(
                f"arguments of {cls.__name__}: {', '.join(sorted(names)) or 'none'}",
                ", ".join(sorted(set(config) - names)),
                "Was the file written by a newer version of gduq?",
            )
        missing = sorted({*cls._size_names(), *cls.state_names} - set(state))
        if missing:
            raise InputError(f"a saved {cls.__name__}", f"one without {', '.join(missing)}")
        calibrator = cls(**config)
        calibrator._state = {name: value.clone() for name, value in state.items()}
        return calibrator

    @abstractmethod
    def _fit(self, lesson: Lesson) -> dict[str, Tensor]:
        """What is learnt, by the names in `state_names`."""

    @abstractmethod
    def _map(self, p: Any) -> Tensor:
        """What it acts on, mapped: new samples ``[K, m, O]``, or log-probabilities of the mixture
        ``[m, C]`` up to a constant per row, or levels ``[T, n, 2]``; float64 on the CPU."""

    @abstractmethod
    def _neutral(self, size: int, /) -> dict[str, Tensor]:
        """The parameters of the identity."""

    def _mapped(self, p: Any) -> Any:
        after = self._map(p)
        if self.acts_on == "levels":
            return replace(p, levels=after)
        if self.kind != "classes":
            return p.with_samples(after.to(p.samples.device, p.samples.dtype))
        samples = samples_of(p)
        if self.acts_on == "mixture":
            weights = None if p.weights is None else p.weights.cpu()
            after = match(samples, after.log_softmax(dim=-1), weights)
        if not self.defines_logits:
            after = after + (samples.logsumexp(-1) - after.logsumexp(-1)).unsqueeze(-1)
        q = p.with_samples(after.to(p.samples.device, p.samples.dtype))
        kept = self.keeps_accuracy or (self.keeps_order and p.num_samples == 1)
        return _same_label(p, q) if kept and not exporting() else q

    @classmethod
    def _size_names(cls) -> tuple[str, str]:
        return f"num_{cls.kind}", "num_samples"

    @classmethod
    def _sizes(cls, p: Hypotheses) -> dict[str, int]:
        return {name: getattr(p, name) for name in cls._size_names()}

    def _check_fitted(self) -> None:
        if not self._state:
            name = type(self).__name__
            raise NotFittedError(f"a fitted {name}", "one before fit", "Call fit(p_val) first.")

    def _check_kind(self, p: Hypotheses) -> None:
        if p.kind != self.kind:
            from gduq.calibration import methods_for

            names = ", ".join(cls.__name__ for cls in methods_for(p.kind).values())
            wanted = f"predictions about {self.kind} for {type(self).__name__}"
            raise InputError(wanted, f"some about {p.kind}", f"For {p.kind} there are {names}.")

    def _check_copy(self, p: Hypotheses, copy: Hypotheses) -> None:
        self._check_kind(copy)
        if len(copy.require_target()) == 0:
            raise InputError("corrupted copies with at least one row", "an empty one")
        here, there = (tuple(reversed(self._sizes(q).values())) for q in (p, copy))
        if here != there:
            letter = "C" if self.kind == "classes" else "T"
            raise InputError(f"corrupted copies with (K, {letter}) = {here}", there)

    def _check_call(self, p: Hypotheses) -> None:
        self._check_fitted()
        self._check_kind(p)
        for name, got in self._sizes(p).items():
            if got != int(self._state[name]):
                wanted = f"predictions with {name} = {int(self._state[name])}, as at fitting"
                do = "Fit and apply a calibrator on predictions of one model with one bank."
                raise InputError(wanted, got, do)


class RowTemperature(Calibrator):
    r"""A calibrator that divides the logits of row i, of every hypothesis, by :math:`T_i > 0`."""

    keeps_order = True

    @abstractmethod
    def _temperature(self, p: Prediction) -> Tensor:
        """The temperature of every row ``[m]``, float64 on the CPU."""

    def temperature(self, p: Prediction) -> Tensor:
        """The temperature that each row of ``p`` gets, ``[m]``."""
        self._check_call(p)
        return self._temperature(p)

    def _map(self, p: Prediction) -> Tensor:
        return samples_of(p) / self._temperature(p)[:, None]


def check_missing(missing: str) -> None:
    """Raise for another word than ``check_classes`` knows."""
    if missing not in ("error", "keep"):
        raise InputError('missing="error" or "keep"', repr(missing))


def check_classes(target: Tensor, num_classes: int, missing: str) -> Tensor:
    """Which classes occur ``[C]``; raises for absent ones when ``missing`` is ``"error"``."""
    seen = torch.bincount(target, minlength=num_classes) > 0
    if missing == "error" and not bool(seen.all()):
        absent = torch.nonzero(~seen).flatten().tolist()
        got = f"none of class {', '.join(map(str, absent[:5]))}{' ...' * (len(absent) > 5)}"
        do = 'Pass missing="keep" to leave absent classes as they are, or use TemperatureScaling.'
        raise InputError("validation rows of every class", got, do)
    return seen


def _same_label(p: Prediction, q: Prediction) -> Prediction:
    """``q`` with labels that rounding has moved, by a few units in the last place, moved back."""
    before = p.log_probs.argmax(dim=-1)  # whatever a threshold makes of it
    moved = torch.nonzero(q.log_probs.argmax(dim=-1) != before).flatten()
    if not len(moved):
        return q
    samples, label = q.samples.clone(), before[moved]
    unit = torch.finfo(samples.dtype).eps * samples[:, moved].abs().amax(dim=(0, 2)).clamp_min(1.0)
    gap = q.log_probs[moved].amax(dim=1) - q.log_probs[moved, label]
    near = gap <= 8 * unit
    lift = torch.where(near, gap + 8 * unit, 0.0).to(samples.dtype)
    samples[:, moved, label] += lift
    return q.with_samples(samples)
