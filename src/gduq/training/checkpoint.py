"""Crash-safe checkpoints: one file, replaced whole at an epoch's end; loading executes nothing.

Random states are not needed: every epoch is seeded anew from the run's seed.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gduq import _io
from gduq.errors import InputError
from gduq.training.history import Epoch

__all__ = ["Checkpoint", "Progress", "short_hash", "signature"]

_NAME = "checkpoint.pt"
_RARELY = 20  # writing may take this part of the time since the last one
_AFRESH = "Delete the folder to start afresh, or pass another resume= folder."


@dataclass
class Progress:
    """How far the training of G models has come."""

    records: list[tuple[Epoch, ...]]  # epochs of each so far
    lowest: list[float]  # the lowest validation loss of each; infinite before there is one
    kept: list[int]  # the epoch of each that had it, or the last one; 0: before the first
    best: dict[str, Tensor] = field(default_factory=dict)  # the weights of that epoch
    last: dict[str, Tensor] = field(default_factory=dict)  # of a checkpoint: after the last epoch


class Checkpoint:
    """The checkpoint of one run in a folder, which is made if need be.

    The ``identity`` is what must be the same in a run that goes on from it, as JSON values.
    """

    def __init__(self, folder: Path, identity: Mapping[str, object]) -> None:
        self.path = folder.expanduser().absolute() / _NAME
        self.identity: dict[str, object] = json.loads(json.dumps(identity))
        self._written = (-math.inf, 0.0)  # when the last one was, and in how long

    @property
    def is_due(self) -> bool:
        """Whether the last one is old enough for the next to cost only a small part of the time."""
        when, seconds = self._written
        return time.perf_counter() - when >= _RARELY * seconds

    def save(self, run: Progress, last: Mapping[str, Tensor], optimizer: Optimizer) -> None:
        """Write how far a run is; until the last byte is on disk, the one before stays in place."""
        start, content = time.perf_counter(), asdict(run)  # this copies weights; they are small
        content |= {"last": dict(last), "optimizer": optimizer.state_dict()}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with _io.atomic_path(self.path) as temporary:
                torch.save({"identity": self.identity, "run": content}, temporary)
        except (OSError, RuntimeError) as error:  # torch has an error of its own for a full disk
            do = "An earlier one is intact: make room and run again to go on from it."
            raise InputError(f"to write the checkpoint {self.path}", error, do) from error
        self._written = (time.perf_counter(), time.perf_counter() - start)

    def load(self, optimizer: Optimizer) -> Progress | None:
        """What is in the folder, or ``None``; raises for a damaged file or another run's."""
        for leftover in self.path.parent.glob(f".{_NAME}.*.tmp"):  # of a killed process
            leftover.unlink(missing_ok=True)
        if not self.path.exists():
            return None
        wanted = f"a sound checkpoint of this run in {self.path}"
        try:
            content = torch.load(self.path, map_location="cpu", weights_only=True)
            found, run = content["identity"], content["run"]
            keys = sorted(
                k for k in {**found, **self.identity} if found.get(k) != self.identity.get(k)
            )
            if not keys:
                optimizer.load_state_dict(run.pop("optimizer"))
                run["records"] = [tuple(Epoch(**each) for each in part) for part in run["records"]]
                return Progress(**run)
        except Exception as error:  # whatever a damaged file makes of it
            raise InputError(wanted, f"a damaged one ({error})", _AFRESH) from error
        there, here = (", ".join(f"{k}={of.get(k)}" for k in keys) for of in (found, self.identity))
        raise InputError(wanted, f"one of {there}, not of {here}", _AFRESH)


def signature(model: nn.Module) -> str:
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
