"""The settings of a training run, checked once."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from numbers import Real
from typing import Any, Literal

from torch import nn

from gduq.errors import InputError
from gduq.whole import whole

__all__ = ["FitSettings", "Select", "short_hash"]

Select = Literal["best", "last"]

_LR, _BATCH = 1e-3, 32
_MOST_EPOCHS, _PATIENCE, _FEW_EPOCHS = 100, 10, 20  # where none were asked for
_LONG = 10_000_000  # epochs: more are a slip of the keyboard


@dataclass(frozen=True)
class FitSettings:
    """What `gduq.fit` was asked to do; it describes the fields."""

    epochs: int | None = None
    given_lr: float | None = None
    given_batch_size: int | None = None
    weight_decay: float = 0.0
    milestones: tuple[int, ...] = ()
    gamma: float = 0.1
    select: Select = "best"
    patience: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        whole_ones = (
            ("seed", 0, 2**63 - 1),
            ("epochs", 0, _LONG),
            ("given_batch_size", 1, _LONG),
            ("patience", 1, _LONG),
        )
        for name, least, most in whole_ones:
            value = getattr(self, name)
            if value is not None or name == "seed":
                value = whole(name.removeprefix("given_"), value, least, most)
                object.__setattr__(self, name, value)
        for milestone in self.milestones:
            whole("milestones", milestone, 1, _LONG)
        _check_range("lr", self.lr, lambda value: value > 0, "above 0")
        _check_range("weight_decay", self.weight_decay, lambda value: value >= 0, "0 or more")
        _check_range("gamma", self.gamma, lambda value: 0 < value <= 1, "above 0 and at most 1")
        if self.select not in ("best", "last"):
            raise InputError("select 'best' or 'last'", repr(self.select))

    def until_stopped(self, judged: bool) -> FitSettings:
        """The same with as many epochs as validation rows ask for; with a few if there are none."""
        if not judged:
            return replace(self, epochs=_FEW_EPOCHS)
        return replace(self, epochs=_MOST_EPOCHS, patience=self.patience or _PATIENCE)

    @property
    def lr(self) -> float:
        """The learning rate of Adam."""
        return _LR if self.given_lr is None else self.given_lr

    @property
    def batch_size(self) -> int:
        """Graphs per step."""
        return _BATCH if self.given_batch_size is None else self.given_batch_size

    def lr_at(self, epoch: int) -> float:
        r"""The learning rate in an epoch (from 1): :math:`lr \cdot \gamma^{\#\{m < epoch\}}`."""
        return self.lr * self.gamma ** sum(milestone < epoch for milestone in self.milestones)

    def diverged(self, loss: float, epoch: int) -> InputError:
        """For training that went astray."""
        return InputError(
            "a training loss and weights that stay finite",
            f"a loss of {loss} in epoch {epoch}",
            f"Use a learning rate below {self.lr_at(epoch):g}, or rescale the features.",
        )

    def identity(self, model: nn.Module, train: str, **more: Any) -> dict[str, Any]:
        """What a resumed run must have in common with the one before; epochs may grow."""
        known = {k: v for k, v in asdict(self).items() if k != "epochs" and "given" not in k}
        known |= {"lr": self.lr, "batch_size": self.batch_size}
        return {**known, "train": train, "model": _signature(model), **more}


def _signature(model: nn.Module) -> str:
    """The model's class, with a hash over its modules, their plain attributes (widths, dropout,
    anchors) and the shapes of its weights."""
    modules = [
        (name, type(module).__qualname__, _attributes(module))
        for name, module in model.named_modules()
    ]
    shapes = [
        (n, str(p.dtype), list(p.shape), p.requires_grad) for n, p in model.named_parameters()
    ]
    recipe = repr(getattr(model, "recipe", None))
    name = type(getattr(model, "net", model)).__name__  # of what a plain network is wrapped in
    return f"{name} ({short_hash([modules, shapes, recipe])})"


def _attributes(module: nn.Module) -> list[tuple[str, object]]:
    return sorted(
        (name, value)
        for name, value in vars(module).items()
        if isinstance(value, (bool, int, float, str)) and name[0] != "_" and name != "training"
    )


def short_hash(value: Any) -> str:
    """A few characters that tell a value from others."""
    return hashlib.sha256(repr(value).encode()).hexdigest()[:8]


def _check_range(name: str, value: Any, fine: Callable[[float], bool], allowed: str) -> None:
    if not isinstance(value, Real):
        raise InputError(f"{name} {allowed}, a number", repr(value))
    if not fine(float(value)) or not math.isfinite(value):
        raise InputError(f"{name} {allowed}", value)
