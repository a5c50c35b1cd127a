"""Crash-safe checkpoints: one safetensors file, replaced whole at an epoch's end.

The file holds the weights, the optimiser's tensors and, in its header, the epochs so far and what
is trained. Nothing in it is ever executed. Random states are not needed: every epoch is seeded anew
from the run's seed.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from torch import Tensor
from torch.optim import Optimizer

from gduq import _io
from gduq.errors import InputError
from gduq.training.history import Epoch

__all__ = ["Checkpoint", "Progress"]

_NAME = "checkpoint.safetensors"
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
        start, steps = time.perf_counter(), optimizer.state_dict()["state"]
        tensors = {f"last/{name}": value for name, value in last.items()}
        tensors |= {f"best/{name}": value for name, value in run.best.items()}
        tensors |= {f"steps/{i}.{k}": v for i, part in steps.items() for k, v in part.items()}
        records = [[asdict(record) for record in each] for each in run.records]
        known = [self.identity, records, run.lowest, run.kept]
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            _io.write_tensors(self.path, tensors, {"gduq_checkpoint": json.dumps(known)})
        except OSError as error:
            do = "An earlier one is intact: make room and run again to go on from it."
            raise InputError(f"to write the checkpoint {self.path}", error, do) from error
        self._written = (time.perf_counter(), time.perf_counter() - start)

    def load(self, optimizer: Optimizer) -> Progress | None:
        """What is in the folder, or ``None``; raises for a damaged file or another run's."""
        for leftover in self.path.parent.glob(f".{_NAME}.*.tmp"):  # of a killed process
            leftover.unlink(missing_ok=True)
        if not self.path.exists():
            return None
        groups: dict[str, dict[str, Tensor]] = {"last": {}, "best": {}, "steps": {}}
        try:
            tensors, header = _io.read_tensors(self.path)
            identity, records, lowest, kept = json.loads(header["gduq_checkpoint"])
            for key, value in tensors.items():
                group, _, name = key.partition("/")
                groups[group][name] = value.clone()  # the file may be replaced while it is mapped
            epochs = [tuple(Epoch(**record) for record in each) for each in records]
            run = Progress(epochs, lowest, kept, groups["best"], groups["last"])
            steps: dict[int, dict[str, Tensor]] = {}
            for key, value in groups["steps"].items():
                number, _, name = key.partition(".")
                steps.setdefault(int(number), {})[name] = value
            differs = {
                k for k in {**identity, **self.identity} if identity.get(k) != self.identity.get(k)
            }
        except (_io.DamagedFile, AttributeError, LookupError, TypeError, ValueError) as error:
            got = f"a damaged one ({error})"
            raise InputError(f"a sound checkpoint in {self.path}", got, _AFRESH) from error
        if differs:
            there, here = (
                ", ".join(f"{key}={known.get(key)}" for key in sorted(differs))
                for known in (identity, self.identity)
            )
            wanted = f"the run that the checkpoint in {self.path.parent} is of ({there})"
            raise InputError(wanted, here, _AFRESH)
        groups_of_now = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": steps, "param_groups": groups_of_now})
        return run
