"""The verdict: what the numbers say, in plain words, and never more than they say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gduq.metrics import Interval
from gduq.prediction import Prediction
from gduq.report.scores import clear, difference, measured, sampling
from gduq.report.subject import Subject, main_split, shift_name

__all__ = ["Point", "Verdict", "cost_ratios", "verdict"]

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
        >>> p = Prediction(torch.tensor([[9.0, 0.0]]).repeat(40, 1), torch.tensor([0, 1] * 20))
        >>> verdict([Subject("vanilla", {"ood_test": p})]).headline.split(":")[0]
        'Under shift, vanilla is over-confident by 50 points'
    """
    first, split = subjects[0], main_split(subjects)
    p = first.labelled(split) if split is not None else None
    if p is None or split is None:
        text = "The true labels are not known, so nothing can be said about right and wrong."
        return Verdict(text, "neutral", (), "Predict on labelled data to get a verdict.")
    options = sampling(first.result)
    gap = measured("gap", p, options)
    points = [*_at_home(first, split, options)]
    points += [_change(first, other, split, gap, options) for other in subjects[1:]]
    return Verdict(
        f"{shift_name(subjects, split)}, {first.name} is {_state(gap)}: {_sure(p)}.",
        "bad" if clear(gap) else "neutral",
        tuple(points),
        _note(split, len(p), options["level"]),
    )


def _note(split: str, rows: int, level: float) -> str:
    return (
        f"Judged on {rows} rows of {split}. Points are percentage points; in brackets stands the "
        f"{100 * level:g} % interval from resampling these rows. Training again with another seed "
        "can move the numbers further than that."
    )


# -- the first subject ---------------------------------------------------------------------------


def _state(gap: Interval) -> str:
    if not clear(gap):
        return "neither clearly over- nor under-confident"
    return f"{_side(gap)} by {_points(abs(gap.value))}"


def _side(gap: Interval) -> str:
    return "over-confident" if gap.value > 0 else "under-confident"


def _sure(p: Prediction) -> str:
    sure, right = 100 * float(p.confidence.mean()), 100 * float(p.correct.double().mean())
    return f"on average it is {sure:.0f} % sure and {right:.0f} % right"


def _at_home(first: Subject, split: str, options: Mapping[str, Any]) -> list[Point]:
    """The same without shift, if there is such a split."""
    p = first.labelled("id_test")
    if split == "id_test" or p is None:
        return []
    gap = measured("gap", p, options)
    text = (
        f"On data like its training data (id_test) it is {_state(gap)} {_range(gap)}: {_sure(p)}."
    )
    return [Point(first.name, text)]


# -- the others ----------------------------------------------------------------------------------


def _change(
    first: Subject, other: Subject, split: str, gap: Interval, options: Mapping[str, Any]
) -> Point:
    p, q = first.labelled(split), other.labelled(split)
    if p is None or q is None:
        return Point(other.name, f"It has no labelled predictions on {split}.")
    nearer, better = (difference(name, p, q, options) for name in ("distance", "accuracy"))
    if nearer is None or better is None:
        text = f"It was judged on other rows of {split}, so no difference is claimed."
        return Point(other.name, text)
    parts = [
        _nearer(nearer, gap, measured("gap", q, options)),
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


def _nearer(change: Interval, gap: Interval, now: Interval) -> str:
    """What becomes of the gap between confidence and accuracy."""
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
    return f"{_cut(abs(now.value) / abs(gap.value))}{crossed}: {state}."


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
