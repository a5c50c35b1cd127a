"""The settings of a training: their defaults and limits, checked once."""

from __future__ import annotations

import hashlib
import math
from dataclasses import asdict, dataclass
from numbers import Real

from torch import nn

from gduq._checks import check_int
from gduq.errors import InputError

__all__ = ["FitSettings", "short_hash"]

_WHOLE = {"epochs": (0, 10_000_000), "batch_size": (1, 2**31), "patience": (1, 2**31)}
_REAL = {  # least, most, in words
    "lr": (1e-300, math.inf, "above 0"),
    "weight_decay": (0.0, math.inf, "of 0 or more"),
    "gamma": (1e-300, 1.0, "above 0 and at most 1"),
}


@dataclass(frozen=True)
class FitSettings:
    """How `gduq.fit` trains; it describes the fields."""

    epochs: int | None = None
    lr: float | None = None  # None: 0.001, or by the number of rows for a head without epochs
    batch_size: int | None = None  # None: 32
    weight_decay: float = 0.0
    milestones: tuple[int, ...] = ()
    gamma: float = 0.1
    patience: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        whole: dict[str, object] = {"seed": check_int("seed", self.seed, 0, 2**63 - 1)}
        whole["milestones"] = tuple(check_int("milestones", m, 1) for m in self.milestones)
        for name, limits in _WHOLE.items():
            if getattr(self, name) is not None:
                whole[name] = check_int(name, getattr(self, name), *limits)
        for name, value in whole.items():
            object.__setattr__(self, name, value)
        for name, (least, most, words) in _REAL.items():
            value = getattr(self, name)
            if name == "lr" and value is None:
                continue
            number = float(value) if isinstance(value, Real) else math.nan
            if not (least <= number <= most and math.isfinite(number)):
                raise InputError(f"{name} as a number {words}", repr(value))

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
        return lr * self.gamma ** sum(milestone < epoch for milestone in self.milestones)

    def identity(self, model: nn.Module, **more: object) -> dict[str, object]:
        """What a resumed run must have in common with the one before; epochs may grow."""
        known = asdict(self) | {"lr": self.lr_at(0), "batch_size": self.graphs_per_step}
        del known["epochs"]
        return {**known, "model": _signature(model), **more}


def _signature(model: nn.Module) -> str:
    """The model's class, with a hash over its modules, their plain attributes (widths, dropout,
    anchors), its recipe and the shapes of its weights."""
    known: list[object] = [repr(getattr(model, "recipe", None))]
    for name, module in model.named_modules():
        plain = {k: v for k, v in vars(module).items() if isinstance(v, (bool, int, float, str))}
        shown = sorted((k, v) for k, v in plain.items() if k[0] != "_" and k != "training")
        known.append((name, type(module).__qualname__, shown))
    for name, p in model.named_parameters():
        known.append((name, str(p.dtype), list(p.shape), p.requires_grad))
    name = type(getattr(model, "net", model)).__name__  # of what a plain network is wrapped in
    return f"{name} ({short_hash(known)})"


def short_hash(value: object) -> str:
    """A few characters that tell a value from others."""
    return hashlib.sha256(repr(value).encode()).hexdigest()[:8]
