"""`Predictor`: what all models share. Training, prediction and bundles know nothing else."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from gduq.errors import InputError
from gduq.graph import Rows, label_rows, structure_of, targets
from gduq.nn.call import evaluating
from gduq.novelty.nearest import Novelty

if TYPE_CHECKING:
    from typing_extensions import Self

    from gduq.nn.trunk import Trunk
    from gduq.targets.base import Target

__all__ = ["Answer", "Calibrate", "HeadJob", "Predictor", "Supply", "kinds"]

Calibrate = Literal["shifted", "clean"] | None

_CALIBRATIONS: tuple[Calibrate, ...] = (None, "clean", "shifted")
_KINDS: dict[str, type[Predictor]] = {}


class Answer(NamedTuple):
    """What a model says of the m rows of a graph that count."""

    outputs: Tensor  # [K, m, O], under each of K hypotheses
    features: Tensor | None = None  # [m, d], if asked for and to be had
    weights: Tensor | None = None  # of the hypotheses [K]; None means equal ones


@dataclass(frozen=True, eq=False)
class HeadJob:
    """Heads that are to be trained side by side on the rows of a trunk."""

    heads: Sequence[nn.Module]  # head(h, c, masked) -> [D, n, O], all of one architecture
    masks: Sequence[float]  # share of masked rows, one per head
    bank: Tensor | None  # anchors to validate with [K, d]; None for heads that read none
    draw: Callable[[int, torch.Generator], Tensor]  # gives so many anchors [count, d]
    draws: int  # anchors per row and step
    keep_all: bool  # whether all heads stay, or only the one that validation likes best


class Predictor(nn.Module, ABC):
    """A model that answers with K hypotheses about every row.

    Attributes:
        target: What its outputs mean; `gduq.fit` finds out. ``None`` before.
        calibrate: What `gduq.fit` ends with: one temperature from validation rows and shifted
            copies of them (``"shifted"``), from validation rows alone (``"clean"``), or none.
        temperature: The temperature that all hypotheses are divided by; 1 until `gduq.fit`.
        novelty_slope: How the temperature grows with novelty (of values only): a row of novelty u
            has ``temperature * exp(novelty_slope * (u - 0.5))``. A mixture has one of its own, and
            does not use those of its members.
        novelty: How unlike the training data a representation is.
        trunk: The network before a head that reads rows, where the model is such a head.
    """

    kind: ClassVar[str]

    temperature: Tensor
    novelty_slope: Tensor
    _calibration: Tensor

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "kind" in vars(cls):
            _KINDS[cls.kind] = cls

    def __init__(self) -> None:
        super().__init__()
        self.target: Target | None = None
        self.calibrate: Calibrate = "shifted"
        self.register_buffer("temperature", torch.ones(()))
        self.register_buffer("novelty_slope", torch.zeros(()))
        self.register_buffer("_calibration", torch.zeros((), dtype=torch.int64))
        self.novelty = Novelty()

    # -- answers -------------------------------------------------------------------------------

    @abstractmethod
    def answer(self, graph: Any, features: bool = False) -> Answer:
        """What the model says of a graph, before calibration; in evaluation mode."""

    def sample(self, graph: Any) -> Tensor:
        """Outputs ``[K, m, O]`` of the m rows that count; `answer` has the hypotheses' weights."""
        with evaluating(self):
            return self.calibrated_answer(graph)[0].outputs

    def features(self, graph: Any) -> Tensor:
        """The representation of the m rows that count, ``[m, d]``."""
        with evaluating(self):
            found = self.represented(graph)
        if found is None:
            raise InputError("a model with a representation per row", type(self).__name__)
        return found

    def represented(self, graph: Any) -> Tensor | None:
        """The features of `answer` alone, without the price of K hypotheses where that can be."""
        return self.answer(graph, features=True).features

    def calibrated(
        self, outputs: Tensor, weights: Tensor | None = None, novelty: Tensor | None = None
    ) -> Tensor:
        """Outputs ``[K, m, O]`` of `answer` with the temperature of `gduq.fit`, for rows of the
        given novelty ``[m]`` (``None``: of an average one)."""
        if self.calibration is None:
            return outputs
        temperature = self.temperature
        if novelty is not None:
            slope = self.novelty_slope.to(novelty)
            temperature = temperature * (slope * (novelty - 0.5)).exp().unsqueeze(1)  # [m, 1]
        if self.target is None:
            return outputs / temperature.to(outputs)
        return self.target.scaled(outputs, temperature, weights)

    def calibrated_answer(
        self, graph: Any, features: bool = False, novelty: bool = False
    ) -> tuple[Answer, Tensor | None]:
        """`answer` with the temperature of `gduq.fit`, and the novelty of its rows ``[m]``, where
        it is asked for or the temperature depends on it."""
        novelty = self.novelty.fitted and (novelty or float(self.novelty_slope) != 0.0)
        found, ranks = self.answer(graph, features=features or novelty), None
        if novelty and found.features is not None:
            ranks = self.novelty(found.features, self.structure(graph))
        outputs = self.calibrated(found.outputs, found.weights, ranks)
        return found._replace(outputs=outputs), ranks

    def _formed(self, outputs: Tensor) -> Tensor:
        """What a network gives, in the form that answers have."""
        return outputs if self.target is None else self.target.completed(outputs)

    def with_temperature(self, answer: Answer) -> Answer:
        """What `answer` gave with the temperature of `gduq.fit`."""
        return answer._replace(outputs=self.calibrated(answer.outputs, answer.weights))

    def from_rows(self, h: Tensor, outputs: Tensor) -> Tensor:
        """`answer` from what the trunk gave of m rows: representation and the plain outputs."""
        raise InputError("a model that reads the rows of a trunk", type(self).__name__)

    @property
    def trunk(self) -> Trunk | None:
        return None

    @property
    def answers(self) -> Rows | None:
        """What its rows are, once a graph has shown it."""
        if self.trunk is not None:
            return self.trunk.answers
        return next((part.answers for part in self.parts.values()), None)

    def structure(self, graph: Any) -> Tensor | None:
        """What novelty reads beside `features`, ``[m, s]``; see `gduq.graph.structure_of`."""
        return structure_of(graph, self.answers)

    def share_trunk(self, trunk: Trunk) -> None:
        """Stand on a trunk that equals the model's own."""
        raise InputError("a model that stands on a trunk", type(self).__name__)

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

    @property
    def frozen(self) -> bool:
        """Whether a trained network stays as it is, so that training is short."""
        return False

    def note(self) -> None:
        """Keep what is known of a user's network, where the model stands for one."""

    @property
    def starts_trained(self) -> bool:
        """Whether training starts from a trained network, so that its first steps are small."""
        return False

    def locate(self, graph: Any) -> None:
        """Take a first look at a graph, where the model depends on what it is given."""
        for part in self.parts.values():
            part.locate(graph)

    def prepare(self, batches: Any, batch_size: int) -> None:
        """Before the first epoch: what has to be known about all training rows."""

    def loss(self, graph: Any, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """The loss of every row that counts under every draw ``[D, m]``, and how much it counts."""
        raise InputError("a model that is trained by itself", type(self).__name__)

    def _losses(
        self, graph: Any, outputs: Tensor, masked: Tensor | None = None
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

    def ready(self, batches: Iterable[Any]) -> None:
        """Make the model able to answer, from a few training batches."""

    @property
    def rows_to_be_ready(self) -> int:
        """How many training rows `ready` needs."""
        return 1

    def finish(self, batches: Any, batch_size: int) -> None:
        """After the last epoch: all that prediction needs from the training rows."""

    def fit_bank(self, data: Any, k: int | None = None, batch_size: int | None = None) -> Self:
        """Choose the anchors of every anchored model inside; see `Anchored.fit_bank`."""
        if not self.parts:
            do = "Wrap the network with gduq.anchor first."
            raise InputError("a model with anchors", type(self).__name__, do)
        for part in self.parts.values():
            if part.reads_anchors():
                part.fit_bank(data, k, batch_size)
        return self

    def reads_anchors(self) -> bool:
        """Whether it is an anchored model, or there is one inside."""
        return any(part.reads_anchors() for part in self.parts.values())

    @property
    def bounded(self) -> bool:
        """Whether something bounds what the network gives, such as a ReLU at its end."""
        return False

    def adapt(self, outputs: Tensor, y: Tensor, before: Target | None = None) -> None:
        """Bring the heads into the form that the target asks for, once it is known.

        ``outputs`` ``[n, O]`` is what the network itself says of held-out rows, ``y`` their truth
        as the target checked it, and ``before`` the target of an earlier fit.
        """

    def check_target(self) -> None:
        """Raise where the target and what the network ends in do not go together."""
        ending = None if self.trunk is None else self.trunk.ending
        if self.target is not None and self.target.kind == "values" and ending is not None:
            raise InputError(
                "a network whose outputs are values",
                f"one that ends in {ending}",
                "Return what it is applied to, or train on classes or labels.",
            )

    def head_job(self, h: Tensor) -> HeadJob | None:
        """The heads to train, of a model that reads rows ``h`` ``[n, d]`` of a frozen trunk."""
        return None

    def take_heads(self, heads: Sequence[nn.Module]) -> None:
        """Take the trained heads of `head_job`: all of them, or the best one."""

    def fit_rows(self, h: Tensor, y: Tensor) -> None:
        """Fit what needs no steps to rows ``h`` ``[n, d]`` of a frozen trunk and their truth."""

    # -- bundles -------------------------------------------------------------------------------

    @abstractmethod
    def spec(self) -> dict[str, Any]:
        """Settings that make the model again, as JSON holds them; networks under ``"net"``."""

    @classmethod
    @abstractmethod
    def from_spec(cls, spec: Mapping[str, Any], supply: Supply) -> Predictor:
        """The model that `spec` described, with fresh weights."""

    def check_ready(self) -> None:
        """Raise where something is missing that prediction needs."""
        for part in self.parts.values():
            part.check_ready()


class Supply(Protocol):
    """What a bundle has for the models it makes: networks, inner models and the user's call."""

    def net(self, spec: Any) -> nn.Module: ...
    def model(self, spec: Any) -> Predictor: ...
    def call(self, spec: Any) -> Any: ...


def kinds() -> Mapping[str, type[Predictor]]:
    """All kinds of models by the name a bundle knows them by."""
    return _KINDS
