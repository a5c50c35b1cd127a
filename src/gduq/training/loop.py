"""The training loop, the only one, of networks on graphs and of heads on cached rows; its settings,
what it notes of every epoch, and checkpoints.

Random states are not needed in these: every epoch is seeded anew from the run's seed.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from numbers import Real
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gduq._io import atomic_path
from gduq._torch import derived, seed_all
from gduq.errors import InputError, check_int
from gduq.models.predictor import Calibrate

__all__ = ["Checkpoint", "FitSettings", "History", "Learner", "short_hash", "signature", "train"]

_WARM = 10  # steps until a trained network has its whole learning rate: Adam's first ones are large
_MOST = sys.float_info.max
_LIMITS = {"lr": (1e-300, _MOST), "weight_decay": (0.0, _MOST), "gamma": (1e-300, 1.0)}
_RARELY = 20  # writing a checkpoint may take this part of the time since the last one
_AFRESH = "Delete the folder to start afresh, or pass another resume= folder."


@dataclass(frozen=True)
class FitSettings:
    """How `gduq.fit` trains; it describes the fields."""

    epochs: int | None = None
    lr: float | None = None  # None: 0.001, or by the number of rows for a head without epochs
    batch_size: int = 32
    weight_decay: float = 0.0
    milestones: tuple[int, ...] = ()
    gamma: float = 0.1
    patience: int | None = None
    calibrate: Calibrate = None
    seed: int = 0
    most: int = 256  # graphs in a pass without gradients

    def __post_init__(self) -> None:
        if self.calibrate not in ("shifted", "clean", None):
            raise InputError("calibrate 'shifted', 'clean' or None", repr(self.calibrate))
        for name, least in {"epochs": 0, "batch_size": 1, "patience": 1, "seed": 0}.items():
            if (value := getattr(self, name)) is not None or name in ("batch_size", "seed"):
                check_int(name, value, least, 2**63 - 1)
        for milestone in self.milestones:
            check_int("milestones", milestone, 1)
        for name, (low, high) in _LIMITS.items():
            value = getattr(self, name)
            inside = isinstance(value, Real) and low <= float(value) <= high
            if not inside and (name, value) != ("lr", None):
                words = "above 0" if low else "of 0 or more"
                raise InputError(f"{name} as a number {words}", repr(value))

    def open_ended(self, validated: bool, most: int, patience: int, blind: int) -> FitSettings:
        """Where nobody says how long: until validation rows end it or, without any, ``blind``
        epochs."""
        epochs, stop = (most, self.patience or patience) if validated else (blind, self.patience)
        return replace(self, epochs=epochs, patience=stop)

    def lr_at(self, epoch: int) -> float:
        r"""The learning rate in an epoch (from 1): :math:`lr \cdot \gamma^{\#\{m < epoch\}}`."""
        lr = 1e-3 if self.lr is None else self.lr
        return lr * self.gamma ** sum(milestone < epoch for milestone in self.milestones)


@dataclass(frozen=True)
class History:
    """The epochs of a run, in order; returned by `gduq.fit`.

    Attributes:
        records: Figures of each epoch (``pandas.DataFrame(records)`` is a table); none for an
            ensemble. ``epoch`` (from 1), mean training ``loss``, ``lr``, ``seconds``; with
            validation data ``val_loss``, and ``val_accuracy`` of classes or ``val_rmse`` of values,
            in their units.
        kept_epoch: The epoch whose weights the model has now; 0: those it had before the first
            (and for an ensemble).
        members: The history of each member of an ensemble.
        seconds: Time spent in these epochs and around them, before a resumption too.

    Example:
        >>> History(({"epoch": 1, "loss": 0.9}, {"epoch": 2, "loss": 0.7}), 2, seconds=0.2)
        History(2 epochs, kept 2; 0.2 s)
    """

    records: tuple[dict[str, float], ...] = ()
    kept_epoch: int = 0
    members: tuple[History, ...] = ()
    seconds: float = 0.0

    def __repr__(self) -> str:
        epochs = sum(len(each.records) for each in self.members or [self])
        return f"History({epochs} epochs, kept {self.kept_epoch}; {self.seconds:.3g} s)"


class Learner(ABC):
    """What learns: G models of one architecture side by side (1 but for heads), each with a loss of
    its own. Tensors that are about all of them have a leading axis G."""

    size = 1  # G
    keeps_start = False  # whether the weights before the first epoch are a candidate, too
    warms_up = False  # whether the first steps are smaller

    def __init__(self, settings: FitSettings, parameters: Iterable[Tensor]) -> None:
        learned = [p for p in parameters if p.requires_grad]
        if not learned:
            raise InputError("a network with parameters to train", "none that requires_grad")
        self.settings, lr, decay = settings, settings.lr_at(0), settings.weight_decay
        self.optimizer = torch.optim.Adam(learned, lr, weight_decay=decay, fused=True)

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


@dataclass
class Run:
    """How far the training of G models has come."""

    records: list[tuple[dict[str, float], ...]]  # epochs of each so far
    lowest: list[float]  # the lowest validation loss of each; infinite before there is one
    kept: list[int]  # the epoch of each that had it, or the last one; 0: before the first
    best: dict[str, Tensor] = field(default_factory=dict)  # the weights of that epoch


class Checkpoint:
    """The checkpoint of one run in a folder, which is made if need be: one file, replaced whole at
    an epoch's end. Loading it executes nothing.

    The ``identity`` is what must be the same in a run that goes on from it, as JSON values.
    """

    def __init__(self, folder: Path, identity: Mapping[str, object]) -> None:
        self.path = folder.expanduser().absolute() / "checkpoint.pt"
        self.identity: dict[str, object] = json.loads(json.dumps(identity, default=float))
        self._due = -math.inf  # when the next one may be written

    def save(self, run: Run, learner: Learner, now: bool = False) -> None:
        """Write how far a run is, unless the last checkpoint is so young that this would cost more
        than a small part of the time; until the last byte is on disk, that one stays in place."""
        start = time.perf_counter()
        if start < self._due and not now:
            return
        last = {"last": learner.state(), "optimizer": learner.optimizer.state_dict()}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_path(self.path) as temporary:
                torch.save({"identity": self.identity, "run": vars(run) | last}, temporary)
        except (OSError, RuntimeError) as error:  # torch has an error of its own for a full disk
            do = "An earlier one is intact: make room and run again to go on from it."
            raise InputError(f"to write the checkpoint {self.path}", error, do) from error
        end = time.perf_counter()
        self._due = end + _RARELY * (end - start)

    def load(self, learner: Learner) -> Run | None:
        """How far the run in the folder has come, if there is one; raises for a damaged file or
        another run's."""
        if not self.path.exists():
            return None
        wanted, here = f"a sound checkpoint of this run in {self.path}", self.identity
        try:
            content = torch.load(self.path, map_location="cpu", weights_only=True)
            there, run = dict(content["identity"]), dict(content["run"])
        except Exception as error:  # whatever a damaged file makes of it
            raise InputError(wanted, f"a damaged one ({error})", _AFRESH) from error
        if keys := sorted(k for k in here.keys() | there.keys() if here.get(k) != there.get(k)):
            theirs, ours = (", ".join(f"{k}={of.get(k)}" for k in keys) for of in (there, here))
            raise InputError(wanted, f"one of {theirs}, not of {ours}", _AFRESH)
        if (done := len(run["records"][0])) > (epochs := learner.settings.epochs or 0):
            raise InputError(f"epochs >= {done}, as many as the checkpoint has", epochs)
        learner.optimizer.load_state_dict(run.pop("optimizer"))
        learner.load(run.pop("last"))
        return Run(**run)


