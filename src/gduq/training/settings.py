"""The settings of a training run, checked once."""

from __future__ import annotations

import hashlib
import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

from torch import Tensor, nn

from gduq.anchored import Anchored
from gduq.errors import InputError
from gduq.nn.call import Call
from gduq.training.loss import ClassWeights

__all__ = ["Select", "Settings", "known_by"]

Select = Literal["best", "last"]


@dataclass(frozen=True)
class Settings:
    """What `gduq.fit` was asked to do; it describes the fields."""

    epochs: int
    lr: float
    batch_size: int
    weight_decay: float
    draws: int | None
    mask: float | None
    class_weights: ClassWeights
    milestones: tuple[int, ...]
    gamma: float
    select: Select
    patience: int | None
    seed: int
    call: Call | None

    def __post_init__(self) -> None:
        for name, least in (("epochs", 1), ("batch_size", 1), ("seed", 0)):
            _check_whole(name, getattr(self, name), least)
        for name in ("draws", "patience"):
            if getattr(self, name) is not None:
                _check_whole(name, getattr(self, name), 1)
        for milestone in self.milestones:
            _check_whole("milestones", milestone, 1)
        _check_range("lr", self.lr, self.lr > 0, "above 0")
        _check_range("weight_decay", self.weight_decay, self.weight_decay >= 0, "0 or more")
        _check_range("gamma", self.gamma, 0 < self.gamma <= 1, "above 0 and at most 1")
        if self.mask is not None:
            _check_range("mask", self.mask, 0 <= self.mask < 1, "from 0 to below 1")
        if self.select not in ("best", "last"):
            raise InputError("select 'best' or 'last'", repr(self.select))
        if isinstance(self.class_weights, Tensor):  # a tuple, to be compared and written as text
            object.__setattr__(self, "class_weights", tuple(self.class_weights.tolist()))

    def lr_at(self, epoch: int) -> float:
        r"""The learning rate in an epoch (from 1): :math:`lr \cdot \gamma^{\#\{m < epoch\}}`."""
        return self.lr * self.gamma ** sum(milestone < epoch for milestone in self.milestones)

    def draws_and_mask(self, model: nn.Module) -> tuple[int, float]:
        """As asked for, or the defaults of a network: docs/choices.md has the evidence."""
        deep = isinstance(model, Anchored) and model.cut.deep_head
        draws, mask = (10, 0.2) if deep else (1, 0.0)
        return self.draws or draws, mask if self.mask is None else self.mask

    def identity(self, model: nn.Module, counts: Tensor, **more: Any) -> dict[str, Any]:
        """What a resumed run must have in common with the one before; epochs may grow."""
        fields = {k: v for k, v in asdict(self).items() if k not in ("epochs", "call")}
        fields["draws"], fields["mask"] = self.draws_and_mask(model)
        rows = known_by(int(counts.sum()), counts.tolist())
        return {**fields, "train": rows, "model": _signature(model), **more}


def known_by(rows: int, labels: Any) -> str:
    """Rows in few words, to be recognised by."""
    return f"{rows} rows ({_short(labels)})"


def _signature(model: nn.Module) -> str:
    """The model's class, with a hash over its modules, their plain attributes (widths, dropout,
    anchors) and the shapes of its weights."""
    modules = [
        (name, type(module).__qualname__, sorted(_attributes(module).items()))
        for name, module in model.named_modules()
    ]
    shapes = [
        (n, str(p.dtype), list(p.shape), p.requires_grad) for n, p in model.named_parameters()
    ]
    return f"{type(model).__name__} ({_short([modules, shapes])})"


def _attributes(module: nn.Module) -> dict[str, object]:
    return {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, (bool, int, float, str)) and name[0] != "_" and name != "training"
    }


def _short(value: Any) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:8]


def _check_whole(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"{name} as a whole number of at least {least}", repr(value))


def _check_range(name: str, value: float, fine: bool, allowed: str) -> None:
    if not fine or not math.isfinite(value):
        raise InputError(f"{name} {allowed}", value)
