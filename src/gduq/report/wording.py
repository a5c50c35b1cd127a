"""How the report says what it found about one model: its gap, its skill, and the figures."""

from __future__ import annotations

from statistics import fmean
from typing import NamedTuple

from gduq import metrics
from gduq.evaluation.gap import PROMISED
from gduq.metrics import Interval
from gduq.report.differences import clear
from gduq.report.subject import Subject

__all__ = [
    "UNEVEN", "Recall", "Words", "common_class", "common_share", "held", "no_skill", "points",
    "promise", "ranged", "recalls", "signed", "skill", "state", "sure_and_right", "words_of",
]  # fmt: skip

UNEVEN = 1.5  # times its fair share of the rows make a class so common that others are rare


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


def words_of(subject: Subject) -> Words:
    """Values have intervals, everything else has confidences."""
    return _INTERVALS if subject.kind == "values" else _CONFIDENCE


def state(gap: Interval, words: Words) -> str:
    """What a gap means: ``over-confident by 12 points``."""
    if not clear(gap):
        return words.neither
    return f"{words.over if gap.value > 0 else words.under} by {points(abs(gap.value))}"


def sure_and_right(subject: Subject, split: str) -> tuple[float, float]:
    """What it promises and what it holds in percent, over all its runs.

    Of classes and labels the mean confidence and the accuracy; of values the level of the
    intervals and the share of the truth in them.
    """
    sure = PROMISED
    if subject.kind != "values":
        known = [part.labelled(split) for run in subject.each_run for part in run.parts]
        sure = fmean(float(p.confidence.double().mean()) for p in known if p is not None)
    return 100 * sure, 100 * (sure - subject.number("gap", split).value)


def promise(subject: Subject, split: str, gap: Interval) -> str:
    """The whole statement: who holds how much of what it promises."""
    said = state(gap, words_of(subject))
    if subject.kind != "values":
        return f"{subject.name} is {said}: {held(subject, split)}"
    many = f" (mean of {len(subject.names)} values)" if len(subject.names) > 1 else ""
    return f"{held(subject, split, f'the {{}} of {subject.name}')}{many}: they are {said}"


def held(subject: Subject, split: str, whose: str = "its {}") -> str:
    """How much of what it promises it holds."""
    sure, right = sure_and_right(subject, split)
    if subject.kind == "values":
        return f"{whose.format(f'{sure:.0f} % intervals')} hold {right:.0f} % of the truth"
    many = f" over {len(subject.names)} labels" if len(subject.names) > 1 else ""
    return f"on average{many} it is {sure:.0f} % sure and {right:.0f} % right"


# -- skill and rare classes ----------------------------------------------------------------------


class Recall(NamedTuple):
    """A class, the share of its rows that a model finds, and how many rows it has."""

    name: str
    share: float
    rows: int


def recalls(subject: Subject, split: str) -> list[Recall]:
    """Of every class with rows, rarest first; means over the runs of a subject."""
    known = [p for run in subject.each_run if (p := run.labelled(split)) is not None]
    counts = known[0].require_target().bincount().tolist()
    found = []
    for label in sorted((c for c, rows in enumerate(counts) if rows), key=counts.__getitem__):
        shares = [float(p.correct[p.target == label].double().mean()) for p in known]
        found.append(Recall(subject.class_name(label, split), fmean(shares), counts[label]))
    return found


def common_class(subject: Subject, split: str) -> str:
    """The name of the class with most rows."""
    return max(recalls(subject, split), key=lambda r: r.rows).name


def common_share(subject: Subject, split: str) -> float:
    """How often always giving the most common answer would be right; of labels on average."""
    return metrics.majority(subject.labelled(split)).accuracy


def skill(subject: Subject, split: str) -> bool:
    """Whether it does more than one answer for all rows would.

    Of classes and labels its accuracy is above that of the most common answer; of values its mean
    squared error is below the variance of the truth (of several values: on average). Rows that all
    have the same truth cannot tell, and nothing is held against it.
    """
    if subject.kind == "values":
        return not subject.number("r2", split).value <= 0
    always = common_share(subject, split)
    return always == 1 or subject.number("accuracy", split).value > always


def no_skill(subject: Subject, split: str) -> str:
    """What is said of a model without skill."""
    if subject.kind == "values":
        return f"{subject.name} is no nearer to the truth than one number for all rows would be"
    answer = "giving each label's more common answer"
    if subject.kind == "classes":
        answer = f"answering “{common_class(subject, split)}”"
    share = f"{100 * common_share(subject, split):.0f} %"
    return f"{subject.name} is no better than always {answer}, which is right {share} of the time"


# -- figures in words ----------------------------------------------------------------------------


def points(share: float) -> str:
    """Percentage points: ``12 points``, ``1.2 points``."""
    number = f"{100 * share:.0f}" if share >= 0.1 else f"{100 * share:.1f}"
    return f"{number} points"


def signed(share: float) -> str:
    """The same with its sign, without the word."""
    shown = f"{100 * share:+.1f}"
    return "0.0" if shown in ("+0.0", "-0.0") else shown.replace("-", "−")


def ranged(found: Interval) -> str:
    """The interval of a share, in percentage points."""
    return f"{signed(found.low)} to {signed(found.high)}"