def train(
    learner: Learner, progress: bool = False, checkpoint: Checkpoint | None = None
) -> list[History]:
    """Train until ``epochs`` or ``patience`` end it; each of the G models ends with the weights of
    its lowest validation loss, or the last ones without validation rows.

    Every epoch is seeded anew, so that a run that goes on from a checkpoint ends with the same
    bits. A bar on a terminal shows how the first model does.
    """
    from rich.console import Console
    from rich.progress import Progress

    size, epochs = learner.size, learner.settings.epochs or 0
    patience = learner.settings.patience or math.inf
    run = None if checkpoint is None else checkpoint.load(learner)
    if run is None:
        run = Run([()] * size, [math.inf] * size, [0] * size)
        if epochs and learner.keeps_start and (start := learner.validate()):
            losses = [figures["val_loss"] for figures in start]
            run.lowest = [math.inf if math.isnan(loss) else loss for loss in losses]
            run.best = {name: value.detach().clone() for name, value in learner.state().items()}
    before, console = sum(each["seconds"] for each in run.records[0]), Console(stderr=True)
    hidden = not (progress and (console.is_terminal or console.is_jupyter))
    with Progress(console=console, disable=hidden) as bar:
        task = bar.add_task("training", total=epochs)
        for number in range(max(map(len, run.records)) + 1, epochs + 1):
            learning = [g for g, kept in enumerate(run.kept) if number <= kept + patience]
            if not learning:
                break
            if checkpoint is not None:
                checkpoint.save(run, learner)
            found, better = _train_epoch(learner, number), list[int]()
            for g in learning:
                run.records[g] += (found[g],)
                loss = found[g].get("val_loss", -math.inf)
                if loss < run.lowest[g] or loss == -math.inf:  # without any, the last one stays
                    run.lowest[g], run.kept[g] = loss, number
                    better.append(g)
            for name, value in learner.state().items() if better else ():
                if len(better) == size:
                    run.best[name] = value.detach().clone()
                else:
                    run.best[name][better] = value.detach()[better]
            text = "  ".join(f"{name} {value:.4g}" for name, value in found[0].items())
            bar.update(task, completed=number, description=text)
    if checkpoint is not None:
        checkpoint.save(run, learner, now=True)
    if run.best:
        learner.load(run.best)
    pairs = zip(run.records, run.kept, strict=True)
    return [History(records, kept, seconds=before) for records, kept in pairs]


