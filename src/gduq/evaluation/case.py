"""What is judged: the predictions of one calibrator on all splits, and rows of the table."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gduq.evaluation.calibrated import Whole
from gduq.metrics import Interval
from gduq.metrics.resampling import share_interval
from gduq.prediction import Hypotheses

__all__ = ["Case", "Record", "Settings", "mean", "record", "share"]

Record = dict[str, Any]


@dataclass(frozen=True)
class Settings:
    """What an evaluation is made with; see `gduq.evaluate`."""

    fit_on: str
    negatives: str
    ood: tuple[str, ...]
    alpha: float
    bins: int
    abstain: Mapping[str, float]
    resamples: int
    level: float
    seed: int

    @property
    def sampling(self) -> dict[str, Any]:
        """The bootstrap's arguments."""
        return {"resamples": self.resamples, "level": self.level, "seed": self.seed}


@dataclass(frozen=True, eq=False)
class Case:
    """The predictions of one calibrator (or none) on all splits.

    Args:
        calibrator: Its name.
        predictions: By split.
        settings: What the evaluation is made with.
        whole: The graph of a node task.
        columns: What rows are grouped by, by split.
        held: What thresholds are fitted and judged on, if not this.
    """

    calibrator: str
    predictions: Mapping[str, Any]
    settings: Settings
    whole: Whole | None = None
    columns: Mapping[str, Mapping[str, Tensor]] | None = None
    held: Case | None = None

    @property
    def kind(self) -> str:
        """What the predictions are about."""
        return str(self._first.kind)

    @property
    def _first(self) -> Any:
        return next(iter(self.predictions.values()))

    @property
    def validation(self) -> Any:
        """Labelled predictions that thresholds are chosen on, or ``None``."""
        p = self.predictions.get(self.settings.fit_on)
        return None if p is None or p.target is None else p

    def judged(self) -> Iterator[tuple[str, Any]]:
        """Splits that nothing was trained or fitted on."""
        for split, p in self.predictions.items():
            if split not in ("train", self.settings.fit_on):
                yield split, p

    def column(self, t: int) -> Case:
        """Label or value number ``t`` alone, on the splits where it is known of some row."""
        parts = {split: p.column(t) for split, p in self.predictions.items()}
        held = None if self.held is None else self.held.column(t)
        known = {split: p for split, p in parts.items() if len(p)}
        return replace(self, predictions=known, whole=None, held=held)

    @property
    def names(self) -> list[str]:
        """What the labels or values are called; one alone needs no name."""
        p = self._first
        number = p.num_labels if p.kind == "labels" else p.num_values
        return [""] if number == 1 else list(p.names or map(str, range(number)))

    def each(self, part: Callable[[Case], Iterable[Record]]) -> Iterator[Record]:
        """A part of the table for one label or value after the other, by name; of classes once."""
        if not self.predictions:  # too few rows to hold any back for thresholds
            return
        if self.kind == "classes":
            yield from part(self)
            return
        for t, name in enumerate(self.names):
            one = self.column(t)
            for row in part(one) if one.predictions else ():
                variant = row.get("variant", "")
                yield row | {"variant": ": ".join(filter(None, (name, variant)))}


def record(split: str, p: Hypotheses, measure: str, value: Any, **more: str) -> Record:
    """One row of the table; ``value`` is a number, or a triple of value, low, high."""
    three = value if isinstance(value, tuple) else (value, math.nan, math.nan)
    low_high = dict(zip(("value", "low", "high"), map(float, three), strict=True))
    return {"split": split, "measure": measure, "rows": len(p), **low_high, **more}


def share(hits: Tensor, case: Case) -> Interval:
    """A share of rows with its Wilson interval."""
    return share_interval(float(hits.double().mean()), hits.numel(), case.settings.level)


def mean(values: Tensor, case: Case) -> tuple[float, float, float]:
    """A mean with its normal interval."""
    values = values.double()
    z = math.sqrt(2) * float(torch.erfinv(torch.tensor(case.settings.level, dtype=torch.float64)))
    half = z * float(values.std(correction=0)) / math.sqrt(values.numel())
    middle = float(values.mean())
    return middle, middle - half, middle + half
