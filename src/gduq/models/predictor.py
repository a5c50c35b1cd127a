"""`Predictor`: what all models share. Training, prediction and bundles know nothing else."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor, nn

from gduq.errors import InputError
from gduq.graphs import Graph, Rows, label_rows, structure_of, targets
from gduq.ood.nearest import Novelty
from gduq.ood.trust import Trust
from gduq.prediction.base import Calibrate
from gduq.prediction.target import Target
from gduq.tracing.call import Call, evaluating
from gduq.tracing.trunk import Trunk

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["CachedRows", "Calibrate", "HeadTask", "ModelFactory", "ModelOutput", "Predictor",
           "RowFit", "Spec"]  # fmt: skip

_CALIBRATIONS: tuple[Calibrate, ...] = (None, "clean", "shifted")
Spec: TypeAlias = dict[str, Any]  # of a model, as JSON holds it


class ModelOutput(NamedTuple):
    """What a model says of the m rows of a graph that count."""

    outputs: Tensor  # [K, m, O], under each of K hypotheses
    features: Tensor | None = None  # [m, d], if asked for and to be had
    weights: Tensor | None = None  # of the hypotheses [K]; None means equal ones


@dataclass(frozen=True, eq=False)
class CachedRows:
    """Labelled rows as a frozen trunk gives them."""

    h: Tensor  # representations [m, d]
    y: Tensor  # the truth [m, ...], as `Target.check` gives it
    outputs: Tensor  # of the network itself [m, O]
    structure: Tensor | None = None  # see `gduq.graphs.structure_of` [m, s]

    def __len__(self) -> int:
        return self.h.size(0)


class HeadTask(NamedTuple):
    """Heads of one architecture, ``head(h, c, masked) -> [D, n, O]``, to be trained on rows."""

    heads: Sequence[nn.Module]
    masks: Sequence[float]  # share of masked rows, one per head
    target: Target
    draw: Callable[[int, torch.Generator], Tensor]  # so many anchors [count, d]
    draws: int = 1  # anchors per row and step
    bank: Tensor | None = None  # anchors to validate with [K, d]: only the best head stays


@dataclass(frozen=True, eq=False)
class RowFit:
    """What a model on a frozen trunk is fitted to, and who trains heads."""

    train: CachedRows
    held: CachedRows  # validation rows, or training rows where there are none
    learn: Callable[[HeadTask], list[nn.Module]]
    before: Target | None = None  # that of an earlier fit


class Predictor(nn.Module, ABC):
    """A model that answers with K hypotheses about every row.

    Attributes:
        target: What its outputs mean; `gduq.fit` finds out. ``None`` before.
        calibrate: What `gduq.fit` ends with: one temperature from validation rows and shifted
            copies of them (``"shifted"``), from validation rows alone (``"clean"``), or none.
        temperature: The temperature that all hypotheses are divided by; 1 until `gduq.fit`.
        novelty_slope: A row of novelty u has ``temperature * exp(novelty_slope * (u - 0.5))`` (of
            values only). A mixture has one of its own, and does not use those of its members.
        novelty: How unlike the training data a representation is.
        trust: The probability that an answer is right, from what the model says and novelty.
        frozen: Whether a trained network stays as it is, so that training is short.
        starts_trained: Whether training starts from a trained network, and with small steps.
    """

    frozen: bool = False
    starts_trained: bool = False
    temperature: Tensor
    novelty_slope: Tensor
    _calibration: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.target: Target | None = None
        self.calibrate: Calibrate = "shifted"
        self.register_buffer("temperature", torch.ones(()))
        self.register_buffer("novelty_slope", torch.zeros(()))
        self.register_buffer("_calibration", torch.zeros((), dtype=torch.int64))
        self.novelty, self.trust = Novelty(), Trust()

    # -- answers -------------------------------------------------------------------------------

    def forward(self, graph: Graph) -> Tensor:
        """Outputs ``[rows, O]`` of a model that is one network; of others see `gduq.predict`."""
        raise InputError(f"gduq.predict(model, data) for {type(self).__name__}", "model(graph)")

    @abstractmethod
    def forward_samples(self, graph: Graph, features: bool = False) -> ModelOutput:
        """What the model says of a graph, before calibration; in evaluation mode."""

    def sample(self, graph: Graph) -> Tensor:
        """Calibrated outputs ``[K, m, O]`` of the m rows that count."""
        with evaluating(self):
            return self.calibrated_samples(graph)[0].outputs

    def features(self, graph: Graph) -> Tensor | None:
        """The representation of the m rows that count, ``[m, d]``; ``None`` for a model without."""
        with evaluating(self):
            return self.forward_samples(graph, features=True).features

    def calibrated(
        self, outputs: Tensor, weights: Tensor | None = None, novelty: Tensor | None = None
    ) -> Tensor:
        """Outputs ``[K, m, O]`` with the temperature of `gduq.fit`, for rows of the given novelty
        ``[m]`` (``None``: of an average one)."""
        if self.calibration is None:
            return outputs
        temperature = self.temperature
        if novelty is not None:
            slope = self.novelty_slope.to(novelty)
            temperature = temperature * (slope * (novelty - 0.5)).exp().unsqueeze(1)  # [m, 1]
        if self.target is None:
            return outputs / temperature.to(outputs)
        return self.target.scaled(outputs, temperature, weights)

    def calibrated_samples(
        self, graph: Graph, features: bool = False, novelty: bool = False
    ) -> tuple[ModelOutput, Tensor | None, Tensor | None]:
        """`forward_samples` with the temperature of `gduq.fit`; where it is asked for or the
        temperature depends on it, novelty of the rows ``[m]`` and how far they are, for `Trust`."""
        needed = self.novelty.fitted and (novelty or float(self.novelty_slope) != 0.0)
        found, ranks, far = self.forward_samples(graph, features=features or needed), None, None
        if needed and found.features is not None:
            structure = structure_of(graph, self.row_kind)
            excess = novelty and self.trust.fitted
            ranks, how_far = self.novelty.look(found.features, structure, excess)
            far = how_far if excess else None
        outputs = self.calibrated(found.outputs, found.weights, ranks)
        return found._replace(outputs=outputs), ranks, far

    def _formed(self, outputs: Tensor) -> Tensor:
        """What a network gives, in the form that answers have."""
        return outputs if self.target is None else self.target.to_params(outputs)

    def from_rows(self, h: Tensor, outputs: Tensor) -> Tensor:
        """The outputs of `forward_samples` from representation and plain outputs of m rows."""
        raise InputError("a model that reads the rows of a trunk", type(self).__name__)

    @property
    def trunk(self) -> Trunk | None:
        """The network before its last part, where that has been found."""
        return None

    @property
    def row_kind(self) -> Rows | None:
        """What its rows are, once a graph has shown it."""
        if self.trunk is not None:
            return self.trunk.row_kind
        return next((m.row_kind for m in self._inner() if m.row_kind is not None), None)

    def _inner(self) -> Iterator[Predictor]:
        """All models inside this one, those that stand on their own and those that do not."""
        return (m for m in self.modules() if isinstance(m, Predictor) and m is not self)

    # -- calibration ---------------------------------------------------------------------------

    @property
    def calibration(self) -> Calibrate:
        """How the temperature was found; ``None`` where there is none."""
        return _CALIBRATIONS[int(self._calibration)]

    def set_temperature(self, value: float, how: Calibrate) -> None:
        """Note a temperature and how it was found."""
        self.temperature.fill_(1.0 if how is None else value)
        self._calibration.fill_(_CALIBRATIONS.index(how))
        self.novelty_slope.zero_()

    # -- training ------------------------------------------------------------------------------

    @property
    def parts(self) -> Mapping[str, Predictor]:
        """Models inside this one that are trained on their own, by name."""
        return {}

    def note(self) -> None:
        """Keep what is known of a user's network, where the model stands for one."""

    def locate(self, graph: Graph) -> None:
        """Take a first look at a graph, where the model depends on what it is given."""
        for part in self.parts.values():
            part.locate(graph)

    def prepare(self, batches: object, batch_size: int) -> None:
        """Before the first epoch: what has to be known about all training rows."""

    def loss(self, graph: Graph) -> tuple[Tensor, Tensor]:
        """The loss of every row that counts under every draw ``[D, m]``, and how much it counts."""
        raise InputError("a model that is trained by itself", type(self).__name__)

    def _losses(
        self, graph: Graph, outputs: Tensor, masked: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """`loss` from what the network gives of all rows ``[D, rows, O]``."""
        assert self.target is not None
        rows = label_rows(graph, outputs.size(1))
        outputs = self._formed(outputs[:, rows])
        y = targets(graph, outputs.size(1))
        if y is None:
            raise InputError("graphs with labels y", "a batch without")
        masked = None if masked is None else masked[:, rows]
        return self.target.weighted_losses(outputs, self.target.check(y, "train"), masked)

    def init_anchors(self, batches: Iterable[Graph]) -> None:
        """Make the model able to answer, from a few training batches."""

    def fit_anchors(self, data: Any, k: int | None = None, batch_size: int | None = None) -> Self:
        """Choose the anchors of every anchored model inside; see `Anchored.fit_anchors`."""
        if not self.parts:
            do = "Wrap the network with gduq.anchor first."
            raise InputError("a model with anchors", type(self).__name__, do)
        for part in self.parts.values():
            if part.num_anchors:
                part.fit_anchors(data, k, batch_size)
        return self

    @property
    def num_anchors(self) -> int:
        """How many anchors the model, or one inside, answers with; 0 without."""
        return max((part.num_anchors for part in self.parts.values()), default=0)

    @property
    def bounded(self) -> bool:
        """Whether something bounds what the network gives, such as a ReLU at its end."""
        return False

    def check_target(self) -> None:
        """Raise where the target and what the network ends in do not go together."""
        ending = None if self.trunk is None else self.trunk.ending
        if self.target is not None and self.target.has_units and ending is not None:
            do = "Return what it is applied to, or train on classes or labels."
            raise InputError("a network whose outputs are values", f"one that ends in {ending}", do)

    def fit_rows(self, work: RowFit) -> None:
        """Fit what stands on a frozen trunk to its rows, by training heads or without steps."""
        do = "Call net.requires_grad_(True), or gduq.anchor(net) to train a head on it."
        raise InputError("a network with parameters to train", "none that requires_grad", do)

    # -- bundles -------------------------------------------------------------------------------

    def spec(self) -> Spec:
        """What makes the model again, as JSON holds it, and what it answers for."""
        target = None if self.target is None else self.target.spec()
        return {"kind": type(self).__name__, "target": target, **self._spec()}

    @abstractmethod
    def _spec(self) -> Spec:
        """Settings of the kind; networks under ``"net"``, whether they have a ``"call"``."""

    @classmethod
    @abstractmethod
    def from_spec(cls, spec: Spec, factory: ModelFactory) -> Predictor:
        """The model that `spec` described, with fresh weights."""

    def check_ready(self) -> None:
        """Raise where something is missing that prediction needs."""
        for model in self._inner():
            model.check_ready()


class ModelFactory(Protocol):
    """What a bundle has for the models it makes: networks, inner models and the user's call."""

    def net(self, spec: Spec) -> nn.Module: ...
    def model(self, spec: Spec) -> Predictor: ...
    def call(self, spec: Spec) -> Call | None: ...
