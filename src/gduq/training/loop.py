"""The training loop, the only one: of a network on graphs, and of heads on cached rows."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from gduq._checks import check_int
from gduq._torch import derived, seed_all
from gduq.errors import InputError
from gduq.training.checkpoint import Checkpoint, Progress
from gduq.training.history import Epoch, History

__all__ = ["FitSettings", "Learner", "train"]

_WHOLE = {"epochs": (0, 10_000_000), "batch_size": (1, 2**31), "patience": (1, 2**31)}
_REAL = {  # least, most, in words
    "lr": (1e-300, math.inf, "above 0"),
    "weight_decay": (0.0, math.inf, "of 0 or more"),
    "gamma": (1e-300, 1.0, "above 0 and at most 1"),
}
_WARM = 10  # steps until a trained network has its whole learning rate: Adam's first ones are large


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


class Learner(ABC):
    """What learns: G models of one architecture side by side, each with a loss of its own.

    G is 1 but for heads. Tensors that are about all of them have a leading axis G.
    """

    optimizer: torch.optim.Adam
    size = 1  # G
    keeps_start = False  # whether the weights before the first epoch are a candidate, too
    warms_up = False  # whether the first steps are smaller

    @abstractmethod
    def batches(self, epoch: int) -> Iterator[Any]:
        """The batches of an epoch (from 1); the model is in training mode from here on."""

    @abstractmethod
    def losses(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Sums of weighted losses of a batch ``[G]``, and of weights ``[G]``."""

    @abstractmethod
    def validate(self) -> list[dict[str, float]]:
        """Figures of validation rows, ``val_loss`` among them, of each; empty without such rows."""

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """All weights and buffers ``[G, ...]``, not copied."""

    @abstractmethod
    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take the weights of `state`."""


def train(
    learner: Learner,
    settings: FitSettings,
    show: Callable[[Epoch], None] = lambda _: None,
    checkpoint: Checkpoint | None = None,
) -> list[History]:
    """Train until ``epochs`` or ``patience`` end it; each of the G models ends with the weights of
    its lowest validation loss, or the last ones without validation rows.

    Every epoch is seeded anew, so that a run that goes on from a checkpoint ends with the same
    bits. ``show`` gets every epoch of the first model.
    """
    run = None if checkpoint is None else checkpoint.load(learner.optimizer)
    epochs, patience = settings.epochs or 0, settings.patience or math.inf
    if run is None:
        run = Progress([()] * learner.size, [math.inf] * learner.size, [0] * learner.size)
        if epochs and learner.keeps_start and (start := learner.validate()):
            losses = [figures["val_loss"] for figures in start]
            run.lowest = [math.inf if math.isnan(loss) else loss for loss in losses]
            run.best = {name: value.detach().clone() for name, value in learner.state().items()}
    elif (done := len(run.records[0])) > epochs:
        raise InputError(f"epochs >= {done}, as many as the checkpoint has", epochs)
    else:
        learner.load(run.last)
    while learning := [
        g
        for g, records in enumerate(run.records)
        if len(records) < min(epochs, run.kept[g] + patience)
    ]:
        if checkpoint is not None and checkpoint.is_due:
            checkpoint.save(run, learner.state(), learner.optimizer)
        number = len(run.records[learning[0]]) + 1
        found, better = _train_epoch(learner, settings, number), list[int]()
        for g in learning:
            run.records[g] += (found[g],)
            loss = found[g].val_loss
            if loss is None or loss < run.lowest[g]:
                run.lowest[g], run.kept[g] = run.lowest[g] if loss is None else loss, number
                better.append(g)
        for name, value in learner.state().items():
            if len(better) == learner.size:
                run.best[name] = value.detach().clone()
            elif better:
                run.best[name][better] = value.detach()[better]
        show(found[0])
    if checkpoint is not None:
        checkpoint.save(run, learner.state(), learner.optimizer)
    if run.best:
        learner.load(run.best)
    return [History(run.records[g], run.kept[g]) for g in range(learner.size)]


def _train_epoch(learner: Learner, settings: FitSettings, number: int) -> list[Epoch]:
    """One epoch of all models, checked for divergence."""
    started, lr, optimizer = time.perf_counter(), settings.lr_at(number), learner.optimizer
    seed_all(derived(settings.seed, number, 0))
    total = torch.zeros(2, learner.size, dtype=torch.float64)
    for batch in learner.batches(number):
        losses, weights = learner.losses(batch)
        if not bool((weights > 0).all()):  # no label of these rows is known
            continue
        state: dict[str, Tensor] = next(iter(optimizer.state.values()), {})
        warmth = (1.0 + float(state.get("step", 0.0))) / _WARM if learner.warms_up else 1.0
        for group in optimizer.param_groups:
            group["lr"] = lr * min(1.0, warmth)
        optimizer.zero_grad()
        (losses / weights).sum().backward()
        optimizer.step()
        total += torch.stack([losses.detach(), weights]).double().cpu()
    means: list[float] = (total[0] / total[1].clamp_min(1e-300)).tolist()
    learned = [p for group in optimizer.param_groups for p in group["params"]]
    finite = all(map(math.isfinite, means)) and all(bool(p.isfinite().all()) for p in learned)
    figures = (learner.validate() if finite else []) or [{}] * learner.size
    if not finite or not all(math.isfinite(value) for each in figures for value in each.values()):
        raise InputError(
            "a training loss and weights that stay finite",
            f"a loss of {max(means)} in epoch {number}",
            f"Use a learning rate below {lr:g}, or rescale the features.",
        )
    seconds = (time.perf_counter() - started) / learner.size
    pairs = zip(means, figures, strict=True)
    return [Epoch(number, loss, lr, seconds, **each) for loss, each in pairs]
