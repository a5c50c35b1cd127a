"""The training loop, the only one: of a network on graphs, and of heads on cached rows."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gduq._torch import derived, seed_all
from gduq.training.checkpoint import Checkpoint, Progress, restore_optimizer
from gduq.training.fit_settings import FitSettings
from gduq.training.history import Epoch, History, best_epoch

__all__ = ["Learner", "train"]

_WARM = 10  # steps until a trained network has its whole learning rate: Adam's first ones are large


class Learner(ABC):
    """What learns: G models of one architecture side by side, each with a loss of its own.

    G is 1 but for heads. Tensors that are about all of them have a leading axis G.
    """

    optimizer: torch.optim.Adam
    size = 1  # G
    keeps_start = False  # whether the weights before the first epoch are a candidate, too
    warms_up = False  # whether the first steps are smaller
    stepped = False  # whether a step was made: weights have changed

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

    def prepare(self) -> None:  # noqa: B027
        """What has to be known about all training rows before the first epoch."""


def train(
    learner: Learner,
    settings: FitSettings,
    show: Callable[[Epoch], None] = lambda _: None,
    checkpoint: Checkpoint | None = None,
) -> list[History]:
    """Train until ``epochs`` or ``patience`` end it; each of the G models ends with the weights
    that were chosen: of the lowest validation loss (``select="best"``), or the last.

    Every epoch is seeded anew, so that a run that goes on from a checkpoint ends with the same
    bits. ``show`` gets the mean over the models after every epoch.
    """
    saved = None if checkpoint is None else checkpoint.load(settings.epochs or 0)
    if saved is None:
        saved = Progress([()] * learner.size, [None] * learner.size)
        learner.prepare()
        if settings.epochs and learner.keeps_start and (start := learner.validate()):
            saved.start = [figures["val_loss"] for figures in start]
            saved.best = _copied(learner.state())
    else:
        learner.load(saved.last)
        restore_optimizer(learner.optimizer, saved.optimizer)
    records = saved.records
    while learning := [g for g in range(learner.size) if not _done(saved, g, settings)]:
        if checkpoint is not None and checkpoint.is_due:
            checkpoint.save(saved, learner.state(), learner.optimizer)
        epochs = _train_epoch(learner, settings, len(records[learning[0]]) + 1)
        for g in learning:
            records[g] += (epochs[g],)
        chosen = [g for g in learning if _kept(saved, g, settings) == epochs[g].epoch]
        if len(chosen) == learner.size:
            saved.best = _copied(learner.state())
        elif chosen:
            for name, value in learner.state().items():
                saved.best[name][chosen] = value.detach()[chosen]
        show(_mean(epochs))
    if checkpoint is not None and (learner.stepped or not saved.last):
        checkpoint.save(saved, learner.state(), learner.optimizer)
    if saved.best:
        learner.load(saved.best)
    return [History(records[g], _kept(saved, g, settings)) for g in range(learner.size)]


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
        learner.stepped = True
        total += torch.stack([losses.detach(), weights]).double().cpu()
    means: list[float] = (total[0] / total[1].clamp_min(1e-300)).tolist()
    learned = (p for group in optimizer.param_groups for p in group["params"])
    if not all(map(math.isfinite, means)) or not all(bool(p.isfinite().all()) for p in learned):
        raise settings.diverged(max(means), number)
    figures = learner.validate() or [{}] * learner.size
    if not all(math.isfinite(value) for each in figures for value in each.values()):
        raise settings.diverged(max(means), number)
    seconds = (time.perf_counter() - started) / learner.size
    pairs = zip(means, figures, strict=True)
    return [Epoch(number, loss, lr, seconds, **each) for loss, each in pairs]


def _done(run: Progress, g: int, settings: FitSettings) -> bool:
    records, patience = run.records[g], settings.patience
    best = best_epoch(records, run.start[g])
    stale = patience is not None and best is not None and len(records) - best >= patience
    return stale or len(records) >= (settings.epochs or 0)


def _kept(run: Progress, g: int, settings: FitSettings) -> int:
    """The epoch whose weights a model would end with; 0: those it had before the first."""
    records = run.records[g]
    best = best_epoch(records, run.start[g]) if settings.select == "best" else None
    return len(records) if best is None else best


def _copied(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in state.items()}


def _mean(epochs: Sequence[Epoch]) -> Epoch:
    """One epoch as if it were of one model."""
    first, size = epochs[0], len(epochs)
    if size == 1:
        return first
    found = [epoch.val_loss for epoch in epochs if epoch.val_loss is not None]
    val_loss = sum(found) / size if found else None
    loss, seconds = sum(e.loss for e in epochs) / size, sum(e.seconds for e in epochs)
    return Epoch(first.epoch, loss, first.lr, seconds, val_loss)