def _train_epoch(learner: Learner, number: int) -> list[dict[str, float]]:
    """One epoch of all models, checked for divergence."""
    started, settings, optimizer = time.perf_counter(), learner.settings, learner.optimizer
    lr = settings.lr_at(number)
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
        got = f"a loss of {max(means)} in epoch {number}"
        do = f"Use a learning rate below {lr:g}, or rescale the features."
        raise InputError("a training loss and weights that stay finite", got, do)
    known = {"lr": lr, "seconds": (time.perf_counter() - started) / learner.size}
    pairs = zip(means, figures, strict=True)
    return [{"epoch": number, "loss": loss, **known, **each} for loss, each in pairs]


def signature(model: nn.Module) -> str:
    """The model's class, with a hash over its modules, their plain attributes (widths, dropout,
    anchors), its recipe and the shapes of its weights."""
    known: list[object] = [repr(getattr(model, "recipe", None))]
    for name, module in model.named_modules():
        plain = {k: v for k, v in vars(module).items() if isinstance(v, (bool, int, float, str))}
        shown = sorted((k, v) for k, v in plain.items() if k[0] != "_" and k != "training")
        known.append((name, type(module).__qualname__, shown))
    known += [(n, str(p.dtype), [*p.shape], p.requires_grad) for n, p in model.named_parameters()]
    name = type(getattr(model, "net", model)).__name__  # of what a plain network is wrapped in
    return f"{name} ({short_hash(known)})"


def short_hash(value: object) -> str:
    """A few characters that tell a value from others."""
    return hashlib.sha256(repr(value).encode()).hexdigest()[:8]
