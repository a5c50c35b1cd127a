"""What one model promises and holds on a split, and how a sentence says it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import NamedTuple

import numpy as np

from gduq import metrics
from gduq.evaluation.gap import PROMISED
from gduq.metrics import Interval
from gduq.report.comparing import clear
from gduq.report.subject import Subject

__all__ = ["JudgedSplit", "Recall", "Words", "points", "ranged", "signed", "state"]

_UNEVEN = 1.5  # times its fair share of the rows make a class so common that others are rare
_WIDE = 0.5  # of the spread of the measured values: wider 90 % intervals say too little
_EXPLAINED = 0.1  # an R² below which a model of values is of little use
_FOUND = 1 / 3  # a share of a label's or class's rows; who finds less of them misses most
_NAMED = 3  # faults that a sentence names


class Words(NamedTuple):
    """What the gap between a promise and what is held is called."""

    over: str
    under: str
    neither: str
    who: str
    further: str


_CONFIDENCE = Words(
    "over-confident", "under-confident", "neither clearly over- nor under-confident",
    "it is", "Its confidence is further off",
)  # fmt: skip
_INTERVALS = Words(
    "too narrow", "too wide", "neither clearly too narrow nor too wide", "its intervals are",
    "Its intervals are further off",
)  # fmt: skip


class Recall(NamedTuple):
    """A class, the share of its rows that a model finds, and how many rows it has."""

    name: str
    share: float
    rows: int


@dataclass(frozen=True, eq=False)
class JudgedSplit:
    """A subject on a split whose truth is known."""

    subject: Subject
    split: str

    def value(self, measure: str) -> Interval:
        """A number of its evaluation here."""
        return self.subject.value(self.split, measure)

    @cached_property
    def gap(self) -> Interval:
        """What it promises minus what it holds."""
        return self.value("gap")

    @property
    def words(self) -> Words:
        """Values have intervals, everything else has confidences."""
        return _INTERVALS if self.subject.kind == "values" else _CONFIDENCE

    @property
    def state(self) -> str:
        """What its gap means."""
        return state(self.gap, self.words)

    @cached_property
    def sure_and_right(self) -> tuple[float, float]:
        """What it promises and what it holds in percent, over all its runs.

        Of classes and labels the mean confidence and the accuracy; of values the level of the
        intervals and the share of the truth in them.
        """
        sure = PROMISED
        if self.subject.kind != "values":
            parts = [part for run in self.subject.each_run for part in run.parts]
            known = [p for part in parts if (p := part.labelled(self.split)) is not None]
            sure = fmean(float(p.confidence.double().mean()) for p in known)
        return 100 * sure, 100 * (sure - self.gap.value)

    def held(self, whose: str = "its {}") -> str:
        """How much of what it promises it holds."""
        (sure, right), many = self.sure_and_right, len(self.subject.names)
        if self.subject.kind == "values":
            return f"{whose.format(f'{sure:.0f} % intervals')} hold {right:.0f} % of the truth"
        over = f" over {many} labels" if many > 1 else ""
        return f"on average{over} it is {sure:.0f} % sure and {right:.0f} % right"

    @property
    def promise(self) -> str:
        """The whole statement: who holds how much of what it promises, or that it has no skill."""
        name, many = self.subject.name, len(self.subject.names)
        if not self.skill:
            return f"{self._no_skill}; {self.held()}"
        if self.subject.kind != "values":
            return f"{name} is {self.state}: {self.held()}{self._one_answer}"
        mean = f" (mean of {many} values)" if many > 1 else ""
        return f"{self.held(f'the {{}} of {name}')}{mean}: they are {self.state}"

    # -- skill and rare classes ------------------------------------------------------------------

    @cached_property
    def recalls(self) -> list[Recall]:
        """Of every class with rows, rarest first; means over the runs of a subject."""
        runs = [run.labelled(self.split) for run in self.subject.each_run]
        known = [p for p in runs if p is not None]
        counts = known[0].require_target().bincount().tolist()
        found = []
        for label in sorted((c for c, rows in enumerate(counts) if rows), key=counts.__getitem__):
            share = fmean(float(p.correct[p.target == label].double().mean()) for p in known)
            name = self.subject.class_name(label, self.split)
            found.append(Recall(name, share, counts[label]))
        return found

    @property
    def common_class(self) -> str:
        """The name of the class with most rows."""
        return max(self.recalls, key=lambda r: r.rows).name

    @cached_property
    def common_share(self) -> float:
        """How often always giving the most common answer would be right; of labels on average."""
        return metrics.majority(self.subject.labelled(self.split)).accuracy

    def uneven(self, classes: int) -> bool:
        """Whether the most common of so many classes makes others rare."""
        return self.common_share >= _UNEVEN / classes

    @property
    def skill(self) -> bool:
        """Whether it does more than one answer for all rows would.

        Of classes and labels its accuracy is above that of the most common answer; of values its
        mean squared error is below the variance of the truth (of several values: on average). Rows
        that all have the same truth cannot tell, and nothing is held against it.
        """
        if self.subject.kind == "values":
            return not self.value("r2").value <= 0
        return self.common_share == 1 or self.value("accuracy").value > self.common_share

    @cached_property
    def fault(self) -> str:
        """Why it is of little use, which confidence that is too low does not excuse; else empty.

        Of values an R² below 0.1, or intervals that are clearly too wide and wider than half of the
        spread of the measured values here (from their 5 to their 95 % quantile); of classes and
        labels one of which it finds less than a third.
        """
        judged = [JudgedSplit(part, self.split) for part in self.subject.parts]
        named = zip(judged, self.subject.names, strict=True)
        found = [
            text
            for one, name in named
            if one.subject.labelled(self.split) is not None
            for text in (one._vague(name) if self.subject.kind == "values" else self._missed(one))
        ]
        more = f", and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        return ", ".join(found[:_NAMED]) + more

    def _vague(self, name: str) -> Iterator[str]:
        about = f" of “{name}”" if name else ""
        explained, width = self.value("r2").value, self.value("width_90").value
        if explained < _EXPLAINED:
            yield f"it explains {100 * explained:.0f} % of the variance{about} (R²)"
        truth = self.subject.labelled(self.split).target.cpu().numpy()
        low, high = np.quantile(truth, (0.05, 0.95))
        too_wide = clear(self.gap) and self.gap.value < 0
        if too_wide and high > low and width > _WIDE * (high - low):
            share = f"{100 * width / (high - low):.0f} %"
            spread = f"the 5 to 95 % range of the measured values ({high - low:.3g})"
            yield f"its 90 % intervals{about} are {width:.3g} wide, {share} of {spread}"

    def _missed(self, one: JudgedSplit) -> Iterator[str]:
        """Of labels it is "yes" that counts."""
        yes = one.subject.class_name(1, self.split) if self.subject.kind == "labels" else None
        for name, share, rows in one.recalls:
            if share < _FOUND and yes in (name, None):
                yield f"it finds {100 * share:.0f} % of “{name}” ({rows:,} rows)"

    @property
    def _one_answer(self) -> str:
        """That the rows cannot show whether anything is told apart, where all have one truth."""
        if self.common_share < 1:
            return ""
        truth = "one truth per label"
        if self.subject.kind == "classes":
            truth = f"the class “{self.common_class}”"
        return f", but all of these rows have {truth}, so they cannot show whether others are found"

    @property
    def _no_skill(self) -> str:
        name = self.subject.name
        if self.subject.kind == "values":
            return f"{name} is no nearer to the truth than one number for all rows would be"
        answer = "giving each label's more common answer"
        if self.subject.kind == "classes":
            answer = f"answering “{self.common_class}”"
        share = f"{100 * self.common_share:.0f} %"
        return f"{name} is no better than always {answer}, which is right {share} of the time"


# -- figures in words ----------------------------------------------------------------------------


def state(gap: Interval, words: Words) -> str:
    """What a gap means: ``over-confident by 12 points``."""
    if not clear(gap):
        return words.neither
    return f"{words.over if gap.value > 0 else words.under} by {points(abs(gap.value))}"


def points(share: float) -> str:
    """Percentage points: ``12 points``, ``1.2 points``."""
    return f"{100 * share:.{0 if share >= 0.1 else 1}f} points"


def signed(share: float) -> str:
    """The same with its sign, without the word."""
    shown = f"{100 * share:+.1f}"
    return "0.0" if shown in ("+0.0", "-0.0") else shown.replace("-", "−")


def ranged(found: Interval) -> str:
    """The interval of a share, in percentage points."""
    return f"{signed(found.low)} to {signed(found.high)}"
