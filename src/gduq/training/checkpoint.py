"""Crash-safe checkpoints: one safetensors file, replaced whole at an epoch's end.

The file holds the weights, the optimiser's tensors and, in its header, the epochs so far and what
is trained. Nothing in it is ever executed. Random states are not needed: every epoch is seeded anew
from the run's seed.
"""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from gduq import _io
from gduq.errors import InputError
from gduq.training.history import Epoch

__all__ = ["Checkpoint", "Progress", "restore_optimizer"]

FORMAT = 6  # no other one is read
_NAME = "checkpoint.safetensors"
_RARELY = 20  # writing may take this part of the time since the last one
_AFRESH = "Delete the folder to start afresh, or pass another resume= folder."


@dataclass
class Progress:
    """How far the training of G models has come."""

    records: list[tuple[Epoch, ...]]  # epochs of each so far
    start: list[float | None]  # validation loss of each before the first epoch, where it counts
    best: dict[str, Tensor] = field(default_factory=dict)  # weights that each would end with
    last: dict[str, Tensor] = field(default_factory=dict)  # of a checkpoint: after the last epoch
    optimizer: dict[str, Tensor] = field(default_factory=dict)  # of one: by "parameter.name"


class Checkpoint:
    """The checkpoint of one run in a folder, which is made if need be.

    The ``identity`` is what must be the same in a run that goes on from it, as JSON values.
    """

    def __init__(self, folder: str | Path, identity: Mapping[str, object]) -> None:
        self.path = Path(folder).expanduser().absolute() / _NAME
        self.identity: dict[str, object] = json.loads(json.dumps(identity))
        self._written = (-math.inf, 0.0)  # when the last one was, and in how long
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.path.parent):  # rights alone do not always tell
                pass
        except OSError as error:
            got = f"{self.path.parent} ({error.strerror})"
            raise InputError("a folder that can be written as resume=", got) from error

    @property
    def is_due(self) -> bool:
        """Whether the last one is old enough for the next to cost only a small part of the time."""
        when, seconds = self._written
        return time.perf_counter() - when >= _RARELY * seconds

    def save(self, run: Progress, last: Mapping[str, Tensor], optimizer: Optimizer) -> None:
        """Write how far a run is; until the last byte is on disk, the one before stays in place."""
        start = time.perf_counter()
        steps: dict[int, dict[str, Tensor]] = optimizer.state_dict()["state"]
        tensors = {f"last/{name}": value.detach() for name, value in last.items()}
        tensors |= {f"optimizer/{i}.{k}": v for i, part in steps.items() for k, v in part.items()}
        tensors |= {f"best/{name}": value for name, value in run.best.items()}
        records = [asdict(record) for record in run.records[0]]
        known = {"identity": self.identity, "records": records, "start": run.start}
        header = {"gduq_checkpoint": str(FORMAT), "state": json.dumps(known)}
        try:
            _io.write_tensors(self.path, tensors, header)
        except OSError as error:
            do = "The one before is intact: make room and run again to go on from it."
            raise InputError(f"room to write the checkpoint {self.path}", error, do) from error
        self._written = (time.perf_counter(), time.perf_counter() - start)

    def load(self, epochs: int) -> Progress | None:
        """What is in the folder, or ``None``; raises for a damaged file, another run's, or one
        that is further than ``epochs``."""
        for leftover in self.path.parent.glob(f".{_NAME}.*.tmp"):  # of a killed process
            leftover.unlink(missing_ok=True)
        if not self.path.exists():
            return None
        try:
            tensors, header = _io.read_tensors(self.path)
            version = int(header["gduq_checkpoint"])
        except (_io.DamagedFile, KeyError, ValueError, OSError) as error:
            got = f"a damaged one ({error})"
            raise InputError(f"a sound checkpoint in {self.path}", got, _AFRESH) from error
        if version != FORMAT:
            wanted = f"a checkpoint of format {FORMAT} in {self.path}"
            raise InputError(wanted, f"format {version}", _AFRESH)
        groups: dict[str, dict[str, Tensor]] = {"last": {}, "optimizer": {}, "best": {}}
        try:
            known = json.loads(header["state"])
            identity, start = known["identity"], known["start"]
            for key, value in tensors.items():
                group, _, name = key.partition("/")
                groups[group][name] = value.clone()  # the file may be replaced while it is mapped
            records = tuple(Epoch(**record) for record in known["records"])
        except (KeyError, TypeError, ValueError) as error:
            got = f"a damaged one ({error})"
            raise InputError(f"a sound checkpoint in {self.path}", got, _AFRESH) from error
        self._check_identity(identity)
        if len(records) > epochs:
            raise InputError(f"epochs >= {len(records)}, as many as the checkpoint has", epochs)
        return Progress([records], start, **groups)

    def _check_identity(self, found: Mapping[str, Any]) -> None:
        keys = [k for k in {**found, **self.identity} if found.get(k) != self.identity.get(k)]
        if keys:
            there = ", ".join(f"{k}={found.get(k)}" for k in keys)
            here = ", ".join(f"{k}={self.identity.get(k)}" for k in keys)
            wanted = f"the run that the checkpoint in {self.path.parent} is of ({there})"
            raise InputError(wanted, here, _AFRESH)


def restore_optimizer(optimizer: Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Put back what a checkpoint has of an optimiser."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        index, _, name = key.partition(".")
        state.setdefault(int(index), {})[name] = value
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
