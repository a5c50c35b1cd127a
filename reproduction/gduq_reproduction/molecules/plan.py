"""What the benchmark of molecules is made of: datasets, shifts, methods, and scales."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from gduq.data.catalog import load
from gduq.data.splits import Splits
from gduq.errors import InputError
from gduq_reproduction.specs import ScaleName

__all__ = ["OURS", "PEERS", "SCALES", "MoleculeJob", "MoleculeScale", "Side", "jobs"]

Side = Literal["ours", "default", "mve", "ensemble"]
VALUES = ("esol", "freesolv", "lipo")
CLASSES = ("bbbp", "bace")
SHIFTS = ("scaffold", "size")
OURS = ("vanilla", "gduq", "gduq-thawed", "gduq-choose", "laplace", "mcdropout", "ensemble")
PEERS = ("chemprop", "chemprop-mve", "chemprop-ensemble")
MEMBERS = 3  # of every ensemble
_SIZES = {"freesolv": 642, "esol": 1128, "bace": 1513, "bbbp": 2039, "lipo": 4200}


@dataclass(frozen=True)
class MoleculeScale:
    """How much of the benchmark is done."""

    datasets: tuple[str, ...]
    seeds: int
    epochs: int
    peer: bool = True


SCALES: dict[ScaleName, MoleculeScale] = {
    "smoke": MoleculeScale(("freesolv", "bace"), 1, 2, peer=False),
    "small": MoleculeScale((*VALUES, *CLASSES), 5, 50),
}


@dataclass(frozen=True)
class MoleculeJob:
    """What one worker does: all of our methods, or one training of the peer, on one split.

    Args:
        dataset: One of the five.
        shift: ``"scaffold"`` or ``"size"``.
        seed: Of the split and of everything that is trained on it.
        side: ``"ours"``, or which model of the peer.
        epochs: Of every network.
        root: Folder of all results.
    """

    dataset: str
    shift: str
    seed: int
    side: Side
    epochs: int
    root: Path

    @property
    def title(self) -> str:
        who = "gduq" if self.side == "ours" else f"Chemprop, {self.side}"
        return f"{self.dataset}/{self.shift} {who}, seed {self.seed}"

    @property
    def is_values(self) -> bool:
        return self.dataset in VALUES

    @property
    def folder(self) -> Path:
        """Where the results of this split are."""
        return self.root / f"{self.dataset}-{self.shift}-{self.epochs}-epochs" / str(self.seed)

    @property
    def methods(self) -> tuple[str, ...]:
        """What the job makes."""
        if self.side == "ours":
            return OURS
        return ("chemprop" if self.side == "default" else f"chemprop-{self.side}",)

    @property
    def needs(self) -> tuple[MoleculeJob, ...]:
        """What must be done before: an ensemble of the peer begins with one of its models."""
        if self.side != "ensemble":
            return ()
        return (replace(self, side="mve" if self.is_values else "default"),)

    def file(self, method: str) -> Path:
        """Where the answers of a method are."""
        return self.folder / f"{method}.npz"

    @property
    def done(self) -> bool:
        return all(self.file(method).is_file() for method in self.methods)

    def splits(self) -> Splits:
        return load(f"molecules/{self.dataset}/{self.shift}", seed=self.seed)


def jobs(scale: ScaleName, seeds: int | None, root: Path) -> list[MoleculeJob]:
    """All jobs, in an order that leaves something of everything when time runs out early.

    What is cheap comes first: small datasets, low seeds; of the peer, an ensemble comes late.
    """
    if scale not in SCALES:
        raise InputError(f"a scale from {', '.join(SCALES)}", repr(scale))
    plan = SCALES[scale]
    found = [
        MoleculeJob(dataset, shift, seed, side, plan.epochs, root)
        for seed in range(seeds or plan.seeds)
        for dataset in plan.datasets
        for shift in SHIFTS
        for side in _sides(dataset, plan.peer)
    ]
    return sorted(found, key=_turn)


def _turn(job: MoleculeJob) -> float:
    late = MEMBERS if job.side == "ensemble" else 1
    return late * (job.seed + 1) * math.sqrt(_SIZES[job.dataset])


def _sides(dataset: str, peer: bool) -> tuple[Side, ...]:
    if not peer:
        return ("ours",)
    return ("ours", "default", "mve", "ensemble") if dataset in VALUES else (
        "ours", "default", "ensemble")  # fmt: skip
