"""What a method says of every row it is judged by, before calibration, in one file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gduq.disk import atomic_path
from gduq.prediction import Hypotheses, Prediction, ValuePrediction

__all__ = ["COPY", "SPLITS", "StoredAnswers"]

SPLITS = ("id_val", "id_test", "ood_test")
COPY = "copy:"  # before the name of a shifted copy of the validation rows


@dataclass(frozen=True, eq=False)
class StoredAnswers:
    """Uncalibrated predictions of a method, and what its training took.

    Args:
        parts: A prediction with targets for each of `SPLITS` and each shifted copy of ``id_val``.
        seconds: Of all trainings it needs, as processor time of one thread.
        notes: What else to keep: clock time, the choice that was made.
    """

    parts: Mapping[str, Hypotheses]
    seconds: float
    notes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def copies(self) -> list[Hypotheses]:
        """The shifted copies of the validation rows."""
        return [p for name, p in self.parts.items() if name.startswith(COPY)]

    def save(self, path: Path) -> None:
        """Write one ``.npz``, all or nothing."""
        path.parent.mkdir(parents=True, exist_ok=True)
        arrays: dict[str, Any] = {}
        for name, p in self.parts.items():
            assert p.target is not None
            arrays |= {f"{name}/samples": p.samples.numpy(), f"{name}/target": p.target.numpy()}
            if p.weights is not None:
                arrays[f"{name}/weights"] = p.weights.numpy()
        kind = next(iter(self.parts.values())).kind
        about = {"kind": kind, "seconds": self.seconds, "notes": dict(self.notes)}
        with atomic_path(path) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, about=np.array(json.dumps(about)), **arrays)

    @classmethod
    def load(cls, path: Path) -> StoredAnswers:
        """Read what `save` wrote."""
        with np.load(path) as arrays:
            about = json.loads(str(arrays["about"]))
            found = {name: torch.from_numpy(arrays[name]) for name in arrays.files
                     if name != "about"}  # fmt: skip
        names = dict.fromkeys(name.rpartition("/")[0] for name in found)
        kind = ValuePrediction if about["kind"] == "values" else Prediction
        parts = {
            name: kind(
                found[f"{name}/samples"],
                found[f"{name}/target"],
                weights=found.get(f"{name}/weights"),
            )
            for name in names
        }
        return cls(parts, about["seconds"], about["notes"])
