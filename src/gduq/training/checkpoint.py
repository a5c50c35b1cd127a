"""Crash-safe checkpoints: one safetensors file, replaced whole at an epoch's end.

The file holds the weights, the optimiser's tensors and, in its header, what was trained so far and
under which settings. Nothing in it is ever executed. Random states are not needed: every epoch is
seeded anew from the run's seed.
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

from torch import Tensor, nn
from torch.optim import Optimizer

from gduq import tensorfile
from gduq.errors import InputError
from gduq.training.history import Epoch

__all__ = ["Checkpoint", "RunState", "optimizer_tensors", "restore_optimizer", "weights"]

FORMAT = 5  # no other one is read
_NAME = "checkpoint.safetensors"
_GROUPS = ("last", "optimizer", "best", "final")  # of tensors
_FACTS = ("finished", "target", "overhead_seconds", "start_loss")
_RARELY = 20  # writing may take this part of the time since the last one
_AFRESH = "Delete the folder to start afresh, or pass another resume= folder."


@dataclass(frozen=True)
class RunState:
    """A run after some epoch."""

    records: tuple[Epoch, ...]  # the epochs so far
    last: Mapping[str, Tensor]  # weights after the last of them
    optimizer: Mapping[str, Tensor]  # the optimiser's tensors by "parameter.name"
    best: Mapping[str, Tensor] = field(default_factory=dict)  # empty where the last is the best
    final: Mapping[str, Tensor] = field(default_factory=dict)  # bank, temperature at the end
    finished: bool = False
    overhead_seconds: float = 0.0  # outside of epochs
    start_loss: float | None = None  # validation loss before the first epoch
    target: Mapping[str, Any] | None = None  # `Target.spec` of a finished model


class Checkpoint:
    """The checkpoint of one run in a folder, which is made if need be.

    The ``identity`` is what must be the same in a run that goes on from it, as JSON values.
    """

    def __init__(self, folder: str | Path, identity: Mapping[str, Any]) -> None:
        self.path = Path(folder).expanduser().absolute() / _NAME
        self.identity: dict[str, Any] = json.loads(json.dumps(identity))
        self._written = (-math.inf, 0.0)  # when the last one was, and in how long
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.path.parent):  # rights alone do not always tell
                pass
        except OSError as error:
            raise InputError(
                "a folder that can be written as resume=", f"{self.path.parent} ({error.strerror})"
            ) from error

    @property
    def is_due(self) -> bool:
        """Whether the last one is old enough for the next to cost only a small part of the time."""
        when, seconds = self._written
        return time.perf_counter() - when >= _RARELY * seconds

    def save(self, state: RunState) -> None:
        """Write the state; until the last byte is on disk, the one before stays in place."""
        start = time.perf_counter()
        tensors = {f"{g}/{k}": v for g in _GROUPS for k, v in getattr(state, g).items()}
        known = {"identity": self.identity, "records": [asdict(r) for r in state.records]}
        known |= {name: getattr(state, name) for name in _FACTS}
        header = {"gduq_checkpoint": str(FORMAT), "state": json.dumps(known)}
        try:
            tensorfile.write(self.path, tensors, header)
        except OSError as error:
            raise InputError(
                f"room to write the checkpoint {self.path}",
                error,
                "The one before is intact: make room and run again to go on from it.",
            ) from error
        end = time.perf_counter()
        self._written = (end, end - start)

    def load(self) -> RunState | None:
        """What is in the folder, or ``None``; raises for a damaged file or another run's."""
        for leftover in self.path.parent.glob(f".{_NAME}.*.tmp"):  # of a killed process
            leftover.unlink(missing_ok=True)
        if not self.path.exists():
            return None
        try:
            tensors, header = tensorfile.read(self.path)
            version = int(header["gduq_checkpoint"])
        except (tensorfile.DamagedFile, KeyError, ValueError, OSError) as error:
            raise InputError(
                f"a sound checkpoint in {self.path}", f"a damaged one ({error})", _AFRESH
            ) from error
        if version != FORMAT:
            raise InputError(
                f"a checkpoint of format {FORMAT} in {self.path}", f"format {version}", _AFRESH
            )
        known = json.loads(header["state"])
        self._check_identity(known["identity"])
        groups: dict[str, Any] = {group: {} for group in _GROUPS}
        for key, value in tensors.items():
            group, _, name = key.partition("/")
            groups[group][name] = value.clone()  # the file may be replaced while it is mapped
        records = tuple(Epoch(**record) for record in known["records"])
        return RunState(records, **groups, **{name: known[name] for name in _FACTS})

    def _check_identity(self, found: Mapping[str, Any]) -> None:
        keys = [k for k in {**found, **self.identity} if found.get(k) != self.identity.get(k)]
        if keys:
            there = ", ".join(f"{k}={found.get(k)}" for k in keys)
            here = ", ".join(f"{k}={self.identity.get(k)}" for k in keys)
            raise InputError(
                f"the run that the checkpoint in {self.path.parent} is of ({there})", here, _AFRESH
            )


# -- tensors of a model and its optimiser --------------------------------------------------------


def weights(model: nn.Module) -> dict[str, Tensor]:
    """A copy of all parameters and buffers by name."""
    found = {}
    for name, value in model.state_dict().items():
        if not isinstance(value, Tensor):
            raise InputError(
                "a model whose state_dict holds tensors only", f"{name}: {type(value).__name__}"
            )
        found[name] = value.detach().clone()
    return found


def optimizer_tensors(optimizer: Optimizer) -> dict[str, Tensor]:
    """Everything an optimiser remembers, by ``"parameter.name"``."""
    state: dict[int, dict[str, Tensor]] = optimizer.state_dict()["state"]
    return {f"{i}.{name}": value for i, part in state.items() for name, value in part.items()}


def restore_optimizer(optimizer: Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Put back what `optimizer_tensors` gave."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        index, _, name = key.partition(".")
        state.setdefault(int(index), {})[name] = value.clone()  # steps are made in place
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
