"""The settings of a training: their defaults and limits, checked once."""

from __future__ import annotations

import hashlib
import math
from dataclasses import asdict, dataclass
from numbers import Real
from typing import Any, Literal

from torch import nn

from gduq._checks import check_int, one_of
from gduq.errors import InputError

__all__ = ["FitSettings", "Select", "short_hash"]

Select = Literal["best", "last"]

_LONG = 10_000_000  # epochs: more are a slip of the keyboard


@dataclass(frozen=True)
class FitSettings:
    """How `gduq.fit` trains; it describes the fields."""

    epochs: int | None = None
    lr: float | None = None  # None: 0.001, or by the number of rows for a head without epochs
    batch_size: int | None = None  # None: 32
    weight_decay: float = 0.0
    milestones: tuple[int, ...] = ()
    gamma: float = 0.1
    select: Select = "best"
    patience: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        limits = {"epochs": 0, "batch_size": 1, "patience": 1}
        for name, least in limits.items():
            if getattr(self, name) is not None:
                self._set(name, check_int(name, getattr(self, name), least, _LONG))
        self._set("seed", check_int("seed", self.seed, 0, 2**63 - 1))
        self._set("milestones", tuple(check_int("milestones", m, 1) for m in self.milestones))
        _check_number("lr", self.lr_at(0), 1e-300, "above 0")
        _check_number("weight_decay", self.weight_decay, 0.0, "0 or more")
        _check_number("gamma", self.gamma, 1e-300, "above 0 and at most 1", 1.0)
        one_of("select", self.select, ("best", "last"))

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    @property
    def graphs_per_step(self) -> int:
        """The batch size, or its default."""
        return self.batch_size or 32

    @property
    def graphs_per_pass(self) -> int:
        """The batch size without gradients, where more fit in memory."""
        return min(256, 8 * self.graphs_per_step)

    def lr_at(self, epoch: int) -> float:
        r"""The learning rate in an epoch (from 1): :math:`lr \cdot \gamma^{\#\{m < epoch\}}`."""
        lr = 1e-3 if self.lr is None else self.lr
        passed = sum(milestone < epoch for milestone in self.milestones)
        return lr * self.gamma**passed if passed else lr

    def diverged(self, loss: float, epoch: int) -> InputError:
        """For training that went astray."""
        return InputError(
            "a training loss and weights that stay finite",
            f"a loss of {loss} in epoch {epoch}",
            f"Use a learning rate below {self.lr_at(epoch):g}, or rescale the features.",
        )

    def identity(self, model: nn.Module, **more: object) -> dict[str, object]:
        """What a resumed run must have in common with the one before; epochs may grow."""
        known = asdict(self) | {"lr": self.lr_at(0), "batch_size": self.graphs_per_step}
        del known["epochs"]
        return {**known, "model": _signature(model), **more}


def _signature(model: nn.Module) -> str:
    """The model's class, with a hash over its modules, their plain attributes (widths, dropout,
    anchors) and the shapes of its weights."""
    modules = [
        (name, type(module).__qualname__, _attributes(module))
        for name, module in model.named_modules()
    ]
    weights = model.named_parameters()
    shapes = [(n, str(p.dtype), list(p.shape), p.requires_grad) for n, p in weights]
    recipe = repr(getattr(model, "recipe", None))
    name = type(getattr(model, "net", model)).__name__  # of what a plain network is wrapped in
    return f"{name} ({short_hash([modules, shapes, recipe])})"


def _attributes(module: nn.Module) -> list[tuple[str, object]]:
    return sorted(
        (name, value)
        for name, value in vars(module).items()
        if isinstance(value, (bool, int, float, str)) and name[0] != "_" and name != "training"
    )


def short_hash(value: object) -> str:
    """A few characters that tell a value from others."""
    return hashlib.sha256(repr(value).encode()).hexdigest()[:8]


def _check_number(
    name: str, value: Any, least: float, allowed: str, most: float = math.inf
) -> None:
    if not isinstance(value, Real):
        raise InputError(f"{name} {allowed}, a number", repr(value))
    if not least <= float(value) <= most or not math.isfinite(value):
        raise InputError(f"{name} {allowed}", value)
