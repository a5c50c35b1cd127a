"""What one model promises and holds on a split, and how a sentence says it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import NamedTuple

from gduq import metrics
from gduq.evaluation.gap import PROMISED
from gduq.metrics import Interval
from gduq.report.comparing import clear
from gduq.report.subject import Subject

__all__ = ["JudgedSplit", "Recall", "Words", "points", "ranged", "signed", "state"]

_UNEVEN = 1.5  # times its fair share of the rows make a class so common that others are rare


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
