"""`Target`: what the outputs of a network mean, and all that follows from it."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from pydantic import ConfigDict, TypeAdapter, ValidationError
from torch import Tensor

from gduq.errors import InputError, first_flaw
from gduq.prediction.base import Prediction, known_entries
from gduq.prediction.mixture import Part, Weights, fit_temperature, log_mean, weighted_mean

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["IF_CLASSES", "Target", "TargetSample", "columns_of", "target_from"]

IF_CLASSES = "If y should be classes: whole numbers from 0 up, one per row."


class TargetSample(NamedTuple):
    """What is known of training rows, and of a network on some of them, before training."""

    y: Tensor  # of all training rows, as stored on the graphs
    outputs: Tensor  # what the network says of some of them [n, O]
    truth: Tensor  # y of these
    trained: bool = False  # whether the network stays as it is
    bounded: bool = False  # whether something bounds its outputs, such as a ReLU


@dataclass(frozen=True)
class Target(ABC):
    """What a network's O outputs per row say about the truth ``y``.

    Nothing else knows the task. It is a frozen dataclass of plain values, so that JSON holds it.
    A new kind needs `fit`, `check`, `losses`, `masked_losses` and `prediction`; where outputs are
    no logits, `scaled` too. NaN in ``y`` is unknown: a row's loss is the mean over what is known of
    it, and it counts by how much that is.
    """

    kind: ClassVar[str]
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", allow_inf_nan=False)
    noun: ClassVar[str] = "output"  # what there is one name of: "class", "label", "value"
    form: ClassVar[tuple[str, ...]] = ()  # attributes that the form of a head follows from
    # What a temperature from shifted copies may cost validation rows, in nats of their mean loss.
    price: ClassVar[float] = 0.05
    has_units: ClassVar[bool] = False  # whether outputs are numbers in units of y, and no logits

    def __post_init__(self) -> None:
        for name, given in vars(self).items():
            if isinstance(given, str):
                raise InputError(f"{name} as a list, one entry per {self.noun}", repr(given))
            if isinstance(given, Iterable):  # a list of JSON, say
                object.__setattr__(self, name, tuple(given))
        for name, given in vars(self).items():
            if self.width and isinstance(given, tuple) and len(given) != self.width:
                raise InputError(f"{self.width} {name}, one per {self.noun}", list(given))

    @property
    def width(self) -> int:
        """How many classes, labels or values there are; 0 before training data were seen."""
        return 0

    def _name(self, t: int) -> str:
        names = getattr(self, "names", None)
        return f"{self.noun} {t}" if names is None else repr(names[t])

    @abstractmethod
    def fit(self, sample: TargetSample) -> Self:
        """This target with what training rows add to it; raises for what does not fit."""

    def encode(self, y: Tensor, name: str = "y") -> Tensor:
        """``y`` as stored on the graphs in the form that `prediction` takes."""
        return y

    def check(self, y: Tensor, name: str) -> Tensor:
        """The truth of rows that the user calls ``name``, from ``y`` as stored on the graphs, in
        the form the losses take; raises for what does not fit."""
        return self.encode(y, name)

    def decode(self, y: Tensor) -> Tensor:
        """What `check` gave, in the form that `prediction` takes."""
        return y

    def check_val(self, y: Tensor, train: Tensor) -> Tensor:
        """`check` of all validation rows, which are to be like the training rows (``train``)."""
        truth = self.check(y, "val")
        if not bool(known_entries(truth).any()):
            raise InputError("validation rows whose truth is known", "none", "Pass others as val.")
        return truth

    def fits(self, other: Target | None) -> bool:
        """Whether a head that was trained for another target can go on with this one."""
        if other is None or self.kind != other.kind:
            return other is None
        return all(getattr(self, name) == getattr(other, name) for name in self.form)

    @property
    def needs_noise(self) -> bool:
        """Whether `with_noise` adds something once the model is trained."""
        return False

    def with_noise(self, outputs: Tensor, y: Tensor, weights: Weights = None) -> Self:
        """This target with the noise that a trained model leaves on held-out rows, of which
        ``outputs`` are ``[K, m, O]``."""
        return self

    def to_params(self, outputs: Tensor) -> Tensor:
        """What a network gives ``[..., m, O]`` in the one form that all other methods take."""
        return outputs

    def combined(self) -> Self:
        """The same for a model whose outputs come in that form already."""
        return self

    @abstractmethod
    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The losses ``[..., m, T]`` of outputs ``[..., m, O]`` for ``y`` ``[m, ...]``, one per
        label or value of a row; any number where it is unknown."""

    @abstractmethod
    def masked_losses(self, outputs: Tensor) -> Tensor:
        """Those of masked rows: cross-entropy to what is known without looking at a row."""

    def row_weights(self, y: Tensor, masked: Tensor | None = None) -> Tensor:
        """How much each row counts in training ``[..., m]``; a masked one as much as the others."""
        share = known_entries(y).double().mean(dim=-1)
        return share if masked is None else torch.where(masked, share.mean(), share)

    def weighted_losses(
        self, outputs: Tensor, y: Tensor, masked: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Losses ``[..., m]`` times how much each row counts, and how much that is; those of
        `masked_losses` where ``masked`` ``[..., m]`` is true."""
        losses = _row_mean(self.losses(outputs, y), y)
        if masked is not None:
            losses = torch.where(masked, self.masked_losses(outputs).mean(dim=-1), losses)
        counts = self.row_weights(y, masked).to(losses).expand_as(losses)
        return losses * counts, counts

    def nll(self, samples: Tensor, y: Tensor, weights: Weights = None) -> Tensor:
        """Negative log-likelihood ``[..., m]`` of the mixture of samples ``[..., K, m, O]``: the
        mean over the labels or values of a row, each by itself."""
        return _row_mean(-log_mean(-self.losses(samples, y), weights), y)

    def mean_nll(self, samples: Tensor, y: Tensor, weights: Weights = None) -> Tensor:
        """The mean of `nll` in float64, in which each row counts by how much of it is known."""
        share = known_entries(y).double().mean(dim=-1)
        return (self.nll(samples, y, weights).double() * share).sum() / share.sum()

    def figures(self, samples: Tensor, y: Tensor, weights: Weights = None) -> dict[str, float]:
        """What `gduq.fit` notes of validation rows after an epoch: in `History.records`."""
        return {"val_loss": float(self.mean_nll(samples, y, weights))}

    def scaled(self, samples: Tensor, temperature: Tensor, weights: Weights = None) -> Tensor:
        """Samples ``[..., K, m, O]`` of another confidence: larger temperatures are less sure.
        ``weights`` are those of the hypotheses ``[K]``. Here for samples that are logits."""
        return samples / temperature.to(samples)

    def best_temperature(self, parts: Sequence[Part], weights: Weights = None) -> float:
        """The temperature that makes the weighted parts most likely, from 0.01 to 100."""

        def loss(samples: Tensor, y: Tensor, temperature: Tensor) -> Tensor:
            return self.mean_nll(self.scaled(samples, temperature, weights), y, weights)

        return fit_temperature(parts, loss, lambda _, t: self.temperature_prior(t))

    def temperature_prior(self, temperature: Tensor) -> Tensor:
        """The loss of one row that says 1, among the others: so a few exact answers do not make a
        model sure of everything. 0 for none."""
        return torch.zeros_like(temperature)

    def novelty_slope(
        self, samples: Tensor, y: Tensor, novelty: Tensor, weights: Weights = None
    ) -> float:
        """How the temperature of calibrated rows grows with their novelty ``[m]``."""
        return 0.0

    def prediction(self, samples: Tensor, y: Tensor | None = None, **more: Any) -> Prediction:
        """The `Prediction` that leaves a model: samples ``[K, m, O]`` and the truth, as `encode`
        gives it."""
        return Prediction.of_kind(self.kind)(samples, y, getattr(self, "names", None) or (), **more)

    def agree(self, samples: Tensor, y: Tensor, weights: Weights = None) -> bool:
        """Whether the mixture of several hypotheses ``[K, m, O]`` is better than one of them by
        less than 1e-4 nats."""
        one = weighted_mean(_row_mean(self.losses(samples, y), y), weights)
        better = float((one - self.nll(samples, y, weights)).mean())
        return samples.size(0) > 1 and better < 1e-4

    def usable(self, y: Tensor) -> Tensor:
        """Which rows can be learned from ``[n]``: those of which something is known."""
        return known_entries(y).any(dim=-1)

    def strata(self, y: Tensor) -> Tensor:
        """Groups of rows alike in their truth ``[n]``: fifths, of several values of the first."""
        first = y.reshape(y.size(0), -1)[:, 0].double()
        return first.argsort(stable=True).argsort() * 5 // max(1, first.numel())

    def spec(self) -> dict[str, Any]:
        """The arguments that make it again, as JSON holds them."""
        plain = {k: list(v) if isinstance(v, tuple) else v for k, v in vars(self).items()}
        return {"kind": self.kind, **plain}


def _row_mean(losses: Tensor, y: Tensor) -> Tensor:
    """The mean over the labels or values of every row that are known."""
    known = known_entries(y)
    return (losses * known).sum(dim=-1) / known.sum(dim=-1).clamp_min(1)


def columns_of(y: Tensor, name: str, width: int | None = None) -> Tensor:
    """The truth of several labels or values ``[m, T]``, as floats."""
    columns = y.unsqueeze(1) if y.dim() == 1 else y
    if columns.dim() != 2 or width not in (None, columns.size(1)):
        raise InputError(f"y of shape [m, {width or 'T'}] in {name}", list(y.shape))
    return columns if columns.is_floating_point() else columns.to(torch.get_default_dtype())


def target_from(spec: Mapping[str, Any]) -> Target:
    """The target that `Target.spec` described."""
    settings = dict(spec)
    kind = settings.pop("kind", None)
    kinds = {known.kind: known for known in Target.__subclasses__()}
    if not isinstance(kind, str) or kind not in kinds:
        raise InputError(f"a target from {', '.join(kinds)}", repr(kind), "Upgrade gduq.")
    try:
        TypeAdapter(kinds[kind]).validate_json(json.dumps(settings), strict=True)
    except ValidationError as error:
        raise InputError(f"a sound target of {kind}", first_flaw(error)) from None
    return kinds[kind](**settings)
