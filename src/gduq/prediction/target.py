"""`Target`: what the outputs of a network mean, and all that follows from it."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from pydantic import ConfigDict, TypeAdapter, ValidationError
from torch import Tensor

from gduq.errors import InputError, first_flaw
from gduq.prediction.base import Prediction
from gduq.prediction.mixture import Part, fit_temperature

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Target", "TargetSample", "log_mean", "target_from"]

IF_CLASSES = "If y should be classes: whole numbers from 0 up, one per row."

_KINDS: dict[str, type[Target]] = {}


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
    no logits, `scaled` too.
    """

    kind: ClassVar[str]
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", allow_inf_nan=False)
    noun: ClassVar[str] = "output"  # what there is one name of: "class", "label", "value"
    form: ClassVar[tuple[str, ...]] = ()  # attributes that the form of a head follows from
    # What a temperature from shifted copies may cost validation rows, in nats of their mean loss.
    price: ClassVar[float] = 0.05
    has_units: ClassVar[bool] = False  # whether outputs are numbers in units of y, and no logits

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        _KINDS[cls.kind] = cls

    def _set_tuples(self, *names: str) -> None:
        """Make these fields tuples, as lists of JSON become; raises for a text."""
        for name in names:
            given = getattr(self, name)
            if isinstance(given, str):
                raise InputError(f"{name} as a list, one entry per {self.noun}", repr(given))
            if given is not None:
                object.__setattr__(self, name, tuple(given))

    def _check_widths(self, width: int, *names: str) -> None:
        """Raise unless these fields, where given, have one entry per class, label or value."""
        for name in names:
            given = getattr(self, name)
            if given is not None and len(given) != width:
                raise InputError(f"{width} {name}, one per {self.noun}", list(given))

    def _name(self, t: int) -> str:
        names = getattr(self, "names", None)
        return f"{self.noun} {t}" if names is None else repr(names[t])

    # -- from data -----------------------------------------------------------------------------

    @abstractmethod
    def fit(self, sample: TargetSample) -> Self:
        """This target with what training rows add to it; raises for what does not fit."""

    def encode(self, y: Tensor, name: str = "y") -> Tensor:
        """``y`` as stored on the graphs in the form that `prediction` takes."""
        return y

    @abstractmethod
    def check(self, y: Tensor, name: str) -> Tensor:
        """The truth of rows that the user calls ``name``, from ``y`` as stored on the graphs, in
        the form the losses take; raises for what does not fit."""

    def check_val(self, y: Tensor, train: Tensor) -> Tensor:
        """`check` of all validation rows, which are to be like the training rows (``train``)."""
        return self.check(y, "val")

    def fits(self, other: Target | None) -> bool:
        """Whether a head that was trained for another target can go on with this one."""
        if other is None or self.kind != other.kind:
            return other is None
        return all(getattr(self, name) == getattr(other, name) for name in self.form)

    @property
    def needs_noise(self) -> bool:
        """Whether `with_noise` adds something once the model is trained."""
        return False

    def with_noise(self, outputs: Tensor, y: Tensor, weights: Tensor | None = None) -> Self:
        """This target with the noise that a trained model leaves on held-out rows, of which
        ``outputs`` are ``[K, m, O]``."""
        return self

    def to_params(self, outputs: Tensor) -> Tensor:
        """What a network gives ``[..., m, O]`` in the one form that all other methods take."""
        return outputs

    def combined(self) -> Self:
        """The same for a model whose outputs come in that form already."""
        return self

    # -- losses --------------------------------------------------------------------------------

    @abstractmethod
    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The loss of every row ``[..., m]`` of outputs ``[..., m, O]``, for ``y`` ``[m, ...]``."""

    @abstractmethod
    def masked_losses(self, outputs: Tensor) -> Tensor:
        """The loss of masked rows: cross-entropy to what is known without looking at a row."""

    def row_weights(self, y: Tensor, masked: Tensor | None = None) -> Tensor | None:
        """How much each row counts in training ``[..., m]``; ``None`` means alike."""
        return None

    def weighted_losses(
        self, outputs: Tensor, y: Tensor, masked: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Losses ``[..., m]`` times how much each row counts, and how much that is; those of
        `masked_losses` where ``masked`` ``[..., m]`` is true."""
        losses = self.losses(outputs, y)
        if masked is not None:
            losses = torch.where(masked, self.masked_losses(outputs), losses)
        counts, weights = torch.ones_like(losses), self.row_weights(y, masked)
        if weights is not None:
            counts = counts * weights.to(losses)
        return losses * counts, counts

    def nll(self, samples: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        """Negative log-likelihood ``[..., m]`` of the mixture of samples ``[..., K, m, O]``; here
        where `losses` are that of one hypothesis."""
        return -log_mean(-self.losses(samples, y).unsqueeze(-1), weights).squeeze(-1)

    def figures(
        self, samples: Tensor, y: Tensor, weights: Tensor | None = None
    ) -> dict[str, float]:
        """What `gduq.fit` notes of validation rows after an epoch: fields of `Epoch`."""
        return {"val_loss": float(self.nll(samples, y, weights).mean())}

    # -- confidence ----------------------------------------------------------------------------

    def scaled(self, samples: Tensor, temperature: Tensor, weights: Tensor | None = None) -> Tensor:
        """Samples ``[..., K, m, O]`` of another confidence: larger temperatures are less sure.
        ``weights`` are those of the hypotheses ``[K]``. Here for samples that are logits."""
        return samples / temperature.to(samples)

    def best_temperature(self, parts: Sequence[Part], weights: Tensor | None = None) -> float:
        """The temperature that makes the weighted parts most likely, from 0.01 to 100."""

        def loss(parts: Sequence[Part], temperature: float) -> float:
            at = torch.tensor(temperature, dtype=torch.float64)
            each = ((self.nll(self.scaled(s, at, weights), y, weights), v) for s, y, v in parts)
            return sum(share * float(nll.mean()) for nll, share in each)

        return fit_temperature(parts, loss, lambda _, t: self.temperature_prior(t))

    def temperature_prior(self, temperature: float) -> float:
        """The loss of one row that says 1, among the others: so a few exact answers do not make a
        model sure of everything. 0 for none."""
        return 0.0

    def novelty_slope(
        self, samples: Tensor, y: Tensor, novelty: Tensor, weights: Tensor | None = None
    ) -> float:
        """How the temperature of calibrated rows grows with their novelty ``[m]``."""
        return 0.0

    # -- out -----------------------------------------------------------------------------------

    @abstractmethod
    def prediction(self, samples: Tensor, y: Tensor | None = None, **more: Any) -> Prediction:
        """What leaves a model: samples ``[K, m, O]`` and the truth, as `encode` gives it."""

    def agree(self, samples: Tensor) -> bool:
        """Whether several hypotheses ``[K, m, O]`` disagree by less than 1e-4 nats."""
        found: Any = self.prediction(samples)
        return samples.size(0) > 1 and float(found.epistemic.mean()) < 1e-4

    def usable(self, y: Tensor) -> Tensor:
        """Which rows can be learned from ``[n]``: those without a gap."""
        return ~y.isnan().reshape(y.size(0), -1).any(dim=1)

    def strata(self, y: Tensor) -> Tensor:
        """Groups of rows alike in their truth ``[n]``: fifths, of several values of the first."""
        first = y.reshape(y.size(0), -1)[:, 0].double()
        return first.argsort(stable=True).argsort() * 5 // max(1, first.numel())

    def spec(self) -> dict[str, Any]:
        """The arguments that make it again, as JSON holds them."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        plain = {k: list(v) if isinstance(v, tuple) else v for k, v in given.items()}
        return {"kind": self.kind, **plain}


def target_from(spec: Mapping[str, Any]) -> Target:
    """The target that `Target.spec` described."""
    settings = dict(spec)
    kind = settings.pop("kind", None)
    if not isinstance(kind, str) or kind not in _KINDS:
        raise InputError(f"a target from {', '.join(_KINDS)}", repr(kind), "Upgrade gduq.")
    try:
        TypeAdapter(_KINDS[kind]).validate_json(json.dumps(settings), strict=True)
    except ValidationError as error:
        raise InputError(f"a sound target of {kind}", first_flaw(error)) from None
    return _KINDS[kind](**settings)


def log_mean(logs: Tensor, weights: Tensor | None) -> Tensor:
    """Of likelihoods ``[..., K, m, T]``, given as logarithms, the log of their mean over K."""
    count = logs.size(-3)
    share = logs.new_full((count,), 1 / count) if weights is None else weights.to(logs)
    return (logs + share.log().view(-1, 1, 1)).logsumexp(dim=-3)
