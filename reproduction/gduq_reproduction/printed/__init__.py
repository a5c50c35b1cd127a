"""The figures that the paper prints, as data files with the label of their table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any, NamedTuple

__all__ = ["FILES", "Printed", "load", "lookup"]

FILES = sorted(f.name.removesuffix(".json") for f in files(__name__).iterdir() if ".json" in f.name)


class Printed(NamedTuple):
    """A figure of the paper: mean, and standard deviation or ``None``.

    Example:
        >>> str(Printed(0.1, 0.02)), str(Printed(0.3, None))
        ('0.1 ± 0.02', '0.3')
    """

    mean: float
    std: float | None

    def __str__(self) -> str:
        return f"{self.mean:.10g}" + ("" if self.std is None else f" ± {self.std:g}")


@lru_cache
def load(name: str) -> dict[str, Any]:
    """One data file: ``label``, ``source`` and ``entries``.

    Example:
        >>> load("parameters")["label"], len(load("parameters")["entries"])
        ('tab:num_param_per_model', 23)
    """
    text = (files(__name__) / f"{name}.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def lookup(names: Sequence[str], cell: str, **key: object) -> Printed | None:
    """The figure of a cell and a ``key`` from the first of some files that has it.

    A file that does not tell cells apart by a key (most have one model a dataset) fits any value.
    Methods, calibrations, splits and measures have our names.

    Example:
        >>> key = {"method": "NFA", "calibration": "none", "split": "ood_test"}
        >>> lookup(["good_shifts_node"], "cora/word/concept gcn", **key, measure="ece100")
        Printed(mean=0.111, std=0.013)
    """
    data, _, model = cell.partition(" ")
    dataset, _, shift = data.replace("motif-exact", "motif-lpe").rpartition("/")
    key |= {"dataset": dataset, "shift": shift, "model": model}
    for name in names:
        for entry in load(name)["entries"]:
            own = {k: v for k, v in entry.items() if k not in ("mean", "std") and v is not None}
            if own.items() <= key.items():
                return Printed(entry["mean"], entry["std"])
    return None
