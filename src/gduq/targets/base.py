"""`Target`: what the outputs of a network mean, and all that follows from it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor

from gduq.errors import InputError
from gduq.prediction.result import Prediction

__all__ = ["Part", "Target", "target_from"]

Part = tuple[Tensor, Tensor, float]  # samples [K, n, O], truth [n], weight of the part

_KINDS: dict[str, type[Target]] = {}


class Target(ABC):
    """What a network's O outputs per row say about the truth ``y``.

    Training, prediction and calibration ask it for losses and distributions and know nothing else
    about the task. It holds plain values only, so that it is saved as JSON.
    """

    kind: ClassVar[str]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        _KINDS[cls.kind] = cls

    @property
    @abstractmethod
    def outputs(self) -> int:
        """O, how many numbers a network gives per row."""

    @abstractmethod
    def check(self, y: Tensor, name: str) -> Tensor:
        """The truth of some rows in the form the losses take; raises for what does not fit.

        Args:
            y: As stored on the graphs.
            name: What the user calls these rows: ``"train"`` or ``"val"``.
        """

    @abstractmethod
    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The loss of every row ``[..., m]`` of outputs ``[..., m, O]``, for ``y`` ``[m]``."""

    @abstractmethod
    def masked_losses(self, outputs: Tensor) -> Tensor:
        """The same for rows without an anchor half, which should say that they know nothing."""

    def row_weights(self, y: Tensor) -> Tensor | None:
        """How much each row counts in training ``[m]``; ``None`` means alike."""
        return None

    @abstractmethod
    def nll(self, samples: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        """Negative log-likelihood ``[..., m]`` of the mixture of samples ``[..., K, m, O]``."""

    @abstractmethod
    def scaled(self, samples: Tensor, temperature: Tensor) -> Tensor:
        """Samples of another confidence: larger temperatures are less sure."""

    @abstractmethod
    def best_temperature(self, parts: Sequence[Part], weights: Tensor | None = None) -> float:
        """The temperature that makes the weighted parts most likely."""

    @abstractmethod
    def prediction(self, samples: Tensor, y: Tensor | None = None, **more: Any) -> Prediction:
        """What leaves a model: samples ``[K, m, O]`` as a `Prediction`."""

    @abstractmethod
    def spec(self) -> dict[str, Any]:
        """The arguments that make it again, as JSON holds them."""


def target_from(spec: Mapping[str, Any]) -> Target:
    """The target that `Target.spec` described.

    Example:
        >>> from gduq.targets import Classes
        >>> target_from(Classes(3).spec()) == Classes(3)
        True
    """
    settings = dict(spec)
    kind = settings.pop("kind", None)
    if kind not in _KINDS:
        raise InputError(f"a target from {', '.join(_KINDS)}", repr(kind), "Upgrade gduq.")
    return _KINDS[kind](**settings)
