"""The verdict: what the numbers say, in plain words, and never more than they say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from gduq.metrics import Interval
from gduq.report import seeds
from gduq.report.scores import clear, sampling
from gduq.report.subject import Subject, main_split, shift_name

__all__ = ["Point", "Verdict", "cost_ratios", "sure_and_right", "verdict"]

Tone = Literal["good", "bad", "neutral"]
_COSTS = {"train_seconds": "training time", "predict_seconds": "prediction time"}


@dataclass(frozen=True)
class Point:
    """One statement: about whom, what, and whether that is good."""

    about: str
    text: str
    tone: Tone = "neutral"


@dataclass(frozen=True)
class Verdict:
    """One sentence that says it all, and what stands behind it."""

    headline: str
    tone: Tone
    points: tuple[Point, ...]
    note: str


def verdict(subjects: Sequence[Subject]) -> Verdict:
    """Judge the first subject, and what each other one changes.

    A change is only called one if the interval of the paired difference leaves out 0.

    Example:
        >>> import torch
        >>> from gduq.prediction import Prediction
        >>> p = Prediction(torch.tensor([[9.0, 0.0]]).repeat(40, 1), torch.tensor([0, 1] * 20))
        >>> verdict([Subject("vanilla", {"ood_test": p})]).headline.split(":")[0]
        'Under shift, vanilla is over-confident by 50 points'
    """
    first, split = subjects[0], main_split(subjects)
    p = first.labelled(split) if split is not None else None
    if p is None or split is None:
        text = "The true labels are not known, so nothing can be said about right and wrong."
        return Verdict(text, "neutral", (), "Predict on labelled data to get a verdict.")
    gap = seeds.number("gap", first, split)
    points = [*_at_home(first, split)]
    points += [_change(first, other, split, gap) for other in subjects[1:]]
    return Verdict(
        f"{shift_name(subjects, split)}, {first.name} is {_state(gap)}: {_sure(first, split)}.",
        "bad" if clear(gap) else "neutral",
        tuple(points),
        _note(subjects, split, len(p)),
    )


def _note(subjects: Sequence[Subject], split: str, rows: int) -> str:
    level = 100 * sampling(subjects[0].result)["level"]
    note = (
        f"Judged on {rows} rows of {split}. Points are percentage points; in brackets stands the "
        f"{level:g} % interval from resampling these rows"
    )
    if any(s.runs for s in subjects):
        note += ", with the spread over training seeds where there are several"
    if all(s.runs for s in subjects):
        return f"{note}."
    return f"{note}. Training again with another seed can move the numbers further than that."


# -- the first subject ---------------------------------------------------------------------------


def _state(gap: Interval) -> str:
    if not clear(gap):
        return "neither clearly over- nor under-confident"
    return f"{_side(gap)} by {_points(abs(gap.value))}"


def _side(gap: Interval) -> str:
    return "over-confident" if gap.value > 0 else "under-confident"


def _sure(subject: Subject, split: str) -> str:
    sure, right = sure_and_right(subject, split)
    return f"on average it is {sure:.0f} % sure and {right:.0f} % right"


def sure_and_right(subject: Subject, split: str) -> tuple[float, float]:
    """Mean confidence and accuracy in percent, over all runs of a subject."""
    known = [run.labelled(split) for run in seeds.runs_of(subject)]
    pairs = [(p.confidence.double().mean(), p.correct.double().mean()) for p in known if p]
    return tuple(100 * fmean(map(float, column)) for column in zip(*pairs, strict=True))  # type: ignore[return-value]


def _at_home(first: Subject, split: str) -> list[Point]:
    """The same without shift, if there is such a split."""
    if split == "id_test" or first.labelled("id_test") is None:
        return []
    gap = seeds.number("gap", first, "id_test")
    state = f"{_state(gap)} {_range(gap)}: {_sure(first, 'id_test')}"
    return [Point(first.name, f"On data like its training data (id_test) it is {state}.")]


# -- the others ----------------------------------------------------------------------------------


def _change(first: Subject, other: Subject, split: str, gap: Interval) -> Point:
    if other.labelled(split) is None:
        return Point(other.name, f"It has no labelled predictions on {split}.")
    nearer, better = (seeds.change(name, first, other, split) for name in ("distance", "accuracy"))
    if nearer is None or better is None:
        text = f"It was judged on other rows of {split}, so no difference is claimed."
        return Point(other.name, text)
    before = seeds.number("distance", first, split).value
    parts = [
        _nearer(nearer, gap, seeds.number("gap", other, split), before),
        _accuracy(better),
        _cost(first, other),
    ]
    return Point(other.name, " ".join(filter(None, parts)), _tone(nearer, better))


def _tone(nearer: Interval, better: Interval) -> Tone:
    good = (clear(nearer) and nearer.value < 0) + (clear(better) and better.value > 0)
    bad = (clear(nearer) and nearer.value > 0) + (clear(better) and better.value < 0)
    if good and bad:
        return "neutral"
    return "good" if good else "bad" if bad else "neutral"


def _nearer(change: Interval, gap: Interval, now: Interval, before: float | None = None) -> str:
    """What becomes of the gap between confidence and accuracy, whose size was ``before``."""
    if not clear(change):
        return (
            f"No clear change in how far confidence is from accuracy: a gap of "
            f"{_signed(now.value)} instead of {_signed(gap.value)}; the difference in size is "
            f"within its interval {_range(change)}."
        )
    state = f"{_state(now)} (gap {_signed(now.value)}, {_range(now)[1:]}"
    if change.value > 0:
        return f"Its confidence is further off: {state}."
    crossed = " and crosses over" if clear(now) and now.value * gap.value < 0 else ""
    size = abs(gap.value) if before is None else before  # gaps of several runs may cancel
    return f"{_cut(1 + change.value / size)}{crossed}: {state}."


def _cut(ratio: float) -> str:
    if ratio < 0.1:
        return "Nearly closes the gap"
    if 0.45 <= ratio <= 0.55:
        return "Halves the gap"
    return f"Cuts the gap by {100 * (1 - ratio):.0f} %"


def _accuracy(change: Interval) -> str:
    if change == (0.0, 0.0, 0.0):
        return "Accuracy is the same."
    if not clear(change):
        return f"Accuracy: no clear change ({_signed(change.value)}, {_range(change)[1:]}."
    word = "higher" if change.value > 0 else "lower"
    return f"Accuracy is {_points(abs(change.value))} {word} {_range(change)}."


def _cost(first: Subject, other: Subject) -> str:
    ratios = cost_ratios(first, other)
    parts = [f"{ratios[key]:.2g}× the {name}" for key, name in _COSTS.items() if key in ratios]
    return f"It costs {' and '.join(parts)} of {first.name}." if parts else ""


def cost_ratios(first: Subject, other: Subject) -> dict[str, float]:
    """Each cost relative to the first subject, where both have it.

    Example:
        >>> import torch
        >>> from gduq.prediction import Prediction
        >>> p = {"test": Prediction(torch.eye(2))}
        >>> cost_ratios(Subject("a", p, {"train": 2}), Subject("b", p, {"train": 6}))
        {'train': 3.0}
    """
    base, cost = first.cost or {}, other.cost or {}
    return {key: cost[key] / base[key] for key in base if key in cost and base[key] > 0}


# -- figures in words ----------------------------------------------------------------------------


def _points(share: float) -> str:
    number = f"{100 * share:.0f}" if share >= 0.1 else f"{100 * share:.1f}"
    return f"{number} point" if number == "1" else f"{number} points"


def _signed(share: float) -> str:
    return f"{_number(share)} points"


def _range(found: Interval) -> str:
    return f"({_number(found.low)} to {_number(found.high)})"


def _number(share: float) -> str:
    shown = f"{100 * share:+.1f}"
    return "0.0" if shown in ("+0.0", "-0.0") else shown.replace("-", "−")
