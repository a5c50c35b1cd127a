"""How the report says numbers: points, ranges, and what a gap is called."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

from gduq.evaluation.gap import PROMISED
from gduq.metrics import Interval
from gduq.report.differences import clear
from gduq.report.seeds import runs_of
from gduq.report.subject import Subject

__all__ = [
    "CONFIDENCE",
    "Words",
    "change_in",
    "held",
    "points",
    "promise",
    "ranged",
    "signed",
    "state",
    "sure_and_right",
    "words_of",
]


@dataclass(frozen=True)
class Words:
    """What the gap between a promise and what is held is called."""

    over: str
    under: str
    neither: str
    further: str
    distance: str


CONFIDENCE = Words(
    "over-confident",
    "under-confident",
    "neither clearly over- nor under-confident",
    "Its confidence is further off",
    "how far confidence is from accuracy",
)
_INTERVALS = Words(
    "too narrow",
    "too wide",
    "neither clearly too narrow nor too wide",
    "Its intervals are further off",
    f"how far the intervals are from holding {100 * PROMISED:.0f} %",
)


def words_of(subject: Subject) -> Words:
    """Values have intervals, everything else has confidences."""
    return _INTERVALS if subject.kind == "values" else CONFIDENCE


def state(gap: Interval, words: Words = CONFIDENCE) -> str:
    """What a gap means.

    Example:
        >>> state(Interval(0.12, 0.1, 0.14)), state(Interval(0.01, -0.1, 0.1), _INTERVALS)
        ('over-confident by 12 points', 'neither clearly too narrow nor too wide')
    """
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
        known = [part.labelled(split) for run in runs_of(subject) for part in run.parts]
        sure = fmean(float(p.confidence.double().mean()) for p in known if p is not None)
    return 100 * sure, 100 * (sure - subject.number("gap", split).value)


def promise(subject: Subject, split: str, gap: Interval) -> str:
    """The whole statement: who holds how much of what it promises."""
    sure, right = sure_and_right(subject, split)
    if subject.kind == "values":
        many = f" (mean of {len(subject.names)} values)" if len(subject.names) > 1 else ""
        said = words_of(subject).neither if not clear(gap) else state(gap, words_of(subject))
        return (
            f"the {sure:.0f} % intervals of {subject.name} hold {right:.0f} % of the truth{many}: "
            f"they are {said}"
        )
    return f"{subject.name} is {state(gap)}: {held(subject, split)}"


def held(subject: Subject, split: str) -> str:
    """The same without its name."""
    sure, right = sure_and_right(subject, split)
    if subject.kind == "values":
        return f"its {sure:.0f} % intervals hold {right:.0f} % of the truth"
    many = f" over {len(subject.names)} labels" if len(subject.names) > 1 else ""
    return f"on average{many} it is {sure:.0f} % sure and {right:.0f} % right"


def change_in(name: str, change: Interval) -> str:
    """A change of a share of rows in points.

    Example:
        >>> change_in("Accuracy", Interval(0.05, 0.02, 0.08))
        'Accuracy is 5.0 points higher (+2.0 to +8.0).'
    """
    if change == (0.0, 0.0, 0.0):
        return f"{name} is the same."
    if not clear(change):
        return f"{name}: no clear change ({signed(change.value)}, {ranged(change)[1:]}."
    word = "higher" if change.value > 0 else "lower"
    return f"{name} is {points(abs(change.value))} {word} {ranged(change)}."


# -- figures in words ----------------------------------------------------------------------------


def points(share: float) -> str:
    """Percentage points.

    Example:
        >>> points(0.123), points(0.0123)
        ('12 points', '1.2 points')
    """
    number = f"{100 * share:.0f}" if share >= 0.1 else f"{100 * share:.1f}"
    return f"{number} point" if number == "1" else f"{number} points"


def signed(share: float) -> str:
    """Percentage points with their sign."""
    return f"{_number(share)} points"


def ranged(found: Interval) -> str:
    """The interval of a share, in percentage points and brackets."""
    return f"({_number(found.low)} to {_number(found.high)})"


def _number(share: float) -> str:
    shown = f"{100 * share:+.1f}"
    return "0.0" if shown in ("+0.0", "-0.0") else shown.replace("-", "−")
