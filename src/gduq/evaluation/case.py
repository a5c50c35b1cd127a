"""What is judged: predictions under one calibrator on all splits, and rows of the table."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from gduq.evaluation.calibrated import Calibrated

__all__ = ["Case", "EvaluationSettings", "Record"]

Record = dict[str, Any]


@dataclass(frozen=True)
class EvaluationSettings:
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
    """Predictions under one calibrator, or none, and what their rows are grouped by."""

    calibrator: str
    answers: Calibrated
    settings: EvaluationSettings
    columns: Mapping[str, Mapping[str, Tensor]] | None = None

    @property
    def predictions(self) -> dict[str, Any]:
        """By split."""
        return self.answers.raw

    @property
    def kind(self) -> str:
        """What the predictions are about."""
        return str(next(iter(self.predictions.values())).kind)

    @property
    def names(self) -> list[str]:
        """What the labels or values are called; one alone needs no name."""
        p = next(iter(self.predictions.values()))
        number = p.num_labels if p.kind == "labels" else p.num_values
        return [""] if number == 1 else list(p.names or map(str, range(number)))

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

    def each(self, part: Callable[[Case], Iterable[Record]]) -> Iterator[Record]:
        """A part of the table for one label or value after the other, by name; of classes once."""
        if self.kind == "classes":
            yield from part(self)
            return
        for t, name in enumerate(self.names):
            columns = {split: p.column(t) for split, p in self.predictions.items()}
            known = {split: p for split, p in columns.items() if len(p)}
            one = replace(self, answers=Calibrated(known, self.settings.fit_on))
            for row in part(one) if known else ():
                yield row | {"variant": ": ".join(filter(None, (name, row["variant"])))}

    def record(self, kind: str, split: str, measure: str, value: Any, **more: Any) -> Record:
        """One row of the table; ``value`` is a number, or a triple of value, low, high."""
        three = value if isinstance(value, tuple) else (value, math.nan, math.nan)
        numbers = dict(zip(("value", "low", "high"), map(float, three), strict=True))
        row = {"kind": kind, "split": split, "calibrator": self.calibrator, "measure": measure}
        rows = len(self.predictions[split])
        return {**row, **numbers, "rows": rows, "variant": "", "against": "", **more}
