"""The records of `results/summary.json`, looked up by cell and method."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

Record = Mapping[str, Any]
KEYS = (
    *("table", "dataset", "shift", "model", "variant", "calibrator", "split", "metric"),
    *("mean", "std", "seeds", "paper", "scale", "command"),
)
ID, OOD = "id_test", "ood_test"
ON_COPIES = "temperature+corrupted"  # what `gduq.fit` ends with


class Cell(NamedTuple):
    """Data, shift and network: what a method is measured on; bars average the networks."""

    dataset: str
    shift: str
    model: str

    def __str__(self) -> str:
        return f"{self.dataset} {self.shift}, {self.model}"


class Method(NamedTuple):
    """A way of training and what is done to its logits afterwards."""

    variant: str
    calibrator: str = "none"


VANILLA = Method("vanilla")
T2 = Method("vanilla", "t2")
TS = Method("vanilla", "temperature")
TS_COPIES = Method("vanilla", ON_COPIES)
ENSEMBLE = Method("ensemble")
MC_DROPOUT = Method("mcdropout")
GDUQ = Method("gduq")
GDUQ_COPIES = Method("gduq", ON_COPIES)
PRETRAINED = Method("gduq-pretrained")
BASE = Method("gduq-pretrained base")  # its frozen network, where that is not the vanilla one

NAMES = {
    VANILLA: "vanilla",
    T2: "vanilla, T = 2",
    TS: "vanilla, temperature scaling",
    TS_COPIES: "vanilla, temperature scaling on clean and corrupted rows",
    ENSEMBLE: "ensemble of 3",
    MC_DROPOUT: "MC dropout",
    GDUQ: "G-ΔUQ",
    PRETRAINED: "G-ΔUQ, pretrained",
}


class Index:
    """Numbers by cell, method, metric and split; of equal keys the first record counts.

    Tables share runs, so a number that stands in two tables is the same one.
    """

    def __init__(self, records: Iterable[Record]) -> None:
        self._found: dict[tuple[str, ...], Record] = {}
        self._table: dict[Cell, str] = {}
        for r in records:
            self._found.setdefault(tuple(r[k] for k in KEYS[1:8]), r)
            if r["split"] == OOD:
                self._table.setdefault(Cell(r["dataset"], r["shift"], r["model"]), r["table"])

    @property
    def cells(self) -> list[Cell]:
        """Every cell that was judged under shift."""
        return list(self._table)

    def table(self, cell: Cell) -> str:
        """The first table a cell stands in."""
        return self._table[cell]

    def record(self, cell: Cell, method: Method, metric: str, split: str = OOD) -> Record | None:
        return self._found.get((*cell, *method, split, metric))

    def mean(self, cell: Cell, method: Method, metric: str, split: str = OOD) -> float | None:
        """Mean over seeds, or ``None`` where there is none."""
        found = self.record(cell, method, metric, split)
        return None if found is None else found["mean"]

    def pairs(
        self, ours: Method, theirs: Method, metric: str, split: str = OOD, among: Any = None
    ) -> dict[Cell, tuple[float, float]]:
        """Both numbers of every cell that has them."""
        found = {}
        for cell in self.cells if among is None else among:
            two = self.mean(cell, ours, metric, split), self.mean(cell, theirs, metric, split)
            if two[0] is not None and two[1] is not None:
                found[cell] = (two[0], two[1])
        return found


def joined(
    pairs: Mapping[Cell, tuple[float, float]],
) -> dict[tuple[str, str], tuple[float, float]]:
    """The same with the networks of a dataset and shift averaged."""
    groups: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for cell, pair in pairs.items():
        groups.setdefault((cell.dataset, cell.shift), []).append(pair)
    return {key: (mean([a for a, _ in group]), mean([b for _, b in group]))
            for key, group in groups.items()}  # fmt: skip


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def rounded(value: Any, digits: int = 5) -> Any:
    """To so many significant digits; whole numbers and everything but floats stay as they are.

    Example:
        >>> rounded(0.1234567), rounded(2001310.0)
        (0.12346, 2001310.0)
    """
    if not isinstance(value, float) or value.is_integer():
        return value
    return float(f"{value:.{digits}g}")
