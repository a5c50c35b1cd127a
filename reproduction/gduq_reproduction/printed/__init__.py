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
    """A figure of the paper: mean, and standard deviation or ``None``."""

    mean: float
    std: float | None


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


def lookup(names: Sequence[str], **key: str | None) -> Printed | None:
    """The figure of a cell from the first of some files that has it.

    A file that does not tell cells apart by a key (most have one model a dataset) fits any value.

    Example:
        >>> cell = {"dataset": "cora/word", "shift": "concept", "variant": "nfa"}
        >>> lookup(["good_shifts_node"], **cell, calibrator="none", split="ood_test", metric="ece")
        Printed(mean=0.111, std=0.013)
    """
    for name in names:
        for entry in load(name)["entries"]:
            own = {k: v for k, v in entry.items() if k not in ("mean", "std") and v is not None}
            if all(key.get(k) == v for k, v in own.items()):
                return Printed(entry["mean"], entry["std"])
    return None
